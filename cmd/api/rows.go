// SPDX-License-Identifier: Apache-2.0

package api

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

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

// row returns a row for people, with what other tables say of it: whether a network
// policy is applied, and what the selectors are of which a class only has the numbers.
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
				strconv.Itoa(status.Failed), fmt.Sprintf("%d/%d", status.Compiled, status.Wanted),
			}
		}
	case *tables.Class:
		return h.class(txn, row)
	}
	return h.joined(table, table.TableRow(row), cells)
}

// class returns the row of a class, with the expressions of its selectors.
func (h *handlers) class(txn statedb.ReadTxn, class *tables.Class) []string {
	cells := class.TableRow()
	texts := make([]string, len(class.Selectors))
	for i, number := range class.Selectors {
		texts[i] = h.selector(txn, number)
	}
	cells[selectorsColumn] = cmp.Or(strings.Join(texts, " | "), "-")
	return cells
}

// selectorsColumn is where the table of classes has the selectors.
const selectorsColumn = 1

// selector returns the expression of a selector, its number if that is not known.
func (h *handlers) selector(txn statedb.ReadTxn, number uint32) string {
	if h.tables.Selectors != nil {
		if s, _, ok := h.tables.Selectors.Get(txn, tables.SelectorByNumber(number)); ok {
			return s.Text
		}
	}
	return strconv.FormatUint(uint64(number), 10)
}

func (h *handlers) joined(table statedb.AnyTable, cells, more []string) []string {
	if h.tables.Network == nil || table.Meta.Name() != "network-policies" {
		return cells
	}
	all := append([]string{}, cells[:joinedAfter]...)
	return append(append(all, more...), cells[joinedAfter:]...)
}
