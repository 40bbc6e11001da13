// SPDX-License-Identifier: Apache-2.0

package nodereport

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

type reportParams struct {
	cell.In

	Reporting tables.Reporting
	Output    statedb.RWTable[*tables.PolicyReport]
	LocalNode tables.LocalNode

	Egress   statedb.Table[*tables.EgressPolicyStatus]
	Network  statedb.Table[*tables.NetworkPolicyStatus]
	Policies statedb.Table[*tables.EgressPolicy]
	Groups   statedb.Table[*tables.EgressGroup]
	Gateways statedb.Table[*tables.EgressGateway]
}

// deriveReport keeps what this node tells of policies: of all egress policies, and
// of the network policies that are not applied.
func deriveReport(p derive.Params, r reportParams) error {
	if !r.Reporting.Enabled {
		return nil
	}
	return derive.Register(p, r.declare())
}

func (r *reportParams) declare() derive.Rule[tables.PolicyID] {
	return derive.Rule[tables.PolicyID]{
		Outputs: []statedb.TableMeta{r.Output},
		Inputs: []derive.Input[tables.PolicyID]{
			derive.From(r.Egress, markEgress),
			derive.FromIf(r.Groups,
				func(old, new *tables.EgressGroup) bool { return !slices.Equal(old.Policies, new.Policies) },
				func(_ statedb.ReadTxn, g *tables.EgressGroup, mark func(tables.PolicyID)) {
					usersOf(g, mark)
				}),
			derive.FromIf(r.Gateways, leavesOtherwise, r.markGateway),
			derive.FromIf(r.Network, reportChanged, markNetwork),
		},
		Compute: derive.Each(
			r.Output, tables.PolicyReportByPolicy, (*tables.PolicyReport).Equal, r.row),
	}
}

func markEgress(_ statedb.ReadTxn, s *tables.EgressPolicyStatus, mark func(tables.PolicyID)) {
	mark(tables.EgressPolicyID(s.Policy))
}

func markNetwork(_ statedb.ReadTxn, s *tables.NetworkPolicyStatus, mark func(tables.PolicyID)) {
	mark(s.Policy)
}

// reportChanged reports whether what this node reports about a policy may change.
func reportChanged(old, new *tables.NetworkPolicyStatus) bool {
	return old.State != new.State || old.Generation != new.Generation || old.Failed != new.Failed ||
		old.Refused != new.Refused || old.TooLarge != new.TooLarge
}

func (r *reportParams) row(in statedb.ReadTxn, id tables.PolicyID) *tables.PolicyReport {
	fill := r.network
	if id.Kind == tables.PolicyEgress {
		fill = r.egress
	}
	row := &tables.PolicyReport{
		ReportedPolicy: tables.ReportedPolicy{Policy: id}, Reconciled: tables.Pending(),
	}
	if !fill(in, row) {
		return nil
	}
	return row
}

// usersOf affects the policies that use a group.
func usersOf(g *tables.EgressGroup, affect func(tables.PolicyID)) {
	for _, name := range g.Policies {
		affect(tables.EgressPolicyID(name))
	}
}

func leavesOtherwise(old, new *tables.EgressGateway) bool {
	return old.Node != new.Node || old.EgressIPv4 != new.EgressIPv4 ||
		old.EgressIPv6 != new.EgressIPv6 || old.Reason != new.Reason
}

// markGateway marks the policies that use a bucket of this node.
func (r *reportParams) markGateway(
	in statedb.ReadTxn, bucket *tables.EgressGateway, mark func(tables.PolicyID),
) {
	if bucket.Node != r.LocalNode.Name {
		return
	}
	if group, _, found := r.Groups.Get(in, tables.EgressGroupByNumber(bucket.Group)); found {
		usersOf(group, mark)
	}
}

// egress fills in the status of an egress policy, and reports whether there is one.
func (r *reportParams) egress(txn statedb.ReadTxn, row *tables.PolicyReport) bool {
	s, _, found := r.Egress.Get(txn, tables.EgressPolicyStatusByPolicy(row.Policy.Name.Name))
	if !found {
		return false
	}
	row.UID, row.Generation = s.UID, s.Generation
	row.Wanted, row.Programmed, row.Failed = s.Rules, s.Programmed, s.Failed
	row.Error, row.LosesTo = cmp.Or(s.Refused, s.Pending), s.LosesTo
	r.gateway(txn, row)
	return true
}

// gateway fills in what the traffic of a policy leaves this node with, in the
// buckets of its group that are this node's.
func (r *reportParams) gateway(txn statedb.ReadTxn, row *tables.PolicyReport) {
	p, _, found := r.Policies.Get(txn, tables.EgressPolicyByName(row.Policy.Name.Name))
	if !found {
		return
	}
	g, _, found := r.Groups.Get(txn, tables.EgressGroupByDigest(tables.GroupDigest(p.Gateways)))
	if !found || !slices.ContainsFunc(
		g.Gateways, func(c tables.GatewayChoice) bool { return c.Node == r.LocalNode.Name },
	) {
		return
	}
	for bucket := range r.Gateways.Prefix(txn, tables.EgressGatewaysOfGroup(g.Number)) {
		if bucket.Node != r.LocalNode.Name {
			continue
		}
		for _, addr := range []netip.Addr{bucket.EgressIPv4, bucket.EgressIPv6} {
			if addr.IsValid() && !slices.Contains(row.EgressIPs, addr) {
				row.EgressIPs = append(row.EgressIPs, addr)
			}
		}
		row.GatewayError = cmp.Or(row.GatewayError, bucket.Reason)
	}
	slices.SortFunc(row.EgressIPs, netip.Addr.Compare)
}

// network fills in the status of a network policy, and reports whether there is one of
// which the kernel does not have all.
func (r *reportParams) network(txn statedb.ReadTxn, row *tables.PolicyReport) bool {
	s, _, found := r.Network.Get(txn, tables.NetworkPolicyStatusByPolicy(row.Policy))
	if !found {
		return false
	}
	// How many entries there are is left out: it changes with the pods.
	row.Generation, row.Failed = s.Generation, s.Failed
	switch s.State {
	case tables.PolicyTooLarge:
		row.Failed = max(row.Failed, 1) // or it would be said to be on its way
		row.Error = "TooLarge, its pods are isolated: " + s.TooLarge
	case tables.PolicyFailed:
		row.Error = s.Refused
	case tables.PolicyPending:
		row.Error = "not in force yet"
	default:
		return false
	}
	return true
}
