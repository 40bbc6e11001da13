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
		Pools:  tablestest.Open(t, db, tables.NewEgressIPPoolTable),
		IPs:    tablestest.Open(t, db, tables.NewEgressIPTable),
		Voters: tablestest.Open(t, db, tables.NewEgressVotersTable),
		Nodes:  nodes, Policies: policies, Targets: targets, LocalNode: tables.LocalNode{Name: "node-03"},
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

// TestVotedTargets: a voter probes the nodes of pools, and those that it votes for all the time.
func TestVotedTargets(t *testing.T) {
	db := statedb.New()
	targets := tablestest.Open(t, db, tables.NewProbeTargetTable)
	nodes := tablestest.Open(t, db, tables.NewNodeTable)
	pools := tablestest.Open(t, db, tables.NewEgressIPPoolTable)
	ips := tablestest.Open(t, db, tables.NewEgressIPTable)
	voters := tablestest.Open(t, db, tables.NewEgressVotersTable)
	rule := targetParams{
		Targets: targets, Nodes: nodes, Pools: pools, IPs: ips, Voters: voters,
		Policies:  tablestest.Open(t, db, tables.NewEgressPolicyTable),
		LocalNode: tables.LocalNode{Name: "node-1"},
	}
	step := tablestest.NewRule(t, db, rule.declare())
	for i := range 4 {
		nodes.Put(&tables.Node{
			Name: fmt.Sprintf("node-%d", i), Ready: true, Labels: labels.Set{"gateway": fmt.Sprint(i < 3)},
			InternalIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 1, byte(i)})},
		})
	}
	pools.Put(&tables.EgressIPPool{Name: "a", Nodes: "gateway=true"})
	ips.Put(&tables.EgressIP{Addr: netip.MustParseAddr("203.0.113.9"), Node: "node-2"})
	all := func() (targetsNow []tables.ProbeTarget) {
		step.Work()
		for p := range targets.All(db.ReadTxn()) {
			targetsNow = append(targetsNow, *p)
		}
		return targetsNow
	}
	addr := func(i byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 1, i}) }
	want := []tables.ProbeTarget{
		{Node: "node-0", Addr: addr(0)}, {Node: "node-2", Addr: addr(2)},
		{Node: "node-3", Addr: addr(3), Witness: true},
	}
	require.Equal(t, want, all())
	voters.Put(&tables.EgressVoters{Sets: []tables.VoterSet{
		{Number: 1, Voters: []tables.EgressVoter{{Node: "node-1"}}}, {Number: 2},
	}})
	want[1].Voted = true
	require.Equal(t, want, all())
}

// TestTargetsOfLargePools: of a pool with many nodes those are probed that a policy may elect.
func TestTargetsOfLargePools(t *testing.T) {
	db := statedb.New()
	nodes := tablestest.Open(t, db, tables.NewNodeTable)
	pools := tablestest.Open(t, db, tables.NewEgressIPPoolTable)
	policies := tablestest.Open(t, db, tables.NewEgressPolicyTable)
	rule := targetParams{
		Nodes: nodes, Pools: pools, Policies: policies, LocalNode: tables.LocalNode{Name: "node-000"},
		IPs:    tablestest.Open(t, db, tables.NewEgressIPTable),
		Voters: tablestest.Open(t, db, tables.NewEgressVotersTable),
	}
	for i := range 3 * maxPoolNodes {
		nodes.Put(&tables.Node{
			Name: fmt.Sprintf("node-%03d", i), Ready: true,
			Labels:      labels.Set{"gateway": fmt.Sprint(i >= 2*maxPoolNodes)},
			InternalIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 1, byte(i)})},
		})
	}
	addr := netip.MustParseAddr("203.0.113.9")
	pools.Put(&tables.EgressIPPool{
		Name: "a", Prefixes: []netip.Prefix{netip.PrefixFrom(addr, 32)},
	})
	policies.Put(&tables.EgressPolicy{
		Name: "a", Gateways: []tables.GatewaySpec{{Nodes: "gateway=true", EgressIP: addr}},
	})
	targets := rule.wanted(db.ReadTxn())
	for i := 2 * maxPoolNodes; i < 3*maxPoolNodes; i++ {
		require.Contains(t, targets, fmt.Sprintf("node-%03d", i))
	}
}
