// SPDX-License-Identifier: Apache-2.0

// Package former is about what tables were: it frees what StateDB keeps of it, and
// remembers single rows.
//
// StateDB keeps what each index of a table was before its last transaction, until
// the next one begins. After a transaction that has replaced all rows that is as much
// again as the table, and in a cluster at rest it stays for long.
package former

import (
	"errors"

	"github.com/cilium/statedb"
)

// many are so many changes in one transaction that it is worth freeing what was
// there before them.
const many = 1024

// Forget frees what a table was before its last transaction, if that made many
// changes. Two more transactions are enough, that come to nothing: the first one still
// goes on with what the last one has allocated, in which StateDB keeps the path to the
// row that was deleted last.
func Forget[Row any](db *statedb.DB, table statedb.RWTable[Row], changes int) error {
	if changes < many {
		return nil
	}
	return errors.Join(begin(db, table), begin(db, table))
}

// begin begins a transaction on each index of a table that has rows, and aborts it.
func begin[Row any](db *statedb.DB, table statedb.RWTable[Row]) error {
	wtxn := db.WriteTxn(table)
	defer wtxn.Abort()
	for row := range table.All(wtxn) {
		_, _, err := table.Delete(wtxn, row)
		return err
	}
	return nil
}
