// SPDX-License-Identifier: Apache-2.0

package forwarding

import (
	"net/netip"
	"slices"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

type nodeParams struct {
	cell.In

	ClusterNodes statedb.RWTable[*tables.ClusterNode]
	Nodes        statedb.Table[*tables.Node]
	CiliumNodes  statedb.Table[*tables.CiliumNode]
	Health       statedb.Table[*tables.GatewayHealth]
}

// deriveNodes keeps the addresses by which nodes reach one another, and whether
// there is a node behind each that is ready and, for this node, not lost.
func deriveNodes(p derive.Params, n nodeParams) error {
	return derive.Register(p, derive.Rule[netip.Addr]{
		Outputs: []statedb.TableMeta{n.ClusterNodes},
		Inputs: []derive.Input[netip.Addr]{
			derive.FromIf(n.Nodes,
				func(old, new *tables.Node) bool {
					return old.Ready != new.Ready || !slices.Equal(old.InternalIPs, new.InternalIPs)
				},
				func(txn statedb.ReadTxn, node *tables.Node, mark func(netip.Addr)) {
					each(node.InternalIPs, mark)
					if c, _, found := n.CiliumNodes.Get(txn, tables.CiliumNodeByName(node.Name)); found {
						each(c.Addrs, mark)
					}
				}),
			derive.From(n.CiliumNodes, func(_ statedb.ReadTxn, c *tables.CiliumNode, mark func(netip.Addr)) {
				each(c.Addrs, mark)
			}),
			derive.FromIf(n.Health,
				func(old, new *tables.GatewayHealth) bool { return old.Lost() != new.Lost() },
				n.markLost),
		},
		Compute: derive.Each(
			n.ClusterNodes, tables.ClusterNodeByAddr, (*tables.ClusterNode).Equal, n.row),
	})
}

// markLost marks the addresses of a node.
func (n *nodeParams) markLost(
	txn statedb.ReadTxn, h *tables.GatewayHealth, mark func(netip.Addr),
) {
	if node, _, found := n.Nodes.Get(txn, tables.NodeByName(h.Node)); found {
		each(node.InternalIPs, mark)
	}
	if c, _, found := n.CiliumNodes.Get(txn, tables.CiliumNodeByName(h.Node)); found {
		each(c.Addrs, mark)
	}
}

// isAlive reports whether connections may stay with a node as their gateway.
func (n *nodeParams) isAlive(txn statedb.ReadTxn, node *tables.Node) bool {
	h, _, probed := n.Health.Get(txn, tables.GatewayHealthByNode(node.Name))
	return node.Ready && !(probed && h.Lost())
}

func each(addrs []netip.Addr, mark func(netip.Addr)) {
	for _, addr := range addrs {
		mark(addr)
	}
}

func (n *nodeParams) row(txn statedb.ReadTxn, addr netip.Addr) *tables.ClusterNode {
	row := &tables.ClusterNode{Addr: addr, Reconciled: tables.Pending()}
	for node := range n.Nodes.List(txn, tables.NodesByAddr(addr)) {
		if slices.Contains(node.InternalIPs, addr) {
			row.Nodes = append(row.Nodes, node.Name)
			row.Alive = row.Alive || n.isAlive(txn, node)
		}
	}
	for c := range n.CiliumNodes.List(txn, tables.CiliumNodesByAddr(addr)) {
		row.Nodes = append(row.Nodes, c.Name)
		node, _, found := n.Nodes.Get(txn, tables.NodeByName(c.Name))
		row.Alive = row.Alive || found && n.isAlive(txn, node)
	}
	if len(row.Nodes) == 0 {
		return nil
	}
	slices.Sort(row.Nodes)
	row.Nodes = slices.Compact(row.Nodes)
	return row
}
