// SPDX-License-Identifier: Apache-2.0

package egressip

import (
	"fmt"

	"github.com/cilium/statedb"
)

// setRows makes the rows of a table, which nothing else writes, those that are wanted, each once.
// It locks the table only if one differs, as it is called at each tick.
func setRows[Row any](
	db *statedb.DB, table statedb.RWTable[Row], by func(Row) statedb.Query[Row],
	equal func(wanted, existing Row) bool, wanted []Row,
) error {
	txn, primary := db.ReadTxn(), table.PrimaryIndexer()
	var changed, gone []Row
	isWanted := make(map[string]bool, len(wanted))
	for _, row := range wanted {
		isWanted[string(primary.ObjectToKey(row))] = true
		if former, _, found := table.Get(txn, by(row)); !found || !equal(row, former) {
			changed = append(changed, row)
		}
	}
	for row := range table.All(txn) {
		if !isWanted[string(primary.ObjectToKey(row))] {
			gone = append(gone, row)
		}
	}
	if len(changed)+len(gone) == 0 {
		return nil
	}
	wtxn := db.WriteTxn(table)
	defer wtxn.Abort()
	for _, row := range changed {
		if _, _, err := table.Insert(wtxn, row); err != nil {
			return fmt.Errorf("write %s: %w", table.Name(), err)
		}
	}
	for _, row := range gone {
		if _, _, err := table.Delete(wtxn, row); err != nil {
			return fmt.Errorf("delete from %s: %w", table.Name(), err)
		}
	}
	wtxn.Commit()
	return nil
}
