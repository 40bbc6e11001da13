// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"maps"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/rlimit"
	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
	"github.com/sluice-net/sluice/testdata/await"
)

func TestMain(m *testing.M) {
	// The one of the files never ends.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("gopkg.in/natefinch/lumberjack%2ev2.(*Logger).millRun"))
}

// kernel are the maps of a ledger, and a program that writes to them.
type kernel struct {
	testing.TB
	bpf.Ledger
	program *ebpf.Program
}

func newKernel(t testing.TB, bytes uint32) *kernel {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("SLUICE_REQUIRE_PRIVILEGED") != "" {
			t.Fatal("needs root")
		}
		t.Skip("needs root")
	}
	require.NoError(t, rlimit.RemoveMemlock())
	spec, err := datapath.Spec()
	require.NoError(t, err)
	open := func(name string, size uint32) *ebpf.Map {
		s := spec.Maps[name]
		s.Pinning = ebpf.PinNone
		if size != 0 {
			s.MaxEntries = size
		}
		m, err := ebpf.NewMap(s)
		require.NoError(t, err)
		t.Cleanup(func() { m.Close() })
		return m
	}
	k := &kernel{TB: t, Ledger: bpf.Ledger{
		Records: open(bpf.LedgerMap, bytes), Missing: open(bpf.MissingMap, 0),
	}}

	// It writes its packet, from behind the Ethernet header on, and counts what does not fit.
	size := int32(unsafe.Sizeof(bpf.LedgerRecord{}))
	k.program, err = ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{
			asm.Mov.Imm(asm.R2, 14),
			asm.Mov.Reg(asm.R3, asm.RFP),
			asm.Add.Imm(asm.R3, -size),
			asm.Mov.Imm(asm.R4, size),
			asm.FnSkbLoadBytes.Call(),
			asm.JNE.Imm(asm.R0, 0, "end"),
			asm.LoadMapPtr(asm.R1, k.Records.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -size),
			asm.Mov.Imm(asm.R3, size),
			asm.Mov.Imm(asm.R4, 1), // no wake-up
			asm.FnRingbufOutput.Call(),
			asm.JEq.Imm(asm.R0, 0, "end"),
			asm.StoreImm(asm.RFP, -4, int64(bpf.LedgerMissed), asm.Word),
			asm.LoadMapPtr(asm.R1, k.Missing.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -4),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "end"),
			asm.Mov.Imm(asm.R1, 1),
			asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
			asm.Mov.Imm(asm.R0, 0).WithSymbol("end"),
			asm.Return(),
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() { k.program.Close() })
	return k
}

// write has a program write a record, so many times.
func (k *kernel) write(r bpf.LedgerRecord, times uint32) {
	k.Helper()
	packet := append(make([]byte, 14), unsafe.Slice((*byte)(unsafe.Pointer(&r)), unsafe.Sizeof(r))...)
	_, err := k.program.Run(&ebpf.RunOptions{Data: packet, Repeat: times})
	require.NoError(k, err)
}

var testClock = newClock()

// monotonic is the time of day as the kernel has it.
func monotonic(t time.Time) uint64 {
	return uint64(testClock.monotonic + int64(t.Round(0).Sub(testClock.now)))
}

var (
	podAddr = netip.MustParseAddr("10.1.0.5")
	egress  = netip.MustParseAddrPort("198.51.100.7:40000")
	server  = netip.MustParseAddrPort("203.0.113.9:443")
)

// raw is a record of a connection of the pod at a time, that began when it was `began`.
func raw(event bpf.LedgerEvent, at, began time.Time, change ...func(*bpf.LedgerRecord)) bpf.LedgerRecord {
	r := bpf.LedgerRecord{
		Time: monotonic(at), Began: monotonic(began), Event: event, Protocol: 6,
		Pod: bpf.AddressFrom(podAddr), PodPort: [2]byte{0x12, 0x34},
		Egress: bpf.AddressFrom(egress.Addr()), EgressPort: [2]byte{0x9c, 0x40},
		Remote: bpf.AddressFrom(server.Addr()), RemotePort: [2]byte{1, 0xbb},
	}
	for _, c := range change {
		c(&r)
	}
	return r
}

// agent is the module in a hive.
type agent struct {
	testing.TB
	db        *statedb.DB
	endpoints statedb.RWTable[*tables.Endpoint]
	nodes     statedb.RWTable[*tables.Node]
	health    *cell.SimpleHealth
	registry  *prometheus.Registry
	stop      func()
	known     func() // the tables are initialized
}

// start runs the module with flags. The pod is one of node-1.
func start(t testing.TB, maps Maps, args ...string) *agent {
	t.Helper()
	a, err := tryStart(t, maps, args...)
	require.NoError(t, err)
	return a
}

func tryStart(t testing.TB, maps Maps, args ...string) (*agent, error) {
	t.Helper()
	a := &agent{TB: t, registry: prometheus.NewRegistry()}
	var endpointsKnown, nodesKnown func(statedb.WriteTxn)
	h := hive.New(
		statedb.Cell, job.Cell, cell.SimpleHealthCell,
		cell.Provide(
			func() tables.LocalNode { return tables.LocalNode{Name: "gateway-1"} },
			tables.NewEndpointTable, statedb.RWTable[*tables.Endpoint].ToTable,
			tables.NewNodeTable, statedb.RWTable[*tables.Node].ToTable,
			func(r job.Registry, h cell.Health) job.Group { return r.NewGroup(h) },
			func() Maps { return maps },
			func() prometheus.Registerer { return a.registry },
		),
		Cell,
		cell.Invoke(func(
			db *statedb.DB, e statedb.RWTable[*tables.Endpoint], n statedb.RWTable[*tables.Node], h *cell.SimpleHealth,
		) {
			a.db, a.endpoints, a.nodes, a.health = db, e, n, h
			wtxn := db.WriteTxn(e, n)
			endpointsKnown, nodesKnown = e.RegisterInitializer(wtxn, "test"), n.RegisterInitializer(wtxn, "test")
			wtxn.Commit()
		}),
	)
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	h.RegisterFlags(flags)
	require.NoError(t, flags.Parse(args))
	log := hivetest.Logger(t)
	if err := h.Start(log, t.Context()); err != nil {
		return nil, err
	}
	a.stop = sync.OnceFunc(func() { require.NoError(t, h.Stop(log, context.Background())) })
	t.Cleanup(a.stop)
	a.known = sync.OnceFunc(func() {
		wtxn := a.db.WriteTxn(a.endpoints, a.nodes)
		endpointsKnown(wtxn)
		nodesKnown(wtxn)
		wtxn.Commit()
	})
	tablestest.Insert(t, a.db, a.nodes, &tables.Node{
		Name: "node-2", InternalIPs: []netip.Addr{netip.MustParseAddr("192.168.0.2")},
	})
	a.pod("web-1", time.Now().Add(-24*time.Hour))
	return a, nil
}

// pod has a pod have the address since it was created.
func (a *agent) pod(name string, created time.Time) {
	a.Helper()
	wtxn := a.db.WriteTxn(a.endpoints)
	require.NoError(a, a.endpoints.DeleteAll(wtxn))
	_, _, err := a.endpoints.Insert(wtxn, &tables.Endpoint{
		Name: tables.Name{Namespace: "shop", Name: name}, Node: "node-1",
		Addrs: []netip.Addr{podAddr}, Created: created, LabelSet: &tables.LabelSet{},
	})
	require.NoError(a, err)
	wtxn.Commit()
}

// says waits until a part of the module reports a level, and returns what it says.
func (a *agent) says(part string, level cell.Level) (message string) {
	a.Helper()
	await.True(a, func() bool {
		h := a.health.GetChild("job-" + part)
		if h == nil {
			return false
		}
		h.Lock()
		defer h.Unlock()
		message = h.Status
		if h.Error != nil {
			message += ": " + h.Error.Error()
		}
		return h.Level == level
	}, part)
	return message
}

// records returns the value of a metric of records.
func (a *agent) records(output, outcome string) float64 {
	a.Helper()
	return gathered(a, a.registry, "sluice_ledger_records_total",
		map[string]string{"output": output, "outcome": outcome})
}

// gathered returns the value of a counter or gauge, 0 if there is none.
func gathered(
	t testing.TB, from prometheus.Gatherer, name string, labels map[string]string,
) float64 {
	t.Helper()
	all, err := from.Gather()
	require.NoError(t, err)
	for _, family := range all {
		for _, m := range family.Metric {
			found := map[string]string{}
			for _, l := range m.Label {
				found[l.GetName()] = l.GetValue()
			}
			if family.GetName() == name && maps.Equal(found, labels) {
				return m.Counter.GetValue() + m.Gauge.GetValue()
			}
		}
	}
	return 0
}
