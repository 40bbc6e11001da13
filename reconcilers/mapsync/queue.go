// SPDX-License-Identifier: Apache-2.0

package mapsync

import (
	"cmp"
	"container/heap"
	"slices"
	"time"

	"github.com/cilium/statedb"
)

// state of an item between rounds.
type state uint8

const (
	statePending state = iota // not tried yet, or to be deleted later
	stateWaiting              // for what it refers to
	stateFailed
	states
)

// item is a key whose entry is not known to be as desired.
type item[K comparable] struct {
	key      K
	seq      uint64 // the order in which items were created
	state    state
	due      time.Time        // if it is among the timers
	turn     uint64           // if it is ready: the lowest is tried first
	owner    uint32           // see [Config.Owner], 0 if it has none
	in       *items[K]        // timers or ready, nil if in neither
	at       int              // the place in it
	waits    Reference        // in stateWaiting
	gone     time.Time        // since when there is no desired row; zero if there is one
	own      statedb.Revision // of the desired row, if the loop gave it a status
	attempts int
	err      error

	isFirst bool      // of the start: see [Control.Unwritten]
	since   time.Time // when the row began to wait for references, zero if it has not
}

// queue has the items of a map. One that is not being tried has a timer, is ready, or waits.
type queue[K comparable] struct {
	byKey   map[K]*item[K]
	timers  items[K]
	ready   items[K]
	turn    uint64            // of the item that was taken last
	turns   map[uint32]uint64 // the last turn of each owner with ready items
	waiting map[Reference]*waiters[K]
	full    map[*item[K]]struct{}
	counts  [states]int
	nextSeq uint64
	first   int // items of the start, but those that wait for something outside of the tables
}

// waiters are the items that wait for the same.
type waiters[K comparable] struct {
	missing string // what their reference lacked when they were tried
	items   map[*item[K]]struct{}
}

func newQueue[K comparable]() *queue[K] {
	return &queue[K]{
		byKey: map[K]*item[K]{}, waiting: map[Reference]*waiters[K]{}, full: map[*item[K]]struct{}{},
		turns: map[uint32]uint64{},
	}
}

// start has the present items counted as those of the start.
func (q *queue[K]) start() {
	for _, it := range q.byKey {
		it.isFirst = true
	}
	q.first = len(q.byKey)
}

// get returns the item of a key, and creates it if there is none.
func (q *queue[K]) get(key K) *item[K] {
	it, ok := q.byKey[key]
	if !ok {
		q.nextSeq++
		it = &item[K]{key: key, seq: q.nextSeq}
		q.byKey[key] = it
		q.counts[statePending]++
	}
	return it
}

// remove forgets an item: the map holds what is desired.
func (q *queue[K]) remove(it *item[K]) {
	q.park(it)
	q.counts[statePending]--
	if it.isFirst {
		q.first--
	}
	if delete(q.byKey, it.key); len(q.byKey) == 0 {
		q.byKey, q.timers, q.ready = map[K]*item[K]{}, nil, nil // none shrinks
	}
}

// park removes an item from timers, ready items and waiters.
func (q *queue[K]) park(it *item[K]) {
	if it.in != nil {
		heap.Remove(it.in, it.at)
		it.in = nil
	}
	if w := q.waiting[it.waits]; it.state == stateWaiting {
		if delete(w.items, it); len(w.items) == 0 {
			delete(q.waiting, it.waits)
		}
		if it.isFirst && it.waits.To.outside {
			q.first++
		}
	}
	delete(q.full, it)
	q.setState(it, statePending)
}

func (q *queue[K]) setState(it *item[K], s state) {
	q.counts[it.state]--
	q.counts[s]++
	it.state = s
}

// schedule sets the only time at which an item is tried.
func (q *queue[K]) schedule(it *item[K], due time.Time) {
	q.park(it)
	it.due, it.turn, it.in = due, 0, &q.timers
	heap.Push(it.in, it)
}

// wait has an item tried when its reference lacks something else, or nothing, and at a time that
// is not zero.
func (q *queue[K]) wait(it *item[K], r Reference, missing string, due time.Time) {
	q.park(it)
	if !due.IsZero() {
		q.schedule(it, due)
	}
	if q.setState(it, stateWaiting); it.isFirst && r.To.outside {
		q.first--
	}
	it.waits = r
	if q.waiting[r] == nil {
		q.waiting[r] = &waiters[K]{items: map[*item[K]]struct{}{}}
	}
	q.waiting[r].missing = missing
	q.waiting[r].items[it] = struct{}{}
}

// fail has an item that failed tried again at a time, or when the map has room.
func (q *queue[K]) fail(it *item[K], due time.Time, full bool) {
	q.schedule(it, due)
	q.setState(it, stateFailed)
	if full {
		q.full[it] = struct{}{}
	}
}

// wake schedules the items whose references now lack nothing, or something else that their rows
// must say.
func (q *queue[K]) wake(l *gateView, now time.Time) {
	for r, w := range q.waiting {
		if l.missing(r) == w.missing {
			continue
		}
		for it := range w.items {
			q.schedule(it, now)
		}
	}
}

// retryAfterDelete schedules the first n items that failed because the map was full.
func (q *queue[K]) retryAfterDelete(n int, now time.Time) {
	if n == 0 || len(q.full) == 0 {
		return
	}
	var full []*item[K]
	for it := range q.full {
		full = append(full, it)
	}
	slices.SortFunc(full, func(a, b *item[K]) int { return cmp.Compare(a.seq, b.seq) })
	for _, it := range full[:min(n, len(full))] {
		q.schedule(it, now)
		q.setState(it, stateFailed)
	}
}

// take returns at most n items that are due. Owners take turns, so that one with many items does
// not hold up others. The caller must schedule each item, have it wait, or remove it.
func (q *queue[K]) take(now time.Time, n int) (work []*item[K]) {
	if len(q.ready) == 0 {
		q.turn = 0
		clear(q.turns)
	}
	for len(q.timers) > 0 && !q.timers[0].due.After(now) {
		it := heap.Pop(&q.timers).(*item[K])
		it.turn = q.turn + 1
		if it.owner != 0 {
			it.turn = max(it.turn, q.turns[it.owner]+1)
			q.turns[it.owner] = it.turn
		}
		it.due, it.in = time.Time{}, &q.ready
		heap.Push(it.in, it)
	}
	for len(work) < n && len(q.ready) > 0 {
		it := heap.Pop(&q.ready).(*item[K])
		it.in, q.turn = nil, it.turn
		work = append(work, it)
	}
	return work
}

// isDue reports whether there is something to take.
func (q *queue[K]) isDue(now time.Time) bool {
	return len(q.ready) > 0 || len(q.timers) > 0 && !q.timers[0].due.After(now)
}

// items is a heap of items, by the time they are due or by turn.
type items[K comparable] []*item[K]

func (t items[K]) Len() int { return len(t) }
func (t items[K]) Less(i, j int) bool {
	a, b := t[i], t[j]
	return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.turn, b.turn), cmp.Compare(a.seq, b.seq)) < 0
}
func (t items[K]) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].at, t[j].at = i, j
}

// Push implements [heap.Interface].
func (t *items[K]) Push(x any) {
	it := x.(*item[K])
	it.at = len(*t)
	*t = append(*t, it)
}

// Pop implements [heap.Interface].
func (t *items[K]) Pop() any {
	last := len(*t) - 1
	it := (*t)[last]
	(*t)[last] = nil
	*t = (*t)[:last]
	return it
}
