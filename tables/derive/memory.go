// SPDX-License-Identifier: Apache-2.0

package derive

import (
	"bytes"
	"hash/maphash"

	"github.com/cilium/statedb"
)

// memory remembers rows by primary key. The rows are the table's own, and the keys
// can be told from them: by their hashes a row costs little more than a pointer,
// while there may be as many memories of a table as rules that follow from it.
type memory[Row any] struct {
	primary statedb.Indexer[Row]
	hash    func(key []byte) uint64

	rows map[uint64]Row
	rest map[string]Row // whose hash another one had when they came
}

func newMemory[Row any](primary statedb.Indexer[Row]) *memory[Row] {
	seed := maphash.MakeSeed()
	return &memory[Row]{
		primary: primary, hash: func(key []byte) uint64 { return maphash.Bytes(seed, key) },
		rows: map[uint64]Row{}, rest: map[string]Row{},
	}
}

// swap remembers a row, and returns the one that it replaces.
func (m *memory[Row]) swap(row Row) (old Row, had bool) {
	key := m.primary.ObjectToKey(row)
	if old, had = m.rest[string(key)]; had {
		m.rest[string(key)] = row
		return old, had
	}
	h := m.hash(key)
	switch other, taken := m.rows[h]; {
	case !taken:
		m.rows[h] = row
	case bytes.Equal(m.primary.ObjectToKey(other), key):
		m.rows[h] = row
		return other, true
	default:
		m.rest[string(key)] = row
	}
	return old, false
}

// forget forgets the row with the primary key of another, and returns it.
func (m *memory[Row]) forget(row Row) (old Row, had bool) {
	if len(m.rows) == 0 && len(m.rest) == 0 {
		return old, false // as in the first round of an input of which few rows matter
	}
	key := m.primary.ObjectToKey(row)
	if old, had = m.rest[string(key)]; had {
		delete(m.rest, string(key))
		return old, had
	}
	h := m.hash(key)
	if other, taken := m.rows[h]; taken && bytes.Equal(m.primary.ObjectToKey(other), key) {
		delete(m.rows, h)
		return other, true
	}
	return old, false
}
