// SPDX-License-Identifier: Apache-2.0

package derive

import (
	"iter"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
)

// lateIterator tells of changes later than they are in snapshots, as StateDB does
// between the moment in which a commit is visible and that in which its channels close.
type lateIterator struct {
	statedb.ChangeIterator[*member]
	told chan struct{}
}

// Next implements [statedb.ChangeIterator].
func (l *lateIterator) Next(txn statedb.ReadTxn) (iter.Seq2[statedb.Change[*member], statedb.Revision], <-chan struct{}) {
	select {
	case <-l.told:
		return l.ChangeIterator.Next(txn)
	default:
		return func(func(statedb.Change[*member], statedb.Revision) bool) {}, l.told
	}
}

// What a computation saw in the snapshot, which another change caused, is told
// with it: else it could be undone before the next round, and that would then look
// as if nothing had been.
func TestChangeThatIsNotToldYet(t *testing.T) {
	heavy, light := &member{1, "a", 9}, &member{1, "a", 1}
	for name, test := range map[string]struct {
		before []*member
		during *member
		want   map[shown]bool
	}{
		"comes and goes":       {nil, light, map[shown]bool{}},
		"changes to and fro":   {[]*member{light}, heavy, map[shown]bool{{"a", 0, 1}: true}},
		"changes fro, then to": {[]*member{heavy}, light, map[shown]bool{}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, func(f *fixture, rule *Rule[string, *shown]) {
				rule.Inputs[0] = FromIf(f.members, func(old, new *member) bool { return *old != *new },
					func(_ statedb.ReadTxn, m *member, affect func(string)) { affect(m.Group) })
			})
			f.write(func(wtxn statedb.WriteTxn) { f.limits.Insert(wtxn, &limit{"a", 5}) })
			for _, m := range test.before {
				f.insert(m)
			}
			f.settle()
			in := f.runner.Inputs[0].(*input[*member, string])
			late := &lateIterator{in.iterator, make(chan struct{})}
			in.iterator, in.watch = late, late.told

			f.insert(test.during)
			f.write(func(wtxn statedb.WriteTxn) { f.limits.Insert(wtxn, &limit{"a", 6}) })
			time.AfterFunc(time.Millisecond, func() { close(late.told) })
			_, err := f.runner.round()
			require.NoError(t, err)
			f.write(func(wtxn statedb.WriteTxn) {
				f.members.Delete(wtxn, test.during)
				for _, m := range test.before {
					again := *m
					f.members.Insert(wtxn, &again)
				}
			})
			<-late.told
			f.settle()
			require.Equal(t, test.want, f.got())
		})
	}
}
