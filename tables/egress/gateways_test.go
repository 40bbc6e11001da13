// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"net/netip"
	"testing"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
)

// TestOwnShare: in buckets of another node are the egress addresses of the items of which this node
// is a candidate, whether it is elected for them or not, and the gateway stays.
func TestOwnShare(t *testing.T) {
	w := newGatewayWorld(t)
	item := func(node string, last byte, local bool) tables.GatewayChoice {
		c := choice(node, tables.GatewaySpec{EgressIP: egressIP(last)})
		c.Local = local
		return c
	}
	there, elected, spare := item("there", 4, false), item(here, 1, true), item("there", 2, true)
	broken := item(here, 3, true)
	const bad = "here no interface has the egress IP 192.0.2.3"

	w.groups.Put(group(1, there, spare), group(2, there, broken), group(3, there, elected, spare),
		group(4, there))
	require.Equal(t, all("there 192.0.2.2 eth0"), w.buckets(1))
	buckets := w.buckets(2)
	require.Len(t, buckets, 2)
	require.Equal(t, bpf.GatewayBuckets, buckets["there"]+buckets[bad])
	buckets = w.buckets(3)
	require.Greater(t, buckets["there 192.0.2.1 eth0"], bpf.GatewayBuckets/8)
	require.Greater(t, buckets["there 192.0.2.2 eth0"], bpf.GatewayBuckets/8)
	require.Greater(t, buckets["here 192.0.2.1 eth0"], bpf.GatewayBuckets/8)
	require.Equal(t, all("there"), w.buckets(4))

	w.addresses.Remove(address(2, 2))
	require.Equal(t, all("there"), w.buckets(1))
	w.addresses.Put(address(2, 2))
	require.Equal(t, all("there 192.0.2.2 eth0"), w.buckets(1))
}

type gatewayWorld struct {
	db        *statedb.DB
	step      *tablestest.Rule[uint32]
	groups    tablestest.Table[*tables.EgressGroup]
	devices   tablestest.Table[*tables.Device]
	addresses tablestest.Table[*tables.NodeAddress]
	routes    tablestest.Table[*tables.Route]
	gateways  tablestest.Table[*tables.EgressGateway]
}

const here = "here"

// newGatewayWorld has the device eth0 with the addresses 192.0.2.1 and 192.0.2.2.
func newGatewayWorld(t *testing.T) *gatewayWorld {
	w := &gatewayWorld{db: statedb.New()}
	w.groups = tablestest.Open(t, w.db, tables.NewEgressGroupTable)
	w.devices = tablestest.Open(t, w.db, tables.NewDeviceTable)
	w.addresses = tablestest.Open(t, w.db, tables.NewNodeAddressTable)
	w.routes = tablestest.Open(t, w.db, tables.NewRouteTable)
	w.gateways = tablestest.Open(t, w.db, tables.NewEgressGatewayTable)
	rule := gatewayParams{
		Groups: w.groups, Devices: w.devices, Addresses: w.addresses, Routes: w.routes,
		Gateways: w.gateways, LocalNode: tables.LocalNode{Name: here},
	}
	w.step = tablestest.NewRule(t, w.db, rule.declare())
	w.devices.Put(device("eth0", 2))
	w.addresses.Put(address(1, 2), address(2, 2))
	return w
}

func device(name string, index int) *tables.Device {
	return &tables.Device{Name: name, Index: index}
}

func address(last byte, device int) *tables.NodeAddress {
	return &tables.NodeAddress{
		Addr: egressIP(last), DeviceIndex: device, Scope: "global", Order: int(last),
	}
}

func egressIP(last byte) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, last}) }

func group(number uint32, choices ...tables.GatewayChoice) *tables.EgressGroup {
	return &tables.EgressGroup{
		Life: tables.Life{Number: number}, Digest: bpf.Digest{byte(number)}, Gateways: choices,
	}
}

func choice(node string, spec tables.GatewaySpec) tables.GatewayChoice {
	return tables.GatewayChoice{Node: node, Spec: spec, Local: node == here}
}

// buckets counts those of a group by what is in them.
func (w *gatewayWorld) buckets(number uint32) map[string]int {
	w.step.Work()
	counts := map[string]int{}
	for g := range w.gateways.Prefix(w.db.ReadTxn(), tables.EgressGatewaysOfGroup(number)) {
		says := g.Node
		if g.EgressIPv4.IsValid() {
			says += " " + g.EgressIPv4.String() + " " + g.Device
		}
		if g.Reason != "" {
			says += " " + g.Reason
		}
		counts[says]++
	}
	return counts
}

func all(says string) map[string]int { return map[string]int{says: bpf.GatewayBuckets} }

// What a gateway sends with follows the devices, addresses and routes of the node.
func TestGatewaysFollowTheNode(t *testing.T) {
	w := newGatewayWorld(t)
	w.groups.Put(
		group(1, choice(here, tables.GatewaySpec{Interface: "eth0"})),
		group(2, choice(here, tables.GatewaySpec{EgressIP: egressIP(2)})),
		group(3, choice(here, tables.GatewaySpec{})),
		group(4, choice("there", tables.GatewaySpec{})))
	require.Equal(t, all("here 192.0.2.1 eth0"), w.buckets(1))
	require.Equal(t, all("here 192.0.2.2 eth0"), w.buckets(2))
	require.Equal(t, all("here no default route"), w.buckets(3))
	require.Equal(t, all("there"), w.buckets(4))

	route := &tables.Route{
		Table: tables.RouteTableMain, Type: "unicast", DeviceIndex: 2,
		Destination: netip.MustParsePrefix("0.0.0.0/0"),
	}
	w.routes.Put(route)
	require.Equal(t, all("here 192.0.2.1 eth0"), w.buckets(3))

	w.addresses.Remove(address(1, 2))
	require.Equal(t, all("here 192.0.2.2 eth0"), w.buckets(1))
	require.Equal(t, all("here 192.0.2.2 eth0"), w.buckets(3))

	w.devices.Put(device("wan", 2))
	require.Equal(t, all("here no interface eth0"), w.buckets(1))
	require.Equal(t, all("here 192.0.2.2 wan"), w.buckets(2))

	w.addresses.Remove(address(2, 2))
	require.Equal(t, all("here no interface has the egress IP 192.0.2.2"), w.buckets(2))
	w.routes.Remove(route)
	require.Equal(t, all("here no default route"), w.buckets(3))
}

// A group has buckets, which follow elections, until its row is gone. What stays of them
// keeps its status.
func TestGatewaysOfUndesiredGroup(t *testing.T) {
	w := newGatewayWorld(t)
	spec := tables.GatewaySpec{Interface: "eth0"}
	g := group(1, choice("there", spec), choice("elsewhere", spec))
	w.groups.Put(g)
	w.step.Work()
	for row := range w.gateways.All(w.db.ReadTxn()) {
		w.gateways.Put(tables.WithStatus(row, reconciler.StatusDone()))
	}
	undesired := *g
	undesired.Undesired = true
	w.groups.Put(&undesired)
	require.Len(t, w.buckets(1), 2)

	elected := *g
	elected.Undesired = true
	elected.Gateways = []tables.GatewayChoice{choice("there", spec), {Reason: "no node matches"}}
	w.groups.Put(&elected)
	require.Equal(t, all("there"), w.buckets(1))
	statuses := map[reconciler.StatusKind]int{}
	for row := range w.gateways.All(w.db.ReadTxn()) {
		statuses[row.Status.Kind]++
	}
	require.Greater(t, statuses[reconciler.StatusKindDone], bpf.GatewayBuckets/4)
	require.Greater(t, statuses[reconciler.StatusKindPending], bpf.GatewayBuckets/4)

	unready := *g
	unready.Gateways = []tables.GatewayChoice{{Reason: "no node matches"}, {Reason: "not ready"}}
	w.groups.Put(&unready)
	require.Equal(t, all(" no node matches; not ready"), w.buckets(1))

	w.groups.Remove(g)
	require.Empty(t, w.buckets(1))
}
