// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
)

// joinedAfter is behind which columns of network-policies those of
// network-policy-status are shown.
const joinedAfter = 2

var joinedColumns = []string{"State", "Programmed", "Failed", "Revision"}

// header returns the columns of a table for people.
func (h *handlers) header(table statedb.AnyTable) []string {
	return h.joined(table, table.TableHeader(), joinedColumns)
}

// namesSelectors is a row that names selectors by ID, and shows them by other names
// as well.
type namesSelectors interface {
	Row(name func(tables.SelectorID) string) []string
}

// row returns a row for people, with what other tables say of it: whether a network
// policy is in force, and what the selectors are of which a row only has the IDs.
func (h *handlers) row(txn statedb.ReadTxn, table statedb.AnyTable, row any) []string {
	cells := slices.Repeat([]string{"-"}, len(joinedColumns))
	switch row := row.(type) {
	case *tables.NetworkPolicy:
		if h.tables.Network == nil {
			break
		}
		if status, _, ok := h.tables.Network.Get(txn, tables.NetworkPolicyStatusByPolicy(row.ID())); ok {
			cells = []string{
				string(status.State), fmt.Sprintf("%d/%d", status.Programmed, status.EntriesWanted),
				strconv.Itoa(status.Failed), fmt.Sprintf("%d/%d", status.InForce, status.Wanted),
			}
		}
	case namesSelectors:
		return row.Row(func(id tables.SelectorID) string { return h.selector(txn, id) })
	}
	return h.joined(table, table.TableRow(row), cells)
}

// selector returns the expression of a selector, its ID if that is not known.
func (h *handlers) selector(txn statedb.ReadTxn, id tables.SelectorID) string {
	if h.tables.Selectors != nil {
		if s, _, ok := h.tables.Selectors.Get(txn, tables.SelectorByID(id)); ok {
			return s.Text
		}
	}
	return id.String()
}

func (h *handlers) joined(table statedb.AnyTable, cells, more []string) []string {
	if h.tables.Network == nil || table.Meta.Name() != "network-policies" {
		return cells
	}
	all := append([]string{}, cells[:joinedAfter]...)
	return append(append(all, more...), cells[joinedAfter:]...)
}
