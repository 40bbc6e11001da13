// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cilium/hive/cell"
)

const (
	queueSize = 1 << 17 // records that an output may be behind
	batchSize = 4096    // records that it is given at once, at most

	retryMin = 100 * time.Millisecond
	retryMax = 5 * time.Second
	lastTry  = 2 * time.Second // for what is left when the agent stops
)

// output writes records.
type output interface {
	// write writes records in their order. It returns how many of them need not be written again,
	// and how many of these are lost as the other side refuses them.
	write(ctx context.Context, records []Record) (done, lost int, err error)
	close() error
}

// queue is what an output still has to write. What does not fit is lost, and counted: the reader
// waits for an output only while that works.
type queue struct {
	name    string
	out     output
	metrics *metrics
	waits   bool // the reader waits for it while it works

	mu      sync.Mutex
	pending []Record
	lost    uint64 // not told yet
	failing bool
	room    chan struct{} // closed when there is room again; nil while nothing waits
	wake    chan struct{}
}

func newQueue(name string, out output, waits bool, m *metrics) *queue {
	return &queue{name: name, out: out, waits: waits, metrics: m, wake: make(chan struct{}, 1)}
}

// add takes records, or counts them as lost. Those that it has to wait with when the context ends
// are taken all the same.
func (q *queue) add(ctx context.Context, records []Record) {
	for !q.offer(records, ctx.Err() != nil) {
		q.mu.Lock()
		if q.room == nil {
			q.room = make(chan struct{})
		}
		room := q.room
		q.mu.Unlock()
		select {
		case <-room:
		case <-ctx.Done():
		}
	}
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// offer reports whether the records were taken, or counted as lost.
func (q *queue) offer(records []Record, last bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.pending)+len(records) > queueSize && !last {
		if q.waits && !q.failing {
			return false
		}
		q.drop(len(records))
		q.lost += uint64(len(records))
		return true
	}
	if q.lost > 0 {
		q.pending = append(q.pending, missing(q.lost, MissingOutput))
		q.lost = 0
	}
	q.pending = append(q.pending, records...)
	return true
}

func missing(n uint64, reason string) Record {
	return Record{Time: time.Now().Round(0).UTC(), Event: Missing, Reason: reason, Count: n}
}

func (q *queue) drop(n int) { q.metrics.records.WithLabelValues(q.name, "lost").Add(float64(n)) }

// waiting returns how many records are lost if the agent is killed now.
func (q *queue) waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.pending) + int(q.lost)
}

// take returns what is to be written next.
func (q *queue) take() []Record {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.pending[:min(len(q.pending), batchSize)]
}

// done removes records that need not be written again, of which some are lost.
func (q *queue) done(n, lost int, failing bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if n > 0 {
		if q.pending = q.pending[n:]; len(q.pending) == 0 {
			q.pending = nil
		}
	}
	q.lost += uint64(lost)
	q.failing = failing
	if q.room != nil && (n > 0 || failing) {
		close(q.room)
		q.room = nil
	}
	q.drop(lost)
	q.metrics.records.WithLabelValues(q.name, "written").Add(float64(n - lost))
}

// run writes until the context ends and the reader has stopped, which closes the channel.
func (q *queue) run(ctx context.Context, health cell.Health, stopped <-chan struct{}) error {
	health.OK("Writing")
	wait := retryMin
	for {
		batch := q.take()
		if len(batch) == 0 {
			select {
			case <-q.wake:
				continue
			case <-stopped:
				if len(q.take()) > 0 {
					continue
				}
				return q.close(0)
			}
		}
		n, lost, err := q.write(ctx, batch)
		q.done(n, lost, err != nil)
		if err == nil {
			wait = retryMin
			health.OK("Writing")
			continue
		}
		health.Degraded(fmt.Sprintf(
			"The ledger cannot be written: %d records wait, and what has no room is lost",
			len(batch)-n), err)
		select {
		case <-ctx.Done():
			<-stopped
			return q.last()
		case <-time.After(wait):
		}
		wait = min(2*wait, retryMax)
	}
}

func (q *queue) write(ctx context.Context, batch []Record) (n, lost int, err error) {
	if ctx.Err() != nil { // the agent stops: once more
		var cancel func()
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), lastTry)
		defer cancel()
	}
	return q.out.write(ctx, batch)
}

// last tries to write what there is when the agent stops.
func (q *queue) last() error {
	ctx, cancel := context.WithTimeout(context.Background(), lastTry)
	defer cancel()
	for {
		batch := q.take()
		if len(batch) == 0 {
			return q.close(0)
		}
		n, lost, err := q.out.write(ctx, batch)
		q.done(n, lost, err != nil)
		if err != nil {
			q.mu.Lock()
			left := len(q.pending)
			q.mu.Unlock()
			q.drop(left)
			return q.close(left)
		}
	}
}

func (q *queue) close(left int) error {
	q.mu.Lock()
	left += int(q.lost)
	q.mu.Unlock()
	if err := q.out.close(); err != nil {
		return fmt.Errorf("close the ledger's %s: %w", q.name, err)
	}
	if left > 0 {
		return fmt.Errorf("write the ledger's %s: %d records are lost", q.name, left)
	}
	return nil
}
