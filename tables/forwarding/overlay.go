// SPDX-License-Identifier: Apache-2.0

package forwarding

import (
	"net/netip"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

type overlayParams struct {
	cell.In

	Settings  settings
	Overlays  statedb.RWTable[*tables.OverlayDevice]
	Configs   statedb.Table[*tables.DatapathConfig]
	Addresses statedb.Table[*tables.NodeAddress]
	Devices   statedb.Table[*tables.Device]
}

// What the overlay puts around a packet: Ethernet, VXLAN, UDP and IP headers.
const (
	overheadIPv4 = 14 + 8 + 8 + 20
	overheadIPv6 = 14 + 8 + 8 + 40
)

// deriveOverlay keeps what the overlay device has to be like. There is none
// while it is not known where its packets leave this node.
func deriveOverlay(p derive.Params, o overlayParams) error {
	return derive.Register(p, derive.Rule[string]{
		Outputs: []statedb.TableMeta{o.Overlays},
		Inputs: []derive.Input[string]{
			derive.FromIf(o.Configs,
				func(old, new *tables.DatapathConfig) bool { return old.Underlay != new.Underlay },
				func(_ statedb.ReadTxn, _ *tables.DatapathConfig, mark func(string)) {
					mark(tables.OverlayDeviceName)
				}),
			derive.From(o.Addresses, func(txn statedb.ReadTxn, a *tables.NodeAddress, mark func(string)) {
				if a.Addr == o.underlay(txn) {
					mark(tables.OverlayDeviceName)
				}
			}),
			derive.FromIf(o.Devices,
				func(old, new *tables.Device) bool { return old.MTU != new.MTU },
				func(txn statedb.ReadTxn, d *tables.Device, mark func(string)) {
					if below := o.below(txn, o.underlay(txn)); below != nil && below.Index == d.Index {
						mark(tables.OverlayDeviceName)
					}
				}),
		},
		Compute: derive.Each(
			o.Overlays, tables.OverlayDeviceByName, (*tables.OverlayDevice).Equal, o.row),
	})
}

func (o *overlayParams) underlay(txn statedb.ReadTxn) netip.Addr {
	if c, _, found := o.Configs.Get(txn, tables.DatapathConfigByIndex(theConfig)); found {
		return c.Underlay
	}
	return netip.Addr{}
}

// below returns the device that has the underlay's address, nil if none has.
func (o *overlayParams) below(txn statedb.ReadTxn, underlay netip.Addr) *tables.Device {
	for a := range o.Addresses.List(txn, tables.NodeAddressesByAddr(underlay)) {
		if d, _, found := o.Devices.Get(txn, tables.DeviceByIndex(a.DeviceIndex)); found {
			return d
		}
	}
	return nil
}

func (o *overlayParams) row(txn statedb.ReadTxn, name string) *tables.OverlayDevice {
	row := &tables.OverlayDevice{
		Name:       name,
		VNI:        o.Settings.OverlayVNI,
		Port:       o.Settings.OverlayPort,
		MTU:        o.Settings.OverlayMTU,
		Local:      o.underlay(txn),
		Reconciled: tables.Pending(),
	}
	if !row.Local.IsValid() {
		return nil
	}
	if row.MTU != 0 {
		return row
	}
	below := o.below(txn, row.Local)
	if below == nil {
		// The device that there is stays: its packets may still find a way.
		former, _, _ := o.Overlays.Get(txn, tables.OverlayDeviceByName(name))
		return former
	}
	row.MTU = below.MTU - overheadIPv4
	if row.Local.Is6() {
		row.MTU = below.MTU - overheadIPv6
	}
	return row
}
