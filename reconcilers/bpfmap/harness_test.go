// SPDX-License-Identifier: Apache-2.0

package bpfmap

import (
	"bytes"
	"encoding/binary"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testRow is a row of a desired table.
type testRow struct {
	Key    prefixKey
	Value  number
	Status reconciler.Status
}

func (*testRow) TableHeader() []string { return []string{"Key", "Value", "Status"} }
func (r *testRow) TableRow() []string {
	return []string{r.Key.String(), r.Value.String(), r.Status.Kind.String()}
}

func keyBytes(k prefixKey) index.Key {
	return append(index.Uint32(k.PrefixLen), k.Addr[:]...)
}

// mapKeyBytes are the bytes of a key in the map, as in the mirrors' indexes.
func mapKeyBytes(k prefixKey) index.Key {
	return append(binary.NativeEndian.AppendUint32(nil, k.PrefixLen), k.Addr[:]...)
}

var testRowIndex = statedb.Index[*testRow, prefixKey]{
	Name:       "key",
	FromObject: func(r *testRow) index.KeySet { return index.NewKeySet(keyBytes(r.Key)) },
	FromKey:    keyBytes,
	FromString: index.FromString,
	Unique:     true,
}

type testEntry = tables.MapEntry[prefixKey, number]

// testLoop is a reconciler driven step by step, at a time of its own.
type testLoop struct {
	*loop[*testRow, prefixKey, number]
	t         testing.TB
	memory    *bpf.Memory
	target    bpf.Map[prefixKey, number]
	rows      statedb.RWTable[*testRow]
	ready     func(statedb.WriteTxn) // marks rows initialized
	readiness statedb.RWTable[*tables.ClassReadiness]
	health    *cell.SimpleHealth
	logged    *bytes.Buffer
	now       time.Time

	beforeStep func() // may be nil
}

type testConfig struct {
	memory *bpf.Memory
	target bpf.Map[prefixKey, number] // instead of one in memory
	spec   bpf.Spec
	plan   Plan[prefixKey, number]
	gate   func(statedb.ReadTxn, Op[prefixKey, number]) (any, string)
}

// newTestLoop returns the reconciler of a new agent, on the maps of the old one.
func newTestLoop(t testing.TB, c testConfig) *testLoop {
	db := statedb.New()
	l := &testLoop{t: t, memory: c.memory, now: time.Now(), logged: &bytes.Buffer{}}
	if c.spec == (bpf.Spec{}) {
		c.spec = bpf.Spec{Name: "test", Type: bpf.TypeLPM, MaxEntries: 1000}
	}
	if c.plan.Order == nil {
		c.plan = PlanPrefix[prefixKey, number]()
	}
	if l.memory == nil {
		l.memory = bpf.NewMemory()
	}
	var err error
	l.target = c.target
	if l.target == nil {
		l.target, err = bpf.Open[prefixKey, number](l.memory, c.spec)
		require.NoError(t, err)
	}
	l.rows, err = statedb.NewTable(db, "rows", testRowIndex)
	require.NoError(t, err)
	mirror, err := statedb.NewTable(db, "map-test", statedb.Index[*testEntry, prefixKey]{
		Name:       "key",
		FromObject: func(e *testEntry) index.KeySet { return index.NewKeySet(mapKeyBytes(e.Key)) },
		FromKey:    mapKeyBytes,
		FromString: index.FromString,
		Unique:     true,
	})
	require.NoError(t, err)
	l.readiness, err = tables.NewClassReadinessTable(db)
	require.NoError(t, err)
	table, err := tables.NewBPFMapTable(db)
	require.NoError(t, err)
	require.NoError(t, db.Start())
	t.Cleanup(func() { db.Stop() })

	wtxn := db.WriteTxn(l.rows)
	l.ready = l.rows.RegisterInitializer(wtxn, "test")
	wtxn.Commit()

	control, err := newControl(controlParams{Options: DefaultOptions, Table: table})
	require.NoError(t, err)
	l.loop, err = newLoop(db, slog.New(slog.NewTextHandler(l.logged, nil)), control, Config[*testRow, prefixKey, number]{
		Map:        l.target,
		Desired:    l.rows,
		Entries:    mirror,
		MapKey:     func(r *testRow) prefixKey { return r.Key },
		MapValue:   func(r *testRow) number { return r.Value },
		WithStatus: func(r *testRow, s reconciler.Status) *testRow { c := *r; c.Status = s; return &c },
		GetStatus:  func(r *testRow) reconciler.Status { return r.Status },
		Plan:       c.plan,
		Gate:       perRound(c.gate),
		Opener:     OpenedByReadiness(l.readiness),
	})
	require.NoError(t, err)
	_, l.health = cell.NewSimpleHealth()
	l.report.health = l.health
	return l
}

// perRound makes the gates of rounds of one that is told the snapshot.
func perRound(gate func(statedb.ReadTxn, Op[prefixKey, number]) (any, string)) func(statedb.ReadTxn) Gate[prefixKey, number] {
	if gate == nil {
		return nil
	}
	return func(txn statedb.ReadTxn) Gate[prefixKey, number] {
		return func(op Op[prefixKey, number]) (any, string) { return gate(txn, op) }
	}
}

// start does what run does before its first step.
func (l *testLoop) start() {
	require.NoError(l.t, l.loadOnce())
	wtxn := l.db.WriteTxn(l.rows)
	l.ready(wtxn)
	wtxn.Commit()
}

// change inserts rows, and deletes those whose value is 0, in one transaction.
func (l *testLoop) change(rows ...*testRow) {
	wtxn := l.db.WriteTxn(l.rows)
	defer wtxn.Abort()
	for _, r := range rows {
		var err error
		if r.Value == 0 {
			_, _, err = l.rows.Delete(wtxn, r)
		} else {
			_, _, err = l.rows.Insert(wtxn, r)
		}
		require.NoError(l.t, err)
	}
	wtxn.Commit()
}

// round makes steps until nothing is to be done at this time.
func (l *testLoop) round() {
	l.t.Helper()
	for range 100 {
		if l.beforeStep != nil {
			l.beforeStep()
		}
		desired, opens, err := l.step(l.now)
		require.NoError(l.t, err)
		select {
		case <-desired:
			continue
		case <-opens:
			continue
		default:
		}
		if len(l.items.timers) == 0 || l.items.timers[0].due.After(l.now) {
			l.maybeReport(l.now)
			return
		}
	}
	l.t.Fatal("the reconciler does not come to rest")
}

// wait lets time go by, one retry after another.
func (l *testLoop) wait(d time.Duration) {
	l.t.Helper()
	end := l.now.Add(d)
	for len(l.items.timers) > 0 && !l.items.timers[0].due.After(end) {
		l.now = l.items.timers[0].due
		l.round()
	}
	l.now = end
	l.maybeReport(l.now)
}

// held returns what the map holds.
func (l *testLoop) held() map[prefixKey]number {
	entries, err := l.target.Dump()
	require.NoError(l.t, err)
	held := map[prefixKey]number{}
	for _, e := range entries {
		held[e.Key] = e.Value
	}
	return held
}

// status returns the status of a row in words.
func (l *testLoop) status(key prefixKey) string {
	row, _, found := l.rows.Get(l.db.ReadTxn(), testRowIndex.Query(key))
	if !found {
		return ""
	}
	return strings.TrimSpace(row.Status.Kind.String() + " " + row.Status.GetError())
}

// entry returns a row of the mirror in words.
func (l *testLoop) entry(key prefixKey) string {
	e, _, found := l.Entries.Get(l.db.ReadTxn(), tables.MapEntryByKey[prefixKey, number](key))
	if !found {
		return ""
	}
	return strings.TrimSpace(e.Value.String() + " " + string(e.Wanted) + " " + e.Error)
}

// requireSettled requires that the map, the mirror and the rows agree.
func (l *testLoop) requireSettled(msg ...any) {
	l.t.Helper()
	txn := l.db.ReadTxn()
	want, mirror := map[prefixKey]number{}, map[prefixKey]number{}
	for row := range l.rows.All(txn) {
		want[row.Key] = row.Value
		require.Equal(l.t, reconciler.StatusKindDone, row.Status.Kind, "%v: %s %v", row.Key, row.Status, msg)
	}
	for e := range l.Entries.All(txn) {
		mirror[e.Key] = e.Value
		require.Equal(l.t, tables.WantedSame, e.Wanted, "%v %v", e.Key, msg)
		require.Empty(l.t, e.Error)
	}
	require.Equal(l.t, want, l.held(), msg...)
	require.Equal(l.t, want, mirror, msg...)
	require.Empty(l.t, l.items.byKey, msg...)
	require.Empty(l.t, l.items.timers, msg...)
	require.Empty(l.t, l.items.waiting, msg...)
	require.Equal(l.t, [states]int{}, l.items.counts, msg...)
}

// writes returns the writes since the last call, as text.
func (l *testLoop) writes(after *uint64) []string {
	writes, lost := l.memory.Writes(*after)
	require.Zero(l.t, lost)
	var lines []string
	for _, w := range writes {
		*after = w.Sequence
		lines = append(lines, strings.TrimPrefix(w.String(), "test "))
	}
	return lines
}

// key returns a key such as 10.1/16.
func key(length uint32, addr ...byte) prefixKey {
	k := prefixKey{PrefixLen: length}
	copy(k.Addr[:], addr)
	return k
}

func row(k prefixKey, value number) *testRow {
	return &testRow{Key: k, Value: value, Status: reconciler.StatusPending()}
}

func sortedKeys(m map[prefixKey]number) []prefixKey {
	return slices.SortedFunc(maps.Keys(m), func(a, b prefixKey) int { return strings.Compare(a.String(), b.String()) })
}
