// SPDX-License-Identifier: Apache-2.0

package mapsync

import (
	"fmt"
	"hash/maphash"
	"iter"
	"time"

	"github.com/sluice-net/sluice/tables"
)

// AuditResult is how a map differed from what was written to it.
type AuditResult struct {
	Missing int // entries that were gone
	Changed int // entries with another value
	Foreign int // entries that were not written by this agent
	Left    int // of these, could not be repaired yet
	Example string
}

// Clean reports whether there was no difference.
func (r AuditResult) Clean() bool { return r.Missing+r.Changed+r.Foreign == 0 }

func (r AuditResult) String() string {
	if r.Clean() {
		return "clean"
	}
	s := fmt.Sprintf("repaired %d missing, %d changed, %d foreign", r.Missing, r.Changed, r.Foreign)
	if r.Left > 0 {
		s += fmt.Sprintf(", %d left", r.Left)
	}
	return s
}

type auditReply struct {
	result AuditResult
	err    error
}

// audit is a comparison of the map with the mirror, one piece between two rounds.
type audit[K comparable] struct {
	began   time.Time
	result  AuditResult
	damaged []K
	replies []chan<- auditReply
	due     time.Time // of the next piece; zero: at once, as a reply is waited for
	next    func() (error, bool)
	stop    func()
}

func (l *loop[R, K, V]) scheduleAudit(now time.Time) {
	l.nextAudit = time.Time{}
	if interval := l.report.interval; interval > 0 {
		l.nextAudit = now.Add(interval)
	}
}

// startAudit begins to compare the whole map, and replies when done. It restarts an audit under
// way, which may have passed what the request is about.
func (l *loop[R, K, V]) startAudit(replies ...chan<- auditReply) {
	a := &audit[K]{began: l.now(), replies: replies}
	if old := l.audit; old != nil {
		old.stop()
		a.result, a.damaged, a.replies = old.result, old.damaged, append(old.replies, replies...)
	}
	if len(a.replies) == 0 {
		a.due = l.pace.next(l.now(), 0)
	}
	l.audit = a
	a.next, a.stop = iter.Pull(l.pieces(a))
}

func (l *loop[R, K, V]) stopAudit() {
	if l.audit != nil {
		l.audit.stop()
		l.audit = nil
	}
}

// continueAudit compares the next piece, and reports after the last one. The rounds in between have
// repaired what it found.
func (l *loop[R, K, V]) continueAudit() {
	a, r, began := l.audit, l.report, l.now()
	err, more := a.next()
	if len(a.replies) == 0 {
		now := l.now()
		a.due = l.pace.next(now, now.Sub(began))
	}
	if more && err == nil {
		return
	}
	l.stopAudit()
	l.scheduleAudit(a.began)
	for _, key := range a.damaged {
		if _, ok := l.queue.byKey[key]; ok {
			a.result.Left++
		}
	}
	r.lastAudit, r.repaired, r.auditErr = a.result.String(), err == nil && !a.result.Clean(), err
	if err != nil {
		r.lastAudit = "failed: " + err.Error()
		l.log.Warn("Audit of map is not possible", "error", err)
	}
	r.metrics.audited(a.result)
	for kind, count := range map[string]int{
		tables.TamperedMissing: a.result.Missing, tables.TamperedChanged: a.result.Changed,
		tables.TamperedForeign: a.result.Foreign,
	} {
		r.tampering.Found(l.name, kind, count, a.result.Example)
	}
	r.publishSoon(l.now())
	for _, reply := range a.replies {
		reply <- auditReply{a.result, err}
	}
}

// pieceRows is how many rows of the mirror are one piece.
const pieceRows = 1024

// pieces compares the map piece by piece. In each piece, map and mirror are of the same moment, as
// the loop does nothing else meanwhile. Missing keys are known only at the end: those that were in
// the mirror all the time and were never read. Keys may be read twice, so the audit remembers which
// ones it has seen.
func (l *loop[R, K, V]) pieces(a *audit[K]) iter.Seq[error] {
	seed := maphash.MakeSeed()
	return func(yield func(error) bool) {
		began, seen := l.db.ReadTxn(), map[uint64]struct{}{}
		for entries, err := range l.Map.Walk() {
			if err != nil {
				yield(fmt.Errorf("audit map %s: %w", l.name, err))
				return
			}
			damaged, now := map[K]*V{}, l.db.ReadTxn()
			for _, e := range entries {
				seen[maphash.Comparable(seed, e.Key)] = struct{}{}
				m, _, found := l.Mirror.Get(now, tables.MirrorByKey[K, V](e.Key))
				switch {
				case !found:
					a.found(&a.result.Foreign, e.Key, "%v is foreign: %v", e.Key, e.Value)
				case m.Value != e.Value:
					a.found(&a.result.Changed, e.Key, "%v is %v instead of %v", e.Key, e.Value, m.Value)
				default:
					continue
				}
				damaged[e.Key] = &e.Value
			}
			if err := l.repair(damaged); !yield(err) || err != nil {
				return
			}
		}
		damaged, rows := map[K]*V{}, 0
		for m := range l.Mirror.All(began) {
			if rows++; rows%pieceRows == 0 {
				if err := l.repair(damaged); !yield(err) || err != nil {
					return
				}
				clear(damaged)
			}
			if _, found := seen[maphash.Comparable(seed, m.Key)]; found {
				continue
			}
			if now, _, _ := l.Mirror.Get(l.db.ReadTxn(), tables.MirrorByKey[K, V](m.Key)); now == m {
				a.found(&a.result.Missing, m.Key, "%v is missing", m.Key)
				damaged[m.Key] = nil
			}
		}
		yield(l.repair(damaged))
	}
}

func (a *audit[K]) found(count *int, key K, format string, args ...any) {
	*count++
	a.damaged = append(a.damaged, key)
	if a.result.Example == "" {
		a.result.Example = fmt.Sprintf(format, args...)
	}
}

// repair sets the mirror to what the map has, nil for nothing. The next rounds correct the map.
func (l *loop[R, K, V]) repair(damaged map[K]*V) error {
	if len(damaged) == 0 {
		return nil
	}
	wtxn := l.db.WriteTxn(l.Mirror)
	defer wtxn.Abort()
	now := l.now()
	for key, value := range damaged {
		t := &try[R, K, V]{item: l.queue.get(key), kernel: value}
		if m, _, found := l.Mirror.Get(wtxn, tables.MirrorByKey[K, V](key)); found {
			t.made = m.Made
		}
		t.row, _, t.wanted = l.Desired.Get(wtxn, l.ByKey(key))
		if t.attempts = 0; !t.wanted {
			t.gone = time.Unix(0, 0) // no packet uses it
		}
		l.queue.schedule(t.item, now)
		if err := l.confirmMirror(wtxn, t); err != nil {
			return err
		}
	}
	wtxn.Commit()
	return nil
}
