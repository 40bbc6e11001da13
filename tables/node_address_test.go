// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/cilium/statedb/index"
	"github.com/stretchr/testify/require"
)

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
