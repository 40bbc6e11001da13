// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/tables"
)

// Parents of linux/pkt_sched.h that are no class of another queueing discipline.
const (
	parentRoot    = 0xffffffff // TC_H_ROOT
	parentIngress = 0xfffffff1 // TC_H_INGRESS, also of clsact
)

// kindMQ is the queueing discipline of a device with several queues, of which each has its own.
const kindMQ = "mq"

// qdisc is a queueing discipline of a device. The upper half of a handle is that of its classes.
type qdisc struct {
	device         int
	handle, parent uint32
	kind           string
}

// decodeQdisc reads a tcmsg.
func decodeQdisc(data []byte) (qdisc, error) {
	if len(data) < nl.SizeofTcMsg {
		return qdisc{}, fmt.Errorf("decode queueing discipline: %w", errTruncated)
	}
	var v values
	q := qdisc{
		device: v.int(data[4:]),
		handle: binary.NativeEndian.Uint32(data[8:]),
		parent: binary.NativeEndian.Uint32(data[12:]),
	}
	v.attributes(data[nl.SizeofTcMsg:], func(typ uint16, value []byte) {
		if typ == unix.TCA_KIND {
			q.kind = text(value)
		}
	})
	if v.err != nil {
		return qdisc{}, fmt.Errorf("decode queueing discipline of device %d: %w", q.device, v.err)
	}
	return q, nil
}

// decodeQdiscEvent says that devices are stale, unless the change is not of what they send.
func decodeQdiscEvent(data []byte) (event, error) {
	q, err := decodeQdisc(data)
	if err != nil || q.parent == parentIngress {
		return event{}, err
	}
	return event{stale: devices}, nil
}

// hasQueues reports whether it is not known yet which queueing disciplines the queues of a device
// have: a message about the device has that of its root.
func hasQueues(d *tables.Device) bool { return slices.Equal(d.Qdiscs, []string{kindMQ}) }

// ofQueues returns the queueing disciplines of the queues of a device, each once, in order, or mq
// if there are none.
func ofQueues(device int, all []qdisc) []string {
	var kinds []string
	for _, root := range all {
		if root.device != device || root.parent != parentRoot || root.kind != kindMQ {
			continue
		}
		for _, q := range all {
			if q.device == device && q.parent != parentIngress && q.parent != parentRoot &&
				q.parent>>16 == root.handle>>16 {
				kinds = append(kinds, q.kind)
			}
		}
	}
	if len(kinds) == 0 {
		return []string{kindMQ}
	}
	slices.Sort(kinds)
	return slices.Compact(kinds)
}

// qdiscs adds to the devices listed those of their queues.
func (d *dumper) qdiscs() error {
	if !slices.ContainsFunc(d.listing.Devices, hasQueues) {
		return nil
	}
	var all []qdisc
	err := d.dump("queueing disciplines", unix.RTM_GETQDISC, unix.RTM_NEWQDISC,
		make([]byte, nl.SizeofTcMsg), func(data []byte) error {
			q, err := decodeQdisc(data)
			if err == nil {
				all = append(all, q)
			}
			return err
		})
	for _, dev := range d.listing.Devices {
		if hasQueues(dev) {
			dev.Qdiscs = ofQueues(dev.Index, all)
		}
	}
	return err
}
