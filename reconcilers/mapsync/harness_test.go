// SPDX-License-Identifier: Apache-2.0

package mapsync

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
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

// prefixKey is the key of a small prefix map.
type prefixKey struct {
	PrefixLen uint32
	Addr      [4]byte
}

func (k prefixKey) String() string {
	return netip.PrefixFrom(netip.AddrFrom4(k.Addr), int(k.PrefixLen)).String()
}

type number uint32

func (n number) String() string { return fmt.Sprint(uint32(n)) }

// testRow is a row of a desired table: an entry that refers to the object of its value.
type testRow struct {
	Key   prefixKey
	Value number
	Made  uint64
	tables.Reconciled
}

func (*testRow) TableHeader() []string { return []string{"Key", "Value", "Status"} }
func (r *testRow) TableRow() []string {
	return []string{r.Key.String(), r.Value.String(), r.Status.Kind.String()}
}
func (r *testRow) MapKey() prefixKey { return r.Key }
func (r *testRow) MapValue() number  { return r.Value }

var testRowIndex = statedb.Index[*testRow, prefixKey]{
	Name: "key", Unique: true, FromString: index.FromString, FromKey: testRowKey,
	FromObject: func(r *testRow) index.KeySet { return index.NewKeySet(testRowKey(r.Key)) },
}

func testRowKey(k prefixKey) index.Key {
	k = bpf.Masked(k)
	return append(index.Uint32(k.PrefixLen), k.Addr[:]...)
}

// testObject is something that is complete in the kernel.
type testObject struct{ Number uint32 }

func (*testObject) TableHeader() []string { return []string{"Number"} }
func (o *testObject) TableRow() []string  { return []string{fmt.Sprint(o.Number)} }

var testObjectIndex = statedb.Index[*testObject, uint32]{
	Name: "number", Unique: true, FromKey: index.Uint32, FromString: index.Uint32String,
	FromObject: func(o *testObject) index.KeySet { return index.NewKeySet(index.Uint32(o.Number)) },
}

type (
	testConfig = Config[*testRow, prefixKey, number]
	testMirror = tables.Mirror[prefixKey, number]
)

// testLoop is a reconciler driven round by round, at a time of its own.
type testLoop struct {
	*loop[*testRow, prefixKey, number]
	t       testing.TB
	memory  *bpf.Memory
	rows    statedb.RWTable[*testRow]
	objects statedb.RWTable[*testObject]
	needs   *Dependency // on objects
	health  *cell.SimpleHealth
	logged  *bytes.Buffer
	clock   time.Time
	asked   int

	beforeRound func() // may be nil
}

func newTestLoop(t testing.TB, spec bpf.Spec, configure ...func(*testLoop, *testConfig)) *testLoop {
	db := statedb.New()
	l := &testLoop{t: t, memory: bpf.NewMemory(), clock: time.Now(), logged: &bytes.Buffer{}}
	if spec == (bpf.Spec{}) {
		spec = bpf.Spec{Name: "test", Type: bpf.TypeLPM, MaxEntries: 1000}
	}
	target, err := bpf.Open[prefixKey, number](l.memory, spec)
	require.NoError(t, err)
	l.rows, err = statedb.NewTable(db, "rows", testRowIndex)
	require.NoError(t, err)
	l.objects, err = statedb.NewTable(db, "objects", testObjectIndex)
	require.NoError(t, err)
	exists := Exists(l.objects.ToTable(), testObjectIndex.Query)
	looks := exists.Evaluate
	exists.Evaluate = func(txn statedb.ReadTxn) func(Reference) string {
		missing := looks(txn)
		return func(r Reference) string { l.asked++; return missing(r) }
	}
	l.needs = NewDependency("object", exists)
	mirror, err := tables.NewMirrorTable[prefixKey]("map-test",
		func(n number) uint32 { return uint32(n) })(db)
	require.NoError(t, err)
	table, err := tables.NewBPFMapTable(db)
	require.NoError(t, err)
	require.NoError(t, db.Start())
	t.Cleanup(func() { db.Stop() })

	control, err := newControl(controlParams{Options: DefaultOptions, Table: table})
	require.NoError(t, err)
	cfg := testConfig{
		Map: target, Desired: tables.NewDesired(l.rows), Mirror: mirror, PublishIntent: true,
		ByKey: testRowIndex.Query, WithStatus: tables.WithStatus[testRow, *testRow],
		Made: func(r *testRow) uint64 { return r.Made },
	}
	for _, f := range configure {
		f(l, &cfg)
	}
	require.NoError(t, cfg.validate())
	l.loop, err = newLoop(db, slog.New(slog.NewTextHandler(l.logged, nil)), control, cfg)
	require.NoError(t, err)
	l.now = func() time.Time { return l.clock }
	_, l.health = cell.NewSimpleHealth()
	l.report.health = l.health
	t.Cleanup(l.stopAudit)
	return l
}

// gated has rows wait for the object of their value.
func gated(l *testLoop, cfg *testConfig) {
	cfg.Refers = func(r *testRow, _ *number) []Reference { return []Reference{l.needs.On(uint32(r.Value))} }
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

// complete says of an object whether it is complete.
func (l *testLoop) complete(number uint32, is bool) {
	wtxn := l.db.WriteTxn(l.objects)
	defer wtxn.Abort()
	var err error
	if is {
		_, _, err = l.objects.Insert(wtxn, &testObject{number})
	} else {
		_, _, err = l.objects.Delete(wtxn, &testObject{number})
	}
	require.NoError(l.t, err)
	wtxn.Commit()
}

// rounds makes rounds until nothing is to be done at this time.
func (l *testLoop) rounds() {
	l.t.Helper()
	for range 100 {
		if l.beforeRound != nil {
			l.beforeRound()
		}
		watches, err := l.round()
		require.NoError(l.t, err)
		l.elapsed(l.clock)
		changed := slices.ContainsFunc(watches, func(watch <-chan struct{}) bool {
			select {
			case <-watch:
				return true
			default:
				return false
			}
		})
		if !changed && l.audit == nil && !l.queue.isDue(l.clock) {
			return
		}
	}
	l.t.Fatal("the reconciler does not come to rest")
}

// wait lets time go by, one timer after another.
func (l *testLoop) wait(d time.Duration) {
	l.t.Helper()
	for end := l.clock.Add(d); ; {
		next := l.nextTimer()
		if next.After(end) {
			l.clock = end
			return
		}
		l.clock = next
		l.rounds()
	}
}

// compare makes an audit.
func (l *testLoop) compare() AuditResult {
	reply := make(chan auditReply, 1)
	l.startAudit(reply)
	l.rounds()
	answer := <-reply
	require.Equal(l.t, l.report.auditErr, answer.err)
	return answer.result
}

// held returns what the map holds.
func (l *testLoop) held() map[prefixKey]number {
	entries, err := l.Map.Dump()
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
	m, _, found := l.Mirror.Get(l.db.ReadTxn(), tables.MirrorByKey[prefixKey, number](key))
	if !found {
		return ""
	}
	return strings.Join(m.TableRow()[1:], " ")
}

// requireSettled requires that the map, the mirror and the rows agree.
func (l *testLoop) requireSettled(msg ...any) {
	l.t.Helper()
	txn := l.db.ReadTxn()
	want, mirror := map[prefixKey]number{}, map[prefixKey]number{}
	for row := range l.rows.All(txn) {
		want[bpf.Masked(row.Key)] = row.Value
		require.Equal(l.t, reconciler.StatusKindDone, row.Status.Kind,
			"%v: %s %v", row.Key, row.Status, msg)
	}
	for m := range l.Mirror.All(txn) {
		mirror[m.Key] = m.Value
		settled := testMirror{Key: m.Key, Value: m.Value, Present: true, Desired: true}
		settled.Made = m.Made
		require.Equal(l.t, settled, *m, msg...)
	}
	require.Equal(l.t, want, l.held(), msg...)
	require.Equal(l.t, want, mirror, msg...)
	require.Empty(l.t, l.queue.byKey, msg...)
	require.Empty(l.t, l.queue.timers, msg...)
	require.Empty(l.t, l.queue.ready, msg...)
	require.Empty(l.t, l.queue.waiting, msg...)
	require.Empty(l.t, l.queue.full, msg...)
	require.Equal(l.t, [states]int{}, l.queue.counts, msg...)
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
	return &testRow{Key: k, Value: value, Reconciled: tables.Pending()}
}
