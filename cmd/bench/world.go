// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/cmd/agent"
	"github.com/sluice-net/sluice/reconcilers/attach"
	"github.com/sluice-net/sluice/reconcilers/mapsync"
	"github.com/sluice-net/sluice/sources/netlink"
	"github.com/sluice-net/sluice/tables"
)

// localNode is the node that the measured agent runs on. It is a gateway node,
// so it has to know every pod that a policy selects: the most that a node does.
const localNode = "node-000"

const (
	nodes       = 100
	podsPerApp  = 10
	addressBits = 24 // of the pods' addresses below 10.0.0.0/8
)

// base are the base tables of objects, which the benchmark writes in the place of
// sources.
type base struct {
	cell.In

	Nodes      statedb.RWTable[*tables.Node]
	Namespaces statedb.RWTable[*tables.Namespace]
	Endpoints  statedb.RWTable[*tables.Endpoint]
	Policies   statedb.RWTable[*tables.EgressPolicy]

	NetworkPolicies statedb.RWTable[*tables.NetworkPolicy]
}

// site is where an agent has its maps and files.
type site struct {
	mode       string // kernel or memory
	bpffs, dir string
}

// world is an agent without sources, and the cluster that it sees.
type world struct {
	hive *hive.Hive
	log  *slog.Logger

	db      *statedb.DB
	base    base
	ready   []func(statedb.WriteTxn) // marks pods and network policies complete
	writes  writes
	maps    *bpf.Maps
	control *mapsync.Control
	slots   statedb.Table[*tables.Slot]
}

// uplink is the one device of the measured node.
const uplink = "uplink0"

// network is the source of the node's network: the kernel, or a device that looks
// like the one of the namespaces where nothing of the kernel is touched.
func network(mode string) (cell.Cell, error) {
	if mode == "kernel" {
		return netlink.Cell, nil
	}
	state, err := netlink.ParseState(fmt.Appendf(nil, `
devices: [{index: 2, name: %s, mac: "02:00:00:00:00:01"}]
addresses: [{addr: %s, device: %s}]
`, uplink, nodeAddr(0), uplink))
	fake := netlink.NewFake()
	fake.Set(state)
	return netlink.FakeCellOf(fake), err
}

// withWorld has an agent without a cluster, of so many pods at most, for as long as do takes.
func withWorld(p site, pods int, takes any, do func(*world) error) error {
	w, err := newWorld(p, pods, takes)
	if err != nil {
		return err
	}
	defer p.cleanUp()
	defer w.stop() // also what was started before a failure
	if err := w.hive.Start(w.log, context.Background()); err != nil {
		return err
	}
	return do(w)
}

func (w *world) stop() {
	if err := w.hive.Stop(w.log, context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "bench: stop the agent:", err)
	}
}

// cleanUp takes from the kernel what the agent leaves there: the next one begins
// where this one did.
func (p site) cleanUp() {
	if p.mode != "kernel" {
		return
	}
	_, err1 := bpf.CleanupLinks(p.bpffs)
	_, err2 := attach.CleanupOverlay()
	_, err3 := bpf.Cleanup(p.bpffs)
	if err := errors.Join(err1, err2, err3); err != nil {
		fmt.Fprintln(os.Stderr, "bench: clean up:", err)
	}
}

func newWorld(p site, pods int, takes any) (*world, error) {
	if err := awaitMemory(); err != nil {
		return nil, err
	}
	w := &world{log: slog.New(slog.DiscardHandler)}
	network, err := network(p.mode)
	if err != nil {
		return nil, err
	}
	w.hive = agent.New(
		cell.Module("bench-sources", "Base tables written by the benchmark",
			cell.Provide(func() tables.AgentNamespace { return "sluice-system" }),
			cell.Provide(func() (tables.EgressIPs, tables.EgressBGP) {
				return tables.EgressIPs{}, tables.EgressBGP{}
			}),
			tables.Own(tables.NewNodeTable),
			tables.Own(tables.NewNamespaceTable),
			tables.Own(tables.NewServiceTable),
			tables.Own(tables.NewBackendSliceTable),
			tables.Own(tables.NewCiliumNodeTable),
			tables.Own(tables.NewEgressPolicyTable),
			tables.Own(tables.NewEgressIPPoolTable),
			tables.Own(tables.NewEgressVotersTable),
			tables.Own(tables.NewEgressBGPPeerTable),
			tables.Own(tables.NewNetworkPolicyTable),
			tables.Own(tables.NewCIDRGroupTable),
			tables.Own(tables.NewCNIAttachmentTable),
			cell.ProvidePrivate(tables.NewEndpointTable),
			cell.Provide(statedb.RWTable[*tables.Endpoint].ToTable),
			cell.Invoke(w.takeBase, w.watchWrites)),
		network,
		agent.Dataflow,
		cell.Invoke(w.takeKernel, takes),
	)
	flags := w.hive.Viper()
	flags.Set("node-name", localNode)
	flags.Set("bpf", p.mode)
	flags.Set("bpffs", p.bpffs)
	flags.Set("state-dir", p.dir)
	flags.Set("audit-interval", "0")
	flags.Set("api-listen", "")
	flags.Set("socket", filepath.Join(p.dir, "api.sock"))
	// Connections have nothing to do with what is measured.
	for _, name := range []string{"ct-tcp", "ct-any", "nat", "fragments"} {
		flags.Set("map-size-"+name, 4096)
	}
	flags.Set("map-size-ipcache", 2*pods+4096)
	flags.Set("map-size-pods", 2*pods+4096)
	flags.Set("max-ruleset-entries", 2*maxPrefixes)
	return w, w.hive.Populate(w.log)
}

func (w *world) takeBase(db *statedb.DB, b base) {
	w.db, w.base = db, b
	wtxn := db.WriteTxn(b.Endpoints, b.NetworkPolicies)
	w.ready = append(w.ready,
		b.Endpoints.RegisterInitializer(wtxn, "bench"),
		b.NetworkPolicies.RegisterInitializer(wtxn, "bench"))
	wtxn.Commit()
}

func (w *world) takeKernel(
	maps *bpf.Maps, control *mapsync.Control, slots statedb.Table[*tables.Slot],
) {
	w.maps, w.control, w.slots = maps, control, slots
}

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// commit writes rows of a table in one transaction, and returns when that began.
func commit[Row any](w *world, table statedb.RWTable[Row], rows ...Row) (start time.Time) {
	start = time.Now()
	wtxn := w.db.WriteTxn(table)
	defer wtxn.Abort()
	for _, row := range rows {
		table.Insert(wtxn, row)
	}
	wtxn.Commit()
	return start
}

// remove is [commit] that deletes.
func remove[Row any](w *world, table statedb.RWTable[Row], rows ...Row) (start time.Time) {
	start = time.Now()
	wtxn := w.db.WriteTxn(table)
	defer wtxn.Abort()
	for _, row := range rows {
		table.Delete(wtxn, row)
	}
	wtxn.Commit()
	return start
}

// complete says that the base tables have all that they will have at the start.
func (w *world) complete() {
	wtxn := w.db.WriteTxn(w.base.Endpoints, w.base.NetworkPolicies)
	defer wtxn.Abort()
	for _, ready := range w.ready {
		ready(wtxn)
	}
	wtxn.Commit()
	w.ready = nil
}

// inMemory counts the worlds that have not been collected.
var inMemory atomic.Int32

// fillNodes writes all nodes. The last one, which no event changes, is there for as
// long as any of the tables is.
func (w *world) fillNodes() {
	all := make([]*tables.Node, nodes)
	for i := range all {
		all[i] = node(i, true)
	}
	inMemory.Add(1)
	runtime.AddCleanup(all[nodes-1], func(count *atomic.Int32) { count.Add(-1) }, &inMemory)
	commit(w, w.base.Nodes, all...)
}

// awaitMemory waits until no former world is in memory, which would count for the
// next one. One collection does not do: iterators of changes hold the tables until
// their own cleanup has run.
func awaitMemory() error {
	for end := time.Now().Add(time.Minute); inMemory.Load() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return errors.New("free the memory of the size before: something still holds its tables")
		}
		runtime.GC()
	}
	return nil
}

func nodeAddr(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{192, 168, byte(i >> 8), byte(i + 1)})
}

// node is the i-th node; the first two are gateways.
func node(i int, ready bool) *tables.Node {
	n := &tables.Node{
		Name:        fmt.Sprintf("node-%03d", i),
		Labels:      labels.Set{},
		InternalIPs: []netip.Addr{nodeAddr(i)},
		Ready:       ready,
	}
	if i < 2 {
		n.Labels["egress"] = "yes"
	}
	return n
}

func podAddr(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
}

// endpoint is the i-th pod, of an application. Pods are on all nodes in turn.
func endpoint(i, app int) *tables.Endpoint {
	set := labels.Set{"app": fmt.Sprintf("app-%d", app), "team": "blue"}
	return &tables.Endpoint{
		Name:     tables.Name{Namespace: "prod", Name: fmt.Sprintf("pod-%d", i)},
		UID:      fmt.Sprint(i),
		Node:     fmt.Sprintf("node-%03d", i%nodes),
		Addrs:    []netip.Addr{podAddr(i)},
		Created:  epoch,
		LabelSet: tables.NewLabelSet("prod", "", set, nil),
	}
}

// policy is the i-th policy, whose destination can be one or another.
func policy(i, variant int) *tables.EgressPolicy {
	return &tables.EgressPolicy{
		Name:      fmt.Sprintf("policy-%d", i),
		Created:   epoch.Add(time.Duration(i) * time.Second),
		Selectors: []tables.EgressSelector{{Pods: "team=blue"}},
		Destinations: []netip.Prefix{
			netip.PrefixFrom(netip.AddrFrom4([4]byte{203, byte(variant), byte(i), 0}), 24),
		},
		Gateways: []tables.GatewaySpec{{Nodes: "egress=yes", Interface: uplink}},
	}
}
