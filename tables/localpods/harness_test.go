// SPDX-License-Identifier: Apache-2.0

package localpods

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
	"github.com/sluice-net/sluice/tables/tablestest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// harness has all tables that the rule reads and writes, filled by hand, and the rule.
type harness struct {
	testing.TB
	db   *statedb.DB
	step *tablestest.Rule[netip.Addr]
	rule params

	endpoints   tablestest.Table[*tables.Endpoint]
	attachments tablestest.Table[*tables.CNIAttachment]
	devices     tablestest.Table[*tables.Device]
	routes      tablestest.Table[*tables.Route]
	neighbours  tablestest.Table[*tables.Neighbour]
	bridges     tablestest.Table[*tables.BridgeEntry]
}

func newHarness(t testing.TB) *harness {
	h := &harness{TB: t, db: statedb.New()}
	h.endpoints = tablestest.OpenEndpoints(t, h.db, "here")
	h.attachments = tablestest.Open(t, h.db, tables.NewCNIAttachmentTable)
	h.devices = tablestest.Open(t, h.db, tables.NewDeviceTable)
	h.routes = tablestest.Open(t, h.db, tables.NewRouteTable)
	h.neighbours = tablestest.Open(t, h.db, tables.NewNeighbourTable)
	h.bridges = tablestest.Open(t, h.db, tables.NewBridgeEntryTable)
	h.rule = params{
		Endpoints: h.endpoints, Attachments: h.attachments, Devices: h.devices, Routes: h.routes,
		Neighbours: h.neighbours, Bridges: h.bridges, LocalNode: tables.LocalNode{Name: "here"},
	}
	h.rule.Output = tablestest.Open(t, h.db, tables.NewLocalEndpointTable)
	h.step = tablestest.NewRule(t, h.db, h.rule.declare())
	return h
}

// network is everything that the kernel tells of devices.
type network struct {
	devices    []*tables.Device
	routes     []*tables.Route
	neighbours []*tables.Neighbour
	bridges    []*tables.BridgeEntry
}

// set has the kernel tell of a network, as netlink does: rows that stay are not written.
func (h *harness) set(n network) {
	wtxn := h.db.WriteTxn(h.devices, h.routes, h.neighbours, h.bridges)
	replace(h, wtxn, h.devices, n.devices)
	replace(h, wtxn, h.routes, n.routes)
	replace(h, wtxn, h.neighbours, n.neighbours)
	replace(h, wtxn, h.bridges, n.bridges)
	wtxn.Commit()
}

func replace[Row any](h *harness, wtxn statedb.WriteTxn, table statedb.RWTable[Row], rows []Row) {
	same := func(a, b Row) bool { return fmt.Sprint(a) == fmt.Sprint(b) }
	require.NoError(h, derive.Replace(wtxn, table, same, table.All(wtxn), rows...))
}

// expect works, and checks which pods there are.
func (h *harness) expect(lines ...string) {
	h.Helper()
	h.step.Work()
	var got []string
	for e := range h.rule.Output.All(h.db.ReadTxn()) {
		set := "-"
		if e.LabelSet != nil {
			set = e.LabelSet.Labels.String()
		}
		got = append(got, strings.Join([]string{
			e.Addr.String(), e.Endpoint.Name, set, cmp.Or(e.Device, "-"), cmp.Or(e.MAC, "-"),
			cmp.Or(e.Reason, "-"),
		}, " "))
	}
	require.Equal(h, lines, got)
}

var begin = time.Unix(1_700_000_000, 0).UTC()

func pod(name, node, addr, app string) *tables.Endpoint {
	return &tables.Endpoint{
		Name: tables.Name{Namespace: "prod", Name: name}, UID: "uid-" + name, Node: node, Created: begin,
		Addrs:    []netip.Addr{netip.MustParseAddr(addr)},
		LabelSet: tables.NewLabelSet("prod", "", labels.Set{"app": app}, nil),
	}
}

func attached(name, addr string, device *tables.Device, at int) *tables.CNIAttachment {
	return &tables.CNIAttachment{
		File: fmt.Sprintf("%s-%d", name, at), Pod: tables.Name{Namespace: "prod", Name: name},
		UID: "uid-" + name, Device: device.Name, IfIndex: device.Index, MAC: "mac-" + name,
		Addrs:   []netip.Addr{netip.MustParseAddr(addr)},
		Created: begin.Add(time.Duration(at) * time.Second),
	}
}

func veth(index int, name string) *tables.Device {
	return &tables.Device{Index: index, Name: name, Type: "veth"}
}

func port(index int, name string, bridge int) *tables.Device {
	return &tables.Device{Index: index, Name: name, Type: "veth", MasterIndex: bridge}
}

func route(addr string, device int) *tables.Route {
	a := netip.MustParseAddr(addr)
	return &tables.Route{
		Table: tables.RouteTableMain, Destination: netip.PrefixFrom(a, a.BitLen()), DeviceIndex: device,
	}
}

func neighbour(addr, mac string, device int) *tables.Neighbour {
	return &tables.Neighbour{Addr: netip.MustParseAddr(addr), MAC: mac, DeviceIndex: device}
}

func learned(mac string, device, bridge int) *tables.BridgeEntry {
	return &tables.BridgeEntry{MAC: mac, DeviceIndex: device, BridgeIndex: bridge}
}
