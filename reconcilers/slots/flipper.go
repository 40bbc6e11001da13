// SPDX-License-Identifier: Apache-2.0

package slots

import (
	"context"
	"fmt"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/pause"
)

// pollInterval is how often the flipper checks whether everything is written.
const pollInterval = 5 * time.Millisecond

// patience is how long the flip waits while nothing is written: then the kernel refuses the rest.
const patience = 10 * time.Second

// findMost is how long the flip waits for the devices of pods that the agent has to ask the kernel
// about, when nothing else is missing.
const findMost = 2 * time.Second

// Delays between attempts to write which slot is active, or to release one.
const (
	retryFirst = 20 * time.Millisecond
	retryLast  = 10 * time.Second
)

// flipper switches packets to this agent's slot.
type flipper struct {
	params
	linksKnown   <-chan struct{}
	unwritten    func() (entries int64, mapName string, known bool) // entries desired at the start
	findsDevices func() bool                                        // devices of pods are searched

	flipped func(statedb.WriteTxn) // marks the table of slots initialized
	shown   string                 // what the table says the flip waits for
}

// newFlipper returns a flipper that initializes the table of slots.
func newFlipper(p params) *flipper {
	wtxn := p.DB.WriteTxn(p.Slots)
	defer wtxn.Commit()
	return &flipper{
		params:     p,
		linksKnown: p.Links.Known(),
		unwritten:  p.Control.Unwritten,
		findsDevices: func() bool {
			_, inKernel := p.Maps.Backend().(*bpf.Kernel)
			return inKernel
		},
		flipped: p.Slots.RegisterInitializer(wtxn, "flip"),
	}
}

func (f *flipper) run(ctx context.Context, health cell.Health) error {
	select {
	case <-f.linksKnown:
	case <-ctx.Done():
		return nil
	}
	_, own, err := f.Maps.Slot()
	if err != nil {
		return err
	}
	if !f.awaitWritten(ctx, health) || !f.awaitDevices(ctx, health) {
		return nil
	}
	if !try(ctx, health, "Cannot flip the slots of maps", f.Maps.Flip) {
		return nil
	}
	f.Log.Info("All maps are written: packets use them from now on", "slot", own)
	uses := fmt.Sprintf("Packets use slot %d", own)
	health.OK(uses + "; what others have left is kept until this agent's programs are attached")
	if err := f.show("", f.flipped); err != nil {
		return err
	}
	if !wait(ctx, bpf.SlotGrace) ||
		!try(ctx, health, "Cannot release the former slot of maps", f.Maps.Release) {
		return nil
	}
	if !f.awaitAttached(ctx) || !try(ctx, health, "Cannot remove pins of other versions", f.sweep) {
		return nil
	}
	health.OK(uses)
	return nil
}

// awaitWritten waits until everything that was desired at the start is written, or nothing more of
// it for some time. It returns false if the agent stops.
func (f *flipper) awaitWritten(ctx context.Context, health cell.Health) bool {
	fewest, since, known := int64(-1), time.Now(), false
	for {
		unwritten, name, all := f.unwritten()
		switch {
		case all && unwritten == 0:
			return true
		case !all:
			f.waitFor(health, "what is desired of "+name)
		default:
			f.waitFor(health, name)
		}
		if all != known || fewest < 0 || unwritten < fewest {
			fewest, since, known = unwritten, time.Now(), all
		}
		if all && time.Since(since) > patience {
			f.Log.Warn("Some entries cannot be written: packets use the maps without them",
				"entries", unwritten, "map", name)
			return true
		}
		if !wait(ctx, pollInterval) {
			return false
		}
	}
}

// awaitDevices waits until the devices of all pods are found and written, or for some time. It
// returns false if the agent stops.
func (f *flipper) awaitDevices(ctx context.Context, health cell.Health) bool {
	if !f.findsDevices() {
		return true
	}
	for since := time.Now(); time.Since(since) < findMost; {
		missing := f.unfound(f.DB.ReadTxn())
		if missing == "" {
			return true
		}
		f.waitFor(health, missing)
		if !wait(ctx, pollInterval) {
			return false
		}
	}
	return true
}

// unfound returns what the flip waits for: the unknown device of a pod, or an entry that is about
// to get its device. It is empty if there is none.
func (f *flipper) unfound(txn statedb.ReadTxn) string {
	for row := range f.Locals.All(txn) {
		if row.IfIndex == 0 {
			return "the device of " + row.Addr.String()
		}
		pod, _, found := f.Pods.Get(txn, tables.PodByAddr(row.Addr))
		if !found || pod.IfIndex != row.IfIndex ||
			pod.Status.Kind == reconciler.StatusKindPending && pod.Status.GetError() == "" {
			return "the entry of " + row.Addr.String()
		}
	}
	return ""
}

// waitFor says what the flip waits for, in health and in the table.
func (f *flipper) waitFor(health cell.Health, what string) {
	if f.shown == what {
		return
	}
	health.OK("Fills the maps, waits for " + what)
	if err := f.show(what, nil); err != nil {
		f.Log.Warn("Cannot say what the flip waits for", "error", err)
	}
}

// show writes the table: what the flip waits for, or that the slots have flipped. also adds to the
// same commit.
func (f *flipper) show(waitsFor string, also func(statedb.WriteTxn)) error {
	if also == nil && f.shown == waitsFor {
		return nil
	}
	f.shown = waitsFor
	active, own, err := f.Maps.Slot()
	if err != nil {
		return err
	}
	wtxn := f.DB.WriteTxn(f.Slots)
	defer wtxn.Abort()
	for number := range uint32(bpf.Slots) {
		row := &tables.Slot{Number: number, Own: number == own, Use: tables.SlotSpare}
		switch {
		case number == active:
			row.Use = tables.SlotInForce
		case row.Own:
			row.Use, row.WaitsFor = tables.SlotFilled, waitsFor
		}
		if _, _, err := f.Slots.Insert(wtxn, row); err != nil {
			return fmt.Errorf("write %s: %w", f.Slots.Name(), err)
		}
	}
	if also != nil {
		also(wtxn)
	}
	wtxn.Commit()
	return nil
}

// awaitAttached waits until this agent has tried to attach its programs everywhere. It returns
// false if the agent stops.
func (f *flipper) awaitAttached(ctx context.Context) bool {
	for {
		txn := f.DB.ReadTxn()
		_, changed := f.Attachments.AllWatch(txn)
		if tables.AllAttached(txn, f.Attachments) {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// sweep removes pins of other versions: none of their programs is attached any more.
func (f *flipper) sweep() error {
	swept, err := f.Maps.Sweep()
	if len(swept) > 0 {
		f.Log.Info("Removed pins of other versions", "pins", swept)
	}
	return err
}

// try repeats do until it succeeds, and returns false if the agent stops before.
func try(ctx context.Context, health cell.Health, failure string, do func() error) bool {
	retry := pause.NewBackoff(retryFirst, retryLast)
	for {
		err := do()
		if err == nil {
			return true
		}
		health.Degraded(failure, err)
		if !wait(ctx, retry.Step()) {
			return false
		}
	}
}

// wait waits for some time, and returns false if the agent stops before.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
