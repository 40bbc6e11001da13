// SPDX-License-Identifier: Apache-2.0

package derive

import (
	"iter"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
)

type pair struct{ old, new *item }

// following has a table of items, and what is told of its changes.
type following struct {
	*fixture
	changes *changes[*item]
	former  statedb.ReadTxn
}

func newFollowing(t *testing.T) *following {
	f := &following{fixture: newFixture(t)}
	var err error
	f.changes, err = newChanges(f.db, f.items)
	require.NoError(t, err)
	return f
}

func (f *following) told() (told []pair) {
	now := f.db.ReadTxn()
	f.changes.next(f.former, now, func(old, new *item) { told = append(told, pair{old, new}) })
	f.former = now
	return told
}

func (f *following) insert(i *item) {
	f.write(func(wtxn statedb.WriteTxn) { f.items.Insert(wtxn, i) })
}

func (f *following) remove(i *item) {
	f.write(func(wtxn statedb.WriteTxn) { f.items.Delete(wtxn, i) })
}

// StateDB yields a deletion with a value that it did not yield before, and nothing of the value
// that it did: if this fails, it is fixed.
func TestChangesOfStateDB(t *testing.T) {
	f := newFollowing(t)
	yielded := func() (rows []statedb.Change[*item]) {
		changes, _ := f.changes.iterator.Next(f.db.ReadTxn())
		for change := range changes {
			change.Revision = 0
			rows = append(rows, change)
		}
		return rows
	}
	first, second := &item{1, "a", 1}, &item{1, "b", 1}
	f.insert(first)
	require.Equal(t, []statedb.Change[*item]{{Object: first}}, yielded())
	require.Empty(t, yielded())
	f.insert(second)
	f.remove(second)
	require.Equal(t, []statedb.Change[*item]{{Object: second, Deleted: true}}, yielded())
}

// A change is told once, with what the row was and what it is, however many changes of it
// there were between two snapshots.
func TestChanges(t *testing.T) {
	f := newFollowing(t)
	first, second, third := &item{1, "a", 1}, &item{1, "b", 1}, &item{1, "c", 1}
	gone := &item{2, "a", 1}
	f.insert(gone)
	f.remove(gone)
	f.insert(first)
	require.Equal(t, []pair{{nil, first}}, f.told())
	f.insert(second)
	f.insert(third)
	f.insert(gone)
	f.remove(gone)
	require.Equal(t, []pair{{first, third}}, f.told())
	require.Empty(t, f.told())
	f.insert(second)
	f.remove(second)
	require.Equal(t, []pair{{third, nil}}, f.told())
}

// lateIterator tells of changes later than they are in snapshots, as StateDB does between the
// moment in which a commit is visible and that in which its channels close.
type lateIterator struct {
	statedb.ChangeIterator[*item]
	told chan struct{}
}

// Next implements [statedb.ChangeIterator].
func (l *lateIterator) Next(
	txn statedb.ReadTxn,
) (iter.Seq2[statedb.Change[*item], statedb.Revision], <-chan struct{}) {
	select {
	case <-l.told:
		return l.ChangeIterator.Next(txn)
	default:
		return func(func(statedb.Change[*item], statedb.Revision) bool) {}, l.told
	}
}

// All changes that a snapshot has are told with it.
func TestChangeThatIsNotToldYet(t *testing.T) {
	f := newFollowing(t)
	require.Empty(t, f.told())
	late := &lateIterator{f.changes.iterator, make(chan struct{})}
	f.changes.iterator, f.changes.watch = late, late.told

	row := &item{1, "a", 1}
	f.insert(row)
	time.AfterFunc(time.Millisecond, func() { close(late.told) })
	require.Equal(t, []pair{{nil, row}}, f.told())
	f.remove(row)
	require.Equal(t, []pair{{row, nil}}, f.told())
}
