// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

// TestEgressIPsOfNodes: an address of a Node is none that moves, from when the Node is known.
func TestEgressIPsOfNodes(t *testing.T) {
	w := newIPWorld(t)
	w.pool(tables.EgressIPPool{Name: "a", Prefixes: prefixes("192.0.2.0/24")})
	w.node(1, true, "a")
	w.policy("p", "", "192.0.2.2", 1)
	w.policy("q", "", "192.0.2.9", 1)
	first, other := netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.9")
	require.Equal(t, map[netip.Addr]string{first: "node-1", other: "node-1"}, w.owners())
	w.node(2, false, "a")
	require.Equal(t, map[netip.Addr]string{other: "node-1"}, w.owners())
}
