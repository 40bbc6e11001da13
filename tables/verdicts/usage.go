// SPDX-License-Identifier: Apache-2.0

package verdicts

import (
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// Room is how many entries sluice_policy and sluice_verdicts have room for.
type Room struct{ Entries, Verdicts int }

func roomOf(c bpf.Config) Room { return Room{int(c.MapSizePolicy), int(c.MapSizeVerdicts)} }

// guaranteed is the part of a map that each namespace can use, however much others do: a
// node has at most 110 pods by default, so not more than 128 namespaces that matter.
const guaranteed = 4 * 128

// Fits reports whether a map has room for more entries of a namespace. Three quarters of it
// are for all, and the rest is for namespaces that use little.
func Fits(size, total, own, more int) bool {
	return total+more <= size-size/4 || own+more <= size/guaranteed
}

// usage is what namespaces use, in a transaction.
type usage struct {
	room    Room
	table   statedb.RWTable[*tables.PolicyUsage]
	rows    map[string]tables.PolicyUsage
	total   tables.PolicyUsage
	changed map[string]bool
	freed   bool // reports whether something was taken back
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
		u.total.Closed += row.Closed
	}
	return u
}

// fits reports whether there is room for more entries of a namespace.
func (u *usage) fits(namespace string, entries, verdicts int) bool {
	row := u.rows[namespace]
	return Fits(u.room.Entries, u.total.Entries, row.Entries, entries) &&
		Fits(u.room.Verdicts, u.total.Verdicts, row.Verdicts, verdicts)
}

// isHalfEmpty reports whether closed rulesets can be opened, without being closed again by
// the next class.
func (u *usage) isHalfEmpty() bool {
	return u.total.Entries <= u.room.Entries/2 && u.total.Verdicts <= u.room.Verdicts/2
}

func (u *usage) add(namespace string, entries, verdicts, closed int) {
	row := u.rows[namespace]
	row.Namespace = namespace
	row.Entries += entries
	row.Verdicts += verdicts
	row.Closed += closed
	u.rows[namespace] = row
	u.total.Entries += entries
	u.total.Verdicts += verdicts
	u.total.Closed += closed
	u.changed[namespace] = true
	u.freed = u.freed || entries < 0 || verdicts < 0
}

// write writes the rows of namespaces whose usage has changed.
func (t *transaction) writeUsage() {
	for namespace := range t.usage.changed {
		row := t.usage.rows[namespace]
		if row.Entries+row.Verdicts+row.Closed == 0 {
			remove(t, t.Usage, &row)
		} else {
			put(t, t.Usage, &row)
		}
	}
}
