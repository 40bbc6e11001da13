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
