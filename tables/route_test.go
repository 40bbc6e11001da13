// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
)

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
