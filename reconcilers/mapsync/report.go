// SPDX-License-Identifier: Apache-2.0

package mapsync

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/reconcilers/tampering"
	"github.com/sluice-net/sluice/tables"
)

// reportDelay is for how long changes of counts are collected, so that not every write to the map
// also costs a write of its row in bpf-maps.
const reportDelay = 100 * time.Millisecond

// report publishes the state of a map in a table, metrics and health.
type report struct {
	flow    Flow
	db      *statedb.DB
	table   statedb.RWTable[*tables.BPFMap]
	ready   func(statedb.WriteTxn) // marks the map's part of table initialized
	metrics *mapMetrics
	health  cell.Health
	audits  chan chan<- auditReply

	tampering *tampering.Recorder

	interval time.Duration // between audits, 0 for none

	writes, deletes atomic.Uint64 // entries
	first           atomic.Int64  // unwritten entries of the start, see [Control.Unwritten]

	due       time.Time // of the next publication, zero if nothing has changed
	row       tables.BPFMap
	passed    bool // the table says that everything desired at the start was tried
	lastAudit string
	repaired  bool // the last audit found differences
	auditErr  error
}

// count counts the entries of one batch of writes.
func (r *report) count(op bpf.Op, done int, err error) {
	outcome := r.metrics.updates
	if op == bpf.OpDelete {
		outcome = r.metrics.deletes
		r.deletes.Add(uint64(done))
	} else {
		r.writes.Add(uint64(done))
	}
	outcome.done.Add(float64(done))
	switch {
	case err == nil:
	case errors.Is(err, bpf.ErrMapFull):
		outcome.full.Inc()
	default:
		outcome.failed.Inc()
	}
}

// publishSoon has the report published soon.
func (r *report) publishSoon(now time.Time) {
	if r.due.IsZero() {
		r.due = now.Add(reportDelay)
	}
}

// maybeReport publishes the report if it is due, and at once when everything was tried a first
// time.
func (l *loop[R, K, V]) maybeReport(now time.Time) {
	r := l.report
	if r.passed == l.passed && (r.due.IsZero() || now.Before(r.due)) {
		return
	}
	r.due = time.Time{}
	spec := l.Map.Spec()
	r.publish(tables.BPFMap{
		Name:       l.name,
		Type:       spec.Type,
		Backend:    l.Map.Backend(),
		MaxEntries: spec.MaxEntries,
		Entries:    l.Mirror.NumObjects(l.db.ReadTxn()),
		Pending:    l.queue.counts[statePending],
		Waiting:    l.queue.counts[stateWaiting],
		Failed:     l.queue.counts[stateFailed],
		Writes:     r.writes.Load(),
		Deletes:    r.deletes.Load(),
		LastAudit:  r.lastAudit,
	}, l.passed)
	r.metrics.set(&r.row)
	l.reportHealth()
}

// publish writes the row of bpf-maps, and marks the map's part of that table initialized.
func (r *report) publish(row tables.BPFMap, passed bool) {
	if r.row == row && r.passed == passed {
		return
	}
	wtxn := r.db.WriteTxn(r.table)
	defer wtxn.Abort()
	if r.row != row {
		if _, _, err := r.table.Insert(wtxn, &row); err != nil {
			return // the transaction is closed: nothing to publish
		}
	}
	if passed {
		r.ready(wtxn)
	}
	wtxn.Commit()
	r.row, r.passed = row, passed
}

func (l *loop[R, K, V]) reportHealth() {
	r := l.report
	text := fmt.Sprintf("%d entries", r.row.Entries)
	if r.row.Waiting > 0 {
		text += fmt.Sprintf(", %d waiting for other maps", r.row.Waiting)
	}
	if r.repaired {
		text += "; the last audit " + r.lastAudit
	}
	switch failed := l.firstFailed(); {
	case failed != nil:
		text = fmt.Sprintf("%s; %d could not be written or removed, such as %v",
			text, r.row.Failed, failed.key)
		r.health.Degraded(text, errors.New(l.errorText(failed.err)))
	case r.auditErr != nil:
		r.health.Degraded(text+"; the map cannot be read back", r.auditErr)
	default:
		r.health.OK(text)
	}
}

// firstFailed returns the item that has been failing longest, nil if none is.
func (l *loop[R, K, V]) firstFailed() (first *item[K]) {
	if l.queue.counts[stateFailed] == 0 {
		return nil
	}
	for _, it := range l.queue.byKey {
		if it.state == stateFailed && (first == nil || it.seq < first.seq) {
			first = it
		}
	}
	return first
}
