// SPDX-License-Identifier: Apache-2.0

package addresses

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"testing"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
	"github.com/sluice-net/sluice/testdata/await"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world has all tables that the rules of this package look at, filled by hand,
// and the rules.
type world struct {
	t    testing.TB
	hive *hive.Hive
	log  *slog.Logger
	tableSet
	markers int
}

type tableSet struct {
	cell.In

	DB          *statedb.DB
	Endpoints   statedb.RWTable[*tables.Endpoint]
	Nodes       statedb.RWTable[*tables.Node]
	Services    statedb.RWTable[*tables.Service]
	Addresses   statedb.RWTable[*tables.NodeAddress]
	Routes      statedb.RWTable[*tables.Route]
	Members     statedb.RWTable[*tables.ClassMember]
	Prefixes    statedb.RWTable[*tables.PeerPrefix]
	Readiness   statedb.RWTable[*tables.PolicyReadiness]
	PodEntries  statedb.RWTable[*tables.PodEntry]
	PeerEntries statedb.RWTable[*tables.IPCacheEntry]
	Policy      statedb.RWTable[*tables.PolicyMapEntry]
	IPCache     statedb.Table[*tables.IPCache]
	Locals      statedb.Table[*tables.LocalEndpoint]
	CiliumNodes statedb.Table[*tables.CiliumNode]
	Backends    statedb.RWTable[*tables.BackendSlice]
	Places      tables.PeerPlaces
}

func provide[Row any](newTable func(*statedb.DB) (statedb.RWTable[Row], error)) cell.Cell {
	return cell.Provide(newTable, statedb.RWTable[Row].ToTable)
}

const epochFloor = 1000

// newWorld returns a world of one node, this one, that has not begun.
func newWorld(t testing.TB, args ...string) *world {
	w := &world{t: t, log: hivetest.Logger(t, hivetest.LogLevel(slog.LevelError))}
	floor := EpochFloor(epochFloor)
	w.hive = hive.NewWithOptions(hive.Options{ModulePrivateProviders: cell.ModulePrivateProviders{moduleJobs}},
		statedb.Cell, job.Cell, cell.SimpleHealthCell,
		cell.Provide(
			derive.NewMetrics,
			func() tables.LocalNode { return tables.LocalNode{Name: "here"} },
			func() tables.Enforcement { return tables.EnforcementDefault },
			func() *EpochFloor { return &floor },
		),
		cell.Provide(tables.NewEndpointTable, statedb.RWTable[*tables.Endpoint].ToTable), provide(tables.NewNodeTable), provide(tables.NewCiliumNodeTable),
		provide(tables.NewServiceTable), provide(tables.NewBackendSliceTable), provide(tables.NewNodeAddressTable),
		provide(tables.NewRouteTable), provide(tables.NewClassMemberTable), provide(tables.NewPeerPrefixTable),
		provide(tables.NewPolicyReadinessTable), provide(tables.NewIPCacheEntryTable), provide(tables.NewPodEntryTable),
		provide(tables.NewSourceEntryTable), provide(tables.NewEgressEntryTable), provide(tables.NewCoveredEntryTable),
		provide(tables.NewPolicyMapEntryTable), provide(tables.NewDeviceTable), provide(tables.NewNeighbourTable),
		provide(tables.NewBridgeEntryTable), provide(tables.NewCNIAttachmentTable),
		Cell,
		cell.Invoke(func(s tableSet) { w.tableSet = s }),
	)
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	w.hive.RegisterFlags(flags)
	require.NoError(t, flags.Parse(args))
	require.NoError(t, w.hive.Populate(w.log))
	for _, p := range []string{"0.0.0.0/0", "::/0"} {
		insert(w, w.Prefixes, &tables.PeerPrefix{Prefix: netip.MustParsePrefix(p)})
	}
	w.member(bpf.RolePeer, "marker", "", 0)
	return w
}

func moduleJobs(r job.Registry, h cell.Health) job.Group { return r.NewGroup(h) }

func (w *world) start() {
	require.NoError(w.t, w.hive.Start(w.log, w.t.Context()))
	w.t.Cleanup(func() { require.NoError(w.t, w.hive.Stop(w.log, context.Background())) })
	w.settle()
}

func insert[Row any](w *world, table statedb.RWTable[Row], rows ...Row) {
	wtxn := w.DB.WriteTxn(table)
	for _, row := range rows {
		_, _, err := table.Insert(wtxn, row)
		require.NoError(w.t, err)
	}
	wtxn.Commit()
}

func remove[Row any](w *world, table statedb.RWTable[Row], rows ...Row) {
	wtxn := w.DB.WriteTxn(table)
	for _, row := range rows {
		_, _, err := table.Delete(wtxn, row)
		require.NoError(w.t, err)
	}
	wtxn.Commit()
}

// settle returns when all changes so far are taken in: a pod that comes after
// them is known.
func (w *world) settle() {
	w.markers++
	marker := netip.MustParseAddr(fmt.Sprintf("172.16.%d.%d", w.markers/256, w.markers%256))
	e := w.pod(fmt.Sprint("marker-", w.markers), marker.String(), "marker")
	await.True(w.t, func() bool {
		txn := w.DB.ReadTxn()
		_, _, cached := w.IPCache.Get(txn, tables.IPCacheByPrefix(single(marker)))
		_, _, local := w.Locals.Get(txn, tables.LocalEndpointByAddr(marker))
		return cached && local
	})
	remove(w, w.Endpoints, e)
}

// pod inserts a pod of this node, of which egress policies are known to say nothing.
func (w *world) pod(name, addr, labels string) *tables.Endpoint {
	e := &tables.Endpoint{
		Name: tables.Name{Namespace: "prod", Name: name}, Node: "here",
		Addrs: []netip.Addr{netip.MustParseAddr(addr)}, LabelSet: &tables.LabelSet{ID: labelSet(labels)},
	}
	insert(w, w.Members, &tables.ClassMember{Role: bpf.RoleEgress, LabelSet: e.LabelSet.ID})
	insert(w, w.Endpoints, e)
	return e
}

func labelSet(name string) (id tables.LabelSetID) {
	copy(id[:], name)
	return id
}

func digest(n uint32) (d bpf.Digest) {
	d[0] = byte(n)
	return d
}

// member puts a label set into a class, of which the signature is by its number.
func (w *world) member(role bpf.Role, labels string, prefix string, class uint32) {
	m := &tables.ClassMember{Role: role, LabelSet: labelSet(labels), Class: class, Digest: digest(class)}
	if prefix != "" {
		m.Prefix = netip.MustParsePrefix(prefix)
	}
	insert(w, w.Members, m)
}

func (w *world) ready(role bpf.Role, class uint32) {
	insert(w, w.Readiness, &tables.PolicyReadiness{
		ClassKey: bpf.ClassKey{Role: role, Number: class}, Digest: digest(class), Registered: true, Ready: true,
	})
}

func (w *world) peer(prefix string) *tables.IPCache {
	w.t.Helper()
	row, _, found := w.IPCache.Get(w.DB.ReadTxn(), tables.IPCacheByPrefix(netip.MustParsePrefix(prefix)))
	require.True(w.t, found, prefix)
	return row
}

func (w *world) local(addr string) *tables.LocalEndpoint {
	w.t.Helper()
	row, _, found := w.Locals.Get(w.DB.ReadTxn(), tables.LocalEndpointByAddr(netip.MustParseAddr(addr)))
	require.True(w.t, found, addr)
	return row
}

// write has the kernel accept all rows of a desired table as they are now.
func (w *world) write() {
	txn := w.DB.ReadTxn()
	for row := range w.IPCache.All(txn) {
		w.writePeer(row)
	}
	for row := range w.Locals.All(txn) {
		insert(w, w.PodEntries, &tables.PodEntry{Key: row.MapKey(), Value: row.MapValue(), Wanted: tables.WantedSame})
	}
}

func (w *world) writePeer(row *tables.IPCache) {
	entry, _, found := w.PeerEntries.Get(w.DB.ReadTxn(), tables.MapEntryByKey[bpf.IPCacheKey, bpf.IPCacheValue](row.MapKey()))
	if !found || entry.Value != row.MapValue() {
		insert(w, w.PeerEntries, &tables.IPCacheEntry{Key: row.MapKey(), Value: row.MapValue(), Wanted: tables.WantedSame})
	}
}
