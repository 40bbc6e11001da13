// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"iter"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
)

// elections elects nodes as for policies that name an address of no pool.
func (i *ipParams) elections(
	in statedb.ReadTxn, state func(node string) tables.PathState,
) *tables.Elections {
	return &tables.Elections{
		Nodes:     func() iter.Seq2[*tables.Node, statedb.Revision] { return i.Nodes.All(in) },
		LocalNode: i.LocalNode.Name,
		IsLost: func(node string) bool {
			h := tables.GatewayHealth{State: state(node)}
			return h.Lost()
		},
	}
}

// findFixed says which node has a fixed address: the gateway of the first policy that names it. If
// that is lost or drained, and no other node may have the address, it has it still.
func findFixed(
	row *tables.EgressIP, pool *tables.EgressIPPool, policy *tables.EgressPolicy,
	elections *tables.Elections,
) {
	if pool.Error != "" {
		row.Reason = "pool " + pool.Name + ": " + pool.Error
		return
	}
	item := []tables.GatewaySpec{{Nodes: itemOf(policy, row)}}
	choice := elections.Gateways(item, tables.NoOwner)[0]
	row.Owner, row.OwnerAddr, row.Reason = choice.Node, choice.Addr, choice.Reason
}
