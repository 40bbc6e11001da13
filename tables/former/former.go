// SPDX-License-Identifier: Apache-2.0

// Package former is about what tables were: it frees what StateDB keeps of it, and
// remembers single rows.
//
// StateDB keeps what each index of a table was before its last transaction, until
// the next one begins. After a transaction that has replaced all rows that is as much
// again as the table, and in a cluster at rest it stays for long.
package former

import "github.com/cilium/statedb"

// many are so many changes in one transaction that it is worth freeing what was
// there before them.
const many = 1024

// Forget frees what a table was before its last transaction, if that made many
// changes. One more transaction is enough, that comes to nothing.
func Forget[Row any](db *statedb.DB, table statedb.RWTable[Row], changes int) error {
	if changes < many {
		return nil
	}
	wtxn := db.WriteTxn(table)
	defer wtxn.Abort()
	for row := range table.All(wtxn) {
		_, _, err := table.Delete(wtxn, row) // to begin one on each index
		return err
	}
	return nil
}
