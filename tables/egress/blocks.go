// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"net/netip"
	"slices"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

type blockParams struct {
	cell.In

	Blocks    statedb.RWTable[*tables.EgressBlock]
	Owners    statedb.RWTable[*tables.PortOwner]
	IPs       statedb.Table[*tables.EgressIP]
	Pools     statedb.Table[*tables.EgressIPPool]
	Nodes     statedb.Table[*tables.Node]
	LocalNode tables.LocalNode
}

// deriveBlocks keeps how this node sends traffic by egress addresses of pools, and which nodes
// get the replies.
func deriveBlocks(p derive.Params, b blockParams) error {
	if err := derive.Register(p, b.blocks()); err != nil {
		return err
	}
	return derive.Register(p, b.owners())
}

func (b *blockParams) blocks() derive.Rule[netip.Addr] {
	return derive.Rule[netip.Addr]{
		Outputs: []statedb.TableMeta{b.Blocks},
		Inputs: []derive.Input[netip.Addr]{
			derive.From(b.IPs, func(_ statedb.ReadTxn, ip *tables.EgressIP, mark func(netip.Addr)) {
				mark(ip.Addr)
			}),
			derive.FromIf(b.Pools, b.changesOwnPorts,
				func(in statedb.ReadTxn, pool *tables.EgressIPPool, mark func(netip.Addr)) {
					b.addressesOf(in, pool.Name, mark)
				}),
		},
		Compute: derive.Each(b.Blocks, tables.EgressBlockByAddr, (*tables.EgressBlock).Equal, b.block),
	}
}

// changesOwnPorts reports whether this node has other ports of a pool than before.
func (b *blockParams) changesOwnPorts(old, new *tables.EgressIPPool) bool {
	return old.PortsPerBlock != new.PortsPerBlock || b.ownPorts(old) != b.ownPorts(new)
}

// addressesOf calls f with the addresses of a pool that are used.
func (b *blockParams) addressesOf(in statedb.ReadTxn, pool string, f func(netip.Addr)) {
	for ip := range b.IPs.All(in) {
		if ip.Pool == pool {
			f(ip.Addr)
		}
	}
}

func (b *blockParams) block(in statedb.ReadTxn, addr netip.Addr) *tables.EgressBlock {
	ip, _, found := b.IPs.Get(in, tables.EgressIPByAddr(addr))
	if !found {
		return nil
	}
	row := &tables.EgressBlock{
		Addr: addr, Pool: ip.Pool, Fixed: ip.Fixed, Reason: ip.Reason,
		Reconciled: tables.Pending(),
	}
	if row.Node, row.Gateway = ip.At(); row.Node != ip.Node {
		row.Reason = ""
	}
	if pool, _, found := b.Pools.Get(in, tables.EgressIPPoolByName(ip.Pool)); found {
		own := b.ownPorts(pool)
		row.Size, row.Ports, row.Closed = pool.PortsPerBlock, own.ranges, own.closed
	}
	if row.Reason == "" && row.Ports[0] == (bpf.PortRange{}) {
		row.Reason = "pool " + ip.Pool + " has no block of ports for this node"
	}
	return row
}

// ownPorts are the ports of the blocks that this node has of a pool: those for new connections
// from the first range on, adjacent ones as one, and at the end those of closed blocks.
type ownPorts struct {
	ranges [bpf.SharedPortRanges]bpf.PortRange
	closed int // ranges at the end
}

// ownPorts returns this node's ports of a pool, as many as an entry of the kernel has room for.
func (b *blockParams) ownPorts(pool *tables.EgressIPPool) (own ownPorts) {
	n := 0
	open, closed := pool.BlocksOf(b.LocalNode.Name)
	for _, block := range open {
		ports, valid := portsOf(block, pool.PortsPerBlock)
		switch {
		case !valid:
		case n > 0 && int(own.ranges[n-1].Last)+1 == int(ports.First):
			own.ranges[n-1].Last = ports.Last
		case n < len(own.ranges):
			own.ranges[n] = ports
			n++
		}
	}
	for _, block := range closed {
		if ports, valid := portsOf(block, pool.PortsPerBlock); valid && n+own.closed < len(own.ranges) {
			own.closed++
			own.ranges[len(own.ranges)-own.closed] = ports
		}
	}
	return own
}

// portsOf returns the ports of a block, if it may be one.
func portsOf(block tables.PortBlock, size int) (ports bpf.PortRange, valid bool) {
	first := tables.FirstPort + block.Index*size
	last := first + size - 1
	if size <= 0 || last > 65535 {
		return ports, false
	}
	return bpf.PortRange{First: uint16(first), Last: uint16(last)}, true
}

func (b *blockParams) owners() derive.Rule[bpf.OwnerKey] {
	return derive.Rule[bpf.OwnerKey]{
		Outputs: []statedb.TableMeta{b.Owners},
		Inputs: []derive.Input[bpf.OwnerKey]{
			derive.FromIf(b.IPs,
				func(old, new *tables.EgressIP) bool { return old.Pool != new.Pool },
				func(in statedb.ReadTxn, ip *tables.EgressIP, mark func(bpf.OwnerKey)) {
					if pool, _, found := b.Pools.Get(in, tables.EgressIPPoolByName(ip.Pool)); found {
						markBlocks(ip.Addr, pool.Blocks, mark)
					}
					for owner := range b.Owners.Prefix(in, tables.PortOwnersOfAddr(ip.Addr)) {
						mark(owner.OwnerKey)
					}
				}),
			derive.FromChange(b.Pools, b.markPool),
			derive.FromIf(b.Nodes,
				func(old, new *tables.Node) bool { return old.UnderlayIP() != new.UnderlayIP() },
				b.markNode),
		},
		Compute: derive.Each(b.Owners, tables.PortOwnerByKey, (*tables.PortOwner).Equal, b.owner),
	}
}

func markBlocks(addr netip.Addr, blocks []tables.PortBlock, mark func(bpf.OwnerKey)) {
	for _, block := range blocks {
		mark(bpf.OwnerKey{Egress: bpf.AddressFrom(addr), Block: uint32(block.Index)})
	}
}

// markPool marks the blocks that another node has than before.
func (b *blockParams) markPool(
	in statedb.ReadTxn, old, new *tables.EgressIPPool, mark func(bpf.OwnerKey),
) {
	var before, now []tables.PortBlock
	name := ""
	if old != nil {
		before, name = old.Blocks, old.Name
	}
	if new != nil {
		now, name = new.Blocks, new.Name
	}
	changed := append(without(before, now), without(now, before)...)
	b.addressesOf(in, name, func(addr netip.Addr) { markBlocks(addr, changed, mark) })
}

// without returns the blocks that are not among others with the same node.
func without(blocks, others []tables.PortBlock) (rest []tables.PortBlock) {
	nodes := map[int]string{}
	for _, o := range others {
		nodes[o.Index] = o.Node
	}
	return slices.DeleteFunc(slices.Clone(blocks), func(block tables.PortBlock) bool {
		return nodes[block.Index] == block.Node
	})
}

// markNode marks the blocks that a node has.
func (b *blockParams) markNode(in statedb.ReadTxn, n *tables.Node, mark func(bpf.OwnerKey)) {
	for pool := range b.Pools.All(in) {
		own := slices.DeleteFunc(slices.Clone(pool.Blocks), func(block tables.PortBlock) bool {
			return block.Node != n.Name
		})
		if len(own) > 0 {
			b.addressesOf(in, pool.Name, func(addr netip.Addr) { markBlocks(addr, own, mark) })
		}
	}
}

func (b *blockParams) owner(in statedb.ReadTxn, key bpf.OwnerKey) *tables.PortOwner {
	ip, _, found := b.IPs.Get(in, tables.EgressIPByAddr(key.Egress.Addr()))
	if !found {
		return nil
	}
	pool, _, found := b.Pools.Get(in, tables.EgressIPPoolByName(ip.Pool))
	if !found {
		return nil
	}
	at := slices.IndexFunc(pool.Blocks, func(block tables.PortBlock) bool {
		return block.Index == int(key.Block)
	})
	if at < 0 {
		return nil
	}
	node, _, found := b.Nodes.Get(in, tables.NodeByName(pool.Blocks[at].Node))
	if !found || !node.UnderlayIP().IsValid() {
		return nil
	}
	return &tables.PortOwner{
		OwnerKey: key, Node: node.Name, Addr: node.UnderlayIP(), Reconciled: tables.Pending(),
	}
}
