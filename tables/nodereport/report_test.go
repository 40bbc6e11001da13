// SPDX-License-Identifier: Apache-2.0

package nodereport

import (
	"net/netip"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
)

// reporting has the inputs of the report, and the rule, which runs by hand.
type reporting struct {
	*testing.T
	db   *statedb.DB
	rule reportParams
	step *tablestest.Rule[tables.PolicyID]

	egress   tablestest.Table[*tables.EgressPolicyStatus]
	network  tablestest.Table[*tables.NetworkPolicyStatus]
	policies tablestest.Table[*tables.EgressPolicy]
	groups   tablestest.Table[*tables.EgressGroup]
	gateways tablestest.Table[*tables.EgressGateway]
}

func newReporting(t *testing.T) *reporting {
	r := &reporting{T: t, db: statedb.New()}
	r.egress = tablestest.Open(t, r.db, tables.NewEgressPolicyStatusTable)
	r.network = tablestest.Open(t, r.db, tables.NewNetworkPolicyStatusTable)
	r.policies = tablestest.Open(t, r.db, tables.NewEgressPolicyTable)
	r.groups = tablestest.Open(t, r.db, tables.NewEgressGroupTable)
	r.gateways = tablestest.Open(t, r.db, tables.NewEgressGatewayTable)
	r.rule = reportParams{
		Egress: r.egress, Network: r.network, Policies: r.policies, Groups: r.groups,
		Gateways: r.gateways, LocalNode: tables.LocalNode{Name: "node-1"},
	}
	r.rule.Output = tablestest.Open(t, r.db, tables.NewPolicyReportTable)
	r.step = tablestest.NewRule(t, r.db, r.rule.declare())
	return r
}

// report returns what is told of a policy, nil if nothing.
func (r *reporting) report(id tables.PolicyID) *tables.ReportedPolicy {
	r.step.Work()
	row, _, found := r.rule.Output.Get(r.db.ReadTxn(), tables.PolicyReportByPolicy(id))
	if !found {
		return nil
	}
	return &row.ReportedPolicy
}

// A network policy is reported while it is not in force, with the reason.
func TestReportOfNetworkPolicy(t *testing.T) {
	r := newReporting(t)
	for _, tc := range []struct {
		status tables.NetworkPolicyStatus
		failed int
		error  string // empty: nothing is reported
	}{
		{tables.NetworkPolicyStatus{State: tables.PolicyPending}, 0, "not in force yet"},
		{tables.NetworkPolicyStatus{State: tables.PolicyFailed, Failed: 2, Refused: "map full"}, 2, "map full"},
		{tables.NetworkPolicyStatus{State: tables.PolicyFailed, Failed: 2, Refused: "other"}, 2, "other"},
		{tables.NetworkPolicyStatus{State: tables.PolicyInForce}, 0, ""},
		{
			tables.NetworkPolicyStatus{State: tables.PolicyTooLarge, TooLarge: "70000 entries"},
			1, "TooLarge, its pods are isolated: 70000 entries",
		},
		{tables.NetworkPolicyStatus{State: tables.PolicyNotHere}, 0, ""},
		{tables.NetworkPolicyStatus{State: tables.PolicyInvalid}, 0, ""},
	} {
		row := tc.status
		row.Policy, row.Generation = networkPolicy, 3
		r.network.Put(&row)
		said := r.report(networkPolicy)
		if tc.error == "" {
			require.Nil(t, said, "%+v", tc.status)
			continue
		}
		require.NotNil(t, said, "%+v", tc.status)
		require.Equal(t, tc.error, said.Error)
		require.Equal(t, tc.failed, said.Failed)
		require.EqualValues(t, 3, said.Generation)
		require.False(t, said.Applied())
	}
}

// An egress policy is always reported, as in force only if its status says so.
func TestReportOfEgressPolicy(t *testing.T) {
	r := newReporting(t)
	id := tables.EgressPolicyID("web")
	for _, tc := range []struct {
		change  func(*tables.EgressPolicyStatus)
		inForce bool
		error   string
	}{
		{func(*tables.EgressPolicyStatus) {}, true, ""},
		{func(s *tables.EgressPolicyStatus) { s.Programmed = 1 }, false, ""},
		{func(s *tables.EgressPolicyStatus) { s.Pending = "yet to move" }, false, "yet to move"},
		{func(s *tables.EgressPolicyStatus) { s.Failed, s.Refused = 1, "map full" }, false, "map full"},
	} {
		s := &tables.EgressPolicyStatus{
			Policy: "web", UID: "uid", Generation: 2, Rules: 2, Programmed: 2,
			LosesTo: []string{"db"},
		}
		tc.change(s)
		r.egress.Put(s)
		said := r.report(id)
		require.Equal(t, tc.inForce, said.Applied(), "%+v", said)
		require.Equal(t, tc.error, said.Error)
		require.Equal(t, s.State() == tables.EgressPending, !tc.inForce && said.Failed == 0)
		require.Equal(t, "uid", said.UID)
		require.Equal(t, []string{"db"}, said.LosesTo)
	}
}

// The report has the egress addresses of buckets for which this node is elected, or why there
// are none.
func TestReportOfGateway(t *testing.T) {
	r := newReporting(t)
	id := tables.EgressPolicyID("web")
	r.egress.Put(&tables.EgressPolicyStatus{Policy: "web"})
	r.policies.Put(&tables.EgressPolicy{Name: "web"})
	r.groups.Put(&tables.EgressGroup{
		Life: tables.Life{Number: 5}, Digest: tables.GroupDigest(nil), Policies: []string{"web"},
		Gateways: []tables.GatewayChoice{{Node: "node-1"}, {Node: "node-2"}},
	})
	bucket := func(number uint32, node, addr, reason string) {
		row := &tables.EgressGateway{
			GatewayKey: bpf.GatewayKey{Group: 5, Bucket: number}, Node: node, Reason: reason,
		}
		if addr != "" {
			row.EgressIPv4 = netip.MustParseAddr(addr)
		}
		r.gateways.Put(row)
	}
	bucket(0, "node-1", "192.0.2.2", "")
	bucket(1, "node-1", "192.0.2.1", "")
	bucket(2, "node-2", "192.0.2.3", "")
	both := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}
	require.Equal(t, both, r.report(id).EgressIPs)
	bucket(1, "node-2", "192.0.2.1", "")
	require.Equal(t, both[1:], r.report(id).EgressIPs, "a bucket is another node's now")
	bucket(0, "node-1", "", "no interface eth0")
	require.Equal(t, "no interface eth0", r.report(id).GatewayError)
	require.Empty(t, r.report(id).EgressIPs)
}

var networkPolicy = tables.PolicyID{
	Kind: tables.PolicyCilium, Name: tables.Name{Namespace: "shop", Name: "web"},
}
