// SPDX-License-Identifier: Apache-2.0

package derive

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// item is an input row, sum and size are outputs: of the weights in a group, and how many.
type item struct {
	ID     int
	Group  string
	Weight int
}

type total struct {
	Group string
	N     int
}

func (*item) TableHeader() []string  { return []string{"ID"} }
func (i *item) TableRow() []string   { return []string{strconv.Itoa(i.ID)} }
func (*total) TableHeader() []string { return []string{"Group", "N"} }
func (t *total) TableRow() []string  { return []string{t.Group, strconv.Itoa(t.N)} }

var (
	itemID = statedb.Index[*item, int]{
		Name: "id", Unique: true, FromKey: index.Int, FromString: index.IntString,
		FromObject: func(i *item) index.KeySet { return index.NewKeySet(index.Int(i.ID)) },
	}
	itemGroup = statedb.Index[*item, string]{
		Name: "group", FromKey: index.String, FromString: index.FromString,
		FromObject: func(i *item) index.KeySet { return index.NewKeySet(index.String(i.Group)) },
	}
	totalGroup = statedb.Index[*total, string]{
		Name: "group", Unique: true, FromKey: index.String, FromString: index.FromString,
		FromObject: func(t *total) index.KeySet { return index.NewKeySet(index.String(t.Group)) },
	}
)

type fixture struct {
	*testing.T
	db          *statedb.DB
	items       statedb.RWTable[*item]
	sums, sizes statedb.RWTable[*total]
	runner      *runner[string]
	computed    []string // keys, in order
	then        func(key string, mark func(string))
}

func newFixture(t *testing.T) *fixture {
	f := &fixture{T: t, db: statedb.New()}
	f.items = statedb.MustNewTable(f.db, "items", itemID, itemGroup)
	f.sums = statedb.MustNewTable(f.db, "sums", totalGroup)
	f.sizes = statedb.MustNewTable(f.db, "sizes", totalGroup)
	var err error
	f.runner, err = newRunner(f.db, Rule[string]{
		Name:    "totals",
		Outputs: []statedb.TableMeta{f.sums, f.sizes},
		Inputs: []Input[string]{
			FromIf(f.items, func(old, new *item) bool { return *old != *new },
				func(_ statedb.ReadTxn, i *item, mark func(string)) { mark(i.Group) }),
		},
		Last:    func(group string) bool { return group == "end" },
		Compute: f.compute,
	}, NewMetrics())
	require.NoError(t, err)
	return f
}

func (f *fixture) compute(
	in statedb.ReadTxn,
	out statedb.WriteTxn,
	keys []string,
	mark func(string),
) error {
	for _, group := range keys {
		f.computed = append(f.computed, group)
		if f.then != nil {
			f.then(group, mark)
		}
		sum, size := 0, 0
		for i := range f.items.List(in, itemGroup.Query(group)) {
			sum, size = sum+i.Weight, size+1
		}
		for table, n := range map[statedb.RWTable[*total]]int{f.sums: sum, f.sizes: size} {
			old, _, had := table.Get(out, totalGroup.Query(group))
			switch row := (&total{group, n}); {
			case size == 0:
				table.Delete(out, row)
			case !had || *old != *row:
				table.Insert(out, row)
			}
		}
	}
	return nil
}

func (f *fixture) write(do func(wtxn statedb.WriteTxn)) {
	wtxn := f.db.WriteTxn(f.items)
	defer wtxn.Abort()
	do(wtxn)
	wtxn.Commit()
}

func (f *fixture) work() { require.NoError(f, f.runner.work(f.Context())) }

func (f *fixture) check() {
	f.Helper()
	sums, sizes := map[string]int{}, map[string]int{}
	txn := f.db.ReadTxn()
	for i := range f.items.All(txn) {
		sums[i.Group] += i.Weight
		sizes[i.Group]++
	}
	for table, want := range map[statedb.Table[*total]]map[string]int{f.sums: sums, f.sizes: sizes} {
		got := map[string]int{}
		for row := range table.All(txn) {
			got[row.Group] = row.N
		}
		require.True(f, maps.Equal(want, got), "%s: want %v, got %v", table.Name(), want, got)
	}
}

// Any order, splitting and merging of changes gives what a computation from scratch does,
// in both outputs.
func TestEqualsFromScratch(t *testing.T) {
	for seed := range uint64(100) {
		random := rand.New(rand.NewPCG(seed, 0))
		f := newFixture(t)
		for range 50 {
			f.write(func(wtxn statedb.WriteTxn) {
				for range 1 + random.IntN(4) {
					id := random.IntN(10)
					if random.IntN(4) == 0 {
						f.items.Delete(wtxn, &item{ID: id})
					} else {
						f.items.Insert(wtxn, &item{id, string(rune('a' + random.IntN(4))), random.IntN(9)})
					}
				}
			})
			if random.IntN(2) == 0 {
				f.work()
				f.check()
			}
		}
	}
}

// A change marks the keys of the former value too, and one without effect marks none and
// commits nothing.
func TestMarks(t *testing.T) {
	f := newFixture(t)
	insert := func(i *item) { f.write(func(wtxn statedb.WriteTxn) { f.items.Insert(wtxn, i) }) }
	insert(&item{1, "a", 1})
	f.work()
	f.computed = nil
	insert(&item{1, "b", 1})
	f.work()
	require.Equal(t, []string{"a", "b"}, f.computed)
	f.check()

	f.computed = nil
	before := f.sums.Revision(f.db.ReadTxn())
	insert(&item{1, "b", 1})
	f.work()
	require.Empty(t, f.computed)
	require.Equal(t, before, f.sums.Revision(f.db.ReadTxn()))
}

// A key that one change marks behind many others is computed after them, also if other
// changes mark it meanwhile; and changes of few keys do not wait for many.
func TestOrder(t *testing.T) {
	f := newFixture(t)
	f.work()
	const many = 5000
	f.then = func(key string, mark func(string)) {
		if key == "list" {
			for i := range many {
				mark(fmt.Sprint("of-list-", i))
			}
			mark("end")
		}
	}
	f.write(func(wtxn statedb.WriteTxn) {
		f.items.Insert(wtxn, &item{0, "list", 1})
		f.items.Insert(wtxn, &item{1, "end", 1})
	})
	f.runner.collect(f.db.ReadTxn())
	require.NoError(t, f.runner.transact())
	f.write(func(wtxn statedb.WriteTxn) {
		f.items.Insert(wtxn, &item{2, "end", 1})
		f.items.Insert(wtxn, &item{3, "other", 1})
	})
	f.computed = nil
	f.work()
	require.Less(t, slices.Index(f.computed, "other"), maxKeys, "it does not wait for the list")
	require.Equal(t, "end", f.computed[len(f.computed)-1])
	require.Equal(t, 1, len(f.computed)-many+maxKeys-1, "each once, with another")
	f.check()
}

// A key that waits keeps its place, but one of many that a small change marks does not wait
// with the others. A key of Last is computed after all that was marked before it.
func TestPlaces(t *testing.T) {
	f := newFixture(t)
	f.work()
	f.runner.maxKeys, f.runner.manyKeys = 2, 3
	f.then = func(key string, mark func(string)) {
		if key == "list" {
			for i := range 20 {
				mark(fmt.Sprint("of-list-", i))
			}
			mark("end")
		}
	}
	insert := func(id int, group string) {
		f.write(func(wtxn statedb.WriteTxn) { f.items.Insert(wtxn, &item{id, group, 1}) })
		f.runner.collect(f.db.ReadTxn())
	}
	transact := func() { require.NoError(t, f.runner.transact()) }
	f.computed = nil
	insert(0, "list")
	transact()
	for i := range 6 {
		insert(1+i, fmt.Sprint("few-", i)) // younger than the list
	}
	insert(7, "of-list-19")
	insert(8, "before-end")
	insert(8, "end") // and before-end
	insert(1, "few-0-again")
	for range 4 {
		transact()
	}
	require.Contains(t, f.computed, "of-list-19", "it has overtaken")
	require.NotContains(t, f.computed, "of-list-18")
	require.NotContains(t, f.computed, "end")
	f.work()
	require.Less(t, slices.Index(f.computed, "few-0"), slices.Index(f.computed, "few-1"))
	require.Equal(t, "end", f.computed[len(f.computed)-1])

	f.computed = nil
	for i := range 6 {
		insert(10+i, fmt.Sprint("few-", i)) // older than the list
	}
	f.runner.enqueue(func(mark func(string)) { f.then("list", mark) })
	f.work()
	require.Equal(t, "few-5", f.computed[5], "nothing of the list overtakes")
	f.check()
}

// The last keys are computed after all that were marked before them, whatever is marked again
// meanwhile, by changes of few keys and of many.
func TestLast(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 1))
		f := newFixture(t)
		f.work()
		f.runner.Last = func(key string) bool { return strings.HasPrefix(key, "end") }
		waiting := map[string]map[string]bool{} // what the last keys have to be computed after
		f.then = func(key string, _ func(string)) {
			require.Empty(t, waiting[key], "%s is too early", key)
			for _, before := range waiting {
				delete(before, key)
			}
		}
		for range 200 {
			if random.IntN(3) == 0 {
				require.NoError(t, f.runner.transact())
				continue
			}
			end := fmt.Sprint("end-", random.IntN(2))
			n := []int{1, 1, 1500}[random.IntN(3)]
			f.runner.enqueue(func(mark func(string)) {
				for range n {
					key := fmt.Sprint(random.IntN(4000))
					if waiting[end] == nil {
						waiting[end] = map[string]bool{}
					}
					waiting[end][key] = true
					mark(key)
				}
				mark(end)
			})
		}
		f.work()
	}
}

// A later input marks nothing of the first snapshot, and everything after it.
func TestLater(t *testing.T) {
	f := newFixture(t)
	f.runner.Inputs[0] = Later(f.runner.Inputs[0])
	insert := func(i *item) { f.write(func(wtxn statedb.WriteTxn) { f.items.Insert(wtxn, i) }) }
	insert(&item{1, "a", 1})
	f.work()
	require.Empty(t, f.computed)
	insert(&item{2, "b", 1})
	insert(&item{1, "c", 1})
	f.work()
	require.ElementsMatch(t, []string{"a", "b", "c"}, f.computed)
}

// Outputs are initialized when all keys of the first snapshot are computed.
func TestInitialized(t *testing.T) {
	f := newFixture(t)
	f.write(func(wtxn statedb.WriteTxn) {
		for i := range 3 * maxKeys {
			f.items.Insert(wtxn, &item{i, strconv.Itoa(i), 1})
		}
	})
	f.runner.collect(f.db.ReadTxn())
	require.NoError(t, f.runner.transact())
	initialized, watch := f.sums.Initialized(f.db.ReadTxn())
	require.False(t, initialized)
	f.work()
	<-watch
	require.Equal(t, 3*maxKeys, f.sizes.NumObjects(f.db.ReadTxn()))
}
