// SPDX-License-Identifier: Apache-2.0

package objectstatus

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/tables"
)

// changing is what policies are judged by, and changes.
type changing struct {
	t       *testing.T
	db      *statedb.DB
	nodes   statedb.RWTable[*tables.Node]
	reports statedb.RWTable[*tables.NodeReport]
	egress  statedb.RWTable[*tables.EgressPolicy]
	*status
	affected map[tables.PolicyID]bool
}

func newChanging(t *testing.T) *changing {
	c := &changing{t: t, db: statedb.New(), affected: map[tables.PolicyID]bool{}}
	var err error
	c.nodes, err = tables.NewNodeTable(c.db)
	require.NoError(t, err)
	c.reports, err = tables.NewNodeReportTable(c.db)
	require.NoError(t, err)
	c.egress, err = tables.NewEgressPolicyTable(c.db)
	require.NoError(t, err)
	for _, name := range []string{"web", "db"} {
		c.policy(nil, &tables.EgressPolicy{Name: name})
	}
	c.status = newStatus(statusParams{Nodes: c.nodes, Reports: c.reports, Egress: c.egress})
	return c
}

// policy has an egress policy come or go.
func (c *changing) policy(former, p *tables.EgressPolicy) {
	wtxn := c.db.WriteTxn(c.egress)
	defer wtxn.Abort()
	put(c.t, wtxn, c.egress, former, p)
	wtxn.Commit()
}

func (c *changing) affect(id tables.PolicyID) { c.affected[id] = true }

// set has a node as it is given, and what it tells; nil of either has it go.
func (c *changing) set(name string, n *tables.Node, r *tables.NodeReport) {
	wtxn := c.db.WriteTxn(c.nodes, c.reports)
	defer wtxn.Abort()
	formerNode, _, _ := c.nodes.Get(wtxn, tables.NodeByName(name))
	formerReport, _, _ := c.reports.Get(wtxn, tables.NodeReportByNode(name))
	put(c.t, wtxn, c.nodes, formerNode, n)
	put(c.t, wtxn, c.reports, formerReport, r)
	txn := wtxn.Commit()
	if formerReport != nil || r != nil {
		c.reportChanged(txn, formerReport, r, c.affect)
	}
	if formerNode != nil || n != nil {
		c.nodeChanged(txn, formerNode, n, c.affect)
	}
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
		inForce := said != nil && said.InForce()
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

// Whatever changes, what nodes say of policies is what asking all of them comes to,
// and who is concerned by the change is affected.
func TestStandings(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 0))
	c := newChanging(t)
	rows := []*tables.ObjectStatus{{Policy: tables.EgressPolicyID("web"), Generation: 1}, {Policy: tables.EgressPolicyID("db"), Generation: 1}}
	network := &tables.ObjectStatus{Policy: networkPolicy, Generation: 1}
	for range 3000 {
		before := []tally{c.naive(rows[0]), c.naive(rows[1])}
		clear(c.affected)
		name := fmt.Sprint("node-", random.IntN(6))
		n, r := randomly(random, name)
		c.set(name, n, r)
		for i, row := range rows {
			want := c.naive(row)
			require.Equal(t, want, c.tally(c.db.ReadTxn(), row))
			if !reflect.DeepEqual(before[i], want) {
				require.True(t, c.affected[row.Policy], "%s: %+v, and then %+v", row.Policy, before[i], want)
			}
		}
		require.Equal(t, c.naive(network).failed, c.refusals(c.db.ReadTxn(), network))
		if random.IntN(10) == 0 {
			rows[0].Generation = 1 + random.Int64N(2) // of another version of the object
		}
	}
}

// A policy may be gone in the snapshot that has a change of a node, and be back in the
// one that the round is computed from.
func TestPolicyAwayForAMoment(t *testing.T) {
	c := newChanging(t)
	web := &tables.EgressPolicy{Name: "web"}
	row := &tables.ObjectStatus{Policy: tables.EgressPolicyID("web")}
	has := tables.ReportedPolicy{Policy: row.Policy, Wanted: 1, Programmed: 1}
	for _, tell := range []struct {
		what   string
		node   *tables.Node
		report *tables.NodeReport
	}{
		{"there is one", node("node-1", true), nil},
		{"its report comes", node("node-1", true), reportOf("node-1", 1)},
		{"the report has room", node("node-1", true), reportOf("node-1", 0)},
		{"it has the policy", node("node-1", true), reportOf("node-1", 0, has)},
		{"it is not ready, and has it not", node("node-1", false), reportOf("node-1", 0)},
		{"it is gone", nil, nil},
	} {
		c.policy(web, nil)
		c.set("node-1", tell.node, tell.report)
		c.policy(nil, web)
		require.Equal(t, c.naive(row), c.tally(c.db.ReadTxn(), row), tell.what)
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
		c.set(name(i), node(name(i), true), told(i, nil))
	}
	web, db := &tables.ObjectStatus{Policy: tables.EgressPolicyID("web"), Generation: 1}, &tables.ObjectStatus{Policy: tables.EgressPolicyID("db"), Generation: 1}
	looks := func() (n int) {
		txn := c.db.ReadTxn()
		for _, row := range []*tables.ObjectStatus{web, db} {
			require.Equal(t, c.naive(row), c.tally(txn, row))
		}
		n, c.looks = c.looks, 0
		return n
	}
	require.Equal(t, 2*nodes, looks(), "at the start")
	require.Zero(t, looks())
	c.set(name(7), node(name(7), false), told(7, nil))
	require.Equal(t, 2, looks(), "one of each policy: a node is not ready")
	c.set(name(8), node(name(8), true), told(8, func(p *tables.ReportedPolicy) { p.Programmed = 0 }))
	require.Equal(t, 1, looks(), "a node tells something else of one")
	c.set(name(9), nil, nil)
	require.Equal(t, 6, looks(), "a node goes, and its report, which had both policies")
	web.Generation = 2
	require.Equal(t, nodes-1, looks(), "a policy has changed")
}
