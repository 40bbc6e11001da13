// SPDX-License-Identifier: Apache-2.0

package forwarding

import (
	"iter"
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
	_, err := derive.Register(p, derive.Rule[string, *tables.OverlayDevice]{
		Output: o.Overlays,
		Inputs: []derive.Input[string]{
			derive.FromIf(o.Configs,
				func(old, new *tables.DatapathConfig) bool { return old.Underlay != new.Underlay },
				func(_ statedb.ReadTxn, _ *tables.DatapathConfig, affect func(string)) {
					affect(tables.OverlayDeviceName)
				}),
			derive.From(o.Addresses, func(txn statedb.ReadTxn, a *tables.NodeAddress, affect func(string)) {
				if a.Addr == o.underlay(txn) {
					affect(tables.OverlayDeviceName)
				}
			}),
			derive.FromIf(o.Devices,
				func(old, new *tables.Device) bool { return old.MTU != new.MTU },
				func(txn statedb.ReadTxn, d *tables.Device, affect func(string)) {
					if below := o.below(txn, o.underlay(txn)); below != nil && below.Index == d.Index {
						affect(tables.OverlayDeviceName)
					}
				}),
		},
		Existing: func(txn statedb.ReadTxn, name string) iter.Seq2[*tables.OverlayDevice, statedb.Revision] {
			return o.Overlays.List(txn, tables.OverlayDeviceByName(name))
		},
		Rows:  o.rows,
		Equal: (*tables.OverlayDevice).Equal,
	})
	return err
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

func (o *overlayParams) rows(txn statedb.ReadTxn, name string) []*tables.OverlayDevice {
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
		return []*tables.OverlayDevice{row}
	}
	below := o.below(txn, row.Local)
	if below == nil {
		// The device that there is stays: its packets may still find a way.
		return statedb.Collect(o.Overlays.List(txn, tables.OverlayDeviceByName(name)))
	}
	row.MTU = below.MTU - overheadIPv4
	if row.Local.Is6() {
		row.MTU = below.MTU - overheadIPv6
	}
	return []*tables.OverlayDevice{row}
}
