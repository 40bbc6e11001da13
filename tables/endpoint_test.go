// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
)

// A pod of the same name may come to this node from another one, and leave it again.
func TestEndpointsHere(t *testing.T) {
	db := statedb.New()
	endpoints, err := NewEndpointTable(db, LocalNode{Name: "here"})
	require.NoError(t, err)
	set := &LabelSet{}
	for _, step := range []struct {
		node string
		here int
	}{{"there", 0}, {"here", 1}, {"here", 1}, {"", 0}, {"here", 1}, {"there", 0}} {
		wtxn := db.WriteTxn(endpoints)
		_, _, err := endpoints.Insert(wtxn, &Endpoint{Name: Name{Namespace: "shop", Name: "db-0"}, Node: step.node, LabelSet: set})
		require.NoError(t, err)
		require.Len(t, statedb.Collect(endpoints.List(wtxn.Commit(), EndpointsHere())), step.here, step.node)
	}
}
