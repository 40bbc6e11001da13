// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/cilium/ebpf/ringbuf"
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
)

const (
	pollInterval = 50 * time.Millisecond // the kernel wakes nothing
	retryRead    = time.Second

	// compareInterval is after which time the kernel's translations are compared again with those
	// that have no end. It is longer if a comparison takes more than a hundredth of it.
	compareInterval = 10 * time.Second
	compareRest     = 100 // times as long as one takes

	// recent is how long a pod that has an address now has had it at least: a pod is not gone, and
	// the next one is not created, in less.
	recent = time.Second

	// endDelay is how long after a translation is removed its end is recorded, at most: a program
	// does the one right after the other.
	endDelay = 2 * time.Second
)

// reader reads the ring buffer. It runs in one goroutine.
type reader struct {
	maps    func() *bpf.Ledger // nil unless programs are loaded that write a ledger
	names   names
	queues  []*queue
	metrics *metrics

	stateDir     StateDir
	compareEvery time.Duration

	ledger  *bpf.Ledger
	started bool
	told    uint64 // missing records that were told
	written uint64 // of these, what the outputs have written
	inHand  uint64 // as noted in the kernel
	open    *openSet
	next    time.Time // when to compare again
	clock   clock     // as last read
	readTo  uint64    // all records of before are read, nanoseconds of CLOCK_MONOTONIC
}

// run reads until the context ends, and returns when all is written.
func (r *reader) run(ctx context.Context, health cell.Health) error {
	if r.ledger = r.maps(); r.ledger == nil {
		health.OK("No programs are loaded: there is nothing to record")
		<-ctx.Done()
		return nil
	}
	r.open = newOpenSet(r.ledger)
	var writers sync.WaitGroup
	stopped := make(chan struct{})
	errs := make([]error, len(r.queues))
	for i, q := range r.queues {
		scope := health.NewScope(q.name)
		writers.Go(func() { errs[i] = q.run(ctx, scope, stopped) })
	}
	for {
		err := r.read(ctx, health)
		if ctx.Err() != nil {
			break
		}
		health.Degraded("The ledger's records cannot be read: those that have no room are lost", err)
		select {
		case <-ctx.Done():
		case <-time.After(retryRead):
		}
	}
	close(stopped)
	writers.Wait()
	if err := errors.Join(errs...); err != nil {
		return err // the next agent says that something may be missing
	}
	if !r.started {
		return nil
	}
	if err := r.open.save(r.stateDir); err != nil {
		return err
	}
	if err := r.ledger.Tell(r.told); err != nil {
		return err
	}
	return r.ledger.SetReading(bpf.LedgerReadCleanly, 0)
}

// read reads until it fails or the context ends.
func (r *reader) read(ctx context.Context, health cell.Health) error {
	rd, err := ringbuf.NewReader(r.ledger.Records)
	if err != nil {
		return fmt.Errorf("open map %s: %w", bpf.LedgerMap, err)
	}
	defer rd.Close()
	rd.SetDeadline(time.Unix(1, 0)) // reads return what there is
	if err := r.start(ctx); err != nil {
		return err
	}
	r.awaitNames(ctx, rd)
	health.OK("Reading records")
	ticks := time.NewTicker(pollInterval)
	defer ticks.Stop()
	for {
		// What is still in the buffer when the agent stops is for the next one.
		stops := ctx.Err() != nil
		for more := true; more; more = more && ctx.Err() == nil {
			if more, err = r.batch(ctx, rd); err != nil {
				return err
			}
			if r.open.due() {
				if err := r.compare(); err != nil {
					return err
				}
			}
			r.addFound(ctx)
		}
		if stops {
			for len(r.open.found) > 0 { // the next agent takes them for known
				r.addFound(ctx)
			}
			return nil
		}
		if !time.Now().Before(r.next) {
			if err := r.compare(); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
		case <-ticks.C:
		}
	}
}

// start records that an agent begins to read, and what became of the one before.
func (r *reader) start(ctx context.Context) error {
	if r.started {
		return nil
	}
	before, inHand, err := r.ledger.Reading()
	if err != nil {
		return err
	}
	if _, r.told, err = r.ledger.Missed(); err != nil {
		return err
	}
	r.written = r.told
	restored, err := r.open.restore(r.stateDir, before == bpf.LedgerReadCleanly)
	if err != nil {
		return err
	}
	reason := StartNew
	switch {
	case before == bpf.LedgerReadCleanly && (restored || r.stateDir == ""):
		reason = StartStopped
	case before != bpf.LedgerUnread: // or what it has saved is gone
		reason = StartKilled
	}
	for _, q := range r.queues {
		r.metrics.records.WithLabelValues(q.name, "uncertain").Add(float64(inHand))
	}
	r.clock, r.started = newClock(), true
	r.add(ctx, []Record{{Time: r.clock.now, Event: Start, Reason: reason, Count: inHand}})
	return r.ledger.SetReading(bpf.LedgerBeingRead, r.inHand)
}

// note notes in the kernel how many records would be lost if the agent was killed: those that the
// outputs have not written, and so many that are read now.
func (r *reader) note(reads int) error {
	waiting := 0
	for _, q := range r.queues {
		waiting = max(waiting, q.waiting())
	}
	if waiting == 0 && r.written != r.told {
		if err := r.ledger.Tell(r.told); err != nil {
			return err
		}
		r.written = r.told
	}
	inHand := uint64(waiting + reads)
	if inHand == r.inHand {
		return nil
	}
	r.inHand = inHand
	return r.ledger.SetReading(bpf.LedgerBeingRead, inHand)
}

// readClock reads the clocks, and records if the time of day was set since they were read before.
func (r *reader) readClock(ctx context.Context) clock {
	before := r.clock
	r.clock = newClock()
	if step := r.clock.step(before); step.Abs() > clockStep {
		r.add(ctx, []Record{{Time: r.clock.now, Event: Clock, Step: step.String()}})
	}
	return r.clock
}

// awaitNames waits until the pods are known, but not until the buffer is full.
func (r *reader) awaitNames(ctx context.Context, rd *ringbuf.Reader) {
	_, endpoints := r.names.endpoints.Initialized(r.names.db.ReadTxn())
	_, nodes := r.names.nodes.Initialized(r.names.db.ReadTxn())
	for _, initialized := range []<-chan struct{}{endpoints, nodes} {
		for known := false; !known && rd.AvailableBytes() < rd.BufferSize()/2; {
			select {
			case <-ctx.Done():
				return
			case <-initialized:
				known = true
			case <-time.After(pollInterval):
			}
		}
	}
}

// batch passes on some records. It reports whether there may be more.
func (r *reader) batch(ctx context.Context, rd *ringbuf.Reader) (more bool, err error) {
	available := rd.AvailableBytes()
	r.metrics.used.Set(float64(available) / float64(rd.BufferSize()))
	reads := min(batchSize, available/bpf.LedgerRecordBytes)
	if err := r.note(reads); err != nil {
		return false, err
	}
	var (
		sample     ringbuf.Record
		unreadable uint64
		readErr    error
	)
	records := make([]Record, 0, reads)
	txn, now, told := r.names.db.ReadTxn(), r.readClock(ctx), r.told
	for range reads {
		err := rd.ReadInto(&sample)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		} else if err != nil {
			readErr = fmt.Errorf("read map %s: %w", bpf.LedgerMap, err)
			break
		}
		raw, err := bpf.DecodeLedger(sample.RawSample)
		if err != nil { // it is of programs of another version
			unreadable++
			continue
		}
		// The number of missing records is told modulo 2^32. CPUs may write in another order.
		if n := raw.Missing - uint32(told); int32(n) > 0 {
			told += uint64(n)
			records = append(records, missing(uint64(n), MissingBuffer))
		}
		record := recordOf(&raw, now)
		if record.Event == Begin {
			by := r.ownerAt(txn, &raw, now)
			record.setPod(by)
			r.open.begin(&raw, by)
		} else {
			by, known := r.open.end(&raw)
			if !known {
				by = r.names.since(txn, raw.Pod.Addr(), record.Began)
			}
			record.setPod(by)
		}
		records = append(records, record)
	}
	if unreadable > 0 {
		records = append(records, missing(unreadable, MissingVersion))
	}
	if rd.AvailableBytes() == 0 {
		r.readTo = uint64(now.monotonic)
	}
	if len(records) == 0 { // what is missing may be the last there was
		missed, _, err := r.ledger.Missed()
		if err != nil || missed <= r.told {
			return false, err
		}
		records, told = append(records, missing(missed-r.told, MissingBuffer)), missed
	}
	r.add(ctx, records)
	r.told = told
	return reads == batchSize, readErr
}

// ownerAt returns what had the address of a begin. Of one that has just been it is what has it
// now: no other pod gets it so soon, and the clock by which pods have their times may be another.
func (r *reader) ownerAt(txn statedb.ReadTxn, begin *bpf.LedgerRecord, now clock) owner {
	if begin.Time+uint64(recent) > uint64(now.monotonic) {
		return r.names.now(txn, begin.Pod.Addr())
	}
	return r.names.since(txn, begin.Pod.Addr(), now.at(begin.Time))
}

// compare finds translations that the kernel has evicted.
func (r *reader) compare() error {
	missed, _, err := r.ledger.Missed()
	if err != nil {
		return err
	}
	txn, now, begun := r.names.db.ReadTxn(), newClock(), time.Now()
	find := func(addr bpf.Address, began uint64) owner {
		return r.names.since(txn, addr.Addr(), now.at(began))
	}
	err = r.open.compare(uint64(now.monotonic), r.readTo, missed, find)
	r.next = time.Now().Add(max(r.compareEvery, compareRest*time.Since(begun)))
	r.metrics.open.Set(float64(len(r.open.open)))
	return err
}

// addFound records begins and ends that the kernel has not recorded.
func (r *reader) addFound(ctx context.Context) {
	if begun := r.open.begun(batchSize, r.clock); len(begun) > 0 {
		r.add(ctx, begun)
	}
	records := r.open.ended(r.readTo, batchSize, r.clock)
	for _, record := range records {
		r.metrics.found.WithLabelValues(record.Reason).Inc()
	}
	if len(records) > 0 {
		r.add(ctx, records)
	}
}

func (r *reader) add(ctx context.Context, records []Record) {
	for _, q := range r.queues {
		q.add(ctx, records)
	}
}
