// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"fmt"

	"github.com/cilium/statedb"
)

// Follow returns the changes of a table. The first changes are the rows that exist already.
//
// For github.com/cilium/statedb (v0.8.3): [statedb.Table.Changes] needs a write transaction, so
// that a reader of a table locks it. The iterator is usable even if the transaction is aborted,
// but then it yields no deletions, and there is no error:
//
//	wtxn := db.WriteTxn(table)
//	changes, err := table.Changes(wtxn) // nil error
//	wtxn.Abort()                        // the delete tracker is gone
//
// Better: a function that takes the DB, such as this one. [statedb.Observable] has these lines
// already, but the caller cannot choose the snapshot that it reads.
func Follow[Row any](
	db *statedb.DB, table statedb.Table[Row],
) (statedb.ChangeIterator[Row], error) {
	wtxn := db.WriteTxn(table)
	defer wtxn.Abort()
	changes, err := table.Changes(wtxn)
	if err != nil {
		return nil, fmt.Errorf("follow %s: %w", table.Name(), err)
	}
	wtxn.Commit()
	return changes, nil
}
