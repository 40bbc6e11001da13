// SPDX-License-Identifier: Apache-2.0

package derive

import (
	"context"
	"iter"
	"log/slog"
	"testing"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables/transform"
)

// A change is told once, with what the row was and what it is, however many
// changes of it there were since the last round.
func TestFromChange(t *testing.T) {
	type pair struct{ old, new *member }
	var told []pair
	f := newFixture(t, func(f *fixture, rule *Rule[string, *shown]) {
		rule.Inputs[0] = FromChange(f.members, func(_ statedb.ReadTxn, old, new *member, affect func(string)) {
			told = append(told, pair{old, new})
			for _, m := range []*member{old, new} {
				if m != nil {
					affect(m.Group)
				}
			}
		})
	})
	first, second, third := &member{1, "a", 1}, &member{1, "b", 1}, &member{1, "c", 1}
	f.insert(first)
	f.settle()
	f.insert(second)
	f.insert(third)
	require.Equal(t, 2, f.settle().Keys, "the group that it was in at the last round, and the one that it is in")
	f.write(func(wtxn statedb.WriteTxn) { f.members.Delete(wtxn, third) })
	f.settle()
	require.Equal(t, []pair{{nil, first}, {first, third}, {third, nil}}, told)
	require.Empty(t, f.got())
}

// A row that does not matter is one that is not there.
func TestWhere(t *testing.T) {
	type pair struct{ old, new *member }
	var told []pair
	f := newFixture(t, func(f *fixture, rule *Rule[string, *shown]) {
		rule.Inputs[0] = Where(func(m *member) bool { return m.Group == "a" },
			FromChange(f.members, func(_ statedb.ReadTxn, old, new *member, _ func(string)) { told = append(told, pair{old, new}) }))
	})
	first, second, third := &member{1, "b", 1}, &member{1, "a", 1}, &member{1, "c", 1}
	for _, m := range []*member{first, second, third} {
		f.insert(m)
		f.settle()
	}
	f.write(func(wtxn statedb.WriteTxn) { f.members.Delete(wtxn, third) })
	f.settle()
	require.Equal(t, []pair{{nil, second}, {second, nil}}, told)
}

// Rows that are there at first affect what is said of these, and are remembered.
func TestInitially(t *testing.T) {
	for name, initially := range map[string]func(Input[string]) Input[string]{
		"nothing": Joined[string],
		"another": func(in Input[string]) Input[string] {
			return Initially(func(_ statedb.ReadTxn, _ *member, affect func(string)) { affect("z") }, in)
		},
	} {
		t.Run(name, func(t *testing.T) {
			var affected []string
			f := newFixture(t, func(f *fixture, rule *Rule[string, *shown]) {
				rule.Inputs[0] = initially(From(f.members, func(_ statedb.ReadTxn, m *member, affect func(string)) { affect(m.Group) }))
				rule.Plan = func(txn statedb.ReadTxn, keys []string) ([]string, func(string) []*shown) {
					affected = append(affected, keys...)
					return keys, func(key string) []*shown { return f.rows(txn, key) }
				}
			})
			f.insert(&member{1, "a", 1})
			f.settle()
			f.insert(&member{1, "b", 1})
			f.settle()
			if name == "another" {
				require.Equal(t, "z", affected[0])
				affected = affected[1:]
			}
			require.Equal(t, []string{"a", "b"}, affected, "of the change, the old group too")
		})
	}
}

// So are rows that are not remembered; of one that is gone before the first round
// nothing is said.
func TestInitiallyOfKeys(t *testing.T) {
	var affected []string
	f := newFixture(t, func(f *fixture, rule *Rule[string, *shown]) {
		rule.Inputs = []Input[string]{Initially(
			func(_ statedb.ReadTxn, l *limit, affect func(string)) { affect("at first " + l.Group) },
			FromKey(f.limits, func(_ statedb.ReadTxn, l *limit, affect func(string)) { affect(l.Group) }))}
		rule.Plan = func(txn statedb.ReadTxn, keys []string) ([]string, func(string) []*shown) {
			affected = append(affected, keys...)
			return keys, func(key string) []*shown { return f.rows(txn, key) }
		}
	})
	a, b := &limit{"a", 1}, &limit{"b", 1}
	f.write(func(wtxn statedb.WriteTxn) { f.limits.Insert(wtxn, a); f.limits.Insert(wtxn, b) })
	f.write(func(wtxn statedb.WriteTxn) { f.limits.Delete(wtxn, a) })
	f.settle()
	f.write(func(wtxn statedb.WriteTxn) { f.limits.Delete(wtxn, b) })
	f.settle()
	require.Equal(t, []string{"at first b", "b"}, affected)
}

// What has its keys of the primary key affects them however it changes.
func TestFromKey(t *testing.T) {
	f := newFixture(t, func(f *fixture, rule *Rule[string, *shown]) {
		rule.Inputs[1] = FromKey(f.limits, func(_ statedb.ReadTxn, l *limit, affect func(string)) { affect(l.Group) })
	})
	limited := func(l *limit) { f.write(func(wtxn statedb.WriteTxn) { f.limits.Insert(wtxn, l) }) }
	f.insert(&member{1, "a", 5})
	limited(&limit{"a", 1})
	f.settle()
	require.Empty(t, f.got())
	limited(&limit{"a", 9})
	f.settle()
	require.Len(t, f.got(), 1)
	limited(&limit{"a", 1})
	f.settle()
	f.write(func(wtxn statedb.WriteTxn) { f.limits.Delete(wtxn, &limit{Group: "a"}) })
	f.settle()
	require.Len(t, f.got(), 1)
}

// Two rules that follow from one another both start, if one says so.
func TestFeedback(t *testing.T) {
	var f *fixture
	var back statedb.RWTable[*limit]
	h := hive.New(statedb.Cell, job.Cell, cell.SimpleHealthCell, cell.Module("test", "Test",
		cell.Provide(job.Registry.NewGroup, transform.NewMetrics),
		cell.Invoke(func(p Params) error {
			f = &fixture{db: p.DB}
			f.members = statedb.MustNewTable(p.DB, "members", memberID, memberGroup)
			f.limits = statedb.MustNewTable(p.DB, "limits", limitGroup)
			f.shown = statedb.MustNewTable(p.DB, "shown", shownKey, shownGroup)
			back = f.limits
			rule := f.rule()
			rule.Inputs[1] = Feedback(rule.Inputs[1])
			if _, err := Register(p, rule); err != nil {
				return err
			}
			_, err := Register(p, Rule[string, *limit]{
				Output: back,
				Inputs: []Input[string]{From(f.shown, func(_ statedb.ReadTxn, s *shown, affect func(string)) { affect(s.Group) })},
				Existing: func(txn statedb.ReadTxn, group string) iter.Seq2[*limit, statedb.Revision] {
					return back.List(txn, limitGroup.Query(group))
				},
				Rows: func(txn statedb.ReadTxn, group string) []*limit {
					if _, _, found := f.shown.Get(txn, shownGroup.Query(group)); !found {
						return nil
					}
					return []*limit{{Group: group, Most: 5}}
				},
				Equal: func(a, b *limit) bool { return *a == *b },
			})
			return err
		})))
	log := hivetest.Logger(t, hivetest.LogLevel(slog.LevelError))
	require.NoError(t, h.Start(log, t.Context()))
	defer func() { require.NoError(t, h.Stop(log, context.Background())) }()

	_, watch := back.Initialized(f.db.ReadTxn())
	<-watch
	f.write(func(wtxn statedb.WriteTxn) {
		f.members.Insert(wtxn, &member{1, "a", 1})
		f.members.Insert(wtxn, &member{2, "a", 9})
	})
	await := func(want int) {
		for {
			txn := f.db.ReadTxn()
			_, changed := f.shown.AllWatch(txn)
			_, limited := back.AllWatch(txn)
			if f.shown.NumObjects(txn) == want && back.NumObjects(txn) == 1 {
				return
			}
			select {
			case <-changed:
			case <-limited:
			case <-t.Context().Done():
				t.Fatal("the rules do not follow one another")
			}
		}
	}
	await(1) // the limit that follows from the group leaves out the heavy one
}

// What comes apart is told otherwise as long as no other input has changed.
func TestApart(t *testing.T) {
	var alone, together int
	f := newFixture(t, func(f *fixture, rule *Rule[string, *shown]) {
		changed := func(told *int) func(statedb.ReadTxn, *limit, *limit, func(string)) {
			return func(_ statedb.ReadTxn, _, new *limit, affect func(string)) {
				*told++
				affect(new.Group)
			}
		}
		rule.Inputs[1] = Apart(changed(&alone), FromChange(f.limits, changed(&together)))
	})
	told := func() []int {
		defer func() { alone, together = 0, 0 }()
		f.settle()
		require.Equal(t, f.fromScratch(), f.got())
		return []int{alone, together}
	}
	limitTo := func(most int) func(statedb.WriteTxn) {
		return func(wtxn statedb.WriteTxn) { f.limits.Insert(wtxn, &limit{"a", most}) }
	}
	f.insert(&member{1, "a", 9})
	f.write(limitTo(9))
	require.Equal(t, []int{0, 1}, told(), "the first round")
	f.write(limitTo(8))
	require.Equal(t, []int{1, 0}, told())
	f.write(limitTo(7))
	f.insert(&member{2, "b", 1})
	require.Equal(t, []int{0, 1}, told(), "another input has changed")

	// As it was, but not all the time.
	f.write(limitTo(9))
	f.insert(&member{1, "a", 3})
	f.insert(&member{1, "a", 9})
	require.Equal(t, []int{0, 1}, told())
	f.write(limitTo(8))
	require.Equal(t, []int{1, 0}, told())
}
