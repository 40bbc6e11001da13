// SPDX-License-Identifier: Apache-2.0

package former

import (
	"bytes"
	"hash/maphash"

	"github.com/cilium/statedb"
)

// Rows remembers rows of a table by primary key, as they were: the changes that
// StateDB tells of do not carry what was there before. The rows are the table's own,
// and the keys can be told from them: with two bytes by which it is found a row costs
// little more than a pointer, while there may be as many memories of a table as rules
// that follow from it.
//
// It is a hash table with linear probing: a row is at the first free slot from the
// one of its hash on. A map would take twice as much.
type Rows[Row any] struct {
	primary statedb.Indexer[Row]
	hash    func(key []byte) uint32

	marks []mark // of the row in each slot
	rows  []Row
	count int
}

// mark is what is known of the row in a slot without a look at its key.
type mark struct {
	tag uint8 // of the hash, 0 in a free slot
	far uint8 // how many slots it is from the first of its hash, if fewer than tooFar
}

const tooFar = 255

// NewRows returns a memory of a table with a primary index. It has no rows yet.
func NewRows[Row any](primary statedb.Indexer[Row]) *Rows[Row] {
	seed := maphash.MakeSeed()
	return &Rows[Row]{primary: primary, hash: func(key []byte) uint32 { return uint32(maphash.Bytes(seed, key)) }}
}

// Reserve makes room for some rows in all, so that it need not grow as they come, nor
// with the first of those that come later.
func (r *Rows[Row]) Reserve(rows int) {
	if slots := rows + rows/7 + rows/64 + 8; slots > len(r.marks) {
		r.resize(slots)
	}
}

// Len returns how many rows there are.
func (r *Rows[Row]) Len() int { return r.count }

// All yields the rows, in no order.
func (r *Rows[Row]) All(yield func(Row) bool) {
	for at, m := range r.marks {
		if m.tag != 0 && !yield(r.rows[at]) {
			return
		}
	}
}

// Swap remembers a row, and returns the one that it replaces.
func (r *Rows[Row]) Swap(row Row) (old Row, had bool) {
	at, m, had := r.find(row)
	if had {
		old, r.rows[at] = r.rows[at], row
		return old, true
	}
	r.count++
	if 8*r.count > 7*len(r.marks) {
		r.resize(len(r.marks) + len(r.marks)/4 + 8) // one more does not double what all take
		at, m, _ = r.find(row)
	}
	r.marks[at], r.rows[at] = m, row
	return old, false
}

// Forget forgets the row with the primary key of another, and returns it.
func (r *Rows[Row]) Forget(row Row) (old Row, had bool) {
	if r.count == 0 {
		return old, false
	}
	at, _, had := r.find(row)
	if !had {
		return old, false
	}
	old = r.rows[at]
	r.count--
	// What would be at the slot if it had been free moves there.
	for next := r.after(at); r.marks[next].tag != 0; next = r.after(next) {
		if far, back := r.far(next), r.distance(at, next); far >= back {
			r.marks[at], r.rows[at] = markOf(r.marks[next].tag, far-back), r.rows[next]
			at = next
		}
	}
	var none Row
	r.marks[at], r.rows[at] = mark{}, none
	return old, true
}

// find returns the slot of the row with the primary key of another, or the one
// where it belongs, and its mark there.
func (r *Rows[Row]) find(row Row) (at int, _ mark, found bool) {
	if len(r.marks) == 0 {
		return 0, mark{}, false
	}
	key := r.primary.ObjectToKey(row)
	hash := r.hash(key)
	tag, far := tagOf(hash), 0
	for at = r.first(hash); r.marks[at].tag != 0; at = r.after(at) {
		if r.marks[at].tag == tag && bytes.Equal(r.primary.ObjectToKey(r.rows[at]), key) {
			return at, r.marks[at], true
		}
		far++
	}
	return at, markOf(tag, far), false
}

// far returns how many slots the row in one is from the first of its hash.
func (r *Rows[Row]) far(at int) int {
	if far := r.marks[at].far; far < tooFar {
		return int(far)
	}
	return r.distance(r.first(r.hashOf(r.rows[at])), at)
}

func (r *Rows[Row]) hashOf(row Row) uint32 { return r.hash(r.primary.ObjectToKey(row)) }

func markOf(tag uint8, far int) mark { return mark{tag, uint8(min(far, tooFar))} }

// tagOf is what tells most rows near each other apart: the slot is by the other end
// of the hash.
func tagOf(hash uint32) uint8 { return max(1, uint8(hash)) }

func (r *Rows[Row]) resize(slots int) {
	marks, rows := r.marks, r.rows
	r.marks, r.rows = make([]mark, slots), make([]Row, slots)
	for i, m := range marks {
		if m.tag == 0 {
			continue
		}
		at, far := r.first(r.hashOf(rows[i])), 0
		for r.marks[at].tag != 0 {
			at = r.after(at)
			far++
		}
		r.marks[at], r.rows[at] = markOf(m.tag, far), rows[i]
	}
}

// first is the slot of a hash.
func (r *Rows[Row]) first(hash uint32) int {
	return int(uint64(hash) * uint64(len(r.marks)) >> 32)
}

// after is the slot after another, the first one after the last.
func (r *Rows[Row]) after(at int) int {
	if at++; at < len(r.marks) {
		return at
	}
	return 0
}

// distance is how many slots there are from one on to another.
func (r *Rows[Row]) distance(from, to int) int {
	if to < from {
		to += len(r.marks)
	}
	return to - from
}
