// SPDX-License-Identifier: Apache-2.0

package objectstatus

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/tables"
)

// world is what an egress policy of generation 2 is judged by.
type world struct {
	policy   tables.EgressPolicy
	gateways []tables.GatewayChoice
	nodes    []*tables.Node
	reports  map[string]*tables.ReportedPolicy // by node
	unserved bool                              // there is no CRD of reports
}

func node(name string, ready bool) *tables.Node { return &tables.Node{Name: name, Ready: ready} }

// said is a report in which the policy is in force.
func said(change func(p *tables.ReportedPolicy)) *tables.ReportedPolicy {
	p := &tables.ReportedPolicy{Policy: tables.EgressPolicyID("web"), UID: "uid", Generation: 2, Wanted: 5, Programmed: 5}
	if change != nil {
		change(p)
	}
	return p
}

// status is what the object shall say.
func (w *world) status(t *testing.T) *tables.ObjectStatus {
	db := statedb.New()
	insert := func(table statedb.TableMeta, do func(wtxn statedb.WriteTxn) error) {
		wtxn := db.WriteTxn(table)
		defer wtxn.Abort()
		require.NoError(t, do(wtxn))
		wtxn.Commit()
	}
	egress, err := tables.NewEgressPolicyTable(db)
	require.NoError(t, err)
	elections, err := tables.NewGatewayElectionTable(db)
	require.NoError(t, err)
	nodes, err := tables.NewNodeTable(db)
	require.NoError(t, err)
	reports, err := tables.NewNodeReportTable(db)
	require.NoError(t, err)
	w.policy.Name, w.policy.UID, w.policy.Generation = "web", "uid", 2
	insert(egress, func(wtxn statedb.WriteTxn) error { _, _, err := egress.Insert(wtxn, &w.policy); return err })
	insert(elections, func(wtxn statedb.WriteTxn) error {
		_, _, err := elections.Insert(wtxn, &tables.GatewayElection{
			Digest: tables.GroupDigest(nil), Gateways: w.gateways,
		})
		return err
	})
	for _, n := range w.nodes {
		insert(nodes, func(wtxn statedb.WriteTxn) error { _, _, err := nodes.Insert(wtxn, n); return err })
	}
	for name, p := range w.reports {
		r := &tables.NodeReport{Node: name}
		r.Policies = []tables.ReportedPolicy{*p}
		insert(reports, func(wtxn statedb.WriteTxn) error { _, _, err := reports.Insert(wtxn, r); return err })
	}
	s := &status{statusParams: statusParams{Egress: egress, Elections: elections, Nodes: nodes, Reports: reports}}
	txn := db.ReadTxn()
	c := &statusRound{s, txn, txn, !w.unserved, s.agents(txn)}
	row := &tables.ObjectStatus{Policy: tables.EgressPolicyID("web")}
	require.True(t, c.egress(row, nil, nil))
	return row
}

// worthAnEvent are the reasons of what is wrong, and not just on its way.
var worthAnEvent = []string{"Invalid", "Failed", "NoGateway", "NoEgressAddress", "Overlap"}

func TestConditions(t *testing.T) {
	elected := []tables.GatewayChoice{{Node: "node-1", Addr: netip.MustParseAddr("192.0.2.1")}}
	two := []*tables.Node{node("node-1", true), node("node-2", true)}
	both := func(change func(p *tables.ReportedPolicy)) map[string]*tables.ReportedPolicy {
		return map[string]*tables.ReportedPolicy{"node-1": said(nil), "node-2": said(change)}
	}
	for name, tc := range map[string]struct {
		world
		condition, want, nodes string
		message                string
	}{
		"in force":               {world: world{gateways: elected, nodes: two, reports: both(nil)}, want: "Programmed=True (Programmed)", nodes: "2/2"},
		"no report":              {world: world{gateways: elected, nodes: two}, want: "Programmed=Unknown (Pending)", nodes: "0/2", message: "No report yet from node-1, node-2"},
		"of another generation":  {world: world{gateways: elected, nodes: two, reports: both(func(p *tables.ReportedPolicy) { p.Generation = 1 })}, want: "Programmed=Unknown (Pending)", nodes: "1/2", message: "No report yet from node-2"},
		"of another object":      {world: world{gateways: elected, nodes: two, reports: both(func(p *tables.ReportedPolicy) { p.UID = "former" })}, want: "Programmed=Unknown (Pending)", nodes: "1/2"},
		"on its way":             {world: world{gateways: elected, nodes: two, reports: both(func(p *tables.ReportedPolicy) { p.Programmed = 4 })}, want: "Programmed=False (Pending)", nodes: "1/2", message: "Not yet on node-2"},
		"refused":                {world: world{gateways: elected, nodes: two, reports: both(func(p *tables.ReportedPolicy) { p.Failed, p.Error = 1, "full" })}, want: "Programmed=False (Failed)", nodes: "1/2", message: "node-2: full"},
		"no CRD of reports":      {world: world{gateways: elected, nodes: two, unserved: true}, want: "Programmed=Unknown (NoReports)", nodes: "0/2"},
		"no node":                {world: world{gateways: elected}, want: "Programmed=Unknown (NoNodes)", nodes: "0/0"},
		"no gateway":             {world: world{gateways: []tables.GatewayChoice{{Reason: "no node matches"}}, nodes: two, reports: both(nil)}, want: "Programmed=False (NoGateway)", nodes: "2/2", message: "The traffic is dropped: no node matches"},
		"one gateway of two":     {world: world{gateways: append(elected, tables.GatewayChoice{Reason: "no node matches"}), nodes: two, reports: both(nil)}, want: "Programmed=True (Programmed)", nodes: "2/2"},
		"a gateway that cannot":  {world: world{gateways: []tables.GatewayChoice{{Node: "node-2"}}, nodes: two, reports: both(func(p *tables.ReportedPolicy) { p.GatewayError = "no interface" })}, want: "Programmed=False (NoEgressAddress)", nodes: "2/2", message: "node-2 drops the traffic: no interface"},
		"a node that is gone":    {world: world{gateways: elected, nodes: two[:1], reports: both(func(p *tables.ReportedPolicy) { p.Failed = 1 })}, want: "Programmed=True (Programmed)", nodes: "1/1"},
		"not ready, and behind":  {world: world{gateways: elected, nodes: []*tables.Node{two[0], node("node-2", false)}, reports: both(func(p *tables.ReportedPolicy) { p.Generation = 1 })}, want: "Programmed=True (Programmed)", nodes: "1/1"},
		"not ready, and in time": {world: world{gateways: elected, nodes: []*tables.Node{two[0], node("node-2", false)}, reports: both(nil)}, want: "Programmed=True (Programmed)", nodes: "2/2"},
		"a node without agent": {
			world: world{gateways: elected, nodes: []*tables.Node{two[0], {Name: "node-2", Ready: true, Labels: labels.Set{"kubernetes.io/os": "windows"}}}, reports: both(nil)},
			want:  "Programmed=True (Programmed)", nodes: "1/1",
		},
		"accepted": {world: world{nodes: two}, condition: "Accepted", want: "Accepted=True (Valid)", nodes: "0/2"},
		"invalid": {
			world:     world{nodes: two, policy: tables.EgressPolicy{Errors: []tables.FieldError{{Field: "spec.destinationCIDRs[1]", Reason: "no prefix"}}}},
			condition: "Accepted", want: "Accepted=False (Invalid)", nodes: "0/2", message: "spec.destinationCIDRs[1]: no prefix",
		},
		"no conflict": {world: world{nodes: two, reports: both(nil)}, condition: "Conflicted", want: "Conflicted=False (NoOverlap)", nodes: "2/2"},
		"a loser": {
			world:     world{nodes: two, reports: both(func(p *tables.ReportedPolicy) { p.LosesTo = []string{"192.0.2.0/24 goes to policy old"} })},
			condition: "Conflicted", want: "Conflicted=True (Overlap)", nodes: "2/2", message: "192.0.2.0/24 goes to policy old",
		},
	} {
		t.Run(name, func(t *testing.T) {
			row := tc.status(t)
			if tc.condition == "" {
				tc.condition = "Programmed"
			}
			for _, c := range row.Conditions {
				if c.Type != tc.condition {
					continue
				}
				require.Equal(t, tc.want, c.String())
				if tc.message != "" {
					require.Equal(t, tc.message, c.Message)
				}
				told := slices.Contains(row.Problems, tables.Problem{Reason: c.Reason, Message: c.Message, Condition: c.Type})
				require.Equal(t, slices.Contains(worthAnEvent, c.Reason), told, "%v", row.Problems)
			}
			require.Equal(t, tc.nodes, row.Nodes.String())
			require.Len(t, row.Conditions, 3)
		})
	}
}

// Of many nodes a message names a few, and no message is long.
func TestMessagesAreBounded(t *testing.T) {
	w := world{gateways: []tables.GatewayChoice{{Node: "node-0"}}, reports: map[string]*tables.ReportedPolicy{}}
	for i := range 1000 {
		w.nodes = append(w.nodes, node(fmt.Sprintf("node-%d", i), true))
	}
	require.Equal(t, "No report yet from node-0, node-1, node-10, and 997 more nodes", w.status(t).Conditions[1].Message)
	for i := range 1000 {
		w.reports[fmt.Sprintf("node-%d", i)] = said(func(p *tables.ReportedPolicy) { p.Failed, p.Error = 1, strings.Repeat("ü", 1000) })
	}
	message := w.status(t).Conditions[1].Message
	require.LessOrEqual(t, len(message), maxMessage)
	require.Equal(t, strings.ToValidUTF8(message, "?"), message)
}
