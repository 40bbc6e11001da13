// SPDX-License-Identifier: Apache-2.0

package derive

import (
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
)

// Nobody changes an exclusive table while a round is under way, which is told its
// changes like those of any other input.
func TestExclusive(t *testing.T) {
	under := func() {}
	f := newFixture(t, func(f *fixture, rule *Rule[string, *shown]) {
		rule.Exclusive = []statedb.TableMeta{f.limits}
		rows := rule.Rows
		rule.Rows = func(txn statedb.ReadTxn, group string) []*shown {
			under()
			return rows(txn, group)
		}
	})
	f.insert(&member{1, "a", 9})
	f.settle()
	require.Len(t, f.got(), 1)

	begun, written := make(chan struct{}), make(chan int)
	go func() {
		<-begun
		wtxn := f.db.WriteTxn(f.limits)
		defer wtxn.Abort()
		f.limits.Insert(wtxn, &limit{"a", 5})
		seen := f.shown.NumObjects(wtxn)
		wtxn.Commit()
		written <- seen
	}()
	under = func() {
		under = func() {}
		close(begun)
		select {
		case <-written:
			require.Fail(t, "the table is changed in the middle of a round")
		case <-time.After(20 * time.Millisecond):
		}
	}
	f.insert(&member{2, "a", 1})
	_, err := f.runner.round()
	require.NoError(t, err)
	require.Len(t, f.got(), 2)
	require.Equal(t, 2, <-written, "who changes it later sees what the round has written")
	f.settle()
	require.Equal(t, f.fromScratch(), f.got())
	f.write(func(wtxn statedb.WriteTxn) { f.limits.Delete(wtxn, &limit{Group: "a"}) })
	f.settle()
	require.Equal(t, f.fromScratch(), f.got())
}

// What comes apart is looked at while somebody has an exclusive table, unless another
// input has changed; and is computed when nobody has.
func TestApart(t *testing.T) {
	var alone, together int
	f := newFixture(t, func(f *fixture, rule *Rule[string, *shown]) {
		rule.Exclusive = []statedb.TableMeta{f.limits}
		changed := func(told *int) func(statedb.ReadTxn, *limit, *limit, func(string)) {
			return func(_ statedb.ReadTxn, old, new *limit, affect func(string)) {
				*told++
				if old == nil || old.Most != new.Most {
					affect(new.Group)
				}
			}
		}
		rule.Inputs[1] = Apart(changed(&alone), FromChange(f.limits, changed(&together)))
	})
	f.insert(&member{1, "a", 9})
	f.write(func(wtxn statedb.WriteTxn) { f.limits.Insert(wtxn, &limit{"a", 9}) })
	f.settle()
	require.Len(t, f.got(), 1)
	require.Equal(t, []int{0, 1}, []int{alone, together})

	roundWhileHeld := func() (ended bool) {
		t.Helper()
		held := f.db.WriteTxn(f.limits)
		defer held.Abort()
		round := make(chan error)
		go func() {
			_, err := f.runner.round()
			round <- err
		}()
		select {
		case err := <-round:
			require.NoError(t, err)
			return true
		case <-time.After(20 * time.Millisecond):
			held.Abort()
			require.NoError(t, <-round)
			return false
		}
	}
	same := func() { f.write(func(wtxn statedb.WriteTxn) { f.limits.Insert(wtxn, &limit{"a", 9}) }) }
	same()
	require.True(t, roundWhileHeld(), "nothing is affected")
	require.Equal(t, []int{1, 1}, []int{alone, together})

	same()
	f.insert(&member{2, "b", 1})
	require.False(t, roundWhileHeld(), "another input has changed")
	require.Equal(t, []int{1, 2}, []int{alone, together})
	require.Equal(t, f.fromScratch(), f.got())

	f.write(func(wtxn statedb.WriteTxn) { f.limits.Insert(wtxn, &limit{"a", 5}) })
	require.False(t, roundWhileHeld(), "a key is affected")
	require.Equal(t, f.fromScratch(), f.got())
}
