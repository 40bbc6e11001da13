// SPDX-License-Identifier: Apache-2.0

package derive

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sluice-net/sluice/tables/transform"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// member is an input row: a thing with a group and a weight.
type member struct {
	ID     int
	Group  string
	Weight int
}

// limit is another: the most that a group's members may weigh to be shown.
type limit struct {
	Group string
	Most  int
}

// shown is an output row: a member that is shown, with its rank in the group.
type shown struct {
	Group string
	Rank  int
	ID    int
}

func (*member) TableHeader() []string { return []string{"ID"} }
func (m *member) TableRow() []string  { return []string{strconv.Itoa(m.ID)} }
func (*limit) TableHeader() []string  { return []string{"Group"} }
func (l *limit) TableRow() []string   { return []string{l.Group} }
func (*shown) TableHeader() []string  { return []string{"Group", "Rank", "ID"} }
func (s *shown) TableRow() []string {
	return []string{s.Group, strconv.Itoa(s.Rank), strconv.Itoa(s.ID)}
}

var (
	memberID = statedb.Index[*member, int]{
		Name: "id", Unique: true, FromKey: index.Int, FromString: index.IntString,
		FromObject: func(m *member) index.KeySet { return index.NewKeySet(index.Int(m.ID)) },
	}
	memberGroup = statedb.Index[*member, string]{
		Name: "group", FromKey: index.String, FromString: index.FromString,
		FromObject: func(m *member) index.KeySet { return index.NewKeySet(index.String(m.Group)) },
	}
	limitGroup = statedb.Index[*limit, string]{
		Name: "group", Unique: true, FromKey: index.String, FromString: index.FromString,
		FromObject: func(l *limit) index.KeySet { return index.NewKeySet(index.String(l.Group)) },
	}
	shownKey = statedb.Index[*shown, string]{
		Name: "key", Unique: true, FromKey: index.String, FromString: index.FromString,
		FromObject: func(s *shown) index.KeySet { return index.NewKeySet(index.String(fmt.Sprint(s.Group, "/", s.Rank))) },
	}
	shownGroup = statedb.Index[*shown, string]{
		Name: "group", FromKey: index.String, FromString: index.FromString,
		FromObject: func(s *shown) index.KeySet { return index.NewKeySet(index.String(s.Group)) },
	}
)

type fixture struct {
	t       testing.TB
	db      *statedb.DB
	members statedb.RWTable[*member]
	limits  statedb.RWTable[*limit]
	shown   statedb.RWTable[*shown]
	runner  *runner[string, *shown]
}

func newFixture(t testing.TB, changes ...func(*fixture, *Rule[string, *shown])) *fixture {
	f := &fixture{t: t, db: statedb.New()}
	f.members = statedb.MustNewTable(f.db, "members", memberID, memberGroup)
	f.limits = statedb.MustNewTable(f.db, "limits", limitGroup)
	f.shown = statedb.MustNewTable(f.db, "shown", shownKey, shownGroup)
	rule := f.rule()
	for _, change := range changes {
		change(f, &rule)
	}
	var err error
	f.runner, err = newRunner(f.db, rule, transform.NewMetrics().Add("shown"))
	require.NoError(t, err)
	return f
}

func (f *fixture) rule() Rule[string, *shown] {
	return Rule[string, *shown]{
		Output: f.shown,
		Inputs: []Input[string]{
			From(f.members, func(_ statedb.ReadTxn, m *member, affect func(string)) { affect(m.Group) }),
			From(f.limits, func(_ statedb.ReadTxn, l *limit, affect func(string)) { affect(l.Group) }),
		},
		Existing: func(txn statedb.ReadTxn, group string) iter.Seq2[*shown, statedb.Revision] {
			return f.shown.List(txn, shownGroup.Query(group))
		},
		Rows:  f.rows,
		Equal: func(a, b *shown) bool { return *a == *b },
	}
}

func (f *fixture) rows(txn statedb.ReadTxn, group string) (rows []*shown) {
	l, _, found := f.limits.Get(txn, limitGroup.Query(group))
	for m := range f.members.List(txn, memberGroup.Query(group)) {
		if !found || m.Weight <= l.Most {
			rows = append(rows, &shown{Group: group, Rank: len(rows), ID: m.ID})
		}
	}
	return rows
}

func (f *fixture) write(do func(wtxn statedb.WriteTxn)) {
	wtxn := f.db.WriteTxn(f.members, f.limits)
	defer wtxn.Abort()
	do(wtxn)
	wtxn.Commit()
}

func (f *fixture) insert(m *member) {
	f.write(func(wtxn statedb.WriteTxn) { f.members.Insert(wtxn, m) })
}

// settle runs rounds until there are no changes left.
func (f *fixture) settle() transform.Counts {
	before := f.runner.stats.Counts()
	for range 3 {
		_, err := f.runner.round()
		require.NoError(f.t, err)
	}
	after := f.runner.stats.Counts()
	return transform.Counts{Rounds: after.Rounds - before.Rounds, Keys: after.Keys - before.Keys, Rows: after.Rows - before.Rows,
		Inserted: after.Inserted - before.Inserted, Deleted: after.Deleted - before.Deleted}
}

func (f *fixture) got() map[shown]bool {
	rows := map[shown]bool{}
	for row := range f.shown.All(f.db.ReadTxn()) {
		rows[*row] = true
	}
	return rows
}

// fromScratch computes the output without the engine.
func (f *fixture) fromScratch() map[shown]bool {
	txn := f.db.ReadTxn()
	most := map[string]int{}
	for l := range f.limits.All(txn) {
		most[l.Group] = l.Most
	}
	ids := map[string][]int{}
	for m := range f.members.All(txn) {
		if limit, ok := most[m.Group]; !ok || m.Weight <= limit {
			ids[m.Group] = append(ids[m.Group], m.ID)
		}
	}
	rows := map[shown]bool{}
	for group, members := range ids {
		slices.Sort(members)
		for rank, id := range members {
			rows[shown{group, rank, id}] = true
		}
	}
	return rows
}

// Any order, splitting and merging of input changes gives what a computation
// from scratch does.
func TestIncrementalEqualsFromScratch(t *testing.T) {
	for seed := range uint64(150) {
		random := rand.New(rand.NewPCG(seed, 0))
		f := newFixture(t)
		group := func() string { return string(rune('a' + random.IntN(4))) }
		for range 60 {
			f.write(func(wtxn statedb.WriteTxn) {
				for range 1 + random.IntN(4) {
					id := random.IntN(12)
					switch random.IntN(5) {
					case 0:
						f.members.Delete(wtxn, &member{ID: id})
					case 1:
						f.limits.Insert(wtxn, &limit{group(), random.IntN(10)})
					case 2:
						f.limits.Delete(wtxn, &limit{Group: group()})
					default:
						f.members.Insert(wtxn, &member{id, group(), random.IntN(10)})
					}
				}
			})
			if random.IntN(3) == 0 {
				f.settle()
				require.Equal(t, f.fromScratch(), f.got(), "seed %d", seed)
			}
		}
		f.settle()
		require.Equal(t, f.fromScratch(), f.got(), "seed %d", seed)
	}
}

// A round of many keys that comes to nothing is followed by others.
func TestManyKeysAreUnchanged(t *testing.T) {
	f := newFixture(t)
	fill := func() {
		f.write(func(wtxn statedb.WriteTxn) {
			for i := range 3000 {
				_, _, err := f.members.Insert(wtxn, &member{ID: i, Group: strconv.Itoa(i)})
				require.NoError(t, err)
			}
		})
	}
	fill()
	require.Equal(t, 3000, f.settle().Keys)
	fill()
	require.Zero(t, f.settle().Inserted)
	f.insert(&member{ID: 3000, Group: "3000"})
	require.Equal(t, 1, f.settle().Keys)
}

// The work is that of the affected keys, and only rows that differ are written.
func TestCounts(t *testing.T) {
	f := newFixture(t)
	f.write(func(wtxn statedb.WriteTxn) {
		for i := range 30 {
			f.members.Insert(wtxn, &member{i, string(rune('a' + i%3)), i})
		}
	})
	require.Equal(t, transform.Counts{Rounds: 1, Keys: 3, Rows: 30, Inserted: 30}, f.settle())

	f.insert(&member{30, "a", 1})
	require.Equal(t, transform.Counts{Rounds: 1, Keys: 1, Rows: 11, Inserted: 1}, f.settle(), "one more in a group of ten")

	f.insert(&member{30, "b", 1})
	require.Equal(t, transform.Counts{Rounds: 1, Keys: 2, Rows: 21, Inserted: 1, Deleted: 1}, f.settle(), "the old and the new group")

	revision := f.shown.Revision(f.db.ReadTxn())
	f.insert(&member{30, "b", 2})
	require.Equal(t, transform.Counts{Rounds: 1, Keys: 1, Rows: 11}, f.settle(), "a change that makes no difference")
	require.Equal(t, revision, f.shown.Revision(f.db.ReadTxn()))

	require.Equal(t, transform.Counts{}, f.settle(), "no change")
}

// Between values that make no difference an input affects nothing, but the next
// change is compared with the value then, and deletion affects its keys.
func TestFromIf(t *testing.T) {
	f := newFixture(t, func(f *fixture, rule *Rule[string, *shown]) {
		rule.Inputs[0] = FromIf(f.members,
			func(old, new *member) bool { return old.Group != new.Group },
			func(_ statedb.ReadTxn, m *member, affect func(string)) { affect(m.Group) })
	})

	f.insert(&member{1, "a", 1})
	require.Equal(t, 1, f.settle().Keys)
	f.insert(&member{1, "a", 2})
	require.Equal(t, 0, f.settle().Keys)
	f.insert(&member{1, "b", 2})
	require.Equal(t, 2, f.settle().Keys)
	f.write(func(wtxn statedb.WriteTxn) { f.members.Delete(wtxn, &member{ID: 1}) })
	require.Equal(t, 1, f.settle().Keys)
	require.Empty(t, f.got())
}

// A row that passes from one key to another within a round is not deleted for
// the key that it left.
func TestRowMovesBetweenKeys(t *testing.T) {
	f := newFixture(t)
	rule := f.rule()
	// The output's key does not have the group, so a member's row stays one.
	byID := statedb.Index[*shown, int]{
		Name: "id", Unique: true, FromKey: index.Int, FromString: index.IntString,
		FromObject: func(s *shown) index.KeySet { return index.NewKeySet(index.Int(s.ID)) },
	}
	output := statedb.MustNewTable(f.db, "by-id", byID, shownGroup)
	rule.Output = output
	rule.Existing = func(txn statedb.ReadTxn, group string) iter.Seq2[*shown, statedb.Revision] {
		return output.List(txn, shownGroup.Query(group))
	}
	r, err := newRunner(f.db, rule, transform.NewMetrics().Add("by-id"))
	require.NoError(t, err)
	for _, group := range []string{"b", "a", "c", "a", "b"} {
		f.insert(&member{1, group, 1})
		for range 2 {
			_, err := r.round()
			require.NoError(t, err)
		}
		row, _, found := output.Get(f.db.ReadTxn(), byID.Query(1))
		require.True(t, found)
		require.Equal(t, group, row.Group)
	}
}

// Within a round, inserts precede deletes.
func TestInsertsPrecedeDeletes(t *testing.T) {
	f := newFixture(t)
	f.insert(&member{1, "a", 1})
	f.settle()
	wtxn := f.db.WriteTxn(f.shown)
	changes, err := f.shown.Changes(wtxn)
	require.NoError(t, err)
	wtxn.Commit()
	drain := func() (deleted []bool) {
		seq, _ := changes.Next(f.db.ReadTxn())
		for c := range seq {
			deleted = append(deleted, c.Deleted)
		}
		return deleted
	}
	drain()
	f.insert(&member{1, "b", 1})
	f.settle()
	require.Equal(t, []bool{false, true}, drain())
}

// The output is initialized when the inputs are, with its rows in it; before,
// nothing is derived.
func TestInitialization(t *testing.T) {
	var (
		db       *statedb.DB
		members  statedb.RWTable[*member]
		output   statedb.RWTable[*shown]
		complete func(statedb.WriteTxn)
	)
	h := hive.New(statedb.Cell, job.Cell, cell.SimpleHealthCell, cell.Module("test", "Test",
		cell.Provide(job.Registry.NewGroup, transform.NewMetrics),
		cell.Invoke(func(p Params) error {
			f := &fixture{db: p.DB}
			f.members = statedb.MustNewTable(p.DB, "members", memberID, memberGroup)
			f.limits = statedb.MustNewTable(p.DB, "limits", limitGroup)
			f.shown = statedb.MustNewTable(p.DB, "shown", shownKey, shownGroup)
			db, members, output = p.DB, f.members, f.shown
			wtxn := db.WriteTxn(members)
			complete = members.RegisterInitializer(wtxn, "test")
			wtxn.Commit()
			_, err := Register(p, f.rule())
			return err
		})))
	log := hivetest.Logger(t, hivetest.LogLevel(slog.LevelError))
	require.NoError(t, h.Start(log, t.Context()))
	defer func() { require.NoError(t, h.Stop(log, context.Background())) }()

	wtxn := db.WriteTxn(members)
	members.Insert(wtxn, &member{1, "a", 1})
	wtxn.Commit()
	initialized, watch := output.Initialized(db.ReadTxn())
	require.False(t, initialized)
	require.Never(t, func() bool { return output.NumObjects(db.ReadTxn()) > 0 }, 20*time.Millisecond, 5*time.Millisecond)

	wtxn = db.WriteTxn(members)
	members.Insert(wtxn, &member{2, "a", 1})
	complete(wtxn)
	wtxn.Commit()
	<-watch
	require.Equal(t, 2, output.NumObjects(db.ReadTxn()), "initialized means complete")
}

// A rule with a Plan may add keys, and sees each key once.
func TestPlan(t *testing.T) {
	var planned [][]string
	f := newFixture(t, func(f *fixture, rule *Rule[string, *shown]) {
		rule.Rows = nil
		rule.Plan = func(txn statedb.ReadTxn, keys []string) ([]string, func(string) []*shown) {
			if !slices.Contains(keys, "z") {
				keys = append(keys, "z")
			}
			planned = append(planned, slices.Clone(keys))
			return keys, func(group string) []*shown {
				if group == "z" {
					return []*shown{{Group: "z", ID: f.members.NumObjects(txn)}}
				}
				return f.rows(txn, group)
			}
		}
	})
	f.insert(&member{1, "a", 1})
	f.insert(&member{2, "a", 1})
	f.settle()
	require.Equal(t, [][]string{{"a", "z"}}, planned)
	require.Equal(t, []shown{{"a", 0, 1}, {"a", 1, 2}, {"z", 0, 2}}, slices.SortedFunc(maps.Keys(f.got()), func(a, b shown) int {
		return shownKeyOf(a) - shownKeyOf(b)
	}))
}

func shownKeyOf(s shown) int { return int(s.Group[0])*10 + s.Rank }
