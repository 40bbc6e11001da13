// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
)

// TestTargets: the first candidates of all policies' gateways are probed, and a few witnesses if
// there are any.
func TestTargets(t *testing.T) {
	db := statedb.New()
	nodes := tablestest.Open(t, db, tables.NewNodeTable)
	policies := tablestest.Open(t, db, tables.NewEgressPolicyTable)
	targets := tablestest.Open(t, db, tables.NewProbeTargetTable)
	rule := targetParams{
		Pools: tablestest.Open(t, db, tables.NewEgressIPPoolTable),
		Nodes: nodes, Policies: policies, Targets: targets, LocalNode: tables.LocalNode{Name: "node-03"},
	}
	step := tablestest.NewRule(t, db, rule.declare())
	node := func(i int, role string) *tables.Node {
		return &tables.Node{
			Name: fmt.Sprintf("node-%02d", i), Ready: true, Labels: labels.Set{"role": role},
			InternalIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})},
		}
	}
	probed := func() (gateways []string, witnesses int) {
		step.Work()
		for p := range targets.All(db.ReadTxn()) {
			if p.Witness {
				witnesses++
			} else {
				gateways = append(gateways, p.Node)
			}
		}
		return gateways, witnesses
	}
	for i := range 20 {
		nodes.Put(node(i, map[bool]string{true: "gateway", false: "worker"}[i < 12]))
	}
	gateways, witnesses := probed()
	require.Empty(t, gateways)
	require.Zero(t, witnesses, "no gateway, no witness")

	policy := &tables.EgressPolicy{Name: "a", Gateways: []tables.GatewaySpec{
		{Nodes: "role=gateway"}, {Nodes: "role=gateway,x", Error: "does not parse"},
	}}
	policies.Put(policy)
	gateways, witnesses = probed()
	require.Equal(t, []string{
		"node-00", "node-01", "node-02", "node-04", "node-05", "node-06", "node-07",
	}, gateways, "the first eight, without this node")
	require.Equal(t, witnessesProbed, witnesses)

	unready := node(1, "gateway")
	unready.Ready = false
	nodes.Put(unready)
	gateways, _ = probed()
	require.Contains(t, gateways, "node-08", "eight that are ready")
	require.Contains(t, gateways, "node-01", "and those that are not")

	policies.Put(&tables.EgressPolicy{
		Name: "b", Gateways: []tables.GatewaySpec{{Nodes: "role=worker"}},
	})
	gateways, witnesses = probed()
	require.Len(t, gateways, 8+8)
	require.Equal(t, witnessesProbed, witnesses)

	policies.Remove(policy, &tables.EgressPolicy{Name: "b"})
	gateways, witnesses = probed()
	require.Empty(t, gateways)
	require.Zero(t, witnesses)
}

// TestWitnessesDiffer: nodes have different witnesses.
func TestWitnessesDiffer(t *testing.T) {
	db := statedb.New()
	nodes := tablestest.Open(t, db, tables.NewNodeTable)
	count := map[string]int{}
	for i := range 100 {
		nodes.Put(&tables.Node{
			Name: fmt.Sprintf("node-%d", i), Ready: true,
			InternalIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 1, byte(i)})},
		})
	}
	for i := range 100 {
		p := targetParams{Nodes: nodes, LocalNode: tables.LocalNode{Name: fmt.Sprintf("node-%d", i)}}
		targets := map[string]*tables.ProbeTarget{}
		p.addWitnesses(db.ReadTxn(), targets)
		require.Len(t, targets, witnessesProbed)
		for name := range targets {
			require.NotEqual(t, p.LocalNode.Name, name)
			count[name]++
		}
	}
	for name, n := range count {
		require.Less(t, n, 12, name)
	}
}
