// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"time"
)

// bench measures events in a world.
type bench struct {
	*world
	results []result
}

// cost is the work of events.
type cost struct {
	rows            int // written in tables: of the change itself, and of what follows from it
	writes, deletes int // of entries of maps
}

func (c cost) since(before cost) cost {
	return cost{c.rows - before.rows, c.writes - before.writes, c.deletes - before.deletes}
}

// isReport reports whether a table has the state of maps and jobs.
func isReport(table string) bool {
	return strings.HasPrefix(table, "map-") || table == "bpf-maps" || table == "health"
}

// cost returns the work so far.
func (b *bench) cost() (c cost) {
	txn := b.db.ReadTxn()
	for _, table := range b.db.GetTables(txn) {
		if !isReport(table.Name()) {
			c.rows += int(table.Revision(txn))
		}
	}
	for _, name := range b.maps.Names() {
		writes, deletes := b.control.Counts(name)
		c.writes += int(writes)
		c.deletes += int(deletes)
	}
	return c
}

// Times for which nothing may change while an event is measured again and again, and before
// and after it: what nothing refers to any more is deleted a grace period later.
const (
	restTime   = 30 * time.Millisecond
	settleTime = 300 * time.Millisecond
)

// settle waits until all is there and nothing has changed for some time. It returns when
// something last did, and the work so far.
func (b *bench) settle(still time.Duration, complete func() bool) (time.Time, cost) {
	last, at := b.cost(), time.Now()
	for time.Since(at) < still || complete != nil && !complete() {
		time.Sleep(time.Millisecond)
		if c := b.cost(); c != last {
			last, at = c, time.Now()
		}
	}
	return at, last
}

func (b *bench) rest() cost {
	_, c := b.settle(settleTime, nil)
	return c
}

// event measures something that is done again and again. do returns how long it took.
func (b *bench) event(name string, samples int, do func(i int) (time.Duration, error)) error {
	before := b.rest()
	times := make([]time.Duration, samples)
	for i := range times {
		var err error
		if times[i], err = do(i); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if i%20 == 19 {
			b.settle(restTime, nil) // so that what follows an event does not pile up behind it
		}
	}
	b.results = append(b.results, resultOf(name, times, b.rest().since(before)))
	return nil
}

// atOnce measures a change until nothing follows of it any more.
func (b *bench) atOnce(name string, change func(), complete func() bool) {
	before, start := b.rest(), time.Now()
	change()
	last, after := b.settle(settleTime, complete)
	took := []time.Duration{last.Sub(start)}
	b.results = append(b.results, resultOf(name, took, after.since(before)))
}

// awaitFlip waits until packets would meet what the agent has written.
func (b *bench) awaitFlip() error {
	ctx, stop := context.WithTimeout(context.Background(), eventTimeout)
	defer stop()
	_, flipped := b.slots.Initialized(b.db.ReadTxn())
	select {
	case <-flipped:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the slots of maps have not flipped after %s", eventTimeout)
	}
}

// eventTimeout is for one event to have its effect in the kernel.
const eventTimeout = time.Minute

// await returns how long it is from a change until the maps are as is asked for. The
// change returns when it began.
func (b *bench) await(change func() (start time.Time), asked afterWrite) (time.Duration, error) {
	answer := b.writes.await(asked)
	start := change()
	select {
	case seen := <-answer:
		return seen.at.Sub(start), seen.err
	case <-time.After(eventTimeout):
		return 0, fmt.Errorf("the maps are not as they are to be after %s", eventTimeout)
	}
}

// snapshotTime is a bit more than for how long rules hold on to their last snapshot.
const snapshotTime = 2 * time.Second

// heap is what is in use at rest. What has a finalizer, and what that holds, goes with a later
// collection than the first that finds it, when the finalizer has run.
func heap() uint64 {
	time.Sleep(snapshotTime)
	for range 4 {
		runtime.GC()
		time.Sleep(50 * time.Millisecond)
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
