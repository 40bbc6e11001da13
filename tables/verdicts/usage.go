// SPDX-License-Identifier: Apache-2.0

package verdicts

import (
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// Room is how many entries sluice_policy and sluice_verdicts have room for.
type Room struct{ Entries, Verdicts int }

// RoomOf returns the room of the maps.
func RoomOf(c bpf.Config) Room { return Room{int(c.MapSizePolicy), int(c.MapSizeVerdicts)} }

// guaranteed is the part of a map that each namespace can use, however much others do: a
// node has at most 110 pods by default, so not more than 128 namespaces that matter.
const guaranteed = 4 * 128

// Fits reports whether a map has room for more entries of a namespace. Three quarters of it are
// for all, of which one namespace can have half of the map, and the rest is for namespaces that use
// little.
func Fits(size, total, own, more int) bool {
	return total+more <= size-size/4 && own+more <= size/2 || own+more <= size/guaranteed
}

// CanRetry reports whether there is room for what a refused ruleset needs, beside what all and its
// own namespace use. The maps must be half empty with it: else the next class would have it refused
// again.
func (r Room) CanRetry(needs, total, own tables.RulesetSize) bool {
	fits := func(size, total, own, more int) bool {
		return total+more <= size/2 || own+more <= size/guaranteed
	}
	return fits(r.Entries, total.Entries, own.Entries, needs.Entries) &&
		fits(r.Verdicts, total.Verdicts, own.Verdicts, needs.Verdicts)
}

// usage is what namespaces use, in a transaction.
type usage struct {
	room    Room
	table   statedb.RWTable[*tables.PolicyUsage]
	rows    map[string]tables.PolicyUsage
	total   tables.PolicyUsage
	changed map[string]bool
}

func newUsage(
	room Room, table statedb.RWTable[*tables.PolicyUsage], txn statedb.ReadTxn,
) *usage {
	u := &usage{
		room: room, table: table,
		rows: map[string]tables.PolicyUsage{}, changed: map[string]bool{},
	}
	for row := range table.All(txn) {
		u.rows[row.Namespace] = *row
		u.total.Entries += row.Entries
		u.total.Verdicts += row.Verdicts
	}
	return u
}

// fits reports whether there is room for more entries of a namespace.
func (u *usage) fits(namespace string, entries, verdicts int) bool {
	row := u.rows[namespace]
	return Fits(u.room.Entries, u.total.Entries, row.Entries, entries) &&
		Fits(u.room.Verdicts, u.total.Verdicts, row.Verdicts, verdicts)
}

func (u *usage) add(namespace string, entries, verdicts int) {
	row := u.rows[namespace]
	row.Namespace = namespace
	row.Entries += entries
	row.Verdicts += verdicts
	u.rows[namespace] = row
	u.total.Entries += entries
	u.total.Verdicts += verdicts
	u.changed[namespace] = true
}

// writeUsage writes the rows of namespaces whose usage has changed.
func (t *transaction) writeUsage() {
	for namespace := range t.usage.changed {
		row := t.usage.rows[namespace]
		if row.Entries+row.Verdicts == 0 {
			remove(t, t.Usage, &row)
		} else {
			put(t, t.Usage, &row)
		}
	}
}
