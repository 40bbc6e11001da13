// SPDX-License-Identifier: Apache-2.0

package subjects

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/tables"
)

// The gateway of an egress address that moves is the node that shall have it, and none if the
// item does not select that.
func TestEgressIPElects(t *testing.T) {
	h := newHarness(t, tables.EnforcementDefault, CIDRMatch{})
	addr := netip.MustParseAddr("203.0.113.9")
	for i, name := range []string{"node-1", "node-2", "node-3"} {
		h.Nodes.Put(&tables.Node{
			Name: name, Ready: true, Labels: labels.Set{"gateway": name},
			InternalIPs: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)})},
		})
	}
	h.EgressPolicies.Put(&tables.EgressPolicy{Name: "p", Gateways: []tables.GatewaySpec{
		{Nodes: "gateway!=node-3", EgressIP: addr},
	}})
	isLocal := func() bool { return all(h.db.ReadTxn(), h.Groups)[0].Gateways[0].Local }
	elected := func() string {
		h.work()
		rows := all(h.db.ReadTxn(), h.Groups)
		require.Len(t, rows, 1)
		return rows[0].Gateways[0].String()
	}
	require.Equal(t, "node-1 (192.0.2.1)", elected())
	row := tables.EgressIP{Addr: addr, Node: "node-2", NodeAddr: netip.MustParseAddr("192.0.2.2")}
	h.EgressIPs.Put(&row)
	require.Equal(t, "node-2 (203.0.113.9)", elected())
	h.EgressIPs.Put(&tables.EgressIP{Addr: addr, Node: "node-3"})
	require.Equal(t,
		"none: egress IP 203.0.113.9 is at node-3, which the item does not select", elected())
	h.EgressIPs.Put(&tables.EgressIP{Addr: addr, Reason: "no node"})
	require.Equal(t, "none: no node", elected())
	h.Nodes.Put(&tables.Node{Name: here, Ready: true})
	h.EgressIPs.Put(&tables.EgressIP{Addr: addr, Node: here, NodeAddr: row.NodeAddr, IfIndex: 2})
	require.Equal(t, here+" (203.0.113.9)", elected())
	require.True(t, isLocal(), "it serves here, and follows the addresses of this node")
	mayHave := row
	mayHave.IfIndex = 2
	h.EgressIPs.Put(&mayHave)
	require.Equal(t, "node-2 (203.0.113.9)", elected())
	require.True(t, isLocal(), "others may find that this node shall have it")
	h.EgressIPs.Put(&row)
	elected()
	require.False(t, isLocal())
	h.EgressIPs.Remove(&row)
	require.Equal(t, "node-1 (192.0.2.1)", elected())

	// Of a fixed address the nodes are elected as of one of no pool.
	h.EgressIPs.Put(&tables.EgressIP{Addr: addr, Fixed: true, Owner: "node-1"})
	require.Equal(t, "node-1 (203.0.113.9)", elected())
	require.True(t, isLocal(), "others may elect this node")
	h.EgressIPs.Put(&tables.EgressIP{Addr: addr, Fixed: true, Owner: "node-2"})
	require.Equal(t,
		"none: egress IP 203.0.113.9 is at node-2, which the oldest policy with it elects",
		elected())
	h.EgressIPs.Put(&tables.EgressIP{Addr: addr, Fixed: true, Reason: "the pool has a mistake"})
	require.Equal(t, "none: the pool has a mistake", elected())
}
