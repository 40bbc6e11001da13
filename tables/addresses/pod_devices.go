// SPDX-License-Identifier: Apache-2.0

package addresses

import (
	"net/netip"
	"slices"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// findDevice fills in the host side of the pod's veth: the device of a route
// to just the address, or else of its neighbour entry; where that is a bridge,
// its port behind which the MAC address is.
//
// The kernel forgets neighbours and bridge entries of pods that are silent for
// some minutes. That does not move a pod: where nothing is known now, what was
// known before, which is former, holds.
func (l *localParams) findDevice(txn statedb.ReadTxn, row, former *tables.LocalEndpoint) {
	row.Reason = "no route or neighbour leads to the address"
	index := l.routeTo(txn, row.Addr)
	for n := range l.Neighbours.List(txn, tables.NeighboursByAddr(row.Addr)) {
		if index == 0 || n.DeviceIndex == index {
			index, row.MAC = n.DeviceIndex, n.MAC
			break
		}
	}
	before, stands := l.ledBy(txn, former)
	if stands && row.MAC == "" && (index == 0 || index == before) {
		index, row.MAC = before, former.MAC
	}
	if index == 0 {
		return
	}
	device, _, found := l.Devices.Get(txn, tables.DeviceByIndex(index))
	if !found {
		return
	}
	row.Master = device.MasterIndex
	if device.Type == "bridge" {
		device, row.Master = l.bridgePort(txn, index, row.MAC), index
		if device == nil && stands && before == index && former.MAC == row.MAC {
			device, _, _ = l.Devices.Get(txn, tables.DeviceByIndex(int(former.IfIndex)))
		}
		if device == nil {
			row.Master, row.Reason = 0, "the bridge does not know the port of the pod yet"
			return
		}
	}
	row.IfIndex, row.Device, row.Reason = uint32(device.Index), device.Name, ""
}

// found returns the row that there was of a pod, if that says where it was found, else nil.
func found(row, existing *tables.LocalEndpoint) *tables.LocalEndpoint {
	if existing != nil && existing.Endpoint == row.Endpoint && existing.IfIndex != 0 {
		return existing
	}
	return nil
}

// ledBy returns which device led to a pod that was found before: the bridge, or
// the pod's own. It does not stand if that is not so any more: the device is
// gone, has another name, or belongs to another one. Devices that lead to more
// than a pod may have led to it by mistake, and never stand.
func (l *localParams) ledBy(txn statedb.ReadTxn, former *tables.LocalEndpoint) (index int, stands bool) {
	if former == nil {
		return 0, false
	}
	device, _, found := l.Devices.Get(txn, tables.DeviceByIndex(int(former.IfIndex)))
	if !found || device.Name != former.Device || device.MasterIndex != former.Master {
		return 0, false
	}
	if master, _, found := l.Devices.Get(txn, tables.DeviceByIndex(former.Master)); found && master.Type == "bridge" {
		return master.Index, true
	}
	return device.Index, device.Type == "veth"
}

func (l *localParams) routeTo(txn statedb.ReadTxn, addr netip.Addr) (index int) {
	var best *tables.Route
	for r := range l.Routes.List(txn, tables.RoutesByDestination(single(addr))) {
		if r.Table == tables.RouteTableMain && r.DeviceIndex != 0 && (best == nil || r.Priority < best.Priority) {
			best, index = r, r.DeviceIndex
		}
	}
	return index
}

func (l *localParams) bridgePort(txn statedb.ReadTxn, bridge int, mac string) *tables.Device {
	ports := statedb.Collect(statedb.Filter(l.Bridges.List(txn, tables.BridgeEntriesByMAC(mac)),
		func(b *tables.BridgeEntry) bool { return b.BridgeIndex == bridge && b.DeviceIndex != bridge }))
	slices.SortFunc(ports, func(a, b *tables.BridgeEntry) int { return a.DeviceIndex - b.DeviceIndex })
	for _, port := range ports {
		if d, _, found := l.Devices.Get(txn, tables.DeviceByIndex(port.DeviceIndex)); found {
			return d
		}
	}
	return nil
}

// attachmentAt returns the interface that was given an address last, nil if none is
// known to have it. That of another pod than the owner counts only while its device is
// there: the runtime may never tell of the end of an interface.
func (l *localParams) attachmentAt(txn statedb.ReadTxn, addr netip.Addr, owner *tables.Endpoint) (last *tables.CNIAttachment) {
	for a := range tables.Rare(txn, l.Attachments, tables.CNIAttachmentsByAddr(addr)) {
		if last != nil && !a.Created.After(last.Created) {
			continue
		}
		if owner != nil && a.IsOf(owner) || l.attachedDevice(txn, a) != nil {
			last = a
		}
	}
	return last
}

// attachedDevice returns the device of which the CNI plugin told, nil if there is none
// of that index and name.
func (l *localParams) attachedDevice(txn statedb.ReadTxn, a *tables.CNIAttachment) *tables.Device {
	device, _, found := l.Devices.Get(txn, tables.DeviceByIndex(a.IfIndex))
	if !found || device.Name != a.Device {
		return nil
	}
	return device
}

// findAttached fills in the device of which the CNI plugin told, and reports
// whether that is known to be there.
func (l *localParams) findAttached(txn statedb.ReadTxn, row *tables.LocalEndpoint, a *tables.CNIAttachment) bool {
	if a == nil {
		return false
	}
	device := l.attachedDevice(txn, a)
	if device == nil {
		return false
	}
	row.IfIndex, row.Device, row.Master, row.MAC = uint32(device.Index), device.Name, device.MasterIndex, a.MAC
	return true
}

// unknownPod is the row of an interface whose pod is not known: its object has not
// been read yet, or is gone. It is held.
func (l *localParams) unknownPod(txn statedb.ReadTxn, r *round, addr netip.Addr, a *tables.CNIAttachment, existing *tables.LocalEndpoint) []*tables.LocalEndpoint {
	row := &tables.LocalEndpoint{Addr: addr, Endpoint: a.Pod, Reconciled: tables.Pending()}
	l.findAttached(txn, row, a)
	row.Flags = bpf.PodEgressUnknown
	if l.Enforcement != tables.EnforcementNever {
		row.Flags |= bpf.PodPolicyUnknown
	}
	r.fill(row, existing)
	return []*tables.LocalEndpoint{row}
}
