// SPDX-License-Identifier: Apache-2.0

package mapsync

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// loop reconciles one map. All of it except report runs in one goroutine.
type loop[R Row[K, V], K, V tables.MapPart] struct {
	Config[R, K, V]
	name    string
	db      *statedb.DB
	log     *slog.Logger
	now     func() time.Time
	retries retries
	grace   time.Duration

	mirrorLoaded func(statedb.WriteTxn) // marks the mirror initialized
	changes      statedb.ChangeIterator[R]
	queue        *queue[K]
	flushes      []flush[K] // in order of time
	started      bool       // the queue has what is desired at the start
	passed       bool       // everything that was desired at the start was tried

	report    *report
	audit     *audit[K]
	nextAudit time.Time
	pace      *pace // of all audits
}

// flush has keys whose connections must be removed at a time.
type flush[K comparable] struct {
	due  time.Time
	keys []K
}

func newLoop[R Row[K, V], K, V tables.MapPart](
	db *statedb.DB, log *slog.Logger, control *Control, cfg Config[R, K, V],
) (*loop[R, K, V], error) {
	spec := cfg.Map.Spec()
	l := &loop[R, K, V]{
		Config: cfg, name: spec.Name, db: db, log: log.With("map", spec.Name), now: time.Now,
		retries: control.retries, grace: control.grace, queue: newQueue[K](), pace: &control.pace,
	}
	var err error
	if l.changes, err = tables.Follow(db, cfg.Desired.ToTable()); err != nil {
		return nil, err
	}
	wtxn := db.WriteTxn(cfg.Mirror)
	l.mirrorLoaded = cfg.Mirror.RegisterInitializer(wtxn, l.name)
	wtxn.Commit()
	l.report, err = control.add(db, spec, Flow{spec.Name, cfg.Desired.Name(), cfg.Mirror.Name()})
	return l, err
}

// run implements [job.OneShotFunc].
func (l *loop[R, K, V]) run(ctx context.Context, health cell.Health) error {
	l.report.health = health
	if err := l.loadMirror(); err != nil {
		return err
	}
	if !l.awaitDesired(ctx) {
		return nil
	}
	defer l.stopAudit()
	l.scheduleAudit(l.now())
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		watches, err := l.round()
		if err != nil {
			return err
		}
		l.elapsed(l.now())
		timer.Reset(time.Until(l.nextTimer()))
		cases := []reflect.SelectCase{
			{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(l.report.audits)},
			{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(timer.C)},
			{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(ctx.Done())},
		}
		for _, watch := range watches {
			cases = append(cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(watch)})
		}
		if chosen, request, _ := reflect.Select(cases); chosen == 0 {
			l.startAudit(request.Interface().(chan<- auditReply))
		}
	}
	return nil
}

// awaitDesired waits until the desired table is initialized. The loop must see the channel closed
// before it takes the snapshot whose changes it reads. Otherwise that snapshot could be complete
// although its changes are not delivered yet.
func (l *loop[R, K, V]) awaitDesired(ctx context.Context) bool {
	l.report.health.OK("Waiting for what is desired")
	_, initialized := l.Desired.Initialized(l.db.ReadTxn())
	for {
		select {
		case <-initialized:
			return true
		case <-ctx.Done():
			return false
		case request := <-l.report.audits:
			request <- auditReply{err: fmt.Errorf("audit map %s: what is desired is not known yet", l.name)}
		}
	}
}

// loadMirror fills the mirror with what the map holds. A map in a slot is empty; other maps have
// what the previous agent left.
func (l *loop[R, K, V]) loadMirror() error {
	entries, err := l.Map.Dump()
	if err != nil {
		return fmt.Errorf("read map %s: %w", l.name, err)
	}
	wtxn := l.db.WriteTxn(l.Mirror)
	defer wtxn.Abort()
	now := l.now()
	for _, e := range entries {
		l.queue.schedule(l.queue.get(e.Key), now)
		m := &tables.Mirror[K, V]{Key: e.Key, Value: e.Value, Present: true}
		if _, _, err := l.Mirror.Insert(wtxn, m); err != nil {
			return fmt.Errorf("write %s: %w", l.Mirror.Name(), err)
		}
	}
	l.mirrorLoaded(wtxn)
	wtxn.Commit()
	return nil
}

// elapsed handles timers other than those of rounds.
func (l *loop[R, K, V]) elapsed(now time.Time) {
	for len(l.flushes) > 0 && !l.flushes[0].due.After(now) {
		l.Flush(l.flushes[0].keys)
		l.flushes = l.flushes[1:]
	}
	if l.audit == nil && !l.nextAudit.IsZero() && !now.Before(l.nextAudit) {
		l.startAudit()
	}
	if l.audit != nil && !now.Before(l.audit.due) {
		l.continueAudit()
	}
	l.maybeReport(now)
}

// nextTimer returns when the loop must act without an event.
func (l *loop[R, K, V]) nextTimer() time.Time {
	if l.audit != nil && l.audit.due.IsZero() || len(l.queue.ready) > 0 {
		return time.Time{}
	}
	next := l.now().Add(time.Hour)
	earlier := func(t time.Time) {
		if !t.IsZero() && t.Before(next) {
			next = t
		}
	}
	if l.audit != nil {
		earlier(l.audit.due)
	} else {
		earlier(l.nextAudit)
	}
	earlier(l.report.due)
	if len(l.queue.timers) > 0 {
		earlier(l.queue.timers[0].due)
	}
	if len(l.flushes) > 0 {
		earlier(l.flushes[0].due)
	}
	return next
}

// maxRound is how many entries one round tries, so that it takes some tens of milliseconds.
const maxRound = 4096

// round tries what is due, and returns channels that close when the tables have more.
func (l *loop[R, K, V]) round() (watches []<-chan struct{}, err error) {
	txn := l.db.ReadTxn()
	now := l.now() // after the snapshot: what it lacks was gone before
	asked := txn
	desired, txn, err := l.collect(txn, now)
	if err != nil {
		return nil, err
	}
	view := newGateView(txn)
	if !l.started {
		l.started = true
		l.queue.start()
	}
	l.queue.wake(view, now)
	if work := l.queue.take(now, maxRound); len(work) > 0 {
		if err := l.reconcile(work, view, now); err != nil {
			return nil, err
		}
		l.report.publishSoon(now)
	}
	l.passed = l.passed || !l.queue.isDue(now)
	l.report.first.Store(int64(l.queue.first))
	watches = append(watches, desired)
	for _, watched := range l.waitedFor() {
		watches = append(watches, watched(asked))
	}
	return watches, nil
}

// waitedFor returns the tables that the conditions of waiting items read.
func (l *loop[R, K, V]) waitedFor() (watched []Watched) {
	seen := map[*Dependency]bool{}
	for r := range l.queue.waiting {
		if seen[r.To] {
			continue
		}
		seen[r.To] = true
		for _, c := range r.To.conditions {
			watched = append(watched, c.Tables...)
		}
	}
	return watched
}

// collect schedules rows that other writers have changed. It marks entries in the mirror that are
// to be deleted at once, as [Config.Releases] may ask for them, and returns a snapshot with these
// marks.
func (l *loop[R, K, V]) collect(
	txn statedb.ReadTxn, now time.Time,
) (watch <-chan struct{}, after statedb.ReadTxn, err error) {
	var gone []K
	changes, watch := l.changes.Next(txn)
	for change, revision := range changes {
		key := l.key(change.Object)
		it := l.queue.byKey[key]
		done := change.Object.GetStatus().Kind == reconciler.StatusKindDone
		if !change.Deleted && (it == nil && done || it != nil && it.own == revision) {
			continue // the loop's own status
		}
		it = l.queue.get(key)
		if l.Owner != nil {
			it.owner = l.Owner(change.Object)
		}
		it.attempts, it.gone, it.since = 0, time.Time{}, time.Time{}
		if change.Deleted {
			it.gone = now
			if l.DeleteAfter == 0 {
				gone = append(gone, key)
			}
		}
		l.queue.schedule(it, now)
	}
	if len(gone) == 0 {
		return watch, txn, nil
	}
	wtxn := l.db.WriteTxn(l.Mirror)
	defer wtxn.Abort()
	for _, key := range gone {
		m, _, found := l.Mirror.Get(wtxn, tables.MirrorByKey[K, V](key))
		if !found {
			continue
		}
		marked := *m
		marked.Desired = false
		if _, _, err := l.Mirror.Insert(wtxn, &marked); err != nil {
			return nil, nil, fmt.Errorf("write %s: %w", l.Mirror.Name(), err)
		}
	}
	return watch, wtxn.Commit(), nil
}

// key returns the key of a row as the map returns it: without bits behind the prefix.
func (l *loop[R, K, V]) key(row R) K {
	key := row.MapKey()
	if l.Map.Spec().Type == bpf.TypeLPM {
		return bpf.Masked(key)
	}
	return key
}
