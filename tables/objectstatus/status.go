// SPDX-License-Identifier: Apache-2.0

package objectstatus

import (
	"cmp"
	"iter"
	"slices"

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
	Groups     statedb.Table[*tables.EgressGroup]
	Network    statedb.Table[*tables.NetworkPolicy]
}

// status derives object-status.
type status struct {
	statusParams

	standings map[tables.PolicyID]*standing
	numbers   numbers // of nodes, for the standings
	looks     int     // at how a policy fares on a node, so far: what the work is

	// named are the nodes whose reports name a network policy. Such policies are few
	// beside all there are.
	named map[tables.PolicyID]map[string]struct{}
}

func newStatus(params statusParams) *status {
	return &status{
		statusParams: params, standings: map[tables.PolicyID]*standing{}, numbers: numbers{of: map[string]int{}},
		named: map[tables.PolicyID]map[string]struct{}{},
	}
}

// deriveStatus keeps, while this agent leads and has read the reports, what the
// object of each policy shall say.
func deriveStatus(p derive.Params, params statusParams) error {
	if !params.Reporting.Enabled {
		return nil
	}
	s := newStatus(params)
	_, err := derive.Register(p, derive.Rule[tables.PolicyID, *tables.ObjectStatus]{
		Output: s.Output,
		Inputs: []derive.Input[tables.PolicyID]{
			derive.FromIf(s.Leadership,
				func(old, new *tables.Leadership) bool { return old.Leading != new.Leading },
				func(txn statedb.ReadTxn, _ *tables.Leadership, affect func(tables.PolicyID)) { s.all(txn, affect) }),
			derive.Where(func(o *tables.ObjectSource) bool { return o.Source == tables.NodeReportSource },
				derive.FromIf(s.Origins,
					func(old, new *tables.ObjectSource) bool { return old.State != new.State },
					func(txn statedb.ReadTxn, _ *tables.ObjectSource, affect func(tables.PolicyID)) { s.all(txn, affect) })),
			derive.FromChange(s.Reports, s.reportChanged),
			derive.FromChange(s.Nodes, s.nodeChanged),
			derive.FromKey(s.Egress, func(_ statedb.ReadTxn, p *tables.EgressPolicy, affect func(tables.PolicyID)) {
				affect(tables.EgressPolicyID(p.Name))
			}),
			derive.FromIf(s.Groups,
				func(old, new *tables.EgressGroup) bool {
					return !slices.Equal(old.Gateways, new.Gateways) || !slices.Equal(old.Policies, new.Policies)
				},
				func(_ statedb.ReadTxn, g *tables.EgressGroup, affect func(tables.PolicyID)) { usersOf(g, affect) }),
			derive.FromKey(s.Network, func(_ statedb.ReadTxn, p *tables.NetworkPolicy, affect func(tables.PolicyID)) { affect(p.ID()) }),
		},
		Existing: func(txn statedb.ReadTxn, id tables.PolicyID) iter.Seq2[*tables.ObjectStatus, statedb.Revision] {
			return s.Output.List(txn, tables.ObjectStatusByPolicy(id))
		},
		Rows: func(txn statedb.ReadTxn, id tables.PolicyID) []*tables.ObjectStatus {
			readable, active := s.active(txn)
			if !active {
				delete(s.standings, id)
				return nil
			}
			row := &tables.ObjectStatus{Policy: id, Reconciled: tables.Pending()}
			if id.Kind == tables.PolicyEgress && s.egress(txn, row, readable) || id.Kind != tables.PolicyEgress && s.network(txn, row) {
				return []*tables.ObjectStatus{row}
			}
			return nil
		},
		Equal: (*tables.ObjectStatus).Equal,
	})
	return err
}

// active reports whether it is for this agent to say something: it leads, and knows
// what nodes have told, or that they cannot tell as there is no CRD.
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

func (s *status) all(txn statedb.ReadTxn, affect func(tables.PolicyID)) {
	s.allEgress(txn, affect)
	for p := range s.Network.All(txn) {
		affect(p.ID())
	}
}

func (s *status) allEgress(txn statedb.ReadTxn, affect func(tables.PolicyID)) {
	for p := range s.Egress.All(txn) {
		affect(tables.EgressPolicyID(p.Name))
	}
}

// nodeChanged affects all egress policies, when there is another node of which it
// matters whether it has them.
func (s *status) nodeChanged(txn statedb.ReadTxn, old, new *tables.Node, affect func(tables.PolicyID)) {
	if old != nil && new != nil && old.Ready == new.Ready && runsAgent(old) == runsAgent(new) {
		return
	}
	name := cmp.Or(new, old).Name
	s.numbers.give(name)
	s.lookAt(txn, name)
	if new == nil {
		s.numbers.free(name) // nobody has it any more
	}
	s.allEgress(txn, affect)
}

// reportChanged affects the policies of which a node says something else now. One
// whose policies do not all have room says less than it knows, so that all may be
// concerned when that changes.
func (s *status) reportChanged(txn statedb.ReadTxn, old, new *tables.NodeReport, affect func(tables.PolicyID)) {
	before, after := contentsOf(old), contentsOf(new)
	node := cmp.Or(new, old).Node
	if (before.Omitted > 0) != (after.Omitted > 0) || old == nil || new == nil {
		s.lookAt(txn, node)
		s.allEgress(txn, affect)
	}
	says := func(id tables.PolicyID) {
		s.look(txn, id, node)
		affect(id)
	}
	for i := range before.Policies {
		p := &before.Policies[i]
		s.name(p.Policy, node, false)
		if now := after.Policy(p.Policy); now == nil || !now.Equal(p) {
			says(p.Policy)
		}
	}
	for i := range after.Policies {
		p := &after.Policies[i]
		s.name(p.Policy, node, true)
		if before.Policy(p.Policy) == nil {
			says(p.Policy)
		}
	}
}

func contentsOf(r *tables.NodeReport) *tables.ReportContents {
	if r == nil {
		return &tables.ReportContents{}
	}
	return &r.ReportContents
}

// name notes whether the report of a node names a policy.
func (s *status) name(id tables.PolicyID, node string, does bool) {
	if id.Kind == tables.PolicyEgress {
		return
	}
	nodes := s.named[id]
	switch {
	case !does:
		if delete(nodes, node); len(nodes) == 0 {
			delete(s.named, id)
		}
	case nodes == nil:
		s.named[id] = map[string]struct{}{node: {}}
	default:
		nodes[node] = struct{}{}
	}
}
