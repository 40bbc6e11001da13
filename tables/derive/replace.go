// SPDX-License-Identifier: Apache-2.0

package derive

import (
	"bytes"
	"fmt"
	"iter"

	"github.com/cilium/statedb"
)

// Each is the [Rule.Compute] of a rule with one output, of which each key has one row at most: it
// makes that the one that is wanted, the zero value if none is, as [Replace] does.
func Each[Key, Row comparable](
	table statedb.RWTable[Row], query func(Key) statedb.Query[Row],
	equal func(wanted, existing Row) bool, wanted func(in statedb.ReadTxn, key Key) Row,
) func(in statedb.ReadTxn, out statedb.WriteTxn, keys []Key, mark func(Key)) error {
	return func(in statedb.ReadTxn, out statedb.WriteTxn, keys []Key, _ func(Key)) error {
		var none Row
		for _, key := range keys {
			rows := []Row{wanted(in, key)}
			if rows[0] == none {
				rows = nil
			}
			existing := table.List(out, query(key))
			if err := Replace(out, table, equal, existing, rows...); err != nil {
				return err
			}
		}
		return nil
	}
}

// Replace makes the rows of an output that there are under a key the ones that are wanted,
// each once: those that differ are written, before those that are not wanted are deleted. It
// leaves the others as they are, so that their status and revision stay.
func Replace[Row any](
	out statedb.WriteTxn, table statedb.RWTable[Row], equal func(wanted, existing Row) bool,
	existing iter.Seq2[Row, statedb.Revision], wanted ...Row,
) error {
	former := statedb.Collect(existing)
	keep := make([]bool, len(former))
	primary := table.PrimaryIndexer()
	for _, row := range wanted {
		same := false
		for i, old := range former {
			if bytes.Equal(primary.ObjectToKey(old), primary.ObjectToKey(row)) {
				keep[i], same = true, equal(row, old)
				break
			}
		}
		if same {
			count(out, table.Name(), Counts{Rows: 1})
			continue
		}
		if err := Insert(out, table, row); err != nil {
			return err
		}
	}
	for i, row := range former {
		if keep[i] {
			continue
		}
		if err := Delete(out, table, row); err != nil {
			return err
		}
	}
	return nil
}

// Insert inserts a row.
func Insert[Row any](out statedb.WriteTxn, table statedb.RWTable[Row], row Row) error {
	if _, _, err := table.Insert(out, row); err != nil {
		return fmt.Errorf("write %s: %w", table.Name(), err)
	}
	count(out, table.Name(), Counts{Rows: 1, Inserted: 1})
	return nil
}

// Delete deletes a row, if it is there.
func Delete[Row any](out statedb.WriteTxn, table statedb.RWTable[Row], row Row) error {
	_, had, err := table.Delete(out, row)
	if err != nil {
		return fmt.Errorf("delete from %s: %w", table.Name(), err)
	}
	if had {
		count(out, table.Name(), Counts{Deleted: 1})
	}
	return nil
}
