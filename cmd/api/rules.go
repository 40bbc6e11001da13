// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"net/http"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/sources/events"
	"github.com/sluice-net/sluice/tables"
)

// RulesReport is the answer of /rules.
type RulesReport struct {
	Counted bool                 `json:"counted"` // programs are loaded, so that the counts mean something
	Rules   []events.RuleCounter `json:"rules"`
}

func (h *handlers) rules(w http.ResponseWriter, _ *http.Request) {
	if h.events == nil {
		writeError(w, http.StatusServiceUnavailable, "this agent counts nothing")
		return
	}
	counters, err := h.events.RuleCounters()
	if err != nil {
		writeError(w, http.StatusInternalServerError, "%v", err)
		return
	}
	writeJSON(w, http.StatusOK, RulesReport{Counted: h.events.Reports(), Rules: counters})
}

// joinedAfter is behind which columns of network-policies those of
// network-policy-status are shown.
const joinedAfter = 2

var joinedColumns = []string{"State", "Programmed"}

// header returns the columns of a table for people.
func (h *handlers) header(table statedb.AnyTable) []string {
	return h.joined(table, table.TableHeader(), joinedColumns)
}

// row returns a row for people. That of a network policy also says whether it is in force.
func (h *handlers) row(txn statedb.ReadTxn, table statedb.AnyTable, row any) []string {
	cells := []string{"-", "-"}
	if policy, ok := row.(*tables.NetworkPolicy); ok && h.tables.Network != nil {
		if status, _, ok := h.tables.Network.Get(txn, tables.NetworkPolicyStatusByPolicy(policy.ID())); ok {
			cells = []string{string(status.State), fmt.Sprintf("%d/%d", status.Programmed, status.EntriesWanted)}
		}
	}
	return h.joined(table, table.TableRow(row), cells)
}

func (h *handlers) joined(table statedb.AnyTable, cells, more []string) []string {
	if h.tables.Network == nil || table.Meta.Name() != "network-policies" {
		return cells
	}
	all := append([]string{}, cells[:joinedAfter]...)
	return append(append(all, more...), cells[joinedAfter:]...)
}
