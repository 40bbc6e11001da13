// SPDX-License-Identifier: Apache-2.0

package objectstatus

import (
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

type electionParams struct {
	cell.In

	Reporting tables.Reporting
	Output    statedb.RWTable[*tables.GatewayElection]
	Policies  statedb.Table[*tables.EgressPolicy]
	Nodes     statedb.Table[*tables.Node]
	Pools     statedb.Table[*tables.EgressIPPool]
	Reports   statedb.Table[*tables.NodeReport]
}

// deriveElections keeps the nodes that are elected for each list of gateways that a policy has.
func deriveElections(p derive.Params, e electionParams) error {
	if !e.Reporting.Enabled {
		return nil
	}
	return derive.Register(p, e.declare())
}

func (e *electionParams) declare() derive.Rule[bpf.Digest] {
	return derive.Rule[bpf.Digest]{
		Outputs: []statedb.TableMeta{e.Output},
		Inputs: []derive.Input[bpf.Digest]{
			derive.From(e.Policies,
				func(_ statedb.ReadTxn, p *tables.EgressPolicy, mark func(bpf.Digest)) {
					mark(tables.GroupDigest(p.Gateways))
				}),
			derive.FromIf(e.Nodes, electedOtherwise,
				func(now statedb.ReadTxn, _ *tables.Node, mark func(bpf.Digest)) {
					for p := range e.Policies.All(now) {
						mark(tables.GroupDigest(p.Gateways))
					}
				}),
			derive.FromIf(e.Pools,
				(*tables.EgressIPPool).ChangesAddresses,
				func(now statedb.ReadTxn, _ *tables.EgressIPPool, mark func(bpf.Digest)) {
					e.markUsers(now, func(netip.Addr) bool { return true }, mark)
				}),
			derive.FromIf(e.Reports,
				func(old, new *tables.NodeReport) bool {
					return !slices.Equal(old.EgressIPs(), new.EgressIPs())
				},
				func(now statedb.ReadTxn, r *tables.NodeReport, mark func(bpf.Digest)) {
					if has := r.EgressIPs(); len(has) > 0 {
						e.markUsers(now, func(a netip.Addr) bool { return slices.Contains(has, a) }, mark)
					}
				}),
		},
		Compute: e.compute,
	}
}

// electedOtherwise reports whether a change of a node may change an election.
func electedOtherwise(old, new *tables.Node) bool {
	return old.Ready != new.Ready || old.Draining != new.Draining ||
		!slices.Equal(old.InternalIPs, new.InternalIPs) || !maps.Equal(old.Labels, new.Labels)
}

// compute elects once for each selector, whatever number of lists have it. An item with an address
// that moves has the node that reports the address.
func (e *electionParams) compute(
	in statedb.ReadTxn, out statedb.WriteTxn, keys []bpf.Digest, _ func(bpf.Digest),
) error {
	elections := tables.Elections{
		Nodes:  func() iter.Seq2[*tables.Node, statedb.Revision] { return e.Nodes.All(in) },
		IsLost: func(string) bool { return false }, // what nodes reach, they know themselves
	}
	owners := e.owners(in)
	row := func(in statedb.ReadTxn, digest bpf.Digest) *tables.GatewayElection {
		var row *tables.GatewayElection
		for p := range e.Policies.List(in, tables.EgressPoliciesByGroup(digest)) {
			if row == nil {
				row = &tables.GatewayElection{Digest: digest}
				row.Gateways = elections.Gateways(p.Gateways, owners.of)
			}
			row.Policies = append(row.Policies, p.Name)
		}
		return row
	}
	return derive.Each(e.Output, tables.GatewayElectionByDigest,
		(*tables.GatewayElection).Equal, row)(in, out, keys, nil)
}
