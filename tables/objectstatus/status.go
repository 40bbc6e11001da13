// SPDX-License-Identifier: Apache-2.0

package objectstatus

import (
	"cmp"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

type statusParams struct {
	cell.In

	Reporting  tables.Reporting
	Output     statedb.RWTable[*tables.ObjectStatus]
	Leadership statedb.Table[*tables.Leadership]
	Origins    statedb.Table[*tables.ObjectSource]
	Reports    statedb.Table[*tables.NodeReport]
	Nodes      statedb.Table[*tables.Node]
	Egress     statedb.Table[*tables.EgressPolicy]
	Elections  statedb.Table[*tables.GatewayElection]
	Network    statedb.Table[*tables.NetworkPolicy]
}

// status derives object-status.
type status struct {
	statusParams
	looks int // at the status of a policy on a node, so far, for tests
}

// statusKey is a policy, and a node of which something has changed that concerns it; empty if
// it is the policy itself.
type statusKey struct {
	policy tables.PolicyID
	node   string
}

// deriveStatus keeps, while this operator leads and has read the reports, what the
// object of each policy shall say.
func deriveStatus(p derive.Params, params statusParams) error {
	if !params.Reporting.Enabled {
		return nil
	}
	return derive.Register(p, (&status{statusParams: params}).declare())
}

func (s *status) declare() derive.Rule[statusKey] {
	return derive.Rule[statusKey]{
		Outputs: []statedb.TableMeta{s.Output},
		Inputs: []derive.Input[statusKey]{
			derive.FromIf(s.Leadership,
				func(old, new *tables.Leadership) bool { return old.Leading != new.Leading },
				func(now statedb.ReadTxn, _ *tables.Leadership, mark func(statusKey)) { s.markAll(now, mark) }),
			derive.FromIf(s.Origins,
				func(old, new *tables.ObjectSource) bool { return old.State != new.State },
				func(now statedb.ReadTxn, o *tables.ObjectSource, mark func(statusKey)) {
					if o.Source == tables.NodeReportSource {
						s.markAll(now, mark)
					}
				}),
			derive.FromChange(s.Reports, s.markReport),
			derive.FromChange(s.Nodes, s.markNode),
			derive.From(s.Egress, func(_ statedb.ReadTxn, p *tables.EgressPolicy, mark func(statusKey)) {
				mark(statusKey{policy: tables.EgressPolicyID(p.Name)})
			}),
			derive.From(s.Elections,
				func(_ statedb.ReadTxn, e *tables.GatewayElection, mark func(statusKey)) {
					for _, name := range e.Policies {
						mark(statusKey{policy: tables.EgressPolicyID(name)})
					}
				}),
			derive.From(s.Network, func(_ statedb.ReadTxn, p *tables.NetworkPolicy, mark func(statusKey)) {
				mark(statusKey{policy: p.ID()})
			}),
		},
		Compute: s.compute,
	}
}

// statusRound is one call of compute.
type statusRound struct {
	*status
	in, out  statedb.ReadTxn
	readable bool // nodes can tell
	agents   int  // nodes that run one
}

func (s *status) compute(
	in statedb.ReadTxn, out statedb.WriteTxn, keys []statusKey, _ func(statusKey),
) error {
	readable, active := s.active(in)
	c := &statusRound{s, in, out, readable, s.agents(in)}
	var ids []tables.PolicyID
	nodes := map[tables.PolicyID][]string{}
	for _, key := range keys {
		changed, known := nodes[key.policy]
		if !known {
			ids = append(ids, key.policy)
		}
		if nodes[key.policy] = changed; key.node != "" {
			nodes[key.policy] = append(changed, key.node)
		}
	}
	row := func(_ statedb.ReadTxn, id tables.PolicyID) *tables.ObjectStatus {
		if !active {
			return nil
		}
		return c.row(id, nodes[id])
	}
	same := func(a, b *tables.ObjectStatus) bool { return a.Equal(b) && a.SameExceptions(b) }
	return derive.Each(s.Output, tables.ObjectStatusByPolicy, same, row)(in, out, ids, nil)
}

// row returns what the object of a policy shall say, nil if nothing.
func (c *statusRound) row(id tables.PolicyID, changed []string) *tables.ObjectStatus {
	former, _, _ := c.Output.Get(c.out, tables.ObjectStatusByPolicy(id))
	row := &tables.ObjectStatus{Policy: id, Reconciled: tables.Pending()}
	says := false
	if id.Kind == tables.PolicyEgress {
		says = c.egress(row, former, changed)
	} else {
		says = c.network(row)
	}
	if !says {
		return nil
	}
	if former != nil && row.Equal(former) {
		row.Reconciled = former.Reconciled
	}
	return row
}

// active reports whether it is for this agent to say something: it leads, and knows
// the reports of nodes, or that there are none as there is no CRD.
func (s *status) active(txn statedb.ReadTxn) (readable, active bool) {
	origin, _, found := s.Origins.Get(txn, tables.ObjectSourceByName(tables.NodeReportSource))
	if !found || !tables.Leads(txn, s.Leadership) {
		return false, false
	}
	switch origin.State {
	case tables.SourceSynced:
		return true, true
	case tables.SourceAbsent:
		return false, true
	}
	// What was known stays, but not if nothing ever was.
	return true, s.Output.NumObjects(txn) > 0
}

func (s *status) agents(in statedb.ReadTxn) (n int) {
	for node := range s.Nodes.All(in) {
		if node.RunsAgent() {
			n++
		}
	}
	return n
}

func (s *status) markAll(now statedb.ReadTxn, mark func(statusKey)) {
	for p := range s.Egress.All(now) {
		mark(statusKey{policy: tables.EgressPolicyID(p.Name)})
	}
	for p := range s.Network.All(now) {
		mark(statusKey{policy: p.ID()})
	}
}

// markEgress marks all egress policies for a node. Those are the ones with a row: of another
// one all nodes are looked at when its row is made.
func (s *status) markEgress(now statedb.ReadTxn, node string, mark func(statusKey)) {
	for row := range s.Output.All(now) {
		if row.Policy.Kind == tables.PolicyEgress {
			mark(statusKey{row.Policy, node})
		}
	}
}

// markNode marks all egress policies, and the network policies that its report names, when a
// node has changed so that it matters whether it has them.
func (s *status) markNode(now statedb.ReadTxn, old, new *tables.Node, mark func(statusKey)) {
	if old != nil && new != nil && old.Ready == new.Ready && old.RunsAgent() == new.RunsAgent() {
		return
	}
	node := cmp.Or(new, old).Name
	s.markEgress(now, node, mark)
	if r, _, found := s.Reports.Get(now, tables.NodeReportByNode(node)); found {
		for i := range r.Policies {
			if id := r.Policies[i].Policy; id.Kind != tables.PolicyEgress {
				mark(statusKey{id, node})
			}
		}
	}
}

// markReport marks the policies of which a node says something else now. One
// whose policies do not all have room says less than it knows, so that all may be
// concerned when that changes.
func (s *status) markReport(
	now statedb.ReadTxn, old, new *tables.NodeReport, mark func(statusKey),
) {
	before, after := contentsOf(old), contentsOf(new)
	node := cmp.Or(new, old).Node
	if (before.Omitted > 0) != (after.Omitted > 0) || old == nil || new == nil {
		s.markEgress(now, node, mark)
	}
	for i := range before.Policies {
		p := &before.Policies[i]
		if is := after.Policy(p.Policy); is == nil || !is.Equal(p) {
			mark(statusKey{p.Policy, node})
		}
	}
	for i := range after.Policies {
		if id := after.Policies[i].Policy; before.Policy(id) == nil {
			mark(statusKey{id, node})
		}
	}
}

func contentsOf(r *tables.NodeReport) *tables.ReportContents {
	if r == nil {
		return &tables.ReportContents{}
	}
	return &r.ReportContents
}
