// SPDX-License-Identifier: Apache-2.0

package bpfmap_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
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
	"github.com/cilium/statedb/index"
	"github.com/cilium/statedb/reconciler"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/reconcilers/bpfmap"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/testdata/await"
)

// source is a desired entry of sluice_sources.
type source struct {
	Addr   netip.Addr
	Class  uint32
	Status reconciler.Status
}

func (*source) TableHeader() []string { return []string{"Addr", "Class", "Status"} }
func (s *source) TableRow() []string {
	return []string{s.Addr.String(), "", s.Status.Kind.String()}
}

var (
	sourceAddrIndex = statedb.Index[*source, netip.Addr]{
		Name:       "addr",
		FromObject: func(s *source) index.KeySet { return index.NewKeySet(index.NetIPAddr(s.Addr)) },
		FromKey:    index.NetIPAddr,
		FromString: index.NetIPAddrString,
		Unique:     true,
	}
	sourceByAddr = sourceAddrIndex.Query
)

func newSourceTable(db *statedb.DB) (statedb.RWTable[*source], error) {
	return statedb.NewTable(db, "sources", sourceAddrIndex)
}

// agent is a hive with one reconciled map.
type agent struct {
	*hive.Hive
	t           testing.TB
	log         *slog.Logger
	db          *statedb.DB
	sources     statedb.RWTable[*source]
	maps        *bpf.Maps
	control     *bpfmap.Control
	table       statedb.Table[*tables.BPFMap]
	metrics     *prometheus.Registry
	initialized func(statedb.WriteTxn)
}

func newAgent(t testing.TB, backend bpf.Backend, args ...string) *agent {
	a := &agent{t: t, metrics: prometheus.NewRegistry(), log: hivetest.Logger(t, hivetest.LogLevel(slog.LevelWarn))}
	opts := hive.DefaultOptions()
	opts.LogThreshold = time.Minute
	opts.ModulePrivateProviders = cell.ModulePrivateProviders{
		func(r job.Registry, h cell.Health, id cell.ModuleID, log *slog.Logger) job.Group {
			return r.NewGroup(h.NewScope(string(id)), job.WithLogger(log))
		},
	}
	a.Hive = hive.NewWithOptions(opts,
		statedb.Cell, job.Cell, cell.SimpleHealthCell, bpf.Cell, bpfmap.Cell,
		cell.Provide(
			func() bpf.Backend { return backend },
			func() prometheus.Registerer { return a.metrics },
		),
		cell.Module("test", "Test",
			cell.ProvidePrivate(newSourceTable, tables.NewSourceEntryTable),
			cell.Invoke(func(p bpfmap.Params, maps *bpf.Maps, sources statedb.RWTable[*source],
				entries statedb.RWTable[*tables.SourceEntry], table statedb.Table[*tables.BPFMap]) error {
				a.db, a.maps, a.sources, a.control, a.table = p.DB, maps, sources, p.Control, table
				wtxn := p.DB.WriteTxn(sources)
				a.initialized = sources.RegisterInitializer(wtxn, "test")
				wtxn.Commit()
				return bpfmap.Register(p, bpfmap.Config[*source, bpf.SourceKey, bpf.SourceValue]{
					Map: maps.Sources, Desired: sources, Entries: entries,
					MapKey:     func(s *source) bpf.SourceKey { return bpf.SourceKey{Addr: bpf.AddressFrom(s.Addr)} },
					MapValue:   func(s *source) bpf.SourceValue { return bpf.SourceValue{Class: s.Class} },
					WithStatus: func(s *source, status reconciler.Status) *source { c := *s; c.Status = status; return &c },
					GetStatus:  func(s *source) reconciler.Status { return s.Status },
					Plan:       bpfmap.PlanAny[bpf.SourceKey, bpf.SourceValue](),
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
}

func (a *agent) stop() {
	require.NoError(a.t, a.Stop(a.log, context.Background()))
}

func (a *agent) insert(from, n int, class uint32, done bool) {
	wtxn := a.db.WriteTxn(a.sources)
	defer wtxn.Abort()
	for i := from; i < from+n; i++ {
		_, _, err := a.sources.Insert(wtxn, &source{Addr: addr(i), Class: class, Status: reconciler.StatusPending()})
		require.NoError(a.t, err)
	}
	if done {
		a.initialized(wtxn)
	}
	wtxn.Commit()
}

func addr(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
}

// settle waits until the map has had its first pass and all rows are done.
func (a *agent) settle() {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(a.t.Context(), time.Minute)
	defer cancel()
	_, ready := a.table.Initialized(a.db.ReadTxn())
	select {
	case <-ready:
	case <-ctx.Done():
		a.t.Fatal("no first pass")
	}
	for {
		rows, watch := a.sources.AllWatch(a.db.ReadTxn())
		pending := 0
		for row := range rows {
			if row.Status.Kind != reconciler.StatusKindDone {
				pending++
			}
		}
		if pending == 0 {
			return
		}
		select {
		case <-watch:
		case <-ctx.Done():
			a.t.Fatalf("%d rows are not done", pending)
		}
	}
}

func TestAgent(t *testing.T) {
	memory := bpf.NewMemory()
	a := newAgent(t, memory)
	a.start()
	a.insert(1, 3, 7, false)
	time.Sleep(20 * time.Millisecond) // nothing can be awaited that must not happen
	require.Zero(t, memory.Sequence())
	a.insert(4, 2, 8, true)
	a.settle()
	lines, err := a.maps.Dump("sluice_sources")
	require.NoError(t, err)
	require.Equal(t, []string{
		"10.0.0.1 -> class=7", "10.0.0.2 -> class=7", "10.0.0.3 -> class=7", "10.0.0.4 -> class=8", "10.0.0.5 -> class=8",
	}, lines)
	writes, deletes := a.control.Counts("sluice_sources")
	require.Equal(t, []uint64{5, 0}, []uint64{writes, deletes})
	await.True(t, func() bool {
		row, _, found := a.table.Get(a.db.ReadTxn(), tables.BPFMapByName("sluice_sources"))
		return found && row.Entries == 5 && row.Writes == 5
	})
	gathered, err := a.metrics.Gather()
	require.NoError(t, err)
	var names []string
	for _, family := range gathered {
		names = append(names, family.GetName())
	}
	require.Subset(t, names, []string{"sluice_map_operations_total", "sluice_map_entries", "sluice_map_latency_seconds"})

	_, err = a.control.Audit(t.Context(), "nosuch")
	require.ErrorContains(t, err, `no reconciler of map "nosuch": there are [sluice_sources]`)
	require.Equal(t, "wrote 10.0.0.1 -> class=248\n", a.script("map/corrupt sluice_sources change"))
	require.Equal(t, "repaired 0 missing, 1 changed, 0 foreign\n", a.script("map/audit sluice_sources"))
	require.Equal(t, "clean\n", a.script("map/audit sluice_sources"))
	a.stop()

	// Another agent on the same maps.
	before := memory.Sequence()
	b := newAgent(t, memory)
	b.start()
	defer b.stop()
	b.insert(1, 5, 7, true)
	b.settle()
	require.Equal(t, before+5, memory.Sequence(), "it fills a slot of its own")
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

func TestOptions(t *testing.T) {
	for _, args := range [][]string{
		{"--retry-min=0", "--retry-min 0s is not positive"},
		{"--retry-max=1ms", "--retry-max 1ms is less than"},
		{"--audit-interval=-1s", "--audit-interval -1s is negative"},
		{"--bpf=fast", `unknown value "fast" of --bpf: want one of auto, kernel, memory`},
		{"--map-size-gateways=3", "--map-size-gateways 3 is out of bounds: want 256 to"},
	} {
		a := newAgent(t, bpf.NewMemory(), args[0])
		require.ErrorContains(t, a.Populate(a.log), args[1])
	}
}

// Rows change while the reconciler works, writes fail, and audits run. When the
// faults stop the map is as desired, without another event.
func TestAgentConcurrent(t *testing.T) {
	memory := bpf.NewMemory()
	var faults atomic.Bool
	faults.Store(true)
	var calls atomic.Uint64
	memory.Inject(func(string, bpf.Op) error {
		if faults.Load() && calls.Add(1)%10 == 0 {
			return unix.EBUSY
		}
		return nil
	})
	a := newAgent(t, memory, "--map-size-sources=150", "--retry-max=100ms", "--audit-interval=5ms")
	a.start()
	defer a.stop()
	rnd := rand.New(rand.NewPCG(1, 1))
	a.insert(0, 100, 1, true)
	for range 500 {
		a.insert(rnd.IntN(200), 1+rnd.IntN(5), 1+rnd.Uint32N(3), false)
		wtxn := a.db.WriteTxn(a.sources)
		for range 4 {
			_, _, err := a.sources.Delete(wtxn, &source{Addr: addr(rnd.IntN(200))})
			require.NoError(t, err)
		}
		wtxn.Commit()
	}
	wtxn := a.db.WriteTxn(a.sources)
	for i := 140; i < 210; i++ {
		_, _, err := a.sources.Delete(wtxn, &source{Addr: addr(i)})
		require.NoError(t, err)
	}
	wtxn.Commit()
	faults.Store(false)
	a.settle()
	var want []string
	for row := range a.sources.All(a.db.ReadTxn()) {
		want = append(want, fmt.Sprintf("%s -> class=%d", row.Addr, row.Class))
	}
	slices.Sort(want)
	// Removals have no row whose status could be waited for.
	await.True(t, func() bool {
		lines, err := a.maps.Dump("sluice_sources")
		return err == nil && slices.Equal(want, lines)
	})
	result, err := a.control.Audit(t.Context(), "sluice_sources")
	require.NoError(t, err)
	require.True(t, result.Clean())
}
