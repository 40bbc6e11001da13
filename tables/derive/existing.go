// SPDX-License-Identifier: Apache-2.0

package derive

import (
	"bytes"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
)

// outputRow is a row that the output had before the round.
type outputRow[Row any] struct {
	row      Row
	key      index.Key
	revision statedb.Revision
	wanted   bool
}

// outputRows are those under one key, in order.
type outputRows[Row any] struct {
	rows     []outputRow[Row]
	position map[string]int // by primary key, of more than a few
}

// few are so many that one of them is found by looking at each.
const few = 8

// existing returns the rows that the output has under a key.
func (r *runner[Key, Out]) existing(txn statedb.ReadTxn, key Key) (rows outputRows[Out]) {
	for row, revision := range r.Existing(txn, key) {
		rows.rows = append(rows.rows, outputRow[Out]{row: row, key: r.primary.ObjectToKey(row), revision: revision})
	}
	if len(rows.rows) > few {
		rows.position = make(map[string]int, len(rows.rows))
		for i := range rows.rows {
			rows.position[string(rows.rows[i].key)] = i
		}
	}
	return rows
}

// find returns the row with a primary key, nil if there is none.
func (o *outputRows[Row]) find(key index.Key) *outputRow[Row] {
	if o.position != nil {
		if at, found := o.position[string(key)]; found {
			return &o.rows[at]
		}
		return nil
	}
	for i := range o.rows {
		if bytes.Equal(o.rows[i].key, key) {
			return &o.rows[i]
		}
	}
	return nil
}
