// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"testing"

	"github.com/cilium/statedb"
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
		"Qdiscs":      func(d *Device) { d.Qdiscs = []string{"fq"} },
	} {
		other := base
		change(&other)
		require.False(t, base.Equal(&other), field)
	}
	require.Len(t, (*Device).TableRow(&base), len((*Device).TableHeader(&base)))
}
