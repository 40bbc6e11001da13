// SPDX-License-Identifier: Apache-2.0

package derive

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables/transform"
)

// newIndexedFixture has members of which only those matter that weigh anything.
func newIndexedFixture(t testing.TB) *fixture {
	weighs := func(m *member) bool { return m.Weight > 0 }
	weighing := statedb.Index[*member, bool]{
		Name: "weighing", FromKey: index.Bool, FromString: index.BoolString,
		FromObject: func(m *member) index.KeySet {
			if !weighs(m) {
				return index.NewKeySet()
			}
			return index.NewKeySet(index.Bool(true))
		},
	}
	return newFixture(t, func(f *fixture, rule *Rule[string, *shown]) {
		f.members = statedb.MustNewTable(f.db, "weighed", memberID, memberGroup, weighing)
		rule.Inputs[0] = Indexed(weighing.Query(true), Where(weighs,
			From(f.members, func(_ statedb.ReadTxn, m *member, affect func(string)) { affect(m.Group) })))
	})
}

// release closes what follows the tables: the garbage collector would close its channels
// from outside the bubble that they were made in.
func (f *fixture) release() {
	members := f.runner.Inputs[0]
	if asleep, is := members.(while[string]); is {
		members = asleep.Input
	}
	members.(*input[*member, string]).iterator.Close()
	f.runner.Inputs[1].(*input[*limit, string]).iterator.Close()
}

// Rows that the index does not have wake nobody, and are told with the next one that
// it has.
func TestIndexed(t *testing.T) {
	f := newIndexedFixture(t)
	woken := func(do func(wtxn statedb.WriteTxn)) bool {
		watches, err := f.runner.round()
		require.NoError(t, err)
		f.write(do)
		select {
		case <-watches[0]:
			return true
		default:
			return false
		}
	}
	insert := func(m *member) func(statedb.WriteTxn) {
		return func(wtxn statedb.WriteTxn) { f.members.Insert(wtxn, m) }
	}
	remove := func(m *member) func(statedb.WriteTxn) {
		return func(wtxn statedb.WriteTxn) { f.members.Delete(wtxn, m) }
	}
	first, light, second := &member{1, "a", 1}, &member{2, "a", 0}, &member{3, "a", 1}
	f.settle()
	require.True(t, woken(insert(first)))
	f.settle()
	require.False(t, woken(insert(light)))
	require.False(t, woken(remove(light)))
	f.write(insert(light))
	require.Equal(t, transform.Counts{}, f.settle())
	require.True(t, woken(insert(&member{2, "a", 2})), "it comes into the index")
	require.True(t, woken(insert(&member{2, "a", 3})))
	require.True(t, woken(insert(light)), "it leaves the index")

	f.write(insert(second))
	f.write(remove(light))
	f.settle()
	require.Equal(t, f.fromScratch(), f.got())
	in := f.runner.Inputs[0].(*input[*member, string])
	require.Equal(t, f.members.Revision(f.db.ReadTxn()), in.revision, "all is told")
}

// What wakes nobody is not overlooked for ever.
func TestIndexedIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newIndexedFixture(t)
		defer f.release()
		f.settle()
		watches, err := f.runner.round()
		require.NoError(t, err)
		start := time.Now()
		require.True(t, f.runner.awaitChange(t.Context(), watches))
		require.Equal(t, overlookedFor, time.Since(start))
	})
}

// An input sleeps while a function says that it affects nothing, and then is told of
// all that has changed meanwhile.
func TestWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		matters := false
		f := newFixture(t, func(_ *fixture, rule *Rule[string, *shown]) {
			rule.Inputs[0] = While(func(statedb.ReadTxn) bool { return matters }, rule.Inputs[0])
		})
		defer f.release()
		watches, err := f.runner.round()
		require.NoError(t, err)
		start := time.Now()
		f.insert(&member{1, "a", 1})
		require.True(t, f.runner.awaitChange(t.Context(), watches))
		require.Equal(t, overlookedFor, time.Since(start), "it wakes nobody")

		watches, err = f.runner.round()
		require.NoError(t, err)
		require.Equal(t, f.fromScratch(), f.got(), "and is told all the same")
		matters = true
		f.insert(&member{2, "a", 1})
		start = time.Now()
		require.True(t, f.runner.awaitChange(t.Context(), watches))
		require.Zero(t, time.Since(start))
	})
}
