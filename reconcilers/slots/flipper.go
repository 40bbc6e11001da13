// SPDX-License-Identifier: Apache-2.0

package slots

import (
	"context"
	"fmt"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/pause"
)

// How often it is looked whether all is written, more seldom the longer the same is waited
// for.
const (
	lookFirst = 2 * time.Millisecond
	lookLast  = 50 * time.Millisecond
)

// findMost is for how long the flip waits for devices of pods that the kernel has forgotten,
// and is asked for, when nothing else is missing.
const findMost = 2 * time.Second

// How soon it is tried again to write which slot is in force, or to give one up.
const (
	retryFirst = 20 * time.Millisecond
	retryLast  = 10 * time.Second
)

// flipper brings the slot of this agent into force.
type flipper struct {
	params
	flipped func(statedb.WriteTxn) // marks the table of slots initialized
	shown   string                 // what the table says that is waited for
	unfound time.Time              // since when nothing but devices is missing
}

func (f *flipper) run(ctx context.Context, health cell.Health) error {
	select {
	case <-f.Links.Known():
	case <-ctx.Done():
		return nil
	}
	_, own, err := f.Maps.Slot()
	if err != nil {
		return err
	}
	if !f.awaitSettled(ctx, health) {
		return nil
	}
	if !try(ctx, health, "Cannot bring the new slot of maps into force", f.Maps.Flip) {
		return nil
	}
	f.Log.Info("All maps are written: what they say is in force", "slot", own)
	if err := f.show("", f.flipped); err != nil {
		return err
	}
	if !wait(ctx, bpf.SlotGrace) || !try(ctx, health, "Cannot give up the former slot of maps", f.Maps.Release) {
		return nil
	}
	if !f.awaitAttached(ctx) || !try(ctx, health, "Cannot remove pins of other versions", f.sweep) {
		return nil
	}
	health.OK(fmt.Sprintf("Slot %d is in force", own))
	return nil
}

// awaitSettled returns when all that is desired is written, false if the agent stops. One
// look may miss a change that is being told; two do not.
func (f *flipper) awaitSettled(ctx context.Context, health cell.Health) bool {
	delay := lookFirst
	var last string
	for settled := 0; settled < 2; {
		began := time.Now()
		waitsFor := f.waitsFor(f.DB.ReadTxn(), began)
		if waitsFor == "" {
			settled++
		} else {
			settled = 0
		}
		if delay = min(2*delay, lookLast); waitsFor != last {
			delay = lookFirst
			health.OK("Fills the maps, waits for " + waitsFor)
		}
		last = waitsFor
		if delay == lookLast && f.show(waitsFor, nil) != nil {
			return false // the agent stops
		}
		if !wait(ctx, max(delay, 4*time.Since(began))) {
			return false
		}
	}
	return true
}

// waitsFor says what the flip waits for, empty if for nothing.
func (f *flipper) waitsFor(txn statedb.ReadTxn, now time.Time) string {
	if what := f.Control.Unsettled(txn); what != "" {
		return what
	}
	if table := f.Rules.Unrest(txn); table != "" {
		return table + " to be derived"
	}
	return f.lookingFor(txn, now)
}

// lookingFor says of which pod the device is being looked for, empty if of none or in vain.
func (f *flipper) lookingFor(txn statedb.ReadTxn, now time.Time) string {
	if _, ok := f.Maps.Backend().(*bpf.Kernel); !ok {
		return "" // nothing looks
	}
	if f.unfound.IsZero() {
		f.unfound = now
	}
	if now.Sub(f.unfound) >= findMost {
		return ""
	}
	for row := range f.Locals.All(txn) {
		if row.IfIndex == 0 {
			return fmt.Sprintf("the device of %s", row.Addr)
		}
	}
	return ""
}

// show writes the table: what the flip waits for, or that it has been, with what else is to
// be in that commit.
func (f *flipper) show(waitsFor string, also func(statedb.WriteTxn)) error {
	if also == nil && f.shown == waitsFor {
		return nil
	}
	f.shown = waitsFor
	inForce, own, err := f.Maps.Slot()
	if err != nil {
		return err
	}
	wtxn := f.DB.WriteTxn(f.Slots)
	defer wtxn.Abort()
	for number := range uint32(bpf.Slots) {
		row := &tables.Slot{Number: number, Own: number == own, Use: tables.SlotSpare}
		switch {
		case number == inForce:
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

// awaitAttached returns when it has been tried to attach this agent's programs everywhere,
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

// sweep removes what other versions have pinned: none of their programs is attached any more.
func (f *flipper) sweep() error {
	swept, err := f.Maps.Sweep()
	if len(swept) > 0 {
		f.Log.Info("Removed pins of other versions", "pins", swept)
	}
	return err
}

// try does something until it succeeds, and reports false if the agent stops before.
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

// wait waits for some time, and reports false if the agent stops before.
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
