// SPDX-License-Identifier: Apache-2.0

package derive

import (
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
)

// changes yields how each row of a table differs between two snapshots: its old and new values.
//
// For github.com/cilium/statedb (v0.8.3), two issues:
//
// 1. A change has no old value. An application that keeps sums or indexes of its own has to know
// what to subtract. A deletion does have an object, but the last one of the table, which earlier
// calls of Next need not have yielded:
//
//	insert(&Item{ID: 1, Group: "a"})
//	print(changes.Next(db.ReadTxn())) // inserted a
//	insert(&Item{ID: 1, Group: "b"})
//	delete(&Item{ID: 1})
//	print(changes.Next(db.ReadTxn())) // deleted b: the application never saw b
//
// To find the old value, the caller keeps the former ReadTxn and gets the object by its primary
// key, as this does. That snapshot keeps alive the former objects of all tables, so the caller
// has to replace it now and then even if its own table does not change.
//
// Better: the iterator keeps the primary index of the table as of the former Next, and a Change
// has the old object. Objects that were inserted and deleted since then are left out.
//
// 2. Next may miss changes of the snapshot it is given. Commit stores the new root first and then
// closes watch channels. In between, a ReadTxn has the change, but Next yields nothing, as it
// checks only whether its channel is closed:
//
//	txn := db.ReadTxn() // while another goroutine is in Commit
//	changed := table.Revision(txn) != revision
//	seq, _ := changes.Next(txn) // may be empty although changed is true
//
// Better: Next compares the revision of the table in the snapshot with the one it saw last.
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
