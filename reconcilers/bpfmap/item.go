// SPDX-License-Identifier: Apache-2.0

package bpfmap

import (
	"container/heap"
	"slices"
	"time"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
)

// state of an item between rounds.
type state uint8

const (
	statePending state = iota // not tried yet, or held back behind another
	stateWaiting              // for its gate
	stateFailed
	states
)

// item is a key of which the map is not known to hold what is desired.
type item[Row any, K, V tables.MapPart] struct {
	key      K
	seq      uint64 // order of becoming one
	row      Row    // desired
	wanted   bool   // reports whether there is such a row
	revision statedb.Revision

	entry  *tables.MapEntry[K, V] // of the mirror, as of the round
	round  uint64                 // the last one that took it
	change int                    // its index there, -1 if there is nothing to do

	state    state
	attempts int
	err      error
	waitFor  any       // in stateWaiting
	since    time.Time // of the first look that found it waiting since anything was told of that

	due   time.Time // next attempt
	timer int       // index in timers, -1 if not there
	full  bool      // was refused for room

	queued bool // is in items.full
}

// items are the items of a map.
type items[Row any, K, V tables.MapPart] struct {
	byKey   map[K]*item[Row, K, V]
	counts  [states]int
	timers  timers[Row, K, V]
	waiting map[any]map[*item[Row, K, V]]struct{}
	full    []*item[Row, K, V] // in the order of their refusals; some may have left it
	nextSeq uint64
	most    int // there were at once in byKey since it was made
}

// manyItems are so many that a map is not kept for them when they are gone: it
// would go on to take the memory of all of them.
const manyItems = 1024

func newItems[Row any, K, V tables.MapPart]() *items[Row, K, V] {
	return &items[Row, K, V]{
		byKey:   map[K]*item[Row, K, V]{},
		waiting: map[any]map[*item[Row, K, V]]struct{}{},
	}
}

// get returns the item of a key, which is made if there is none.
func (is *items[Row, K, V]) get(key K) *item[Row, K, V] {
	it, ok := is.byKey[key]
	if !ok {
		is.nextSeq++
		it = &item[Row, K, V]{key: key, seq: is.nextSeq, timer: -1}
		is.byKey[key] = it
		is.most = max(is.most, len(is.byKey))
		is.counts[statePending]++
	}
	return it
}

// remove forgets an item: the map holds what is desired.
func (is *items[Row, K, V]) remove(it *item[Row, K, V]) {
	is.park(it)
	is.counts[it.state]--
	delete(is.byKey, it.key)
	if len(is.byKey) == 0 && is.most > manyItems {
		is.byKey, is.most = map[K]*item[Row, K, V]{}, 0
	}
}

// park takes an item out of all queues, as it is being tried.
func (is *items[Row, K, V]) park(it *item[Row, K, V]) {
	if it.timer >= 0 {
		heap.Remove(&is.timers, it.timer)
	}
	if it.state == stateWaiting {
		waiters := is.waiting[it.waitFor]
		delete(waiters, it)
		if len(waiters) == 0 {
			delete(is.waiting, it.waitFor)
		}
		is.setState(it, statePending)
	}
	it.full = false
}

func (is *items[Row, K, V]) setState(it *item[Row, K, V], s state) {
	is.counts[it.state]--
	is.counts[s]++
	it.state = s
}

// wait has an item looked at when what it waits for changes.
func (is *items[Row, K, V]) wait(it *item[Row, K, V], waitFor any) {
	is.setState(it, stateWaiting)
	it.waitFor = waitFor
	if is.waiting[waitFor] == nil {
		is.waiting[waitFor] = map[*item[Row, K, V]]struct{}{}
	}
	is.waiting[waitFor][it] = struct{}{}
}

// schedule has an item looked at no later than at a time.
func (is *items[Row, K, V]) schedule(it *item[Row, K, V], due time.Time) {
	it.due = due
	if it.timer >= 0 {
		heap.Fix(&is.timers, it.timer)
	} else {
		heap.Push(&is.timers, it)
	}
}

// queueForRoom has an item looked at when there is room.
func (is *items[Row, K, V]) queueForRoom(it *item[Row, K, V]) {
	it.full = true
	if it.queued {
		return
	}
	it.queued = true
	if len(is.full) > 64 && len(is.full) > 2*len(is.byKey) {
		is.full = slices.DeleteFunc(is.full, func(it *item[Row, K, V]) bool {
			it.queued = it.full
			return !it.full
		})
	}
	is.full = append(is.full, it)
}

// giveRoom schedules the first n of those refused for room.
func (is *items[Row, K, V]) giveRoom(n int, now time.Time) {
	for n > 0 && len(is.full) > 0 {
		it := is.full[0]
		is.full[0] = nil
		is.full = is.full[1:]
		it.queued = false
		if it.full {
			it.full = false
			is.schedule(it, now)
			n--
		}
	}
}

// timers is a heap of items by the time they are due.
type timers[Row any, K, V tables.MapPart] []*item[Row, K, V]

func (t timers[Row, K, V]) Len() int           { return len(t) }
func (t timers[Row, K, V]) Less(i, j int) bool { return t[i].due.Before(t[j].due) }
func (t timers[Row, K, V]) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].timer, t[j].timer = i, j
}

// Push implements [heap.Interface].
func (t *timers[Row, K, V]) Push(x any) {
	it := x.(*item[Row, K, V])
	it.timer = len(*t)
	*t = append(*t, it)
}

// Pop implements [heap.Interface].
func (t *timers[Row, K, V]) Pop() any {
	last := len(*t) - 1
	it := (*t)[last]
	(*t)[last] = nil
	*t = (*t)[:last]
	it.timer = -1
	return it
}
