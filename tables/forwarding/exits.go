// SPDX-License-Identifier: Apache-2.0

package forwarding

import (
	"net/netip"
	"slices"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

type exitParams struct {
	cell.In

	Exits     statedb.RWTable[*tables.EgressExit]
	Gateways  statedb.Table[*tables.EgressGateway]
	Addresses statedb.Table[*tables.NodeAddress]
	Devices   statedb.Table[*tables.Device]
	Routes    statedb.Table[*tables.Route]
	Nodes     statedb.Table[*tables.Node]
	Entries   statedb.Table[*tables.ExitMirror]
	LocalNode tables.LocalNode
}

// deriveExits keeps the addresses that pods' traffic leaves this node with. One
// that no gateway uses any more stays while the node has it: connections with it
// end by themselves.
func deriveExits(p derive.Params, e exitParams) error {
	return derive.Register(p, derive.Rule[netip.Addr]{
		Outputs: []statedb.TableMeta{e.Exits},
		Inputs: []derive.Input[netip.Addr]{
			derive.FromIf(e.Gateways, leavesOtherwise,
				func(_ statedb.ReadTxn, g *tables.EgressGateway, mark func(netip.Addr)) {
					for _, addr := range []netip.Addr{g.EgressIPv4, g.EgressIPv6} {
						if addr.IsValid() {
							mark(addr)
						}
					}
				}),
			derive.From(e.Addresses, e.markAddress),
			derive.FromIf(e.Devices,
				func(old, new *tables.Device) bool { return old.Name != new.Name },
				func(txn statedb.ReadTxn, d *tables.Device, mark func(netip.Addr)) {
					for row := range e.Exits.List(txn, tables.EgressExitsByIfIndex(uint32(d.Index))) {
						mark(row.Addr)
					}
				}),
			derive.FromIf(e.Routes,
				func(old, new *tables.Route) bool { return old.Source != new.Source },
				func(txn statedb.ReadTxn, r *tables.Route, mark func(netip.Addr)) {
					if _, _, found := e.Exits.Get(
						txn, tables.EgressExitByAddr(r.Source),
					); found && r.Table != tables.RouteTableLocal {
						mark(r.Source)
					}
				}),
			derive.FromIf(e.Nodes,
				func(old, new *tables.Node) bool { return !slices.Equal(old.InternalIPs, new.InternalIPs) },
				func(_ statedb.ReadTxn, n *tables.Node, mark func(netip.Addr)) {
					if n.Name == e.LocalNode.Name {
						for _, addr := range n.InternalIPs {
							mark(addr)
						}
					}
				}),
			// What an earlier run has left in the kernel lingers too.
			derive.FromIf(e.Entries,
				func(old, new *tables.ExitMirror) bool { return old.Value != new.Value },
				func(_ statedb.ReadTxn, entry *tables.ExitMirror, mark func(netip.Addr)) {
					mark(entry.Key.Addr.Addr())
				}),
		},
		Compute: derive.Each(e.Exits, tables.EgressExitByAddr, (*tables.EgressExit).Equal, e.row),
	})
}

func leavesOtherwise(old, new *tables.EgressGateway) bool {
	return old.EgressIPv4 != new.EgressIPv4 || old.EgressIPv6 != new.EgressIPv6 ||
		old.IfIndex != new.IfIndex || old.Device != new.Device
}

// markAddress marks the address itself, and those of its device that may now
// be the first or no longer.
func (e *exitParams) markAddress(
	txn statedb.ReadTxn, a *tables.NodeAddress, mark func(netip.Addr),
) {
	mark(a.Addr)
	for row := range e.Exits.List(txn, tables.EgressExitsByIfIndex(uint32(a.DeviceIndex))) {
		mark(row.Addr)
	}
}

func (e *exitParams) row(txn statedb.ReadTxn, addr netip.Addr) *tables.EgressExit {
	row := &tables.EgressExit{Addr: addr, Reconciled: tables.Pending()}
	if g, _, used := e.Gateways.Get(txn, tables.EgressGatewaysByEgress(addr)); used {
		row.IfIndex, row.Device = g.IfIndex, g.Device
	} else if !e.linger(txn, row) {
		return nil
	}
	if e.shared(txn, row) {
		row.Flags |= bpf.ExitShared
	}
	return row
}

// linger fills in the device of an exit that no gateway uses, by which it was
// or which has come to have the address, and reports whether it is to stay.
func (e *exitParams) linger(txn statedb.ReadTxn, row *tables.EgressExit) bool {
	former := uint32(0)
	if existing, _, found := e.Exits.Get(txn, tables.EgressExitByAddr(row.Addr)); found {
		former = existing.IfIndex
	} else if entry, _, found := e.Entries.Get(
		txn, tables.MirrorByKey[bpf.ExitKey, bpf.ExitValue](row.MapKey()),
	); found {
		former = entry.Value.IfIndex
	}
	if former == 0 {
		return false
	}
	for a := range e.Addresses.List(txn, tables.NodeAddressesByAddr(row.Addr)) {
		device, _, found := e.Devices.Get(txn, tables.DeviceByIndex(a.DeviceIndex))
		if found && (row.IfIndex == 0 || a.DeviceIndex == int(former)) {
			row.IfIndex, row.Device, row.Lingering = uint32(device.Index), device.Name, true
		}
	}
	return row.Lingering
}

// shared reports whether the host itself sends from the address: it is the first
// of its family on its device, of this node's Node, or preferred by a route.
func (e *exitParams) shared(txn statedb.ReadTxn, row *tables.EgressExit) bool {
	if _, _, preferred := e.Routes.Get(txn, tables.RoutesBySource(row.Addr)); preferred {
		return true
	}
	if n, _, found := e.Nodes.Get(
		txn, tables.NodeByName(e.LocalNode.Name),
	); found && slices.Contains(n.InternalIPs, row.Addr) {
		return true
	}
	var first *tables.NodeAddress
	for a := range e.Addresses.List(txn, tables.NodeAddressesByDevice(int(row.IfIndex))) {
		if a.Addr.Is4() == row.Addr.Is4() && !a.Addr.IsLinkLocalUnicast() &&
			(first == nil || a.Order < first.Order) {
			first = a
		}
	}
	return first != nil && first.Addr == row.Addr
}
