// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/cilium/ebpf/link"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath"
	"github.com/sluice-net/sluice/tables"
)

// attachments are the operations on the table attachments. Without programs
// there is nothing to do.
type attachments struct {
	datapath *datapath.Datapath
	links    func() links // asked each time: the agent chooses its maps when it starts
	memory   func() *bpf.Memory
	seed     func(ifIndex int) // makes flows known that began before a device has a program
	table    statedb.Table[*tables.Attachment]
	slots    statedb.Table[*tables.Slot]

	// reported returns the devices of the interfaces that there are files of, by the CNI
	// plugin: it may have attached programs by itself.
	reported func() (map[int]time.Time, error)
}

var _ reconciler.Operations[*tables.Attachment] = &attachments{}

// Update implements [reconciler.Operations].
func (o *attachments) Update(
	_ context.Context, txn statedb.ReadTxn, _ statedb.Revision, row *tables.Attachment,
) error {
	if flipped, _ := o.slots.Initialized(txn); !flipped {
		return nil // what is attached goes on with what there was before
	}
	if memory := o.memory(); memory != nil {
		memory.Link(pinName(row.IfIndex, row.Program))
	}
	if !o.datapath.Loaded() {
		return nil
	}
	row.LinkID = 0
	if row.Program == bpf.ProgramFromPod && o.wanted(txn, row.IfIndex, bpf.ProgramToPod) {
		// Flows towards the pod are to be known before it answers them.
		if _, err := o.update(row.IfIndex, bpf.ProgramToPod); err != nil {
			return err
		}
	}
	id, err := o.update(row.IfIndex, row.Program)
	row.LinkID = uint32(id)
	return err
}

func (o *attachments) wanted(txn statedb.ReadTxn, ifIndex int, p bpf.Program) bool {
	_, _, found := o.table.Get(
		txn, tables.AttachmentByID(tables.AttachmentID{IfIndex: ifIndex, Program: p}),
	)
	return found
}

func (o *attachments) update(ifIndex int, p bpf.Program) (link.ID, error) {
	program := o.datapath.Program(p)
	atDevice := bpf.RunsAtDevice(p)
	switch {
	case program == nil:
		return 0, fmt.Errorf("attach %s: there is no such program", p)
	case atDevice != (ifIndex > 0):
		return 0, fmt.Errorf("attach %s: not to device %d", p, ifIndex)
	case !atDevice:
		return o.links().updateBackstop(program)
	}
	return o.links().run(ifIndex, p, program, func() {
		if p == bpf.ProgramFromPod {
			o.seed(ifIndex)
		}
	})
}

// Delete implements [reconciler.Operations].
func (o *attachments) Delete(
	_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, row *tables.Attachment,
) error {
	if memory := o.memory(); memory != nil {
		memory.Unlink(pinName(row.IfIndex, row.Program))
	}
	if !o.datapath.Loaded() {
		return nil
	}
	l := o.links()
	pins, err := l.names()
	if err != nil {
		return err
	}
	return l.remove(pins, func(pin string) bool { return pinOf(row, pin) })
}

// Prune implements [reconciler.Operations]: links of an earlier run that no row
// wants are ended.
func (o *attachments) Prune(
	_ context.Context, _ statedb.ReadTxn, rows iter.Seq2[*tables.Attachment, statedb.Revision],
) error {
	if !o.datapath.Loaded() {
		return nil
	}
	wanted, backstop := map[string]bool{}, false
	for row := range rows {
		wanted[pinName(row.IfIndex, row.Program)] = true
		backstop = backstop || row.Program == bpf.ProgramBackstop
	}
	// A link of the plugin's is later than its file, and so may be than the row.
	l := o.links()
	pins, err := l.names()
	if err != nil {
		return err
	}
	devices, err := o.reported()
	if err != nil {
		return err
	}
	for ifIndex := range devices {
		for _, p := range bpf.PinnedPrograms {
			wanted[pinName(ifIndex, p)] = true
		}
	}
	return l.remove(
		pins, func(pin string) bool { return !wanted[pin] && !(backstop && isBackstop(pin)) },
	)
}

// pinOf reports whether a pin is of what a row wants.
func pinOf(row *tables.Attachment, pin string) bool {
	if row.Program == bpf.ProgramBackstop {
		return isBackstop(pin)
	}
	return pin == pinName(row.IfIndex, row.Program)
}

// remove ends those of some pinned links that are unwanted.
func (l links) remove(pins []string, unwanted func(pin string) bool) error {
	var errs []error
	for _, pin := range pins {
		if unwanted(pin) {
			errs = append(errs, l.detach(pin))
		}
	}
	return errors.Join(errs...)
}
