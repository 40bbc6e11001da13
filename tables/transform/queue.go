// SPDX-License-Identifier: Apache-2.0

package transform

// queue has the keys that wait to be computed, in the order in which they were marked last.
type queue[Key comparable] struct {
	order []entry[Key]
	last  map[Key]uint64 // the entry that counts of each key
	next  uint64
}

type entry[Key comparable] struct {
	key Key
	seq uint64
}

func newQueue[Key comparable]() *queue[Key] { return &queue[Key]{last: map[Key]uint64{}} }

func (q *queue[Key]) len() int { return len(q.last) }

func (q *queue[Key]) has(key Key) bool { _, has := q.last[key]; return has }

// push puts a key at the end, where it moves if it waits already.
func (q *queue[Key]) push(key Key) {
	q.next++
	q.last[key] = q.next
	q.order = append(q.order, entry[Key]{key, q.next})
}

// drop removes a key.
func (q *queue[Key]) drop(key Key) { delete(q.last, key) }

// take removes and returns the first keys, n at most.
func (q *queue[Key]) take(n int) (keys []Key) {
	at := 0
	for ; at < len(q.order) && len(keys) < n; at++ {
		if e := q.order[at]; q.last[e.key] == e.seq {
			delete(q.last, e.key)
			keys = append(keys, e.key)
		}
	}
	if q.order = q.order[at:]; len(q.last) == 0 {
		*q = *newQueue[Key]() // neither a slice nor a map shrinks
	}
	return keys
}
