// SPDX-License-Identifier: Apache-2.0

package objectstatus

import (
	"cmp"
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

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
	Classes  statedb.Table[*tables.EgressClass]
	Sources  statedb.Table[*tables.EgressSource]
	Entries  statedb.Table[*tables.PolicyEntry]
}

// report derives node-report. Addresses that the kernel refused are remembered by
// their class, as they are few beside all there are.
type report struct {
	reportParams
	refused map[uint32]map[netip.Addr]string // why
}

// deriveReport keeps what this node tells of policies: of all egress policies, and
// of the network policies that are not in force.
func deriveReport(p derive.Params, params reportParams) error {
	if !params.Reporting.Enabled {
		return nil
	}
	r := &report{reportParams: params, refused: map[uint32]map[netip.Addr]string{}}
	_, err := derive.Register(p, derive.Rule[tables.PolicyID, *tables.PolicyReport]{
		Output: r.Output,
		Inputs: []derive.Input[tables.PolicyID]{
			derive.From(r.Egress, func(_ statedb.ReadTxn, s *tables.EgressPolicyStatus, affect func(tables.PolicyID)) {
				affect(tables.EgressPolicyID(s.Policy))
			}),
			derive.FromIf(r.Groups,
				func(old, new *tables.EgressGroup) bool {
					return old.Number != new.Number || !slices.Equal(old.Policies, new.Policies)
				},
				func(_ statedb.ReadTxn, g *tables.EgressGroup, affect func(tables.PolicyID)) { usersOf(g, affect) }),
			derive.Where(func(g *tables.EgressGateway) bool { return g.Node == r.LocalNode.Name },
				derive.FromIf(r.Gateways, leavesOtherwise, r.gatewayChanged)),
			derive.Where(func(s *tables.EgressSource) bool { return s.Status.Kind == reconciler.StatusKindError },
				derive.FromChange(r.Sources, r.sourceRefused)),
			derive.FromIf(r.Network,
				func(old, new *tables.NetworkPolicyStatus) bool {
					return old.State != new.State || old.Generation != new.Generation || old.Failed != new.Failed
				},
				func(_ statedb.ReadTxn, s *tables.NetworkPolicyStatus, affect func(tables.PolicyID)) { affect(s.Policy) }),
		},
		Existing: func(txn statedb.ReadTxn, id tables.PolicyID) iter.Seq2[*tables.PolicyReport, statedb.Revision] {
			return r.Output.List(txn, tables.PolicyReportByPolicy(id))
		},
		Rows: func(txn statedb.ReadTxn, id tables.PolicyID) []*tables.PolicyReport {
			row := &tables.PolicyReport{ReportedPolicy: tables.ReportedPolicy{Policy: id}, Reconciled: tables.Pending()}
			if id.Kind == tables.PolicyEgress && r.egress(txn, row) || id.Kind != tables.PolicyEgress && r.network(txn, row) {
				return []*tables.PolicyReport{row}
			}
			return nil
		},
		Equal: (*tables.PolicyReport).Equal,
	})
	return err
}

// usersOf affects the policies that use a group.
func usersOf(g *tables.EgressGroup, affect func(tables.PolicyID)) {
	for _, name := range g.Policies {
		affect(tables.EgressPolicyID(name))
	}
}

func leavesOtherwise(old, new *tables.EgressGateway) bool {
	return old.EgressIPv4 != new.EgressIPv4 || old.EgressIPv6 != new.EgressIPv6 || old.Reason != new.Reason
}

func (r *report) gatewayChanged(txn statedb.ReadTxn, g *tables.EgressGateway, affect func(tables.PolicyID)) {
	if group, _, found := r.Groups.Get(txn, tables.EgressGroupByNumber(g.Group)); found {
		usersOf(group, affect)
	}
}

// sourceRefused affects the policies that choose an address, when the kernel refuses
// the address and when it does not any more.
func (r *report) sourceRefused(txn statedb.ReadTxn, old, new *tables.EgressSource, affect func(tables.PolicyID)) {
	for _, row := range []*tables.EgressSource{old, new} {
		if row == nil {
			continue
		}
		delete(r.refused[row.Class], row.Addr)
		if len(r.refused[row.Class]) == 0 {
			delete(r.refused, row.Class)
		}
		if c, _, found := r.Classes.Get(txn, tables.EgressClassByNumber(row.Class)); found {
			for _, choice := range c.Policies {
				affect(tables.EgressPolicyID(choice.Policy))
			}
		}
	}
	if new != nil {
		if r.refused[new.Class] == nil {
			r.refused[new.Class] = map[netip.Addr]string{}
		}
		r.refused[new.Class][new.Addr] = new.Status.GetError()
	}
}

// egress fills in how an egress policy fares, and reports whether there is one.
func (r *report) egress(txn statedb.ReadTxn, row *tables.PolicyReport) bool {
	s, _, found := r.Egress.Get(txn, tables.EgressPolicyStatusByPolicy(row.Policy.Name.Name))
	if !found {
		return false
	}
	row.UID, row.Generation = s.UID, s.Generation
	row.Wanted, row.Programmed, row.Failed, row.Error = s.Rules, s.Programmed, s.Failed, s.Refused
	row.LosesTo = s.LosesTo
	if len(r.refused) > 0 {
		for c := range r.Classes.List(txn, tables.EgressClassesByPolicy(s.Policy)) {
			for addr, why := range r.refused[c.Number] {
				row.Failed++
				if text := fmt.Sprintf("%s: %s", addr, why); row.Error == "" || s.Refused == "" && text < row.Error {
					row.Error = text // whatever the order of the map
				}
			}
		}
	}
	r.gateway(txn, row)
	return true
}

// gateway fills in what the traffic of a policy leaves this node with, in the
// buckets of its group that are this node's.
func (r *report) gateway(txn statedb.ReadTxn, row *tables.PolicyReport) {
	p, _, found := r.Policies.Get(txn, tables.EgressPolicyByName(row.Policy.Name.Name))
	if !found {
		return
	}
	g, _, found := r.Groups.Get(txn, tables.EgressGroupByDigest(tables.GroupDigest(p.Gateways)))
	if !found || !slices.ContainsFunc(g.Gateways, func(c tables.GatewayChoice) bool { return c.Node == r.LocalNode.Name }) {
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

// network fills in how a network policy fares, and reports whether there is one of
// which the kernel does not have all.
func (r *report) network(txn statedb.ReadTxn, row *tables.PolicyReport) bool {
	s, _, found := r.Network.Get(txn, tables.NetworkPolicyStatusByPolicy(row.Policy))
	if !found || s.State != tables.PolicyFailed && s.State != tables.PolicyPending {
		return false
	}
	// How many entries there are is left out: it changes with the pods.
	row.Generation, row.Failed = s.Generation, s.Failed
	switch {
	case s.State == tables.PolicyPending:
		row.Error = "not in force yet"
	case s.Failed > 0:
		row.Error = r.refusedEntry(txn, s.Policy)
	default:
		row.Error = "the kernel refused an address of a pod that it chooses"
	}
	return true
}

// refusedEntry returns why the kernel refused an entry of a policy.
func (r *report) refusedEntry(txn statedb.ReadTxn, id tables.PolicyID) string {
	for e := range r.Entries.List(txn, tables.PolicyEntriesByPolicy(id)) {
		if e.Status.Kind == reconciler.StatusKindError {
			return e.Status.GetError()
		}
	}
	return "the kernel refused an entry"
}
