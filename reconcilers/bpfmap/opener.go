// SPDX-License-Identifier: Apache-2.0

package bpfmap

import (
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// Opener is a table whose changes have writes looked at again that a gate has
// made wait: see [OpenedBy].
type Opener interface {
	// follow starts to track the changes of the table.
	follow(db *statedb.DB) error
	// behind reports whether a snapshot has changes that have not been asked for.
	behind(txn statedb.ReadTxn) bool
	// changes calls wake with what the rows that have changed since the last
	// call are waited for as, and returns a channel that closes when there are more.
	changes(txn statedb.ReadTxn, wake func(waitFor any)) <-chan struct{}
}

// OpenedBy declares that a gate opens by changes of a table: whoever waits for
// what a changed row stands for is looked at again.
func OpenedBy[Row any, WaitFor comparable](table statedb.Table[Row], waitFor func(Row) WaitFor) Opener {
	return OpenedByEach(table, func(_ statedb.ReadTxn, row Row, wake func(WaitFor)) { wake(waitFor(row)) })
}

// OpenedByEach is [OpenedBy] for a table of which a changed row may stand for several
// things: the function is called with the row, or with the last value of one that is
// gone, and may look up others in the snapshot.
func OpenedByEach[Row any, WaitFor comparable](table statedb.Table[Row], opens func(txn statedb.ReadTxn, row Row, wake func(WaitFor))) Opener {
	return &opener[Row, WaitFor]{table: table, opens: opens}
}

// OpenedByReadiness is [OpenedBy] for gates that wait for classes and groups.
func OpenedByReadiness(table statedb.Table[*tables.ClassReadiness]) Opener {
	return OpenedBy(table, func(r *tables.ClassReadiness) bpf.ClassKey { return r.ClassKey })
}

type opener[Row any, WaitFor comparable] struct {
	table    statedb.Table[Row]
	opens    func(txn statedb.ReadTxn, row Row, wake func(WaitFor))
	iterator statedb.ChangeIterator[Row]
	revision statedb.Revision // up to which changes were asked for
	watch    <-chan struct{}  // closes when there are more
}

func (o *opener[Row, WaitFor]) follow(db *statedb.DB) (err error) {
	o.iterator, err = tables.Follow(db, o.table)
	return err
}

func (o *opener[Row, WaitFor]) behind(txn statedb.ReadTxn) bool {
	return o.table.Revision(txn) != o.revision
}

func (o *opener[Row, WaitFor]) changes(txn statedb.ReadTxn, wake func(waitFor any)) <-chan struct{} {
	revision := o.table.Revision(txn)
	if o.watch != nil && revision != o.revision {
		<-o.watch // as in changed
	}
	changes, _ := o.iterator.Next(txn)
	for change := range changes {
		o.opens(txn, change.Object, func(waitFor WaitFor) { wake(waitFor) })
	}
	_, o.watch = o.iterator.Next(txn)
	o.revision = revision
	return o.watch
}
