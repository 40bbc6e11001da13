// SPDX-License-Identifier: Apache-2.0

package localpods

import (
	"net/netip"
	"slices"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
)

// row computes the row of an address, nil if no pod of this node has it. It goes by the former
// row too: the kernel forgets neighbors of pods that are silent, and the API server forgets
// pods before their devices are gone.
func (l *params) row(in statedb.ReadTxn, addr netip.Addr) *tables.LocalEndpoint {
	former, _, _ := l.Output.Get(in, tables.LocalEndpointByAddr(addr))
	owner, _ := tables.AddrOwner(in, l.Endpoints, addr)
	attachment := l.attachmentAt(in, addr, owner)
	row := &tables.LocalEndpoint{Addr: addr}
	switch {
	case attachment != nil && (owner == nil || !attachment.IsOf(owner)):
		// The object of the interface's pod has not been read yet, or is gone.
		row.Endpoint = attachment.Pod
	case owner != nil && owner.Node == l.LocalNode.Name:
		row.Endpoint, row.LabelSet = owner.Name, owner.LabelSet
	case owner == nil && l.isThere(in, former):
		return former
	default:
		return nil
	}
	if former != nil && former.Endpoint != row.Endpoint {
		former = nil
	}
	if !l.findAttached(in, row, attachment) {
		l.findDevice(in, row, former)
	}
	if row.LabelSet == nil && former != nil && former.IfIndex == row.IfIndex {
		row.LabelSet = former.LabelSet
	}
	return row
}

// isThere reports whether the device of a pod exists whose object is gone. Only a veth goes with
// its pod.
func (l *params) isThere(in statedb.ReadTxn, former *tables.LocalEndpoint) bool {
	if former == nil || former.IfIndex == 0 {
		return false
	}
	device, _, found := l.Devices.Get(in, tables.DeviceByIndex(int(former.IfIndex)))
	return found && device.Name == former.Device && device.Type == "veth"
}

// attachmentAt returns the interface that was given an address last, nil if none is known to have
// it. That of another pod than the owner counts only while its device exists: the runtime may never
// report the end of an interface.
func (l *params) attachmentAt(
	in statedb.ReadTxn, addr netip.Addr, owner *tables.Endpoint,
) (last *tables.CNIAttachment) {
	for a := range tables.ListIfAny(in, l.Attachments, tables.CNIAttachmentsByAddr(addr)) {
		if last != nil && !a.Created.After(last.Created) {
			continue
		}
		if owner != nil && a.IsOf(owner) || l.attachedDevice(in, a) != nil {
			last = a
		}
	}
	return last
}

// attachedDevice returns the device that the CNI plugin reported, nil if there is none with that
// index and name.
func (l *params) attachedDevice(in statedb.ReadTxn, a *tables.CNIAttachment) *tables.Device {
	device, _, found := l.Devices.Get(in, tables.DeviceByIndex(a.IfIndex))
	if !found || device.Name != a.Device {
		return nil
	}
	return device
}

// findAttached fills in the device that the CNI plugin reported, and reports whether it is known to
// exist.
func (l *params) findAttached(
	in statedb.ReadTxn, row *tables.LocalEndpoint, a *tables.CNIAttachment,
) bool {
	if a == nil {
		return false
	}
	device := l.attachedDevice(in, a)
	if device == nil {
		return false
	}
	row.IfIndex, row.Device = uint32(device.Index), device.Name
	row.Master, row.MAC = device.MasterIndex, a.MAC
	return true
}

// findDevice fills in the host side of the pod's veth: the device of a route to exactly the
// address, or else of its neighbor entry. If that is a bridge, it is the port behind which the MAC
// address is. If nothing is known now, the former device stays.
func (l *params) findDevice(in statedb.ReadTxn, row, former *tables.LocalEndpoint) {
	row.Reason = "no route or neighbour leads to the address"
	index := l.routeTo(in, row.Addr)
	for n := range l.Neighbours.List(in, tables.NeighboursByAddr(row.Addr)) {
		if index == 0 || n.DeviceIndex == index {
			index, row.MAC = n.DeviceIndex, n.MAC
			break
		}
	}
	before, stands := l.formerDevice(in, former)
	if stands && row.MAC == "" && (index == 0 || index == before) {
		index, row.MAC = before, former.MAC
	}
	if index == 0 {
		return
	}
	device, _, found := l.Devices.Get(in, tables.DeviceByIndex(index))
	if !found {
		return
	}
	row.Master = device.MasterIndex
	if device.Type == "bridge" {
		device, row.Master = l.bridgePort(in, index, row.MAC), index
		if device == nil && stands && before == index && former.MAC == row.MAC {
			device, _, _ = l.Devices.Get(in, tables.DeviceByIndex(int(former.IfIndex)))
		}
		if device == nil {
			row.Master, row.Reason = 0, "the bridge does not know the port of the pod yet"
			return
		}
	}
	row.IfIndex, row.Device, row.Reason = uint32(device.Index), device.Name, ""
}

// formerDevice returns the device that led to the pod before: the bridge, or the pod's own device.
// It does not count if the device is gone, has another name, or belongs to another pod. Devices
// that lead to several pods may have led to it by mistake, and never count.
func (l *params) formerDevice(
	in statedb.ReadTxn, former *tables.LocalEndpoint,
) (index int, stands bool) {
	if former == nil || former.IfIndex == 0 {
		return 0, false
	}
	device, _, found := l.Devices.Get(in, tables.DeviceByIndex(int(former.IfIndex)))
	if !found || device.Name != former.Device || device.MasterIndex != former.Master {
		return 0, false
	}
	master, _, found := l.Devices.Get(in, tables.DeviceByIndex(former.Master))
	if found && master.Type == "bridge" {
		return master.Index, true
	}
	return device.Index, device.Type == "veth"
}

func (l *params) routeTo(in statedb.ReadTxn, addr netip.Addr) (index int) {
	var best *tables.Route
	single := netip.PrefixFrom(addr, addr.BitLen())
	for r := range l.Routes.List(in, tables.RoutesByDestination(single)) {
		if r.Table != tables.RouteTableMain || r.DeviceIndex == 0 || r.Gateway.IsValid() {
			continue // behind a router there is no pod of this node
		}
		if best == nil || r.Priority < best.Priority {
			best, index = r, r.DeviceIndex
		}
	}
	return index
}

func (l *params) bridgePort(in statedb.ReadTxn, bridge int, mac string) *tables.Device {
	ports := statedb.Collect(statedb.Filter(l.Bridges.List(in, tables.BridgeEntriesByMAC(mac)),
		func(b *tables.BridgeEntry) bool {
			return b.BridgeIndex == bridge && b.DeviceIndex != bridge
		}))
	slices.SortFunc(ports, func(a, b *tables.BridgeEntry) int { return a.DeviceIndex - b.DeviceIndex })
	for _, port := range ports {
		if d, _, found := l.Devices.Get(in, tables.DeviceByIndex(port.DeviceIndex)); found {
			return d
		}
	}
	return nil
}
