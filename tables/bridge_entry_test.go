// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
)

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
