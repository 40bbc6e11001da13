// SPDX-License-Identifier: Apache-2.0

package derive

import (
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
)

// changes tells how each row of a table has changed between two snapshots: what it was and
// what it is.
//
// This is what StateDB's ChangeIterator could do itself. Its Next yields rows as they are now,
// and of a deleted row what it was last, which need not be what the former Next has told. The
// iterator would have to keep the root of the table that it was last given, and look each
// changed key up in it, as this does. It would also not need to wait: Next of a snapshot could
// go by the snapshot, whether or not the commit has closed its watch channels yet.
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
// another: the zero value where there is none. It returns a channel that closes when there are
// more changes.
func (c *changes[Row]) next(
	former, now statedb.ReadTxn, yield func(old, new Row),
) <-chan struct{} {
	if former != nil {
		if c.table.Revision(former) == c.table.Revision(now) {
			return c.watch
		}
		// StateDB publishes a commit before it closes watch channels, and Next tells of no
		// change until then: wait for that, as the snapshot has the change.
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
