// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	"github.com/stretchr/testify/require"
)

func TestDeviceIndexes(t *testing.T) {
	db := statedb.New()
	devices, err := NewDeviceTable(db)
	require.NoError(t, err)
	wtxn := db.WriteTxn(devices)
	for _, d := range []*Device{
		{Index: 2, Name: "eth0", AltNames: []string{"enp0s3", "uplink"}},
		{Index: 3, Name: "bridge"},
		{Index: 4, Name: "veth1", MasterIndex: 3},
		{Index: 5, Name: "veth2", MasterIndex: 3},
	} {
		_, _, err := devices.Insert(wtxn, d)
		require.NoError(t, err)
	}
	txn := wtxn.Commit()
	for _, name := range []string{"eth0", "enp0s3", "uplink"} {
		d, _, found := devices.Get(txn, DevicesByName(name))
		require.True(t, found, name)
		require.Equal(t, 2, d.Index)
	}
	d, _, found := devices.Get(txn, DeviceByIndex(4))
	require.True(t, found)
	require.Equal(t, "veth1", d.Name)
	require.Len(t, statedb.Collect(devices.List(txn, DevicesByMaster(3))), 2)
	require.Empty(t, statedb.Collect(devices.List(txn, DevicesByMaster(0))), "no master is not a master")
}

// Each field counts when two devices are compared.
func TestDeviceEqual(t *testing.T) {
	base := Device{Index: 2, Name: "eth0", AltNames: []string{"a"}, PeerNetNSID: -1}
	require.True(t, base.Equal(&Device{Index: 2, Name: "eth0", AltNames: []string{"a"}, PeerNetNSID: -1}))
	for field, change := range map[string]func(*Device){
		"Index":       func(d *Device) { d.Index = 9 },
		"Name":        func(d *Device) { d.Name = "x" },
		"AltNames":    func(d *Device) { d.AltNames = []string{"b"} },
		"Type":        func(d *Device) { d.Type = "x" },
		"Up":          func(d *Device) { d.Up = true },
		"OperUp":      func(d *Device) { d.OperUp = true },
		"MTU":         func(d *Device) { d.MTU = 9 },
		"MAC":         func(d *Device) { d.MAC = "x" },
		"MasterIndex": func(d *Device) { d.MasterIndex = 9 },
		"ParentIndex": func(d *Device) { d.ParentIndex = 9 },
		"PeerNetNSID": func(d *Device) { d.PeerNetNSID = 9 },
	} {
		other := base
		change(&other)
		require.False(t, base.Equal(&other), field)
	}
	require.Len(t, (*Device).TableRow(&base), len((*Device).TableHeader(&base)))
}

// A key that is typed is the key of the row, and one that is typed in part is
// the beginning of it.
func TestNetworkKeysFromString(t *testing.T) {
	address := &NodeAddress{Addr: netip.MustParseAddr("10.0.0.5"), DeviceIndex: 2}
	neighbour := &Neighbour{Addr: netip.MustParseAddr("fd00::5"), DeviceIndex: 2}
	entry := &BridgeEntry{BridgeIndex: 3, MAC: "02:00:00:00:00:01", VLAN: 10}
	route := &Route{Table: 254, Destination: netip.MustParsePrefix("10.0.0.0/8"), Priority: 100, DeviceIndex: 2, Gateway: netip.MustParseAddr("10.1.0.1")}
	onLink := &Route{Table: 254, Destination: netip.MustParsePrefix("::/0"), DeviceIndex: 2}
	tests := []struct {
		parse func(string) (index.Key, error)
		text  string
		want  index.Key
	}{
		{nodeAddressIDString, "10.0.0.5 2", address.ID().Key()},
		{nodeAddressIDString, "10.0.0.5", address.ID().Key()[:16]},
		{deviceAndAddrKey, "2 fd00::5", neighbour.ID().Key()},
		{deviceAndAddrKey, "2", neighbour.ID().Key()[:4]},
		{bridgeEntryIDString, "3 02:00:00:00:00:01 10", entry.ID().Key()},
		{bridgeEntryIDString, "3", entry.ID().Key()[:4]},
		{routeIDString, "254 10.0.0.0/8 100 2 10.1.0.1", route.ID().Key()},
		{routeIDString, "254 10.0.0.0/8 100", route.ID().hopsKey()},
		{routeIDString, "254 ::/0 0 2 -", onLink.ID().Key()},
	}
	for _, tt := range tests {
		key, err := tt.parse(tt.text)
		require.NoError(t, err, tt.text)
		require.Equal(t, tt.want, key, tt.text)
	}
	for _, tt := range []struct {
		parse func(string) (index.Key, error)
		text  string
	}{
		{nodeAddressIDString, "x 2"}, {nodeAddressIDString, "10.0.0.5 x"}, {deviceAndAddrKey, "x"}, {deviceAndAddrKey, "2 x"},
		{bridgeEntryIDString, ""}, {bridgeEntryIDString, "3 x x"}, {routeIDString, ""}, {routeIDString, "254 x"}, {routeIDString, "1 2 3 4 5 6"},
	} {
		_, err := tt.parse(tt.text)
		require.Error(t, err, tt.text)
	}
}

func TestRouteIndexes(t *testing.T) {
	db := statedb.New()
	routes, err := NewRouteTable(db)
	require.NoError(t, err)
	v4, v6 := netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")
	rows := []*Route{
		{Table: 254, Destination: v4, DeviceIndex: 2, Gateway: netip.MustParseAddr("10.0.0.1"), Type: "unicast"},
		{Table: 254, Destination: v4, DeviceIndex: 3, Gateway: netip.MustParseAddr("10.1.0.1"), Type: "unicast"},
		{Table: 254, Destination: v4, Priority: 7, DeviceIndex: 3, Type: "unicast"},
		{Table: 254, Destination: v6, DeviceIndex: 3, Type: "unicast"},
		{Table: 255, Destination: netip.MustParsePrefix("10.0.0.5/32"), DeviceIndex: 2, Type: "local"},
	}
	wtxn := db.WriteTxn(routes)
	for _, r := range rows {
		_, _, err := routes.Insert(wtxn, r)
		require.NoError(t, err)
	}
	txn := wtxn.Commit()
	require.ElementsMatch(t, rows[:3], statedb.Collect(routes.List(txn, RoutesByDestination(v4))))
	require.ElementsMatch(t, rows[3:4], statedb.Collect(routes.List(txn, RoutesByDestination(v6))))
	require.ElementsMatch(t, rows[:2], statedb.Collect(routes.Prefix(txn, RouteHops(RouteID{Table: 254, Destination: v4}))))
	require.ElementsMatch(t, rows[4:], statedb.Collect(routes.List(txn, RoutesByTable(RouteTableLocal))))
	require.ElementsMatch(t, rows[1:4], statedb.Collect(routes.List(txn, RoutesByDevice(3))))
	for _, r := range rows {
		got, _, found := routes.Get(txn, RouteByID(r.ID()))
		require.True(t, found)
		require.Equal(t, r, got)
	}
}

func TestBridgeEntryIndexes(t *testing.T) {
	db := statedb.New()
	entries, err := NewBridgeEntryTable(db)
	require.NoError(t, err)
	wtxn := db.WriteTxn(entries)
	for _, e := range []*BridgeEntry{
		{BridgeIndex: 3, MAC: "02:00:00:00:00:01", DeviceIndex: 4},
		{BridgeIndex: 3, MAC: "02:00:00:00:00:03", DeviceIndex: 3, Local: true},
		{BridgeIndex: 9, MAC: "02:00:00:00:00:01", DeviceIndex: 10},
		{BridgeIndex: 3, MAC: "02:00:00:00:00:01", DeviceIndex: 5}, // moved
	} {
		_, _, err := entries.Insert(wtxn, e)
		require.NoError(t, err)
	}
	txn := wtxn.Commit()
	ports := func(q statedb.Query[*BridgeEntry]) (ports []int) {
		for e := range entries.List(txn, q) {
			ports = append(ports, e.DeviceIndex)
		}
		return ports
	}
	require.ElementsMatch(t, []int{5, 10}, ports(BridgeEntriesByMAC("02:00:00:00:00:01")))
	require.ElementsMatch(t, []int{3, 5}, ports(BridgeEntriesByDevice(3)), "of the bridge")
	require.ElementsMatch(t, []int{5}, ports(BridgeEntriesByDevice(5)), "of the port")
	require.Empty(t, ports(BridgeEntriesByDevice(4)), "it moved away")
}

// Dumps are JSON, and what is not set is not there.
func TestNetworkRowsAsJSON(t *testing.T) {
	for want, row := range map[string]any{
		`{"table":254,"destination":"::/0","priority":0,"type":"unicast","scope":"global"}`: &Route{
			Table: 254, Destination: netip.MustParsePrefix("::/0"), Type: "unicast", Scope: "global"},
		`{"deviceIndex":2,"addr":"10.0.0.1","mac":"02:00:00:00:00:01","permanent":false}`: &Neighbour{
			DeviceIndex: 2, Addr: netip.MustParseAddr("10.0.0.1"), MAC: "02:00:00:00:00:01"},
		`{"addr":"10.0.0.5","prefix":"10.0.0.0/24","deviceIndex":2,"device":"eth0","scope":"global","secondary":false,"deprecated":false,"order":1}`: &NodeAddress{
			Addr: netip.MustParseAddr("10.0.0.5"), Prefix: netip.MustParsePrefix("10.0.0.0/24"), DeviceIndex: 2, Device: "eth0", Scope: "global", Order: 1},
	} {
		got, err := json.Marshal(row)
		require.NoError(t, err)
		require.JSONEq(t, want, string(got))
	}
}
