// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"context"
	"fmt"

	"github.com/cilium/statedb"
)

// Follow returns the changes of a table. The first changes are the rows that exist already.
//
// This is for want of a function of StateDB: see docs/statedb.md.
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

// AwaitInitialized waits until tables are initialized. It returns false if the context ends before.
func AwaitInitialized(ctx context.Context, db *statedb.DB, tables ...interface {
	Initialized(statedb.ReadTxn) (bool, <-chan struct{})
}) bool {
	for _, table := range tables {
		_, initialized := table.Initialized(db.ReadTxn())
		select {
		case <-initialized:
		case <-ctx.Done():
			return false
		}
	}
	return true
}
