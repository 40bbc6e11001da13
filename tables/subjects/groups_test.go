// SPDX-License-Identifier: Apache-2.0

package subjects

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
)

// TestMarksOfNode says which groups are elected anew when a node changes: those of which it becomes
// or ceases to be a candidate, and those of a candidate that is ready or not, or moves.
func TestMarksOfNode(t *testing.T) {
	h := cluster(t, 2, 3)
	h.work()
	groups := h.Groups.NumObjects(h.db.ReadTxn())
	require.Positive(t, groups)
	marks := func(old, new *tables.Node) (n int) {
		h.markNode(h.db.ReadTxn(), old, new, func(k key) {
			if k.kind == ofGroup {
				n++
			}
		})
		return n
	}
	var gateway *tables.Node
	for n := range h.Nodes.All(h.db.ReadTxn()) {
		if marks(n, nil) == groups {
			gateway = n
			break
		}
	}
	require.NotNil(t, gateway, "a candidate of all groups")
	changed := func(change func(*tables.Node)) *tables.Node {
		n := *gateway
		n.Labels = labels.Merge(gateway.Labels, nil)
		change(&n)
		return &n
	}
	labeled := changed(func(n *tables.Node) { n.Labels["unrelated"] = "x" })
	require.Zero(t, marks(gateway, labeled))
	require.Equal(t, groups, marks(gateway, changed(func(n *tables.Node) { n.Labels = nil })))
	require.Equal(t, groups, marks(gateway, changed(func(n *tables.Node) { n.Ready = !n.Ready })))
	require.Equal(t, groups, marks(gateway, changed(func(n *tables.Node) { n.InternalIPs = nil })))
}

// TestElectNode: the first node that is ready and not lost is elected, and others serve as well
// where they are candidates.
func TestElectNode(t *testing.T) {
	h := newHarness(t, tables.EnforcementDefault, CIDRMatch{})
	node := func(name string, last byte) *tables.Node {
		return &tables.Node{
			Name: name, Ready: true, Labels: labels.Set{"gateway": "yes"},
			InternalIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, last})},
		}
	}
	a, b, c := node("a", 1), node("b", 2), node("c", 3)
	tablestest.Insert(t, h.db, h.Nodes, a, b, c)
	specs := []tables.GatewaySpec{{Nodes: "gateway=yes"}}
	policy := &tables.EgressPolicy{Name: "p", Gateways: specs}
	tablestest.Insert(t, h.db, h.EgressPolicies, policy)
	elected := func() tables.GatewayChoice {
		h.work()
		g, _, found := h.Groups.Get(h.db.ReadTxn(),
			tables.EgressGroupByDigest(tables.GroupDigest(specs)))
		require.True(t, found)
		return g.Gateways[0]
	}
	health := func(node string, state tables.PathState) {
		tablestest.Insert(t, h.db, h.Health, &tables.GatewayHealth{Node: node, State: state})
	}
	require.Equal(t, "a", elected().Node)
	health("a", tables.PathUnreachable)
	require.Equal(t, "a", elected().Node, "unreachable is not lost")
	health("a", tables.PathLost)
	require.Equal(t, "b", elected().Node)
	health("a", tables.PathRecovering)
	require.Equal(t, "b", elected().Node)
	health("b", tables.PathLost)
	require.Equal(t, "c", elected().Node)
	health("c", tables.PathLost)
	require.Equal(t, "a", elected().Node, "all are lost: nothing moves for that")
	health("b", tables.PathHealthy)
	require.Equal(t, "b", elected().Node)
	unready := *b
	unready.Ready = false
	tablestest.Insert(t, h.db, h.Nodes, &unready)
	require.Equal(t, "a", elected().Node)
	health("a", tables.PathHealthy)
	require.Equal(t, "a", elected().Node)

	drain := func(n *tables.Node, draining bool) {
		changed := *n
		changed.Draining = draining
		tablestest.Insert(t, h.db, h.Nodes, &changed)
	}
	health("b", tables.PathHealthy)
	health("c", tables.PathHealthy)
	drain(a, true)
	drain(b, false)
	require.Equal(t, "b", elected().Node)
	health("b", tables.PathLost)
	require.Equal(t, "c", elected().Node)
	drain(c, true)
	require.Equal(t, "a", elected().Node, "better one that is being drained than one that is lost")
	health("a", tables.PathLost)
	health("c", tables.PathLost)
	require.Equal(t, "a", elected().Node)
	health("b", tables.PathHealthy)
	require.Equal(t, "b", elected().Node)
}
