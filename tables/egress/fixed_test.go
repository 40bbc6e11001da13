// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
)

// TestFixedEgressIPs: a fixed address is at the gateway of the oldest policy that names it, which
// is the first node that it selects and that can serve. Nodes do not vote on it, whatever others
// have told, and an internal address of a Node has no row.
func TestFixedEgressIPs(t *testing.T) {
	w := newIPWorld(t)
	w.pool(tables.EgressIPPool{Name: "f", Prefixes: prefixes("203.0.113.0/24", "192.0.2.2/32"),
		Fixed: true})
	for i := range 3 {
		w.node(i+1, true, "x")
	}
	w.policy("younger", "zone=y", "203.0.113.9", 1)
	w.policy("older", "zone=x", "203.0.113.9", 2)
	w.policy("internal", "", "192.0.2.2", 1)
	tablestest.Insert(t, w.db, w.Owners, &tables.EgressIPOwner{
		Addr:     netip.MustParseAddr("203.0.113.9"),
		NodeAddr: netip.MustParseAddr("192.0.2.3")})
	at := func() string {
		row := w.row("203.0.113.9")
		require.True(t, row.Fixed)
		require.Empty(t, row.Node, "no vote")
		require.Zero(t, row.IfIndex, "it is not given to a device")
		if node, addr := row.At(); node != "" {
			return fmt.Sprint(node, " ", addr)
		}
		return row.Reason
	}
	require.Equal(t, "node-1 192.0.2.1", at())
	require.Nil(t, w.row("192.0.2.2"))
	lost := func(i int, state tables.PathState) {
		tablestest.Insert(t, w.db, w.Health, &tables.GatewayHealth{
			Node: fmt.Sprintf("node-%d", i), State: state})
	}
	lost(1, tables.PathLost)
	require.Equal(t, "node-2 192.0.2.2", at())
	lost(2, tables.PathLost)
	lost(3, tables.PathRecovering)
	require.Equal(t, "node-1 192.0.2.1", at(), "it does not move because all are lost")
	for i := range 3 {
		w.node(i+1, false, "x")
	}
	require.Equal(t, "node-1 is not ready, node-2 is not ready, node-3 is not ready", at())

	w.pool(tables.EgressIPPool{Name: "f", Prefixes: prefixes("203.0.113.0/24"), Fixed: true,
		Error: "spec.exclude[0]: is empty"})
	require.Contains(t, at(), "pool f: spec.exclude[0]")
	w.pool(tables.EgressIPPool{Name: "f", Prefixes: prefixes("203.0.113.0/24")})
	require.False(t, w.row("203.0.113.9").Fixed)
}

// TestFixedPoolsAreNotProbed: nodes are not probed because a fixed pool, which selects none, has
// addresses.
func TestFixedPoolsAreNotProbed(t *testing.T) {
	w := newIPWorld(t)
	p := targetParams{Pools: w.Pools, Policies: w.Policies}
	w.policy("p", "zone=x", "203.0.113.9", 1)
	w.pool(tables.EgressIPPool{Name: "f", Prefixes: prefixes("203.0.113.0/24"), Fixed: true})
	require.Empty(t, p.poolSelectors(w.db.ReadTxn()))
	w.pool(tables.EgressIPPool{Name: "f", Prefixes: prefixes("203.0.113.0/24")})
	require.Len(t, p.poolSelectors(w.db.ReadTxn()), 2)
}
