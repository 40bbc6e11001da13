// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
)

// StateDB allocates more memory to list nothing than ListIfAny. If this fails, it is fixed, and
// List can replace ListIfAny.
func TestListIfAny(t *testing.T) {
	db := statedb.New()
	table, err := NewIPCacheTable(db)
	require.NoError(t, err)
	wtxn := db.WriteTxn(table)
	row := &IPCache{Prefix: netip.MustParsePrefix("10.0.0.1/32"), Member: 1}
	_, _, err = table.Insert(wtxn, row)
	require.NoError(t, err)
	txn := wtxn.Commit()

	rows := ListIfAny(txn, table, IPCacheByMember(1))
	require.Equal(t, []*IPCache{row}, statedb.Collect(rows))
	absent := IPCacheByMember(2)
	require.Empty(t, statedb.Collect(ListIfAny(txn, table, absent)))
	list := testing.AllocsPerRun(100, func() {
		for range table.List(txn, absent) {
		}
	})
	listIfAny := testing.AllocsPerRun(100, func() {
		for range ListIfAny(txn, table, absent) {
		}
	})
	require.Less(t, listIfAny, list)
}
