// SPDX-License-Identifier: Apache-2.0

package derive

import "math"

// queue has the keys that wait to be computed, in order.
type queue[Key comparable] struct {
	order []entry[Key]
	last  map[Key]uint64 // the entry that counts of each key
	next  *uint64        // counts the entries of all queues of a rule
}

type entry[Key comparable] struct {
	key Key
	seq uint64
}

func newQueue[Key comparable](next *uint64) *queue[Key] {
	return &queue[Key]{last: map[Key]uint64{}, next: next}
}

func (q *queue[Key]) len() int { return len(q.last) }

func (q *queue[Key]) has(key Key) bool { _, has := q.last[key]; return has }

// add puts a key at the end, unless it waits already.
func (q *queue[Key]) add(key Key) {
	if !q.has(key) {
		q.push(key)
	}
}

// push puts a key at the end, where it moves if it waits already.
func (q *queue[Key]) push(key Key) {
	*q.next++
	q.last[key] = *q.next
	q.order = append(q.order, entry[Key]{key, *q.next})
}

// drop removes a key.
func (q *queue[Key]) drop(key Key) { delete(q.last, key) }

// oldest returns the entry that waits for the longest time, or a number above all.
func (q *queue[Key]) oldest() uint64 {
	for at, e := range q.order {
		if q.last[e.key] == e.seq {
			q.order = q.order[at:]
			return e.seq
		}
	}
	return math.MaxUint64
}

// take removes and returns the first keys, n at most, of entries before one.
func (q *queue[Key]) take(n int, before uint64) (keys []Key) {
	at := 0
	for ; at < len(q.order) && len(keys) < n && q.order[at].seq < before; at++ {
		if e := q.order[at]; q.last[e.key] == e.seq {
			delete(q.last, e.key)
			keys = append(keys, e.key)
		}
	}
	if q.order = q.order[at:]; len(q.last) == 0 {
		*q = *newQueue[Key](q.next) // neither a slice nor a map shrinks
	}
	return keys
}
