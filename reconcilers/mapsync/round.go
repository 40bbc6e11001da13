// SPDX-License-Identifier: Apache-2.0

package mapsync

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// outcome is the result of an item in a round.
type outcome uint8

const (
	outcomeDone  outcome = iota // the map has what is desired
	outcomeWrite                // write the row's value, or delete if there is no row
	outcomeWait                 // wait for a reference, because of text
	outcomeLater                // try again at due
	outcomeFailed
)

// try is an item in a round.
type try[R any, K, V tables.MapPart] struct {
	*item[K]
	outcome  outcome
	row      R
	revision statedb.Revision
	wanted   bool // there is a row
	value    V    // of the row

	kernel *V     // what the map has, nil for nothing
	made   uint64 // of kernel

	refers  Reference // in outcomeWait, and what it lacks
	missing string
	text    string // why it is not done
	due     time.Time
	wrote   bool
}

// patience is for how long an entry waits before its status says for what: most wait for a moment.
const patience = time.Second

// reconcile makes the map hold what is desired under the items' keys, as far as possible, and
// writes the results to the tables.
func (l *loop[R, K, V]) reconcile(work []*item[K], view *gateView, now time.Time) error {
	tries := make([]*try[R, K, V], len(work))
	var writes, blocked []*try[R, K, V]
	for i, it := range work {
		t := &try[R, K, V]{item: it}
		if m, _, found := l.Mirror.Get(view.txn, tables.MirrorByKey[K, V](it.key)); found {
			t.kernel, t.made = &m.Value, m.Made
		}
		if tries[i] = t; l.plan(t, view, now) == outcomeWrite {
			writes = append(writes, t)
		} else if l.deletesWhileBlocked(t) {
			blocked = append(blocked, t)
		}
	}
	if l.PublishIntent && len(writes) > 0 {
		txn, err := l.publishIntent(writes)
		if err != nil {
			return err
		}
		view = newGateView(txn)
		writes = slices.DeleteFunc(writes, func(t *try[R, K, V]) bool {
			wanted, value := t.wanted, t.value
			if l.plan(t, view, now) == outcomeWrite && (t.wanted != wanted || t.value != value) {
				t.outcome, t.due = outcomeLater, now
			}
			if l.deletesWhileBlocked(t) {
				blocked = append(blocked, t)
			}
			return t.outcome != outcomeWrite
		})
	}
	deleted := l.write(writes) + l.deleteBlocked(blocked)
	if err := l.confirm(tries); err != nil {
		return err
	}
	for _, t := range tries {
		switch t.outcome {
		case outcomeDone:
			l.queue.remove(t.item)
		case outcomeWait:
			due := time.Time{}
			if t.text == "" {
				due = t.since.Add(patience)
			}
			l.queue.wait(t.item, t.refers, t.missing, due)
		case outcomeLater:
			l.queue.schedule(t.item, t.due)
		case outcomeFailed:
			due := now.Add(l.retries.delay(t.attempts))
			t.attempts++
			l.queue.fail(t.item, due, errors.Is(t.err, bpf.ErrMapFull))
		}
	}
	l.queue.retryAfterDelete(deleted, now)
	return nil
}

// plan decides the outcome of a try as far as it is known before the write.
func (l *loop[R, K, V]) plan(t *try[R, K, V], view *gateView, now time.Time) outcome {
	t.row, t.revision, t.wanted = l.Desired.Get(view.txn, l.ByKey(t.key))
	var refers []Reference
	if t.wanted {
		t.gone, t.value = time.Time{}, t.row.MapValue()
		if t.kernel != nil && *t.kernel == t.value {
			t.made = l.madeOf(t.row)
			return t.set(outcomeDone)
		}
		if l.Refers != nil {
			refers = l.Refers(t.row, t.kernel)
		}
	} else {
		if t.gone.IsZero() {
			t.gone = now
		}
		if t.kernel == nil {
			return t.set(outcomeDone)
		}
		if t.due = t.gone.Add(l.DeleteAfter); t.due.After(now) {
			return t.set(outcomeLater)
		}
		if l.Releases != nil {
			refers = l.Releases(t.key)
		}
	}
	r, missing := view.first(refers)
	if missing != "" {
		if t.refers, t.missing, t.text = r, missing, ""; t.since.IsZero() {
			t.since = now
		}
		if now.Sub(t.since) >= patience {
			t.text = fmt.Sprintf("waiting for %s: %s", r, missing)
		}
		return t.set(outcomeWait)
	}
	return t.set(outcomeWrite)
}

func (t *try[R, K, V]) set(f outcome) outcome {
	t.outcome = f
	return f
}

func (l *loop[R, K, V]) madeOf(row R) uint64 {
	if l.Made == nil {
		return 0
	}
	return l.Made(row)
}

// publishIntent says in the mirror what the kernel may have from now on, and returns a snapshot
// with it.
func (l *loop[R, K, V]) publishIntent(writes []*try[R, K, V]) (statedb.ReadTxn, error) {
	wtxn := l.db.WriteTxn(l.Mirror)
	defer wtxn.Abort()
	for _, t := range writes {
		m := t.mirror()
		m.Busy, m.Writing, m.Deleting = true, t.value, !t.wanted
		if _, _, err := l.Mirror.Insert(wtxn, m); err != nil {
			return nil, fmt.Errorf("write %s: %w", l.Mirror.Name(), err)
		}
	}
	return wtxn.Commit(), nil
}

// mirror returns the mirror row of what the map has.
func (t *try[R, K, V]) mirror() *tables.Mirror[K, V] {
	m := &tables.Mirror[K, V]{
		Key: t.key, Desired: t.wanted || t.outcome == outcomeLater, Made: t.made,
	}
	if t.kernel != nil {
		m.Value, m.Present = *t.kernel, true
	}
	if !t.wanted { // no row can say it
		m.Error = t.text
	}
	return m
}

// write makes the writes, and returns how many entries it deleted. It orders entries of a prefix
// map so that neighboring prefixes replace each other.
func (l *loop[R, K, V]) write(writes []*try[R, K, V]) (deleted int) {
	isLPM := l.Map.Spec().Type == bpf.TypeLPM
	rank := func(t *try[R, K, V]) int { // longest first, then shortest first
		switch {
		case !isLPM && t.wanted:
			return 0
		case !isLPM:
			return 1
		case t.wanted:
			return -bpf.PrefixLen(t.key)
		}
		return 1 + bpf.PrefixLen(t.key)
	}
	slices.SortStableFunc(writes,
		func(a, b *try[R, K, V]) int { return cmp.Compare(rank(a), rank(b)) })
	revises, flushed := false, []K(nil)
	for rest := writes; len(rest) > 0; {
		n := slices.IndexFunc(rest, func(t *try[R, K, V]) bool { return t.wanted != rest[0].wanted })
		if n < 0 {
			n = len(rest)
		}
		done, err := l.writeBatch(rest[:n])
		for _, t := range rest[:done] {
			old := t.kernel
			if t.outcome, t.wrote, t.kernel, t.made = outcomeDone, true, nil, 0; t.wanted {
				t.kernel, t.made = &t.value, l.madeOf(t.row)
			} else {
				deleted++
			}
			revises = revises || l.Revises != nil && l.Revises(old, t.kernel)
			if l.Flushes != nil && l.Flushes(old, t.kernel) {
				flushed = append(flushed, t.key)
			}
		}
		if rest = rest[done:]; err != nil {
			rest[0].outcome, rest[0].err, rest[0].text = outcomeFailed, err, l.errorText(err)
			rest = rest[1:]
		}
	}
	if revises {
		l.Raise()
	}
	if len(flushed) > 0 {
		l.flushes = append(l.flushes, flush[K]{l.now().Add(l.grace), flushed})
	}
	return deleted
}

// deletesWhileBlocked reports whether to delete the present entry while the row waits.
func (l *loop[R, K, V]) deletesWhileBlocked(t *try[R, K, V]) bool {
	return t.outcome == outcomeWait && t.wanted && t.kernel != nil && l.DeleteWhileBlocked != nil &&
		l.DeleteWhileBlocked(t.row, *t.kernel)
}

// deleteBlocked deletes the entries of rows that wait, and returns how many.
func (l *loop[R, K, V]) deleteBlocked(blocked []*try[R, K, V]) (deleted int) {
	if len(blocked) == 0 {
		return 0
	}
	keys := make([]K, len(blocked))
	for i, t := range blocked {
		keys[i] = t.key
	}
	deleted, err := l.Map.Delete(keys)
	l.report.count(bpf.OpDelete, deleted, err)
	for i, t := range blocked {
		if i < deleted {
			t.kernel, t.made = nil, 0
		} else {
			t.outcome, t.err, t.text = outcomeFailed, err, l.errorText(err)
		}
	}
	return deleted
}

// writeBatch writes or deletes entries up to the first failure.
func (l *loop[R, K, V]) writeBatch(batch []*try[R, K, V]) (done int, err error) {
	keys, values := make([]K, len(batch)), make([]V, len(batch))
	for i, t := range batch {
		keys[i], values[i] = t.key, t.value
	}
	op := bpf.OpDelete
	if batch[0].wanted {
		op = bpf.OpUpdate
		done, err = l.Map.Update(keys, values)
	} else {
		done, err = l.Map.Delete(keys)
	}
	l.report.count(op, done, err)
	return done, err
}

// errorText returns the text of an error for status columns.
func (l *loop[R, K, V]) errorText(err error) string {
	if errors.Is(err, bpf.ErrMapFull) && !errors.Is(err, unix.ENOMEM) {
		return fmt.Sprintf("map full (%d entries)", l.Map.Spec().MaxEntries)
	}
	return err.Error()
}

// confirm writes the results of a round to the tables.
func (l *loop[R, K, V]) confirm(tries []*try[R, K, V]) error {
	wtxn := l.db.WriteTxn(l.Desired.RWTable, l.Mirror)
	defer wtxn.Abort()
	desired, mirror := l.Desired.Revision(wtxn), l.Mirror.Revision(wtxn)
	for _, t := range tries {
		if err := cmp.Or(l.confirmMirror(wtxn, t), l.confirmStatus(wtxn, t)); err != nil {
			return err
		}
	}
	if desired == l.Desired.Revision(wtxn) && mirror == l.Mirror.Revision(wtxn) {
		return nil // a commit would wake others
	}
	wtxn.Commit()
	return nil
}

func (l *loop[R, K, V]) confirmMirror(wtxn statedb.WriteTxn, t *try[R, K, V]) (err error) {
	m, _, found := l.Mirror.Get(wtxn, tables.MirrorByKey[K, V](t.key))
	switch now := t.mirror(); {
	case now.Present && (!found || *m != *now):
		_, _, err = l.Mirror.Insert(wtxn, now)
	case !now.Present && found:
		_, _, err = l.Mirror.Delete(wtxn, m)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", l.Mirror.Name(), err)
	}
	return nil
}

// confirmStatus gives a row its status. A row that changed meanwhile keeps its own.
func (l *loop[R, K, V]) confirmStatus(wtxn statedb.WriteTxn, t *try[R, K, V]) error {
	if !t.wanted || t.outcome == outcomeLater {
		return nil
	}
	kind, text := reconciler.StatusKindDone, ""
	switch t.outcome {
	case outcomeWait:
		kind, text = reconciler.StatusKindPending, t.text
	case outcomeFailed:
		kind, text = reconciler.StatusKindError, t.text
	}
	former := t.row.GetStatus()
	if t.wrote && former.IsPendingOrRefreshing() {
		l.report.metrics.latency.Observe(l.now().Sub(former.UpdatedAt).Seconds())
	}
	if former.Kind == kind && former.GetError() == text {
		return nil
	}
	status := reconciler.StatusDone() // for its time and number
	if status.Kind = kind; text != "" {
		status.Error = &text
	}
	_, _, err := l.Desired.CompareAndSwap(wtxn, t.revision, l.WithStatus(t.row, status))
	switch {
	case err == nil:
		t.own = l.Desired.Revision(wtxn)
	case !errors.Is(err, statedb.ErrRevisionNotEqual) && !errors.Is(err, statedb.ErrObjectNotFound):
		return fmt.Errorf("write status of a row of %s: %w", l.Desired.Name(), err)
	}
	return nil
}
