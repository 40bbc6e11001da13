// SPDX-License-Identifier: Apache-2.0

package derive

import (
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
)

// What affects no key is taken in while others hold the output.
func TestNothingAffected(t *testing.T) {
	f := newFixture(t, func(f *fixture, rule *Rule[string, *shown]) {
		rule.Inputs[0] = FromIf(f.members, func(old, new *member) bool { return old.Group != new.Group },
			func(_ statedb.ReadTxn, m *member, affect func(string)) { affect(m.Group) })
	})
	f.insert(&member{1, "a", 1})
	f.settle()
	held := f.db.WriteTxn(f.shown)
	defer held.Abort()
	f.insert(&member{1, "a", 2})
	watches, err := f.runner.round()
	require.NoError(t, err)
	for _, watch := range watches {
		select {
		case <-watch:
			require.Fail(t, "there is nothing more to take in")
		default:
		}
	}
}

// A round computes what there is when it may write, and takes that in: also what has
// changed since it found that there is something to compute.
func TestChangeWhileARoundBegins(t *testing.T) {
	var told [][2]*member
	asked := func() {}
	f := newFixture(t, func(f *fixture, rule *Rule[string, *shown]) {
		rule.Inputs[0] = FromChange(f.members, func(_ statedb.ReadTxn, old, new *member, affect func(string)) {
			told = append(told, [2]*member{old, new})
			for _, m := range []*member{old, new} {
				if m != nil {
					affect(m.Group)
				}
			}
			asked()
		})
	})
	f.insert(&member{2, "c", 1})
	f.settle()
	told = nil
	first, second := &member{1, "a", 1}, &member{1, "b", 1}
	f.insert(first)
	asked = func() {
		asked = func() {}
		f.insert(second)
	}
	_, err := f.runner.round()
	require.NoError(t, err)
	require.Equal(t, f.fromScratch(), f.got())
	require.Equal(t, [][2]*member{{nil, first}, {first, second}}, told)
	require.Equal(t, 1, f.runner.stats.Counts().Rounds-1)
}
