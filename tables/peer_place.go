// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
)

// PeerPlaces tells what an address or a prefix is as a peer: this node, another
// one, a pod, or none of these; the first of them that applies.
type PeerPlaces struct {
	cell.In

	Members      statedb.Table[*ClassMember]
	PeerPrefixes statedb.Table[*PeerPrefix]
	Endpoints    statedb.Table[*Endpoint]
	Nodes        statedb.Table[*Node]
	CiliumNodes  statedb.Table[*CiliumNode]
	Addresses    statedb.Table[*NodeAddress]
	Routes       statedb.Table[*Route]
	LocalNode    LocalNode
}

// Key returns the key of the member that a prefix belongs to.
func (p PeerPlaces) Key(txn statedb.ReadTxn, prefix netip.Prefix) MemberKey {
	key := MemberKey{Role: bpf.RolePeer}
	if key.Node = p.node(txn, prefix); key.Node == "" && prefix.IsSingleIP() {
		if owner, _ := AddrOwner(txn, p.Endpoints, prefix.Addr()); owner != nil {
			key.LabelSet = owner.LabelSet.ID
		}
	}
	if key.Node == "" && key.LabelSet == (LabelSetID{}) {
		return p.KeyOutside(txn, prefix)
	}
	key.Prefix = p.Covering(txn, prefix)
	return key
}

// KeyOutside is [PeerPlaces.Key] for what is neither a pod nor a node: the
// longest of the prefixes of peers that it is in.
func (p PeerPlaces) KeyOutside(txn statedb.ReadTxn, prefix netip.Prefix) MemberKey {
	key := MemberKey{Role: bpf.RolePeer}
	if longest := PeerPrefixLongest(txn, p.PeerPrefixes, prefix); longest != nil {
		key.Prefix = longest.Prefix
	}
	return key
}

// Covering returns the longest prefix that pods and nodes are told apart by and
// that a prefix is in; invalid if there is none.
func (p PeerPlaces) Covering(txn statedb.ReadTxn, prefix netip.Prefix) netip.Prefix {
	if longest := PeerPrefixLongestForPods(txn, p.PeerPrefixes, prefix); longest != nil {
		return longest.Prefix
	}
	return netip.Prefix{}
}

// Member returns the member that a prefix belongs to, nil while it is not known.
func (p PeerPlaces) Member(txn statedb.ReadTxn, prefix netip.Prefix) *ClassMember {
	m, _, _ := p.Members.Get(txn, ClassMemberByKey(p.Key(txn, prefix)))
	return m
}

// MemberOutside is [PeerPlaces.Member] for what is neither a pod nor a node.
func (p PeerPlaces) MemberOutside(txn statedb.ReadTxn, prefix netip.Prefix) *ClassMember {
	m, _, _ := p.Members.Get(txn, ClassMemberByKey(p.KeyOutside(txn, prefix)))
	return m
}

// node returns the name of the node that a prefix is of, empty if it is of none.
func (p PeerPlaces) node(txn statedb.ReadTxn, prefix netip.Prefix) (name string) {
	for r := range Rare(txn, p.Routes, RoutesByDestination(prefix)) {
		if r.ToThisNode() {
			return p.LocalNode.Name
		}
	}
	if !prefix.IsSingleIP() {
		return ""
	}
	if _, _, found := p.Addresses.Get(txn, NodeAddressesByAddr(prefix.Addr())); found {
		return p.LocalNode.Name
	}
	found := func(node string) {
		if name == "" || node == p.LocalNode.Name {
			name = node
		}
	}
	for n := range Rare(txn, p.Nodes, NodesByAddr(prefix.Addr())) {
		found(n.Name)
	}
	for n := range Rare(txn, p.CiliumNodes, CiliumNodesByAddr(prefix.Addr())) {
		found(n.Name)
	}
	return name
}

// NodePrefixes returns the addresses and prefixes that are of a node.
func (p PeerPlaces) NodePrefixes(txn statedb.ReadTxn, name string) []netip.Prefix {
	var prefixes []netip.Prefix
	add := func(addrs ...netip.Addr) {
		for _, a := range addrs {
			prefixes = append(prefixes, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	if n, _, found := p.Nodes.Get(txn, NodeByName(name)); found {
		add(n.InternalIPs...)
		add(n.OtherIPs...)
	}
	if n, _, found := p.CiliumNodes.Get(txn, CiliumNodeByName(name)); found {
		add(n.Addrs...)
	}
	if name != p.LocalNode.Name {
		return prefixes
	}
	for a := range p.Addresses.All(txn) {
		add(a.Addr)
	}
	for r := range p.Routes.List(txn, RoutesByTable(RouteTableLocal)) {
		if r.ToThisNode() {
			prefixes = append(prefixes, r.Destination)
		}
	}
	return prefixes
}
