// SPDX-License-Identifier: Apache-2.0

package ctgc

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/ctmap/percluster"
	"github.com/sluice-net/sluice/bpf/gc"
	"github.com/sluice-net/sluice/bpf/natmap"
	"github.com/sluice-net/sluice/reconcilers/mapsync"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/testdata/await"
)

// kernelMaps are the maps of programs that are not there.
type kernelMaps map[string]*ebpf.Map

func (m kernelMaps) Loaded() bool              { return true }
func (m kernelMaps) Map(name string) *ebpf.Map { return m[name] }
func (m kernelMaps) Metrics() *ebpf.Map        { return nil }
func (m kernelMaps) Ledger() *bpf.Ledger       { return nil }

// agent is what the runner needs of one, on maps of the kernel.
type agent struct {
	t         *testing.T
	maps      kernelMaps
	dir       string
	runner    *Runner
	db        *statedb.DB
	endpoints statedb.RWTable[*tables.Endpoint]
	nodes     statedb.RWTable[*tables.Node]
	runs      statedb.Table[*tables.CTGCRun]
	shown     statedb.Table[*tables.BPFMap]

	mu      sync.Mutex
	removed []gc.Entry
}

func openKernel(t *testing.T) *bpf.Kernel {
	path := filepath.Join(t.TempDir(), "bpffs")
	if err := bpf.Probe(path); err != nil {
		require.NotEqual(t, "1", os.Getenv("SLUICE_REQUIRE_PRIVILEGED"), "kernel maps are not possible here: %v", err)
		t.Skipf("kernel maps are not possible here: %v", err)
	}
	kernel, err := bpf.OpenKernel(path, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(func() {
		kernel.Close()
		require.NoError(t, unix.Unmount(path, unix.MNT_DETACH))
	})
	return kernel
}

func newAgent(t *testing.T) *agent {
	kernel := openKernel(t)
	a := &agent{t: t, maps: kernelMaps{}, dir: kernel.Dir()}
	for _, name := range ctmap.Names() {
		m, err := ctmap.Create(name, 1000)
		require.NoError(t, err)
		t.Cleanup(func() { m.Close() })
		a.maps[name] = m.Kernel()
	}
	for _, name := range natmap.Names() {
		m, err := natmap.Create(name, 1000)
		require.NoError(t, err)
		t.Cleanup(func() { m.Close() })
		a.maps[name] = m.Kernel()
	}
	fragments, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.LRUHash, KeySize: 12, ValueSize: 4, MaxEntries: 64})
	require.NoError(t, err)
	t.Cleanup(func() { fragments.Close() })
	a.maps[ctmap.Frag4] = fragments
	require.NoError(t, fragments.Put(ctmap.FragKey4{Protocol: 17}, ctmap.FragValue{}))

	h := a.hive(kernel)
	log := hivetest.Logger(t, hivetest.LogLevel(slog.LevelError))
	require.NoError(t, h.Start(log, t.Context()))
	t.Cleanup(func() { require.NoError(t, h.Stop(log, context.Background())) })
	return a
}

func (a *agent) hive(kernel *bpf.Kernel) *hive.Hive {
	opts := hive.DefaultOptions()
	opts.ModulePrivateProviders = cell.ModulePrivateProviders{
		func(r job.Registry, h cell.Health, id cell.ModuleID, log *slog.Logger) job.Group {
			return r.NewGroup(h.NewScope(string(id)), job.WithLogger(log))
		},
	}
	timing := &Timing{Poll: 5 * time.Millisecond, Look: 5 * time.Millisecond, Coalesce: 5 * time.Millisecond, Ports: time.Millisecond}
	return hive.NewWithOptions(opts,
		statedb.Cell, job.Cell, cell.SimpleHealthCell, bpf.Cell, mapsync.Cell, Cell,
		cell.Provide(
			func() bpf.Backend { return kernel },
			func() Datapath { return a.maps },
			func() *Timing { return timing },
			func() tables.LocalNode { return tables.LocalNode{} },
			tables.NewEndpointTable, statedb.RWTable[*tables.Endpoint].ToTable,
			tables.NewNodeTable, statedb.RWTable[*tables.Node].ToTable,
		),
		cell.Invoke(func(r *Runner, db *statedb.DB, e statedb.RWTable[*tables.Endpoint], n statedb.RWTable[*tables.Node],
			runs statedb.Table[*tables.CTGCRun], shown statedb.Table[*tables.BPFMap],
		) {
			a.runner, a.db, a.endpoints, a.nodes, a.runs, a.shown = r, db, e, n, runs, shown
		}),
	)
}

// put adds connections that end at some time to the maps, and says when they do.
func (a *agent) put(m *ebpf.Map, lifetime uint32, froms ...string) {
	for _, from := range froms {
		t := ctmap.Tuple{Source: netip.MustParseAddrPort(from), Destination: netip.MustParseAddrPort("192.0.2.1:80"), Protocol: unix.IPPROTO_TCP}
		require.NoError(a.t, m.Put(ctmap.NewKey4(t), ctmap.Entry{Lifetime: lifetime}))
	}
}

// removals returns the sources of what was removed, with the reason.
func (a *agent) removals() map[string]gc.Reason {
	a.mu.Lock()
	defer a.mu.Unlock()
	removals := map[string]gc.Reason{}
	for _, e := range a.removed {
		removals[e.Map+" "+e.Tuple.Source.String()] = e.Reason
	}
	return removals
}

// entries returns what bpf-maps says of how many entries a map has, -1 if nothing.
func (a *agent) entries(name string) int {
	row, _, found := a.shown.Get(a.db.ReadTxn(), tables.BPFMapByName(name))
	if !found {
		return -1
	}
	return row.Entries
}

func (a *agent) eventually(condition func() bool, what string) {
	a.t.Helper()
	await.True(a.t, condition, what)
}

// The runner with all that it works on: maps of the kernel, tables, observers.
func TestKernel(t *testing.T) {
	a := newAgent(t)
	now, err := gc.Now()
	require.NoError(t, err)
	a.runner.Observe4().Observe(t.Context(), func(e gc.Entry) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.removed = append(a.removed, e)
	}, func(error) {})
	a.put(a.maps[ctmap.CT4TCP], now+1000, "10.0.0.1:1", "10.0.0.2:2")
	a.put(a.maps[ctmap.CT4TCP], now-1, "10.0.0.3:3")
	orphan := ctmap.Tuple{Source: netip.MustParseAddrPort("10.0.0.4:4"), Destination: netip.MustParseAddrPort("192.0.2.1:80"), Protocol: unix.IPPROTO_TCP}
	require.NoError(t, a.maps[natmap.Name4].Put(natmap.NewKey4(orphan), natmap.Entry4{NeedsCT: 1, Used: now - 10, Addr: [4]byte{192, 0, 2, 9}}))
	pod := &tables.Endpoint{Name: tables.Name{Namespace: "default", Name: "pod"}, Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.2")}, LabelSet: &tables.LabelSet{}}
	wtxn := a.db.WriteTxn(a.endpoints)
	_, _, err = a.endpoints.Insert(wtxn, pod)
	require.NoError(t, err)
	wtxn.Commit()

	a.runner.Enable()
	want := map[string]gc.Reason{"sluice_ct4_tcp 10.0.0.3:3": gc.Expired, "sluice_nat4 10.0.0.4:4": gc.Orphan}
	a.eventually(func() bool { return len(a.removals()) == len(want) }, "the first pass")
	require.Equal(t, want, a.removals())
	a.eventually(func() bool { return a.entries(ctmap.CT4TCP) == 2 && a.entries(natmap.Name4) == 0 }, "bpf-maps")
	a.eventually(func() bool { return a.entries(ctmap.Frag4) == 1 }, "fragments")
	revision := a.shown.Revision(a.db.ReadTxn())

	// A pod goes.
	wtxn = a.db.WriteTxn(a.endpoints)
	_, _, err = a.endpoints.Delete(wtxn, pod)
	require.NoError(t, err)
	wtxn.Commit()
	a.runner.RemoveReleased(pod.Addrs)
	want["sluice_ct4_tcp 10.0.0.2:2"] = gc.Released
	a.eventually(func() bool { return len(a.removals()) == len(want) }, "the pod's connections")
	require.Equal(t, want, a.removals())
	a.eventually(func() bool { return a.entries(ctmap.CT4TCP) == 1 }, "bpf-maps")
	require.Equal(t, revision+1, a.shown.Revision(a.db.ReadTxn()), "rows are written when numbers change")

	// A pass is requested.
	_, err = a.runner.Flush(t.Context(), func(e gc.Entry) bool { return e.Tuple.Source.Port() == 1 }, "test")
	require.NoError(t, err)
	want["sluice_ct4_tcp 10.0.0.1:1"] = gc.Flushed
	a.eventually(func() bool { return len(a.removals()) == len(want) }, "the flushed connection")
	var reasons []string
	for row := range a.runs.All(a.db.ReadTxn()) {
		if row.Map == ctmap.CT4TCP {
			reasons = append(reasons, row.Reason)
		}
	}
	require.Equal(t, []string{ReasonStart, ReasonEndpointsGone, "test"}, reasons)
	testCluster(t, a, now)
}

// A translation that was used just now, or is condemned, is left to the next pass, which
// has to follow soon also on a node that is idle by now.
func TestLookedForAgain(t *testing.T) {
	for name, used := range map[string]bool{"used just now": true, "condemned": false} {
		t.Run(name, func(t *testing.T) { testLookedForAgain(t, used) })
	}
}

func testLookedForAgain(t *testing.T, used bool) {
	openKernel(t)
	m, err := natmap.Create(natmap.Name4, 1000)
	require.NoError(t, err)
	defer m.Close()
	c, err := gc.Open(gc.Maps{NAT4: m.Kernel()})
	require.NoError(t, err)
	defer c.Close()
	now, err := gc.Now()
	require.NoError(t, err)
	entry := natmap.Entry4{Created: uint64(now) * 1e9, NeedsCT: 1, Addr: [4]byte{203, 0, 113, 1}, Port: ctmap.PortFrom(1)}
	if used {
		entry.Used = now
	}
	tuple := ctmap.Tuple{Source: netip.MustParseAddrPort("10.0.0.1:1"), Destination: netip.MustParseAddrPort("192.0.2.1:80"), Protocol: unix.IPPROTO_TCP}
	require.NoError(t, m.Kernel().Put(natmap.NewKey4(tuple), entry))
	passes, err := c.Run(t.Context(), gc.Filter{Expired: true, Orphans: true})
	require.NoError(t, err)
	counts, err := c.Count()
	require.NoError(t, err)
	require.Equal(t, 1, counts.Entries[natmap.Name4], "%+v", passes[0])

	s := newSchedule(0, 30*time.Minute)
	o := &observation{now: time.Now(), counts: counts, sizes: map[string]uint32{natmap.Name4: 1000}, packets: func() uint64 { return 7 }}
	s.made(ReasonStart, passes, nil, o)
	o.now = o.now.Add(5 * time.Second)
	require.Empty(t, s.decide(o))
	o.now = o.now.Add(5 * time.Second)
	require.Equal(t, ReasonInterval, s.decide(o), "%+v", passes[0])
}

// A cluster gets maps, which are collected in like the others, until they go.
func testCluster(t *testing.T, a *agent, now uint32) {
	const name = percluster.CT4TCP + "/3"
	arrays, err := percluster.OpenOrCreate(a.dir, nil)
	require.NoError(t, err)
	defer arrays.Close()
	for n, size := range []uint32{100, 200} { // the second replaces the first
		require.NoError(t, arrays.Create(3, percluster.Sizes{CTTCP: size, CTAny: size, NAT: size}))
		a.eventually(func() bool {
			row, _, found := a.shown.Get(a.db.ReadTxn(), tables.BPFMapByName(name))
			return found && row.MaxEntries == size
		}, "the maps are seen")
		c, err := arrays.Get(3)
		require.NoError(t, err)
		a.put(c.Set().CT4TCP, now-1, "10.3.0.1:1")
		_, err = a.runner.Run(t.Context(), gc.Filter{Expired: true}, "cluster")
		require.NoError(t, err)
		// The pass at the start may have been earlier.
		var expired uint64
		for row := range a.runs.List(a.db.ReadTxn(), tables.CTGCRunsByMap(name)) {
			require.Equal(t, "cluster-3", row.Set)
			expired += row.Expired
		}
		require.EqualValues(t, n+1, expired)
		require.NoError(t, c.Close())
	}
	require.NoError(t, arrays.Delete(3))
	a.eventually(func() bool { return a.entries(name) == -1 }, "the maps are gone")
}
