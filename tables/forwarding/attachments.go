// SPDX-License-Identifier: Apache-2.0

package forwarding

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

type attachmentParams struct {
	cell.In

	Attachments   statedb.RWTable[*tables.Attachment]
	Devices       statedb.Table[*tables.Device]
	Locals        statedb.Table[*tables.LocalEndpoint]
	PodEntries    statedb.Table[*tables.PodMirror]
	Exits         statedb.Table[*tables.EgressExit]
	Addresses     statedb.Table[*tables.NodeAddress]
	ExitEntries   statedb.Table[*tables.ExitMirror]
	ConfigEntries statedb.Table[*tables.ConfigMirror]
	Slots         statedb.Table[*tables.Slot]
	Leases        statedb.Table[*tables.EgressIPLease]
}

// nowhere is the interface index of programs that run at no device.
const nowhere = 0

// deriveAttachments keeps where programs have to run: at devices of pods and of
// egress addresses by what is desired, and for as long as the kernel has an entry
// with the device. What a pod sends by a device without programs would not be judged,
// and what leaves with an egress address would get no replies. The programs of a pod's veth
// stay until the veth is gone: its containers may outlive their object, and an agent that
// starts then does not know the pod. It waits for the maps of this agent to be active: a
// program that ran before it finds its entries would drop what it must not.
func deriveAttachments(p derive.Params, a attachmentParams) error {
	return derive.Register(p, derive.Rule[int]{
		Outputs: []statedb.TableMeta{a.Attachments},
		Inputs: []derive.Input[int]{
			derive.FromIf(a.Devices,
				func(old, new *tables.Device) bool { return old.Name != new.Name || old.MAC != new.MAC },
				func(_ statedb.ReadTxn, d *tables.Device, mark func(int)) { mark(d.Index) }),
			derive.FromIf(a.Locals,
				func(old, new *tables.LocalEndpoint) bool { return old.IfIndex != new.IfIndex },
				func(_ statedb.ReadTxn, e *tables.LocalEndpoint, mark func(int)) { mark(int(e.IfIndex)) }),
			derive.FromIf(a.PodEntries,
				func(old, new *tables.PodMirror) bool { return !slices.Equal(old.Values(), new.Values()) },
				func(_ statedb.ReadTxn, m *tables.PodMirror, mark func(int)) {
					for _, v := range m.Values() {
						mark(int(v.IfIndex))
					}
				}),
			derive.FromIf(a.Exits,
				func(old, new *tables.EgressExit) bool { return old.IfIndex != new.IfIndex },
				func(txn statedb.ReadTxn, e *tables.EgressExit, mark func(int)) {
					mark(int(e.IfIndex))
					a.markAddressed(txn, mark)
				}),
			derive.From(a.Addresses,
				func(_ statedb.ReadTxn, row *tables.NodeAddress, mark func(int)) {
					mark(row.DeviceIndex)
				}),
			derive.FromIf(a.ExitEntries,
				func(old, new *tables.ExitMirror) bool { return !slices.Equal(old.Values(), new.Values()) },
				func(txn statedb.ReadTxn, m *tables.ExitMirror, mark func(int)) {
					for _, v := range m.Values() {
						mark(int(v.IfIndex))
					}
					a.markAddressed(txn, mark)
				}),
			derive.FromIf(a.Leases,
				func(old, new *tables.EgressIPLease) bool { return old.IfIndex != new.IfIndex },
				func(txn statedb.ReadTxn, l *tables.EgressIPLease, mark func(int)) {
					mark(int(l.IfIndex))
					a.markAddressed(txn, mark)
				}),
			derive.FromIf(a.ConfigEntries,
				func(_, _ *tables.ConfigMirror) bool { return false }, // that there is one is what matters
				func(txn statedb.ReadTxn, _ *tables.ConfigMirror, mark func(int)) {
					mark(nowhere)
					for d := range a.Devices.All(txn) {
						mark(d.Index)
					}
				}),
		},
		After:   []statedb.TableMeta{a.Slots},
		Compute: a.compute,
	})
}

func (a *attachmentParams) compute(
	in statedb.ReadTxn, out statedb.WriteTxn, indices []int, _ func(int),
) error {
	equal := func(a, b *tables.Attachment) bool {
		return a.Equal(b) && hasHeader(a) == hasHeader(b)
	}
	for _, index := range indices {
		existing := a.Attachments.List(out, tables.AttachmentsByDevice(index))
		err := derive.Replace(out, a.Attachments, equal, existing, a.rows(in, out, index)...)
		if err != nil {
			return err
		}
	}
	return nil
}

// errNoHeader is of devices whose packets begin with their IP header: the
// programs expect another one before that.
var errNoHeader = errors.New("the device has no Ethernet header")

func hasHeader(row *tables.Attachment) bool { return row.Status.GetError() != errNoHeader.Error() }

func (a *attachmentParams) rows(
	txn, out statedb.ReadTxn, index int,
) (rows []*tables.Attachment) {
	configEntry := tables.MirrorByKey[bpf.ConfigKey, bpf.ConfigValue](bpf.ConfigKey{})
	if _, _, configured := a.ConfigEntries.Get(txn, configEntry); !configured {
		return nil
	}
	if index == nowhere {
		return []*tables.Attachment{{Program: bpf.ProgramBackstop, Origin: "all packets that are forwarded", Reconciled: tables.Pending()}}
	}
	device, _, found := a.Devices.Get(txn, tables.DeviceByIndex(index))
	if !found {
		return nil
	}
	attach := func(origin string, programs ...bpf.Program) {
		for _, program := range programs {
			row := &tables.Attachment{
				IfIndex: index, Program: program, Device: device.Name, Origin: origin,
				Reconciled: tables.Pending(),
			}
			if device.MAC == "" {
				row.Status = reconciler.StatusError(errNoHeader)
			} else if former := a.running(txn, row); former != nil { // only for another reason
				row.Status = reconciler.StatusRefreshing()
				row.LinkID, row.Behind = former.LinkID, former.Behind
			}
			rows = append(rows, row)
		}
	}
	if addr, found := a.pod(txn, index); found {
		attach("pod "+addr.String(), bpf.ProgramFromPod, bpf.ProgramToPod)
	} else if a.wasPod(out, device) {
		attach(tables.UnknownPodAttachment, bpf.ProgramFromPod, bpf.ProgramToPod)
	}
	if device.Name == tables.OverlayDeviceName {
		attach("overlay", bpf.ProgramFromOverlay)
	}
	if addr, found := a.exit(txn, uint32(index)); found {
		attach("egress address "+addr.String(), bpf.ProgramFromNetdev, bpf.ProgramToNetdev)
	} else if len(rows) == 0 && a.mayGetReplies(txn, device) {
		attach("replies to egress addresses of other devices", bpf.ProgramFromNetdev)
	}
	return rows
}

// markAddressed marks the devices with addresses: replies may reach this node by them.
func (a *attachmentParams) markAddressed(txn statedb.ReadTxn, mark func(int)) {
	for row := range a.Addresses.All(txn) {
		mark(row.DeviceIndex)
	}
}

// mayGetReplies reports whether replies to pods may reach this node by a device, where they have
// to be translated back: routes of others need not be the way that the packets went.
func (a *attachmentParams) mayGetReplies(txn statedb.ReadTxn, device *tables.Device) bool {
	hasExits := a.Exits.NumObjects(txn)+a.ExitEntries.NumObjects(txn)+a.Leases.NumObjects(txn) > 0
	if !hasExits || tables.IsWithinNode(device.Name) {
		return false
	}
	for row := range a.Addresses.List(txn, tables.NodeAddressesByDevice(device.Index)) {
		if row.Scope == "global" {
			return device.MAC != ""
		}
	}
	return false
}

// running returns the row of a program that this agent has attached to the device already, nil
// if it has not.
func (a *attachmentParams) running(txn statedb.ReadTxn, row *tables.Attachment) *tables.Attachment {
	former, _, found := a.Attachments.Get(txn, tables.AttachmentByID(row.ID()))
	if !found || former.Device != row.Device || former.Origin == tables.FormerAttachment {
		return nil
	}
	switch former.Status.Kind {
	case reconciler.StatusKindDone, reconciler.StatusKindRefreshing:
		return former
	}
	return nil
}

// pod returns an address of a pod at a device, desired or still in the kernel.
func (a *attachmentParams) pod(txn statedb.ReadTxn, index int) (addr netip.Addr, found bool) {
	for e := range a.Locals.List(txn, tables.LocalEndpointsByDevice(index)) {
		if int(e.IfIndex) == index { // and not just behind it
			return e.Addr, true
		}
	}
	entry, _, found := a.PodEntries.Get(txn, tables.PodMirrorsByIfIndex(uint32(index)))
	if found {
		addr = entry.Key.Addr.Addr()
	}
	return addr, found
}

// wasPod reports whether a device exists since before its pod was forgotten: this agent or a
// former one has attached from_pod to it. Only a veth goes with its pod.
func (a *attachmentParams) wasPod(out statedb.ReadTxn, device *tables.Device) bool {
	row, _, found := a.Attachments.Get(out, tables.AttachmentByID(tables.AttachmentID{
		IfIndex: device.Index, Program: bpf.ProgramFromPod,
	}))
	return found && device.Type == "veth" &&
		(row.Device == device.Name || row.Device == "" && row.Origin == tables.FormerAttachment)
}

// exit returns an egress address of a device, desired or still in the kernel.
func (a *attachmentParams) exit(txn statedb.ReadTxn, index uint32) (addr netip.Addr, found bool) {
	if exit, _, found := a.Exits.Get(txn, tables.EgressExitsByIfIndex(index)); found {
		return exit.Addr, true
	}
	if lease, _, found := a.Leases.Get(txn, tables.EgressIPLeasesByIfIndex(index)); found {
		return lease.Addr, true
	}
	entry, _, found := a.ExitEntries.Get(txn, tables.ExitMirrorsByIfIndex(index))
	if found {
		addr = entry.Key.Addr.Addr()
	}
	return addr, found
}
