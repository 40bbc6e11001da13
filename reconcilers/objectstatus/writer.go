// SPDX-License-Identifier: Apache-2.0

package objectstatus

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"k8s.io/client-go/util/workqueue"

	"github.com/sluice-net/sluice/tables"
)

const (
	retryMin = time.Second
	retryMax = 5 * time.Minute

	// statuslessFor is how long objects of a kind are taken to have no status: the CRD may be
	// replaced, or a proxy have not found the path for a moment.
	statuslessFor = time.Hour

	requestTimeout = 30 * time.Second
)

// errStatusless is an error that no retry fixes soon.
var errStatusless = errors.New(
	"the CRD has no status subresource, as Cilium's own: only Events tell",
)

// writer writes the status of objects.
type writer struct {
	params
	changes          statedb.ChangeIterator[*tables.ObjectStatus]
	writes           *prometheus.CounterVec
	queue            workqueue.TypedRateLimitingInterface[tables.PolicyID]
	reading, writing *rate.Limiter

	mu         sync.Mutex
	written    map[tables.PolicyID]written
	pending    map[tables.PolicyID]time.Time // since when
	reported   map[tables.PolicyID]reported  // by Events
	failing    map[tables.PolicyID]error
	statusless map[tables.PolicyKind]time.Time // kinds whose objects have no status, until when
}

// written is what an object was made to say.
type written struct {
	row *tables.ObjectStatus
	at  time.Time
}

// reported are the problems of an object that Events have reported. An object that is created
// again with its name is another.
type reported struct {
	uid      string
	problems []tables.Problem
}

// run writes the status of objects until the context ends.
func (w *writer) run(ctx context.Context, health cell.Health) error {
	w.queue = newQueue()
	ctx, cancel := context.WithCancel(ctx)
	var following sync.WaitGroup
	defer following.Wait()
	defer cancel()
	following.Go(func() {
		defer w.queue.ShutDown()
		w.follow(ctx)
	})
	for {
		id, shutdown := w.queue.Get()
		if shutdown {
			return nil
		}
		err := w.process(ctx, id)
		w.queue.Done(id)
		if err != nil {
			return err
		}
		w.report(health)
	}
}

// follow queues the objects whose rows change, until the context ends.
func (w *writer) follow(ctx context.Context) {
	defer w.changes.Close()
	for {
		rows, watch := w.changes.Next(w.DB.ReadTxn())
		for change := range rows {
			row := change.Object
			switch {
			case change.Deleted:
				w.forget(row.Policy)
			case row.Status.Kind == reconciler.StatusKindPending:
				w.queue.AddAfter(row.Policy, w.wait(row))
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-watch:
		}
	}
}

// forget forgets an object that is gone, or is now another agent's to write.
func (w *writer) forget(id tables.PolicyID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.written, id)
	delete(w.pending, id)
	delete(w.reported, id)
	delete(w.failing, id)
	clear(w.statusless) // its CRD may be another when this operator leads again
	w.queue.Forget(id)
}

// wait returns how long an object has to wait to be written.
func (w *writer) wait(row *tables.ObjectStatus) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	settle := w.settle(row)
	last, found := w.written[row.Policy]
	switch {
	case !found:
		return settle
	case row.SameAnswer(last.row):
		return max(settle, time.Until(last.at.Add(w.Pace.Alike)))
	case last.row.Pending() && !row.Pending():
		return 0 // what was waited for; to say that it is pending again takes its time
	}
	return max(settle, time.Until(last.at.Add(w.Pace.Again)))
}

// settle returns for how long a policy has to be pending before its object says so.
func (w *writer) settle(row *tables.ObjectStatus) time.Duration {
	if !row.Pending() {
		delete(w.pending, row.Policy)
		return 0
	}
	since, found := w.pending[row.Policy]
	if !found {
		since = time.Now()
		w.pending[row.Policy] = since
	}
	return time.Until(since.Add(w.Pace.Settle))
}

// report says in health which object cannot be written, one if there are many.
func (w *writer) report(health cell.Health) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.failing) == 0 {
		text := fmt.Sprintf("%d objects have their status", len(w.written))
		for _, kind := range slices.Sorted(maps.Keys(w.statusless)) {
			text += fmt.Sprintf("; %s: %s", kind, errStatusless)
		}
		health.OK(text)
		return
	}
	var first tables.PolicyID
	for id := range w.failing {
		if first.Kind == 0 || id.Compare(first) < 0 {
			first = id
		}
	}
	health.Degraded(
		fmt.Sprintf("Cannot write the status of %d objects", len(w.failing)),
		fmt.Errorf("%s: %w", first, w.failing[first]),
	)
}

// process has one object say what it shall, and tells of its problems. The error is
// one of the table.
func (w *writer) process(ctx context.Context, id tables.PolicyID) error {
	row, _, found := w.Desired.Get(w.DB.ReadTxn(), tables.ObjectStatusByPolicy(id))
	if !found || row.Status.Kind == reconciler.StatusKindDone {
		w.queue.Forget(id)
		return nil
	}
	if early := w.wait(row); early > 0 {
		w.queue.AddAfter(id, early)
		return nil
	}
	outcome, former, err := w.write(ctx, row)
	if ctx.Err() != nil {
		return nil
	}
	w.writes.WithLabelValues(outcome).Inc()
	if err == nil || errors.Is(err, errStatusless) {
		w.tell(row, former)
	}
	status := w.finished(row, err)
	if _, _, found := w.Desired.Get(w.DB.ReadTxn(), tables.ObjectStatusByPolicy(id)); !found {
		w.forget(id) // it went meanwhile, and may have been forgotten before it was finished
		return nil
	}
	return tables.SetStatus(w.DB, w.Desired, status, row)
}

// finished takes in what came of a write, and has it tried again if it failed.
func (w *writer) finished(row *tables.ObjectStatus, err error) reconciler.Status {
	id := row.Policy
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.failing, id)
	if err == nil {
		w.written[id] = written{row: row, at: time.Now()}
		w.queue.Forget(id)
		return reconciler.StatusDone()
	}
	switch {
	case errors.Is(err, errStatusless):
		w.queue.Forget(id)
		w.queue.AddAfter(id, statuslessFor)
	default: // also if a right is missing: an API server that has just started knows no roles yet
		w.failing[id] = err
		w.queue.AddRateLimited(id)
	}
	return reconciler.StatusError(err)
}

// tell reports new problems in Events. The former leader has reported those that the status of
// the object has already.
func (w *writer) tell(row *tables.ObjectStatus, former []tables.Condition) {
	w.mu.Lock()
	before, known := w.reported[row.Policy]
	known = known && before.uid == row.UID
	w.reported[row.Policy] = reported{row.UID, row.Problems}
	w.mu.Unlock()
	for _, p := range row.Problems {
		if known && slices.Contains(before.problems, p) || !known &&
			slices.ContainsFunc(former, func(c tables.Condition) bool {
				return c.Type == p.Condition && c.Reason == p.Reason && c.Message == p.Message
			}) {
			continue
		}
		w.Recorder.Event(reference(row), "Warning", p.Reason, p.Message)
	}
}
