// SPDX-License-Identifier: Apache-2.0

package former

import (
	"bytes"
	"hash/maphash"

	"github.com/cilium/statedb"
)

// Rows remembers rows of a table by primary key, as they were: the changes that
// StateDB tells of do not carry what was there before. The rows are the table's own,
// and the keys can be told from them: with the hash by which it is found a row costs
// little more than a pointer, while there may be as many memories of a table as rules
// that follow from it.
//
// It is a hash table with linear probing: a row is at the first free slot from the
// one of its hash on. A map would take twice as much.
type Rows[Row any] struct {
	primary statedb.Indexer[Row]
	hash    func(key []byte) uint32

	hashes []uint32 // of the row in each slot, 0 if that is free
	rows   []Row
	count  int
}

// NewRows returns a memory of a table with a primary index. It has no rows yet.
func NewRows[Row any](primary statedb.Indexer[Row]) *Rows[Row] {
	seed := maphash.MakeSeed()
	return &Rows[Row]{primary: primary, hash: func(key []byte) uint32 { return uint32(maphash.Bytes(seed, key)) }}
}

// Reserve makes room for some rows in all, so that it need not grow as they come, nor
// with the first of those that come later.
func (r *Rows[Row]) Reserve(rows int) {
	if slots := rows + rows/7 + rows/64 + 8; slots > len(r.hashes) {
		r.resize(slots)
	}
}

// Len returns how many rows there are.
func (r *Rows[Row]) Len() int { return r.count }

// All yields the rows, in no order.
func (r *Rows[Row]) All(yield func(Row) bool) {
	for at, hash := range r.hashes {
		if hash != 0 && !yield(r.rows[at]) {
			return
		}
	}
}

// Swap remembers a row, and returns the one that it replaces.
func (r *Rows[Row]) Swap(row Row) (old Row, had bool) {
	at, hash, had := r.find(row)
	if had {
		old, r.rows[at] = r.rows[at], row
		return old, true
	}
	r.count++
	if 8*r.count > 7*len(r.hashes) {
		r.resize(len(r.hashes) + len(r.hashes)/4 + 8) // one more does not double what all take
		at = r.free(hash)
	}
	r.hashes[at], r.rows[at] = hash, row
	return old, false
}

// Forget forgets the row with the primary key of another, and returns it.
func (r *Rows[Row]) Forget(row Row) (old Row, had bool) {
	at, _, had := r.find(row)
	if !had {
		return old, false
	}
	old = r.rows[at]
	r.count--
	// What would be at the slot if it had been free moves there.
	for next := r.after(at); r.hashes[next] != 0; next = r.after(next) {
		if r.distance(r.first(r.hashes[next]), next) >= r.distance(at, next) {
			r.hashes[at], r.rows[at] = r.hashes[next], r.rows[next]
			at = next
		}
	}
	var none Row
	r.hashes[at], r.rows[at] = 0, none
	return old, true
}

// find returns the slot of the row with the primary key of another, or the one
// where it belongs, and its hash.
func (r *Rows[Row]) find(row Row) (at int, hash uint32, found bool) {
	key := r.primary.ObjectToKey(row)
	hash = max(1, r.hash(key))
	if len(r.hashes) == 0 {
		return 0, hash, false
	}
	for at = r.first(hash); r.hashes[at] != 0; at = r.after(at) {
		if r.hashes[at] == hash && bytes.Equal(r.primary.ObjectToKey(r.rows[at]), key) {
			return at, hash, true
		}
	}
	return at, hash, false
}

// free returns the first free slot for a hash.
func (r *Rows[Row]) free(hash uint32) int {
	at := r.first(hash)
	for r.hashes[at] != 0 {
		at = r.after(at)
	}
	return at
}

func (r *Rows[Row]) resize(slots int) {
	hashes, rows := r.hashes, r.rows
	r.hashes, r.rows = make([]uint32, slots), make([]Row, slots)
	for i, hash := range hashes {
		if hash != 0 {
			at := r.free(hash)
			r.hashes[at], r.rows[at] = hash, rows[i]
		}
	}
}

// first is the slot of a hash.
func (r *Rows[Row]) first(hash uint32) int {
	return int(uint64(hash) * uint64(len(r.hashes)) >> 32)
}

// after is the slot after another, the first one after the last.
func (r *Rows[Row]) after(at int) int {
	if at++; at < len(r.hashes) {
		return at
	}
	return 0
}

// distance is how many slots there are from one on to another.
func (r *Rows[Row]) distance(from, to int) int {
	if to < from {
		to += len(r.hashes)
	}
	return to - from
}
