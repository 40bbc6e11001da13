// SPDX-License-Identifier: Apache-2.0

package pools

import (
	"slices"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

type rule struct {
	cell.In

	EgressIPs  tables.EgressIPs
	Output     statedb.RWTable[*tables.EgressIPPoolStatus]
	Pools      statedb.Table[*tables.EgressIPPool]
	Nodes      statedb.Table[*tables.Node]
	Policies   statedb.Table[*tables.EgressPolicy]
	Leadership statedb.Table[*tables.Leadership]
	Clock      statedb.Table[*tables.Clock]
	Reports    statedb.Table[*tables.NodeReport]
}

// allPools is the one key of the rule: an address of two pools makes them depend on each other.
const allPools = 0

func register(p derive.Params, r rule) error {
	if !r.EgressIPs.Enabled {
		return nil
	}
	return derive.Register(p, r.declare())
}

func (r *rule) declare() derive.Rule[int] {
	all := func(_ statedb.ReadTxn, mark func(int)) { mark(allPools) }
	return derive.Rule[int]{
		Outputs: []statedb.TableMeta{r.Output},
		Inputs: []derive.Input[int]{
			derive.OnChange(r.Pools, all),
			derive.OnChange(r.Leadership, all),
			derive.FromIf(r.Nodes,
				func(old, new *tables.Node) bool {
					return old.RunsAgent() != new.RunsAgent() ||
						!slices.Equal(old.InternalIPs, new.InternalIPs)
				},
				func(_ statedb.ReadTxn, _ *tables.Node, mark func(int)) { mark(allPools) }),
			derive.FromIf(r.Reports,
				func(old, new *tables.NodeReport) bool {
					return !slices.EqualFunc(old.EgressPorts, new.EgressPorts, tables.PoolPorts.Equal)
				},
				func(_ statedb.ReadTxn, n *tables.NodeReport, mark func(int)) {
					if len(n.EgressPorts) > 0 {
						mark(allPools)
					}
				}),
			derive.FromIf(r.Policies,
				func(old, new *tables.EgressPolicy) bool {
					return !slices.Equal(old.Gateways, new.Gateways)
				},
				func(_ statedb.ReadTxn, p *tables.EgressPolicy, mark func(int)) {
					if len(p.NamedEgressIPs()) > 0 || p.Pool() != "" {
						mark(allPools)
					}
				}),
			derive.OnChange(r.Clock, func(now statedb.ReadTxn, mark func(int)) {
				if r.rests(now) {
					mark(allPools)
				}
			}),
		},
		Compute: func(in statedb.ReadTxn, out statedb.WriteTxn, _ []int, _ func(int)) error {
			equal := (*tables.EgressIPPoolStatus).Equal
			return derive.Replace(out, r.Output, equal, r.Output.All(out), r.rows(in)...)
		},
	}
}

// rests reports whether a block of some pool is free at a later time.
func (r *rule) rests(in statedb.ReadTxn) bool {
	for p := range r.Pools.All(in) {
		for _, b := range p.Blocks {
			if !b.Released.IsZero() {
				return true
			}
		}
	}
	return false
}

// rows returns a row for each pool while this operator leads.
func (r *rule) rows(in statedb.ReadTxn) (rows []*tables.EgressIPPoolStatus) {
	now := tables.Now(in, r.Clock)
	if !tables.Leads(in, r.Leadership) || now.IsZero() {
		return nil
	}
	pools := statedb.Collect(r.Pools.All(in))
	slices.SortFunc(pools, tables.InOrder[*tables.EgressIPPool])
	var nodes []string // in order
	for n := range r.Nodes.All(in) {
		if n.RunsAgent() {
			nodes = append(nodes, n.Name)
		}
	}
	uses, told := r.uses(in), r.told(in)
	for i, p := range pools {
		// Without a size there are no blocks, and those of nodes must not be lost.
		if p.Object == nil || p.PortsPerBlock == 0 {
			continue
		}
		rows = append(rows, row(p, pools[:i], nodes, told[p.Name], uses, now))
	}
	return rows
}

// told returns what nodes have reported, by the names of pools.
func (r *rule) told(in statedb.ReadTxn) map[string]reports {
	told := map[string]reports{}
	for n := range r.Reports.All(in) {
		for _, ports := range n.EgressPorts {
			if told[ports.Pool] == nil {
				told[ports.Pool] = reports{}
			}
			told[ports.Pool][n.Node] = ports
		}
	}
	return told
}

// row returns what the status of a pool shall be, of which older pools may have addresses too.
func row(
	p *tables.EgressIPPool, older []*tables.EgressIPPool, nodes []string, told reports, uses uses,
	now time.Time,
) *tables.EgressIPPoolStatus {
	s := &tables.EgressIPPoolStatus{
		Pool: p.Name, UID: p.UID, ResourceVersion: p.Object.ResourceVersion,
	}
	var noBlock, noAddr []string
	spans := spansOf(p, older)
	s.Blocks, noBlock = assignBlocks(
		p.Blocks, tables.PortBlocks(p.PortsPerBlock), nodes, told, now)
	reserved := uses.reserved(p, spans)
	s.Allocations, noAddr = uses.assign(p, spans, reserved, isKnown(p, older))
	s.Addresses = uses.count(spans, reserved, s.Allocations)
	s.Conditions = p.Object.Conditions
	conditions := []tables.Condition{
		blocksAssigned(noBlock, len(nodes)), addressesAssigned(noAddr), accepted(p.Errors),
	}
	if p.Fixed {
		conditions = append(conditions, addressesUsable(uses.ofNodes(spans)))
	}
	for _, c := range conditions {
		s.Conditions = withCondition(s.Conditions, c, now)
	}
	s.Problems = problems(s.Conditions, p.Object.Conditions)
	has := tables.PoolStatus{
		Addresses: p.Object.Addresses, Blocks: p.Blocks, Allocations: p.Allocations,
		Conditions: p.Object.Conditions,
	}
	if s.Reconciled = tables.Pending(); s.PoolStatus.Equal(&has) {
		s.Reconciled = tables.Done()
	}
	return s
}
