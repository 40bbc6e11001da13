// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
)

// Desired is a table of entries wanted in the kernel, given by the module that
// derives it to the one reconciler that writes its status column, and nothing
// else in it.
type Desired[Row any] struct{ statedb.RWTable[Row] }

// NewDesired hands a table to its reconciler.
func NewDesired[Row any](table statedb.RWTable[Row]) Desired[Row] { return Desired[Row]{table} }

// SetStatus sets the status of rows that still want what they did when they were read.
func SetStatus[R any, Row interface {
	ReconciledRow[R]
	Equal(Row) bool
}](db *statedb.DB, desired Desired[Row], status reconciler.Status, rows ...Row) error {
	wtxn := db.WriteTxn(desired.RWTable)
	defer wtxn.Abort()
	changes := 0
	for _, row := range rows {
		now, _, found := desired.Get(wtxn, desired.PrimaryIndexer().QueryFromObject(row))
		if !found || !now.Equal(row) {
			continue
		}
		if _, _, err := desired.Insert(wtxn, WithStatus(now, status)); err != nil {
			return err
		}
		changes++
	}
	if changes > 0 {
		wtxn.Commit()
	}
	return nil
}
