// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
)

// The changes of an aborted transaction have no deletions; those of Follow do. Rows that exist
// already come first.
func TestFollow(t *testing.T) {
	type table = statedb.Table[*PeerPrefix]
	type iterator = statedb.ChangeIterator[*PeerPrefix]
	aborted := func(db *statedb.DB, t table) (iterator, error) {
		wtxn := db.WriteTxn(t)
		defer wtxn.Abort()
		return t.Changes(wtxn)
	}
	for name, c := range map[string]struct {
		follow    func(*statedb.DB, table) (iterator, error)
		deletions bool
	}{
		"StateDB": {aborted, false},
		"Follow":  {Follow[*PeerPrefix], true},
	} {
		t.Run(name, func(t *testing.T) {
			db := statedb.New()
			table, err := NewPeerPrefixTable(db)
			require.NoError(t, err)
			row := &PeerPrefix{Prefix: netip.MustParsePrefix("10.0.0.0/8")}
			wtxn := db.WriteTxn(table)
			_, _, err = table.Insert(wtxn, row)
			require.NoError(t, err)
			wtxn.Commit()

			changes, err := c.follow(db, table)
			require.NoError(t, err)
			var deleted []bool
			next := func() {
				rows, _ := changes.Next(db.ReadTxn())
				for change := range rows {
					require.Equal(t, row, change.Object)
					deleted = append(deleted, change.Deleted)
				}
			}
			next()
			require.Equal(t, []bool{false}, deleted)
			wtxn = db.WriteTxn(table)
			_, _, err = table.Delete(wtxn, row)
			require.NoError(t, err)
			wtxn.Commit()
			next()
			require.Equal(t, c.deletions, len(deleted) == 2)
		})
	}
}
