// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
)

// ipWorld has the tables of the rule of egress-ips, and the rule.
type ipWorld struct {
	ipParams
	db   *statedb.DB
	step *tablestest.Rule[int]
	testing.TB
}

func newIPWorld(t testing.TB) *ipWorld {
	db := statedb.New()
	w := &ipWorld{TB: t, db: db, ipParams: ipParams{
		IPs:       tablestest.Open(t, db, tables.NewEgressIPTable),
		Pools:     tablestest.Open(t, db, tables.NewEgressIPPoolTable),
		Policies:  tablestest.Open(t, db, tables.NewEgressPolicyTable),
		Nodes:     tablestest.Open(t, db, tables.NewNodeTable),
		Health:    tablestest.Open(t, db, tables.NewGatewayHealthTable),
		Owners:    tablestest.Open(t, db, tables.NewEgressIPOwnerTable),
		Untaken:   tablestest.Open(t, db, tables.NewEgressIPUntakenTable),
		Addresses: tablestest.Open(t, db, tables.NewNodeAddressTable),
		Devices:   tablestest.Open(t, db, tables.NewDeviceTable),
		Routes:    tablestest.Open(t, db, tables.NewRouteTable),
		LocalNode: tables.LocalNode{Name: "node-1"},
	}}
	w.step = tablestest.NewRule(t, db, w.declare())
	return w
}

func (w *ipWorld) pool(p tables.EgressIPPool) { tablestest.Insert(w.TB, w.db, w.Pools, &p) }

func (w *ipWorld) node(i int, ready bool, zone string) {
	tablestest.Insert(w.TB, w.db, w.Nodes, &tables.Node{
		Name: fmt.Sprintf("node-%d", i), Ready: ready, Labels: labels.Set{"zone": zone},
		InternalIPs: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})},
	})
}

func (w *ipWorld) policy(name, nodes, addr string, age int) {
	tablestest.Insert(w.TB, w.db, w.Policies, &tables.EgressPolicy{
		Name: name, Created: time.Unix(int64(1000-age), 0),
		Gateways: []tables.GatewaySpec{{Nodes: nodes, EgressIP: netip.MustParseAddr(addr)}},
	})
}

// owners returns the node of each address.
func (w *ipWorld) owners() map[netip.Addr]string {
	w.step.Work()
	owners := map[netip.Addr]string{}
	for row := range w.IPs.All(w.db.ReadTxn()) {
		owners[row.Addr] = row.Node
	}
	return owners
}

func (w *ipWorld) row(addr string) *tables.EgressIP {
	w.step.Work()
	row, _, _ := w.IPs.Get(w.db.ReadTxn(), tables.EgressIPByAddr(netip.MustParseAddr(addr)))
	return row
}

func prefixes(texts ...string) (ps []netip.Prefix) {
	for _, s := range texts {
		ps = append(ps, netip.MustParsePrefix(s))
	}
	return ps
}

// An address is at a node that is ready and that pool and policy select, by the device of its
// subnet; one of no pool does not move.
func TestEgressIPs(t *testing.T) {
	w := newIPWorld(t)
	w.pool(tables.EgressIPPool{
		Name: "a", Prefixes: prefixes("203.0.113.0/24"), Nodes: "zone=x",
	})
	tablestest.Insert(t, w.db, w.Devices, &tables.Device{Index: 2, Name: "eth1"})
	tablestest.Insert(t, w.db, w.Addresses, &tables.NodeAddress{
		Addr: netip.MustParseAddr("203.0.113.2"), Prefix: prefixes("203.0.113.0/24")[0],
		DeviceIndex: 2, Device: "eth1", Scope: "global",
	})
	w.node(1, true, "x")
	w.node(2, true, "y")
	w.node(3, false, "x")
	w.policy("outside", "", "198.51.100.1", 0)
	w.policy("web", "", "203.0.113.9", 1)
	w.policy("older", "", "203.0.113.9", 2)
	w.policy("elsewhere", "zone=y", "203.0.113.10", 0)

	require.Nil(t, w.row("198.51.100.1"))
	row := w.row("203.0.113.9")
	require.Equal(t, []string{"older", "web"}, row.Policies)
	require.Equal(t, "node-1 192.0.2.1 eth1", fmt.Sprint(row.Node, " ", row.NodeAddr, " ", row.Device))
	require.Contains(t, w.row("203.0.113.10").Reason, "select 0")

	w.node(3, true, "x")
	w.node(1, false, "x")
	row = w.row("203.0.113.9")
	require.Equal(t, "node-3", row.Node)
	require.Equal(t, "eth1", row.Device, "others may vote for this node")

	w.pool(tables.EgressIPPool{Name: "a", Prefixes: prefixes("203.0.113.0/24"),
		Error: "spec.exclude[0]: is empty"})
	require.Empty(t, w.row("203.0.113.9").Node)
	require.Contains(t, w.row("203.0.113.9").Reason, "spec.exclude[0]")
}

// A node that is being drained has no address as long as another node may have it.
func TestEgressIPsLeaveDrainedNodes(t *testing.T) {
	w := newIPWorld(t)
	w.pool(tables.EgressIPPool{Name: "a", Prefixes: prefixes("203.0.113.0/24"), MaxPerNode: 15})
	drain := func(i int, draining bool) {
		n, _, _ := w.Nodes.Get(w.db.ReadTxn(), tables.NodeByName(fmt.Sprintf("node-%d", i)))
		changed := tables.Clone(n)
		changed.Draining = draining
		tablestest.Insert(t, w.db, w.Nodes, changed)
	}
	for i := range 3 {
		w.node(i+1, true, "x")
	}
	for i := range 20 {
		w.policy(fmt.Sprint("p", i), "", fmt.Sprintf("203.0.113.%d", 10+i), i)
	}
	counts := func() (of [4]int) {
		for _, node := range w.owners() {
			if i := 0; node != "" {
				_, err := fmt.Sscanf(node, "node-%d", &i)
				require.NoError(t, err)
				of[i]++
			} else {
				of[0]++
			}
		}
		return of
	}
	before := w.owners()
	drain(1, true)
	require.Zero(t, counts()[1])
	for addr, node := range w.owners() {
		require.True(t, node == before[addr] || before[addr] == "node-1", addr)
	}
	drain(2, true)
	of := counts()
	require.Equal(t, []int{0, 5, 15}, []int{of[0], of[1] + of[2], of[3]}, "it has no room for more")
	drain(3, true)
	require.Equal(t, before, w.owners(), "as if none were")
	drain(1, false)
	drain(2, false)
	drain(3, false)
	require.Equal(t, before, w.owners())
}

// What the operator writes to the status of a pool, for each node that joins, has no address
// looked at again; what else a pool has does.
func TestEgressIPsDependOnPools(t *testing.T) {
	ignored := []string{
		"Name", "UID", "PortsPerBlock", "Blocks", "Allocations", "Object", "Errors",
	}
	now := tables.EgressIPPool{
		Created: time.Unix(1, 0), Prefixes: prefixes("192.0.2.0/24"),
		Ranges: make([]tables.AddrRange, 1), Excluded: prefixes("192.0.2.0/32"), Nodes: "a=b",
		MaxPerNode: 1, Fixed: true, Error: "wrong", Name: "p", UID: "u", PortsPerBlock: 64,
		Blocks: make([]tables.PortBlock, 1), Allocations: make([]tables.PoolAllocation, 1),
		Object: &tables.PoolObject{}, Errors: make([]tables.FieldError, 1),
	}
	all := reflect.ValueOf(now)
	for i := range all.NumField() {
		name := all.Type().Field(i).Name
		require.False(t, all.Field(i).IsZero(), "%s: set it in this test", name)
		var one tables.EgressIPPool
		reflect.ValueOf(&one).Elem().Field(i).Set(all.Field(i))
		changes := (&tables.EgressIPPool{}).ChangesAddresses(&one)
		require.Equal(t, !slices.Contains(ignored, name), changes, name)
	}
}

// A node that is lost moves its own addresses only, and takes them back when it returns; no
// node has more than it may; and every node finds the same, whatever it has seen before.
func TestEgressIPsMoveLittle(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, most := range []int{0, 12} {
		w := newIPWorld(t)
		w.pool(tables.EgressIPPool{Name: "a", Prefixes: prefixes("203.0.113.0/24"), MaxPerNode: most})
		ready := map[int]bool{}
		for i := 1; i <= 8; i++ {
			w.node(i, true, "x")
			ready[i] = true
		}
		for i := range 60 {
			w.policy(fmt.Sprint("p", i), "", fmt.Sprintf("203.0.113.%d", 10+i), i)
		}
		former := w.owners()
		for range 60 {
			i := 1 + random.IntN(8)
			ready[i] = !ready[i]
			name := fmt.Sprintf("node-%d", i)
			w.node(i, ready[i], "x")
			now, load := w.owners(), map[string]int{}
			require.Len(t, now, 60)
			for addr, node := range now {
				load[node]++
				if most == 0 && node != former[addr] {
					require.True(t, ready[i] && node == name || !ready[i] && former[addr] == name,
						"%s moved from %s to %s when %s changed", addr, former[addr], node, name)
				}
			}
			delete(load, "")
			for node, n := range load {
				require.True(t, most == 0 || n <= most, node)
			}
			fresh := newIPWorld(t)
			for p := range w.Pools.All(w.db.ReadTxn()) {
				tablestest.Insert(t, fresh.db, fresh.Pools, p)
			}
			for p := range w.Policies.All(w.db.ReadTxn()) {
				tablestest.Insert(t, fresh.db, fresh.Policies, p)
			}
			for n := range w.Nodes.All(w.db.ReadTxn()) {
				tablestest.Insert(t, fresh.db, fresh.Nodes, n)
			}
			require.Equal(t, now, fresh.owners())
			former = now
		}
	}
}

// BenchmarkEgressIPs finds the nodes of 100 addresses among 5,000 nodes, as each agent does
// whenever a node comes to be ready, or is not any more.
func BenchmarkEgressIPs(b *testing.B) {
	w := newIPWorld(b)
	w.pool(tables.EgressIPPool{Name: "a", Prefixes: prefixes("203.0.113.0/24"), Nodes: "zone=x"})
	var nodes []*tables.Node
	for i := range 5000 {
		nodes = append(nodes, &tables.Node{
			Name: fmt.Sprintf("node-%d", i), Ready: true, Labels: labels.Set{"zone": "x"},
			InternalIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})},
		})
	}
	tablestest.Insert(b, w.db, w.Nodes, nodes...)
	for i := range 100 {
		w.policy(fmt.Sprint("p", i), "zone=x", fmt.Sprintf("203.0.113.%d", i), i)
	}
	w.step.Work()
	ready := true
	for b.Loop() {
		ready = !ready
		changed := tables.Clone(nodes[0])
		changed.Ready = ready
		tablestest.Insert(b, w.db, w.Nodes, changed)
		w.step.Work()
	}
}

// A voter votes for another node when the path to one is lost, for one that has never answered only
// if there is no other, and sends to the node that tells that it has the address, unless that is
// lost.
func TestEgressIPFollowsPaths(t *testing.T) {
	w := newIPWorld(t)
	w.pool(tables.EgressIPPool{Name: "a", Prefixes: prefixes("203.0.113.0/24"), Nodes: "zone=x"})
	for i := 1; i < 4; i++ {
		w.node(i, true, "x")
	}
	w.policy("web", "", "203.0.113.9", 1)
	path := func(node string, state tables.PathState) {
		tablestest.Insert(t, w.db, w.Health, &tables.GatewayHealth{Node: node, State: state})
	}
	at := func() string {
		node, addr := w.row("203.0.113.9").At()
		return node + " " + addr.String()
	}
	first := w.row("203.0.113.9").Node
	path(first, tables.PathLost)
	second := w.row("203.0.113.9").Node
	require.NotEqual(t, first, second)
	path(first, tables.PathRecovering)
	require.Equal(t, second, w.row("203.0.113.9").Node)
	path(second, tables.PathUnprobed)
	third := w.row("203.0.113.9").Node
	require.NotContains(t, []string{first, second}, third)
	path(third, tables.PathLost)
	require.Equal(t, second, w.row("203.0.113.9").Node)
	path(second, tables.PathLost)
	require.Equal(t, first, w.row("203.0.113.9").Node, "it answers")
	path(second, tables.PathUnreachable)
	path(first, tables.PathUnreachable)
	require.Equal(t, first, w.row("203.0.113.9").Node, "the network of this node is down")

	for i, node := range []string{"node-1", "node-2", "node-3"} {
		path(node, tables.PathHealthy)
		tablestest.Insert(t, w.db, w.Owners, &tables.EgressIPOwner{
			Addr:     netip.MustParseAddr("203.0.113.9"),
			NodeAddr: netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}),
		})
		require.Equal(t, fmt.Sprintf("%s 192.0.2.%d", node, i+1), at())
	}
	path("node-3", tables.PathLost)
	require.NotContains(t, at(), "node-3")
	require.Empty(t, w.row("203.0.113.9").Owner)
	tablestest.Insert(t, w.db, w.Owners, &tables.EgressIPOwner{
		Addr: netip.MustParseAddr("203.0.113.9"), NodeAddr: netip.MustParseAddr("192.0.2.99"),
	})
	require.Empty(t, w.row("203.0.113.9").Owner, "it is no node")
	w.node(4, true, "y")
	tablestest.Insert(t, w.db, w.Owners, &tables.EgressIPOwner{
		Addr: netip.MustParseAddr("203.0.113.9"), NodeAddr: netip.MustParseAddr("192.0.2.4"),
	})
	require.Empty(t, w.row("203.0.113.9").Owner, "the pool does not select it")

	path("node-3", tables.PathHealthy)
	for _, node := range []string{first, second} {
		require.Equal(t, node, w.row("203.0.113.9").Node)
		tablestest.Insert(t, w.db, w.Untaken, &tables.EgressIPUntaken{
			Addr: netip.MustParseAddr("203.0.113.9"), Node: node,
		})
	}
	require.Equal(t, third, w.row("203.0.113.9").Node)
	tablestest.Insert(t, w.db, w.Untaken, &tables.EgressIPUntaken{
		Addr: netip.MustParseAddr("203.0.113.9"), Node: first, Past: true,
	})
	require.Equal(t, third, w.row("203.0.113.9").Node, "it is suited and has it")
	n, _, _ := w.Nodes.Get(w.db.ReadTxn(), tables.NodeByName(third))
	drained := tables.Clone(n)
	drained.Draining = true
	tablestest.Insert(t, w.db, w.Nodes, drained)
	require.Equal(t, first, w.row("203.0.113.9").Node)
}
