// SPDX-License-Identifier: Apache-2.0

package mapsync

import (
	"context"
	"io"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/hive/job"
	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/testdata/await"
)

// agent is a hive with one reconciled map.
type agent struct {
	*hive.Hive
	t           testing.TB
	log         *slog.Logger
	db          *statedb.DB
	rows        statedb.RWTable[*testRow]
	objects     statedb.RWTable[*testObject]
	mirror      statedb.RWTable[*testMirror]
	target      bpf.Map[prefixKey, number]
	memory      *bpf.Memory
	control     *Control
	table       statedb.Table[*tables.BPFMap]
	metrics     *prometheus.Registry
	initialized func(statedb.WriteTxn)
}

func newAgent(t testing.TB, entries uint32, args ...string) *agent {
	a := &agent{
		t: t, memory: bpf.NewMemory(), metrics: prometheus.NewRegistry(), log: hivetest.Logger(t, hivetest.LogLevel(slog.LevelError)),
	}
	opts := hive.DefaultOptions()
	opts.LogThreshold = time.Minute
	opts.ModulePrivateProviders = cell.ModulePrivateProviders{
		func(r job.Registry, h cell.Health, id cell.ModuleID, log *slog.Logger) job.Group {
			return r.NewGroup(h.NewScope(string(id)), job.WithLogger(log))
		},
	}
	a.Hive = hive.NewWithOptions(
		opts,
		statedb.Cell,
		job.Cell,
		cell.SimpleHealthCell,
		Cell,
		cell.Provide(func() prometheus.Registerer { return a.metrics }),
		cell.Module(
			"test",
			"Test",
			cell.Invoke(func(p Params, table statedb.Table[*tables.BPFMap]) (err error) {
				a.db, a.control, a.table = p.DB, p.Control, table
				if a.rows, err = statedb.NewTable(p.DB, "rows", testRowIndex); err != nil {
					return err
				}
				if a.objects, err = statedb.NewTable(p.DB, "objects", testObjectIndex); err != nil {
					return err
				}
				if a.mirror, err = tables.NewMirrorTable[prefixKey, number]("map-test", nil)(p.DB); err != nil {
					return err
				}
				a.target, err = bpf.Open[prefixKey, number](a.memory,
					bpf.Spec{Name: "test", Type: bpf.TypeHash, MaxEntries: entries})
				if err != nil {
					return err
				}
				wtxn := p.DB.WriteTxn(a.rows)
				a.initialized = a.rows.RegisterInitializer(wtxn, "test")
				wtxn.Commit()
				object := NewDependency("object", Exists(a.objects.ToTable(), testObjectIndex.Query))
				return Register(p, testConfig{
					Map: a.target, Desired: tables.NewDesired(a.rows), Mirror: a.mirror,
					PublishIntent: true,
					ByKey:         testRowIndex.Query, WithStatus: tables.WithStatus[testRow, *testRow],
					Refers: func(r *testRow, _ *number) []Reference { return []Reference{object.On(uint32(r.Value))} },
				})
			}),
		),
	)
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	a.RegisterFlags(flags)
	require.NoError(t, flags.Parse(args))
	return a
}

func (a *agent) start() {
	require.NoError(a.t, a.Start(a.log, context.Background()))
	a.t.Cleanup(func() { require.NoError(a.t, a.Stop(a.log, context.Background())) })
}

func (a *agent) change(rows ...*testRow) {
	wtxn := a.db.WriteTxn(a.rows)
	defer wtxn.Abort()
	for _, r := range rows {
		var err error
		if r.Value == 0 {
			_, _, err = a.rows.Delete(wtxn, r)
		} else {
			_, _, err = a.rows.Insert(wtxn, r)
		}
		require.NoError(a.t, err)
	}
	wtxn.Commit()
}

func (a *agent) complete(number uint32, is bool) {
	wtxn := a.db.WriteTxn(a.objects)
	defer wtxn.Abort()
	var err error
	if is {
		_, _, err = a.objects.Insert(wtxn, &testObject{number})
	} else {
		_, _, err = a.objects.Delete(wtxn, &testObject{number})
	}
	require.NoError(a.t, err)
	wtxn.Commit()
}

func (a *agent) initialize() {
	wtxn := a.db.WriteTxn(a.rows)
	a.initialized(wtxn)
	wtxn.Commit()
}

// settle waits until the map has what is desired.
func (a *agent) settle() {
	a.t.Helper()
	await.True(a.t, func() bool {
		txn := a.db.ReadTxn()
		want, have := map[prefixKey]number{}, map[prefixKey]number{}
		for row := range a.rows.All(txn) {
			if row.Status.Kind.String() != "Done" {
				return false
			}
			want[row.Key] = row.Value
		}
		entries, err := a.target.Dump()
		require.NoError(a.t, err)
		for _, e := range entries {
			have[e.Key] = e.Value
		}
		ready, _ := a.table.Initialized(txn)
		return ready && a.mirror.NumObjects(txn) == len(want) && len(want) == len(have) && func() bool {
			for k, v := range want {
				if have[k] != v {
					return false
				}
			}
			return true
		}()
	})
}

// script runs one command and returns its output.
func (a *agent) script(line string) string {
	cmds, err := a.ScriptCommands(slog.New(slog.NewTextHandler(io.Discard, nil)))
	require.NoError(a.t, err)
	args := strings.Fields(line)
	state, err := script.NewState(a.t.Context(), a.t.TempDir(), nil)
	require.NoError(a.t, err)
	wait, err := cmds[args[0]].Run(state, args[1:]...)
	require.NoError(a.t, err)
	stdout, _, err := wait(state)
	require.NoError(a.t, err)
	return stdout
}

func TestAgent(t *testing.T) {
	a := newAgent(t, 100)
	a.start()
	a.complete(1, true)
	a.change(row(key(32, 10), 1), row(key(32, 11), 2))
	_, err := a.control.Audit(t.Context(), "test")
	require.ErrorContains(t, err, "what is desired is not known yet")
	require.Zero(t, a.memory.Sequence())
	a.initialize()
	await.True(t, func() bool { return a.memory.Sequence() == 1 })
	a.complete(2, true)
	a.settle()
	writes, deletes := a.control.Counts("test")
	require.Equal(t, []uint64{2, 0}, []uint64{writes, deletes})
	require.Equal(t, []Flow{{"test", "rows", "map-test"}}, a.control.Flows())
	await.True(t, func() bool {
		row, _, found := a.table.Get(a.db.ReadTxn(), tables.BPFMapByName("test"))
		return found && row.Entries == 2 && row.Writes == 2
	})
	gathered, err := a.metrics.Gather()
	require.NoError(t, err)
	var names []string
	for _, family := range gathered {
		names = append(names, strings.TrimPrefix(family.GetName(), "sluice_map_"))
	}
	require.Equal(t, []string{
		"audit_repairs_total", "entries", "failed", "latency_seconds", "max_entries", "operations_total", "pending",
		"pressure_ratio", "waiting",
	}, names)

	_, err = a.control.Audit(t.Context(), "nosuch")
	require.ErrorContains(t, err, `no reconciler of map "nosuch": there are [test]`)
	_, err = a.target.Update([]prefixKey{key(32, 10)}, []number{5})
	require.NoError(t, err)
	require.Equal(t, "repaired 0 missing, 1 changed, 0 foreign\n", a.script("map/audit test"))
	require.Equal(t, "clean\n", a.script("map/audit test"))
	a.settle()
}

func TestOptions(t *testing.T) {
	for _, args := range [][]string{
		{"--retry-min=0", "--retry-min 0s is not positive"},
		{"--retry-max=1ms", "--retry-max 1ms is less than"},
		{"--audit-interval=-1s", "--audit-interval -1s is negative"},
	} {
		a := newAgent(t, 100, args[0])
		require.ErrorContains(t, a.Populate(a.log), args[1])
	}
}

// Rows and what they refer to change while the reconciler works, writes fail, and audits
// run. When the faults stop the map is as desired, without another event.
func TestAgentConcurrent(t *testing.T) {
	a := newAgent(t, 150, "--retry-max=100ms", "--audit-interval=5ms")
	var faults atomic.Bool
	faults.Store(true)
	var calls atomic.Uint64
	a.memory.Inject(func(string, bpf.Op) error {
		if faults.Load() && calls.Add(1)%10 == 0 {
			return unix.EBUSY
		}
		return nil
	})
	a.start()
	a.initialize()
	rnd := rand.New(rand.NewPCG(1, 1))
	addr := func(n int) prefixKey { return key(32, 10, byte(n)) }
	for range 500 {
		var rows []*testRow
		for range 4 {
			rows = append(rows, row(addr(rnd.IntN(200)), 1+number(rnd.IntN(3))), row(addr(rnd.IntN(200)), 0))
		}
		a.change(rows...)
		a.complete(1+rnd.Uint32N(3), rnd.IntN(2) == 0)
	}
	for n := 140; n < 200; n++ {
		a.change(row(addr(n), 0))
	}
	for n := range uint32(4) {
		a.complete(n, true)
	}
	faults.Store(false)
	a.settle()
	result, err := a.control.Audit(t.Context(), "test")
	require.NoError(t, err)
	require.True(t, result.Clean())
}

// Maps that no reconciler writes are shown beside the others, and written when their
// numbers change.
func TestShow(t *testing.T) {
	a := newAgent(t, 100)
	a.start()
	revision := func(name string) uint64 {
		_, revision, found := a.table.Get(a.db.ReadTxn(), tables.BPFMapByName(name))
		require.True(t, found)
		return revision
	}
	one := tables.BPFMap{
		Name:       "sluice_one",
		Type:       tables.TypeLRU,
		Backend:    "kernel",
		MaxEntries: 10,
		Entries:    4,
	}
	two := one
	two.Name = "sluice_two"
	require.NoError(t, a.control.Show(a.db, two, one))
	shown, _, found := a.table.Get(a.db.ReadTxn(), tables.BPFMapByName("sluice_one"))
	require.True(t, found)
	require.Equal(t, &one, shown)

	first, second := revision("sluice_one"), revision("sluice_two")
	two.Entries++
	require.NoError(t, a.control.Show(a.db, one, two))
	require.Equal(t, first, revision("sluice_one"))
	require.Greater(t, revision("sluice_two"), second)

	require.ErrorContains(t, a.control.Show(a.db, tables.BPFMap{Name: "test", Entries: 7}),
		"it has a reconciler")
	require.NoError(t, a.control.Hide(a.db, "sluice_one", "unknown"))
	_, _, found = a.table.Get(a.db.ReadTxn(), tables.BPFMapByName("sluice_one"))
	require.False(t, found)
	require.NoError(t, a.control.Show(a.db, one), "again")
}
