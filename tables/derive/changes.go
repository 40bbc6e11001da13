// SPDX-License-Identifier: Apache-2.0

package derive

import (
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
)

// changes yields how each row of a table differs between two snapshots: its old and new values.
//
// This is for want of a function of StateDB: see docs/statedb.md.
type changes[Row any] struct {
	table    statedb.Table[Row]
	iterator statedb.ChangeIterator[Row]
	watch    <-chan struct{} // nil before the first next
}

func newChanges[Row any](db *statedb.DB, table statedb.Table[Row]) (*changes[Row], error) {
	iterator, err := tables.Follow(db, table)
	return &changes[Row]{table: table, iterator: iterator}, err
}

// next yields each row that differs between the snapshot of the former call, nil at first, and
// another. A row that does not exist has the zero value. It returns a channel that closes when
// there are more changes.
func (c *changes[Row]) next(
	former, now statedb.ReadTxn, yield func(old, new Row),
) <-chan struct{} {
	if former != nil {
		if c.table.Revision(former) == c.table.Revision(now) {
			return c.watch
		}
		// The snapshot has a change: wait until Next yields it.
		<-c.watch
	}
	rows, _ := c.iterator.Next(now)
	for change := range rows {
		var old, new Row
		had := false
		if former != nil {
			old, _, had = c.table.Get(former, c.table.PrimaryIndexer().QueryFromObject(change.Object))
		}
		if change.Deleted && !had {
			continue // it came and went between the snapshots
		}
		if !change.Deleted {
			new = change.Object
		}
		yield(old, new)
	}
	// Next returned a closed channel, which asks for what is left: nothing.
	_, c.watch = c.iterator.Next(now)
	return c.watch
}
