// SPDX-License-Identifier: Apache-2.0

package objectstatus

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
)

// changing is what policies are judged by, and changes; and the rule, which runs by hand.
type changing struct {
	t  *testing.T
	db *statedb.DB
	*status
	step *tablestest.Rule[statusKey]

	nodes   tablestest.Table[*tables.Node]
	reports tablestest.Table[*tables.NodeReport]
	egress  tablestest.Table[*tables.EgressPolicy]
	network tablestest.Table[*tables.NetworkPolicy]
}

func newChanging(t *testing.T) *changing {
	c := &changing{t: t, db: statedb.New(), status: &status{}}
	c.nodes = tablestest.Open(c.t, c.db, tables.NewNodeTable)
	c.reports = tablestest.Open(c.t, c.db, tables.NewNodeReportTable)
	c.egress = tablestest.Open(c.t, c.db, tables.NewEgressPolicyTable)
	c.network = tablestest.Open(c.t, c.db, tables.NewNetworkPolicyTable)
	c.Output = tablestest.Open(c.t, c.db, tables.NewObjectStatusTable)
	c.Nodes, c.Reports, c.Egress, c.Network = c.nodes, c.reports, c.egress, c.network
	elections := tablestest.Open(c.t, c.db, tables.NewGatewayElectionTable)
	origins := tablestest.Open(c.t, c.db, tables.NewObjectSourceTable)
	leadership := tablestest.Open(c.t, c.db, tables.NewLeadershipTable)
	c.Elections, c.Origins, c.Leadership = elections, origins, leadership
	c.step = tablestest.NewRule(c.t, c.db, c.declare())

	origins.Put(&tables.ObjectSource{Source: tables.NodeReportSource, State: tables.SourceSynced})
	leadership.Put(&tables.Leadership{Leading: true})
	for _, name := range []string{"web", "db"} {
		c.egress.Put(&tables.EgressPolicy{Name: name, Generation: 1})
	}
	c.network.Put(&tables.NetworkPolicy{
		Kind: networkPolicy.Kind, Name: networkPolicy.Name, Generation: 1,
	})
	c.work()
	return c
}

func (c *changing) work() { c.step.Work() }

// change has a node as it is given, and what it tells; nil of either has it go.
func (c *changing) change(name string, n *tables.Node, r *tables.NodeReport) {
	wtxn := c.db.WriteTxn(c.nodes, c.reports)
	defer wtxn.Abort()
	formerNode, _, _ := c.nodes.Get(wtxn, tables.NodeByName(name))
	formerReport, _, _ := c.reports.Get(wtxn, tables.NodeReportByNode(name))
	put(c.t, wtxn, c.nodes, formerNode, n)
	put(c.t, wtxn, c.reports, formerReport, r)
	wtxn.Commit()
}

func (c *changing) row(id tables.PolicyID) *tables.ObjectStatus {
	row, _, found := c.Output.Get(c.db.ReadTxn(), tables.ObjectStatusByPolicy(id))
	require.True(c.t, found, id)
	return row
}

// check compares what is said of the policies with what asking all nodes comes to.
func (c *changing) check(what ...any) {
	c.t.Helper()
	for _, name := range []string{"web", "db"} {
		row := c.row(tables.EgressPolicyID(name))
		want := c.naive(row)
		require.Equal(c.t, want, tallyOf(row.Exceptions, c.agents(c.db.ReadTxn())), what...)
		require.Equal(c.t, tables.StatusNodes{Programmed: want.programmed, Total: want.total}, row.Nodes)
		require.Contains(c.t, row.Conditions, programmed(want, row.Gateways, true))
	}
	row := c.row(networkPolicy)
	var problems []tables.Problem
	if failed := c.naive(row).failed; failed.count > 0 {
		problems = []tables.Problem{{Reason: reasonFailed, Message: failed.text("; ")}}
	}
	require.Equal(c.t, problems, row.Problems, what...)
}

func put[Row comparable](t *testing.T, wtxn statedb.WriteTxn, table statedb.RWTable[Row], former, row Row) {
	var none Row
	var err error
	switch {
	case row != none:
		_, _, err = table.Insert(wtxn, row)
	case former != none:
		_, _, err = table.Delete(wtxn, former)
	}
	require.NoError(t, err)
}

// reportOf is what a node tells of policies of a generation.
func reportOf(name string, omitted int, policies ...tables.ReportedPolicy) *tables.NodeReport {
	r := &tables.NodeReport{Node: name}
	slices.SortFunc(policies, func(a, b tables.ReportedPolicy) int { return a.Policy.Compare(b.Policy) })
	r.Policies, r.Omitted = policies, omitted
	return r
}

// naive asks all nodes.
func (c *changing) naive(row *tables.ObjectStatus) (t tally) {
	txn := c.db.ReadTxn()
	for n := range c.nodes.All(txn) {
		if n.Labels["kubernetes.io/os"] == "windows" {
			continue
		}
		said, omitted := (*tables.ReportedPolicy)(nil), false
		if r, _, found := c.reports.Get(txn, tables.NodeReportByNode(n.Name)); found {
			said = r.Policy(row.Policy)
			omitted = said == nil && r.Omitted > 0
		}
		if said != nil && said.Generation != row.Generation {
			said = nil
		}
		if said != nil {
			t.losesTo = append(t.losesTo, said.LosesTo...)
		}
		inForce := said != nil && said.Applied()
		if !n.Ready && !inForce {
			continue
		}
		t.total++
		switch {
		case inForce:
			t.programmed++
		case said != nil && said.Failed > 0:
			t.failed = naively(t.failed, n.Name+": "+said.Error)
		case omitted:
			t.silent = naively(t.silent, n.Name)
		case said == nil:
			t.unheard = naively(t.unheard, n.Name)
		default:
			t.waiting = naively(t.waiting, n.Name)
		}
	}
	slices.Sort(t.losesTo)
	t.losesTo = slices.Compact(t.losesTo)
	return t
}

// naively adds the next node in the order of names.
func naively(nodes someNodes, text string) someNodes {
	if nodes.count++; nodes.count <= maxNamed {
		nodes.first = append(nodes.first, text)
	}
	return nodes
}

var networkPolicy = tables.PolicyID{Kind: tables.PolicyCilium, Name: tables.Name{Namespace: "shop", Name: "web"}}

// randomly makes up a node and its report, or that there is none.
func randomly(random *rand.Rand, name string) (n *tables.Node, r *tables.NodeReport) {
	if random.IntN(5) > 0 {
		n = &tables.Node{Name: name, Ready: random.IntN(3) > 0}
		if random.IntN(5) == 0 {
			n.Labels = labels.Set{"kubernetes.io/os": "windows"}
		}
	}
	if random.IntN(5) == 0 {
		return n, nil
	}
	var said []tables.ReportedPolicy
	for _, id := range []tables.PolicyID{tables.EgressPolicyID("web"), tables.EgressPolicyID("db"), networkPolicy} {
		p := tables.ReportedPolicy{Policy: id, Generation: 1 + random.Int64N(2), Wanted: 1, Programmed: 1}
		switch random.IntN(6) {
		case 0:
			continue
		case 1:
			p.Failed, p.Error = 1, "full"
		case 2:
			p.Programmed = 0
		case 3:
			p.LosesTo = []string{fmt.Sprint("destination ", random.IntN(3))}
		}
		said = append(said, p)
	}
	return n, reportOf(name, random.IntN(2), said...)
}

// Whatever changes, what nodes say of policies is what asking all of them comes to.
func TestStandings(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 0))
	c := newChanging(t)
	for i := range 3000 {
		name := fmt.Sprint("node-", random.IntN(6))
		n, r := randomly(random, name)
		c.change(name, n, r)
		if random.IntN(10) == 0 { // another version of the object
			c.egress.Put(&tables.EgressPolicy{Name: "web", Generation: 1 + random.Int64N(2)})
		}
		switch random.IntN(3) {
		case 0:
			c.work()
			c.check(i)
		case 1:
			c.step.Limit(1+random.IntN(3), 2)
			c.step.Step()
		}
	}
}

// A policy may be gone in the snapshot that has a change of a node, and be back in the
// one from which its row is computed.
func TestPolicyAwayForAMoment(t *testing.T) {
	c := newChanging(t)
	web := &tables.EgressPolicy{Name: "web", Generation: 1}
	has := tables.ReportedPolicy{Policy: tables.EgressPolicyID("web"), Generation: 1, Wanted: 1, Programmed: 1}
	c.step.Limit(1, 100) // so that another policy's row is computed meanwhile
	for _, tell := range []struct {
		what   string
		node   *tables.Node
		report *tables.NodeReport
	}{
		{"there is one", node("node-1", true), nil},
		{"its report comes", node("node-1", true), reportOf("node-1", 1)},
		{"the report has room", node("node-1", true), reportOf("node-1", 0)},
		{"it is not ready", node("node-1", false), reportOf("node-1", 0)},
		{"it has the policy", node("node-1", true), reportOf("node-1", 0, has)},
		{"it is gone", nil, nil},
	} {
		wtxn := c.db.WriteTxn(c.egress)
		put(t, wtxn, c.egress, web, nil)
		wtxn.Commit()
		c.change("node-1", tell.node, tell.report)
		c.egress.Put(&tables.EgressPolicy{Name: "db", Generation: 1})
		c.step.Step()
		c.egress.Put(web)
		c.work()
		c.check(tell.what)
	}
}

// A node that becomes ready or not, or tells something else, is looked at alone; and
// all nodes only for a policy that is new or has changed.
func TestLooksAtNodes(t *testing.T) {
	c := newChanging(t)
	const nodes = 1000
	name := func(i int) string { return fmt.Sprint("node-", i) }
	told := func(i int, web func(*tables.ReportedPolicy)) *tables.NodeReport {
		p := tables.ReportedPolicy{Policy: tables.EgressPolicyID("web"), Generation: 1, Wanted: 1, Programmed: 1}
		if web != nil {
			web(&p)
		}
		return reportOf(name(i), 0, p, tables.ReportedPolicy{Policy: tables.EgressPolicyID("db"), Generation: 1})
	}
	for i := range nodes {
		c.change(name(i), node(name(i), true), told(i, nil))
	}
	looks := func() (n int) {
		c.work()
		n, c.looks = c.looks, 0
		c.check()
		return n
	}
	looks()
	require.Zero(t, looks())
	c.change(name(7), node(name(7), false), told(7, nil))
	require.Equal(t, 2, looks(), "one of each policy: a node is not ready")
	c.change(name(8), node(name(8), true), told(8, func(p *tables.ReportedPolicy) { p.Programmed = 0 }))
	require.Equal(t, 1, looks(), "a node tells something else of one")
	c.change(name(9), nil, nil)
	require.Equal(t, 2, looks(), "a node goes, and its report, which had both policies")
	c.egress.Put(&tables.EgressPolicy{Name: "web", Generation: 2})
	require.Equal(t, nodes-1, looks(), "a policy has changed")
}

// What has not changed in what an object says is not written to it again.
func TestExceptionsAlone(t *testing.T) {
	c := newChanging(t)
	for i := range 2 * maxNamed {
		c.change(fmt.Sprint("node-", i), node(fmt.Sprint("node-", i), true), nil)
	}
	c.work()
	before := tables.WithStatus(c.row(tables.EgressPolicyID("web")), reconciler.StatusDone())
	tablestest.Insert(c.t, c.db, c.Output, before)
	last := fmt.Sprint("node-", 2*maxNamed-1)
	c.change(last, nil, nil)
	c.change("node-9", node("node-9", true), nil)
	c.work()
	c.check()
	after := c.row(tables.EgressPolicyID("web"))
	require.False(t, before.SameExceptions(after))
	require.Equal(t, before.Status, after.Status)
}
