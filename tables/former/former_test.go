// SPDX-License-Identifier: Apache-2.0

package former

import (
	"net/netip"
	"runtime"
	"testing"
	"weak"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

// Rows that have been replaced are free, and all else is as it was.
func TestForget(t *testing.T) {
	db := statedb.New()
	namespaces, err := tables.NewNamespaceTable(db)
	require.NoError(t, err)
	require.NoError(t, Forget(db, namespaces, many), "there is nothing")

	insert := func(row *tables.Namespace) statedb.ReadTxn {
		wtxn := db.WriteTxn(namespaces)
		_, _, err := namespaces.Insert(wtxn, row)
		require.NoError(t, err)
		return wtxn.Commit()
	}
	former := &tables.Namespace{Name: "shop"}
	insert(former)
	replaced := weak.Make(former)
	former = nil
	txn := insert(&tables.Namespace{Name: "shop", Labels: map[string]string{"team": "a"}})
	row, revision, _ := namespaces.Get(txn, tables.NamespaceByName("shop"))
	_, watch := namespaces.AllWatch(txn)

	require.NoError(t, Forget(db, namespaces, many))
	runtime.GC()
	require.Nil(t, replaced.Value())
	again, at, found := namespaces.Get(db.ReadTxn(), tables.NamespaceByName("shop"))
	require.True(t, found)
	require.Same(t, row, again)
	require.Equal(t, revision, at)
	select {
	case <-watch:
		require.Fail(t, "a change was told of")
	default:
	}
}

// What has left an index is free, though nothing else leaves that.
func TestForgetUnindexed(t *testing.T) {
	db := statedb.New()
	nodes, err := tables.NewNodeTable(db)
	require.NoError(t, err)
	insert := func(row *tables.Node) {
		wtxn := db.WriteTxn(nodes)
		_, _, err := nodes.Insert(wtxn, row)
		require.NoError(t, err)
		wtxn.Commit()
	}
	insert(&tables.Node{Name: "other"})
	former := &tables.Node{Name: "node", InternalIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
	insert(former)
	replaced := weak.Make(former)
	former = nil
	insert(&tables.Node{Name: "node"})

	require.NoError(t, Forget(db, nodes, many))
	runtime.GC()
	require.Nil(t, replaced.Value())
}
