// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"iter"

	"github.com/cilium/statedb"
)

// Rare lists the rows that a query finds, where most often there is none: to look
// that up costs much less than to list nothing.
func Rare[Row any](txn statedb.ReadTxn, table statedb.Table[Row], query statedb.Query[Row]) iter.Seq2[Row, statedb.Revision] {
	if _, _, found := table.Get(txn, query); !found {
		return func(func(Row, statedb.Revision) bool) {}
	}
	return table.List(txn, query)
}
