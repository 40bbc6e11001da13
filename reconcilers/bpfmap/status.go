// SPDX-License-Identifier: Apache-2.0

package bpfmap

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/former"
)

// verdict is what the tables shall say of an item after a round.
type verdict[Row any, K, V tables.MapPart] struct {
	item   *item[Row, K, V]
	status reconciler.Status // of the row, of kind Unset if it stays

	// The row of the mirror, nil to delete it; as it is unless rewrite is set.
	entry   *tables.MapEntry[K, V]
	rewrite bool
}

// judge decides about each item of a round what the tables say of it and when
// it is tried again, if at all. x is nil if there was nothing to write.
func (l *loop[Row, K, V]) judge(work []*item[Row, K, V], x *execution[K, V], now time.Time) []verdict[Row, K, V] {
	verdicts := make([]verdict[Row, K, V], 0, len(work))
	for _, it := range work {
		v := verdict[Row, K, V]{item: it}
		if it.change < 0 {
			l.done(&v, false)
		} else if out := &x.outcomes[it.change]; equal(out.kernel, x.changes[it.change].New) {
			l.done(&v, true)
		} else {
			l.notDone(&v, out, x, now)
		}
		if v.rewrite || v.status.Kind != reconciler.StatusKindUnset {
			verdicts = append(verdicts, v)
		}
	}
	return verdicts
}

func equal[V comparable](a, b *V) bool {
	return a == nil && b == nil || a != nil && b != nil && *a == *b
}

// done judges an item of which the map has what is desired.
func (l *loop[Row, K, V]) done(v *verdict[Row, K, V], written bool) {
	it := v.item
	if it.wanted {
		current := l.GetStatus(it.row)
		if written && current.IsPendingOrRefreshing() {
			l.report.metrics.latency.Observe(time.Since(current.UpdatedAt).Seconds())
		}
		v.setStatus(current, reconciler.StatusKindDone, "")
		v.setEntry(tables.MapEntry[K, V]{Key: it.key, Value: l.MapValue(it.row), Wanted: tables.WantedSame})
	} else if it.entry != nil {
		v.rewrite = true
	}
	l.items.remove(it)
}

// notDone judges an item of which the map has something else.
func (l *loop[Row, K, V]) notDone(v *verdict[Row, K, V], out *outcome[V], x *execution[K, V], now time.Time) {
	it := v.item
	kind, text := reconciler.StatusKindPending, "waiting for an overlapping entry to be written first"
	failure := ""
	switch out.fate {
	case fateFailed:
		it.err = out.err
		l.items.setState(it, stateFailed)
		l.items.schedule(it, now.Add(l.retries.delay(it.attempts)))
		it.attempts++
		if errors.Is(out.err, bpf.ErrMapFull) {
			l.items.queueForRoom(it)
		}
		kind, text = reconciler.StatusKindError, l.errorText(out.err)
		failure = text
	case fateWaiting:
		l.items.wait(it, out.waitFor)
		if it.since.IsZero() {
			it.since = now
		}
		l.items.schedule(it, now.Add(l.retries.lookAgain(now.Sub(it.since))))
		text = "waiting for " + out.reason
	default:
		// It is tried together with what it is held behind. If that was
		// squeezed in, or this itself is half done, it is tried right now.
		l.items.setState(it, statePending)
		due := now.Add(l.retries.max)
		if out.fate == fateDone || x.squeezed > 0 {
			due = now
		}
		l.items.schedule(it, due)
	}

	wanted := tables.WantedAbsent
	if it.wanted {
		wanted = tables.WantedOther
		v.setStatus(l.GetStatus(it.row), kind, text)
	} else {
		failure = text // there is no row that could say it
	}
	if out.kernel != nil {
		v.setEntry(tables.MapEntry[K, V]{Key: it.key, Value: *out.kernel, Wanted: wanted, Error: failure})
	} else if it.entry != nil {
		v.rewrite = true
	}
}

// errorText returns the text of an error for status columns.
func (l *loop[Row, K, V]) errorText(err error) string {
	if errors.Is(err, bpf.ErrMapFull) && !errors.Is(err, unix.ENOMEM) {
		return fmt.Sprintf("map full (%d entries)", l.Map.Spec().MaxEntries)
	}
	return err.Error()
}

// setStatus gives the row a status unless it has the like already.
func (v *verdict[Row, K, V]) setStatus(current reconciler.Status, kind reconciler.StatusKind, text string) {
	if current.Kind == kind && current.GetError() == text {
		return
	}
	v.status = reconciler.StatusDone() // for its time and number
	v.status.Kind = kind
	if text != "" {
		v.status.Error = &text
	}
}

// setEntry gives the mirror an entry unless it has it already.
func (v *verdict[Row, K, V]) setEntry(entry tables.MapEntry[K, V]) {
	if v.item.entry == nil || *v.item.entry != entry {
		v.entry, v.rewrite = &entry, true
	}
}

// commit writes verdicts to the tables, in one transaction, if there are any.
// A row that somebody has changed meanwhile keeps its status: its change is
// still to come.
func (l *loop[Row, K, V]) commit(verdicts []verdict[Row, K, V]) error {
	if len(verdicts) == 0 {
		return nil
	}
	wtxn := l.db.WriteTxn(l.Desired, l.Entries)
	defer wtxn.Abort()
	before := l.Desired.Revision(wtxn)
	for i := range verdicts {
		v := &verdicts[i]
		if err := l.commitEntry(wtxn, v); err != nil {
			return err
		}
		if v.status.Kind == reconciler.StatusKindUnset {
			continue
		}
		row := l.WithStatus(v.item.row, v.status)
		_, _, err := l.Desired.CompareAndSwap(wtxn, v.item.revision, row)
		switch {
		case err == nil:
			v.item.row, v.item.revision = row, l.Desired.Revision(wtxn)
		case !errors.Is(err, statedb.ErrRevisionNotEqual) && !errors.Is(err, statedb.ErrObjectNotFound):
			return fmt.Errorf("write status of a row of %s: %w", l.Desired.Name(), err)
		}
	}
	l.own.add(before+1, l.Desired.Revision(wtxn))
	wtxn.Commit()
	return errors.Join(former.Forget(l.db, l.Desired, len(verdicts)), former.Forget(l.db, l.Entries, len(verdicts)))
}

func (l *loop[Row, K, V]) commitEntry(wtxn statedb.WriteTxn, v *verdict[Row, K, V]) (err error) {
	switch {
	case !v.rewrite:
	case v.entry != nil:
		_, _, err = l.Entries.Insert(wtxn, v.entry)
	default:
		_, _, err = l.Entries.Delete(wtxn, v.item.entry)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", l.Entries.Name(), err)
	}
	return nil
}
