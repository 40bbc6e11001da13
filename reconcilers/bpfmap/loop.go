// SPDX-License-Identifier: Apache-2.0

package bpfmap

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// loop reconciles one map. All of it but report runs in one goroutine.
type loop[Row any, K, V tables.MapPart] struct {
	Config[Row, K, V]
	name    string
	db      *statedb.DB
	log     *slog.Logger
	retries retries
	isLPM   bool

	desired statedb.ChangeIterator[Row]
	loaded  func(statedb.WriteTxn) // marks the mirror initialized

	items  *items[Row, K, V]
	own    revisions // of the desired table
	rounds uint64
	begun  bool // the first round has been

	taken    sync.Mutex       // held while changes are taken in, until what comes of them is committed
	revision statedb.Revision // of the desired table, up to which changes were taken in
	watch    <-chan struct{}  // closes when there are more

	order    *sync.Mutex // of all maps but independent ones
	report   *report
	nextScan time.Time // audit
}

func newLoop[Row any, K, V tables.MapPart](db *statedb.DB, log *slog.Logger, control *Control, cfg Config[Row, K, V]) (*loop[Row, K, V], error) {
	spec := cfg.Map.Spec()
	l := &loop[Row, K, V]{
		Config:  cfg,
		name:    spec.Name,
		db:      db,
		log:     log.With("map", spec.Name),
		retries: control.retries,
		order:   &control.order,
		isLPM:   spec.Type == bpf.TypeLPM,
		items:   newItems[Row, K, V](),
	}
	if cfg.Opener != nil {
		if err := cfg.Opener.follow(db); err != nil {
			return l, err
		}
	}
	wtxn := db.WriteTxn(cfg.Desired, cfg.Entries)
	defer wtxn.Abort()
	l.loaded = cfg.Entries.RegisterInitializer(wtxn, "read-map")
	var err error
	if l.desired, err = cfg.Desired.Changes(wtxn); err != nil {
		return l, fmt.Errorf("follow %s: %w", cfg.Desired.Name(), err)
	}
	wtxn.Commit()
	l.report, err = control.add(db, l.unsettled, spec, Flow{Map: spec.Name, Desired: cfg.Desired.Name(), Entries: cfg.Entries.Name()})
	return l, err
}

// run implements [job.OneShotFunc].
func (l *loop[Row, K, V]) run(ctx context.Context, health cell.Health) error {
	l.report.health = health
	if !l.load(ctx) {
		return nil
	}
	l.maybeReport(time.Now())
	if !l.awaitDesired(ctx) {
		return nil
	}
	l.scheduleAudit(time.Now())
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		desired, opens, err := l.step(time.Now())
		if err != nil {
			return err
		}
		l.maybeReport(time.Now())
		timer.Reset(time.Until(l.nextTimer()))
		select {
		case <-ctx.Done():
		case <-desired:
		case <-opens:
		case <-timer.C:
		case request := <-l.report.audits:
			result, err := l.audit(time.Now())
			request <- auditReply{result, err}
		}
		if now := time.Now(); !l.nextScan.IsZero() && !now.Before(l.nextScan) {
			if _, err := l.audit(now); err != nil {
				l.log.Warn("Audit of map is not possible", "error", err)
			}
		}
	}
	return nil
}

// load reads the map into the mirror until it succeeds, and reports whether it did. The
// maps of a slot are new; what is in no slot an earlier agent may have written.
func (l *loop[Row, K, V]) load(ctx context.Context) bool {
	for attempt := 0; ; attempt++ {
		err := l.loadOnce()
		if err == nil {
			return true
		}
		l.report.health.Degraded("The map cannot be read, nothing is written to it", err)
		if !l.pause(ctx, l.retries.delay(attempt)) {
			return false
		}
	}
}

func (l *loop[Row, K, V]) loadOnce() error {
	entries, err := l.Map.Dump()
	if err != nil {
		return fmt.Errorf("read map %s: %w", l.name, err)
	}
	wtxn := l.db.WriteTxn(l.Entries)
	defer wtxn.Abort()
	for _, e := range entries {
		entry := &tables.MapEntry[K, V]{Key: e.Key, Value: e.Value, Wanted: tables.WantedSame}
		if _, _, err := l.Entries.Insert(wtxn, entry); err != nil {
			return err
		}
	}
	l.loaded(wtxn)
	wtxn.Commit()
	l.report.health.OK(fmt.Sprintf("%d entries found, waiting for what is desired", len(entries)))
	return nil
}

// awaitDesired waits until the desired table is initialized. The channel must
// be seen closed before the snapshot is taken that its changes are asked of, or
// that snapshot could be complete with its changes not delivered yet.
func (l *loop[Row, K, V]) awaitDesired(ctx context.Context) bool {
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

// pause waits for a time and reports whether it went by.
func (l *loop[Row, K, V]) pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			return true
		case <-ctx.Done():
			return false
		case request := <-l.report.audits:
			request <- auditReply{err: fmt.Errorf("audit map %s: it cannot be read", l.name)}
		}
	}
}

// unheard is for how long the opener is not asked what has changed while nothing
// waits for that: until it has been told of a row that was deleted, StateDB keeps it.
const unheard = time.Minute

// nextTimer returns when there is something to do without an event.
func (l *loop[Row, K, V]) nextTimer() time.Time {
	next := l.nextScan
	earlier := func(t time.Time) {
		if !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	if len(l.items.timers) > 0 {
		earlier(l.items.timers[0].due)
	}
	earlier(l.report.due)
	idle := time.Hour
	if l.Opener != nil {
		idle = unheard
	}
	earlier(time.Now().Add(idle))
	return next
}

// key returns the key of a row as the map gives it back: without bits behind
// the prefix.
func (l *loop[Row, K, V]) key(row Row) K {
	key := l.MapKey(row)
	if l.isLPM {
		return bpf.Masked(key)
	}
	return key
}
