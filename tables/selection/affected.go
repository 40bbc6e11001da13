// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

// inputs are what the partitions are computed from. The desired tables follow
// from the classes, and are looked at for who is still in one that he is to leave.
// The endpoints come first: others look up label sets in the index of their labels.
func (m *members) inputs() []derive.Input[memberKey] {
	return []derive.Input[memberKey]{
		derive.Initially(
			func(_ statedb.ReadTxn, e *tables.Endpoint, affect func(memberKey)) {
				m.labels.expect(e.LabelSet)
				affectSet(e.LabelSet.ID, affect)
			},
			derive.FromChange(m.Places.Endpoints, m.affectedByEndpoint)),
		derive.Initially(
			func(_ statedb.ReadTxn, s *tables.Selector, affect func(memberKey)) { affect(keyOfEvaluated(s)) },
			derive.FromChange(m.Selectors, m.affectedBySelector)),
		derive.Joined(derive.From(m.Namespaces, m.affectedByNamespace)),
		derive.FromChange(m.Places.Nodes, m.affectedByNode),
		derive.FromChange(m.Places.CiliumNodes, m.affectedByCiliumNode),
		derive.From(m.Places.Addresses, func(_ statedb.ReadTxn, a *tables.NodeAddress, affect func(memberKey)) {
			m.affectedByHost(single(a.Addr), affect)
		}),
		derive.FromIf(m.Places.Routes,
			func(old, new *tables.Route) bool { return old.ToThisNode() != new.ToThisNode() },
			func(_ statedb.ReadTxn, r *tables.Route, affect func(memberKey)) {
				if r.ToThisNode() {
					m.affectedByHost(r.Destination, affect)
				}
			}),
		derive.Initially(
			func(_ statedb.ReadTxn, p *tables.PeerPrefix, affect func(memberKey)) { affect(keyOfPrefix(p)) },
			derive.FromChange(m.Places.PeerPrefixes, m.affectedByPrefix)),
		derive.From(m.ClassEntries, m.affectedByEntry),
		derive.While(m.hasDoubles, derive.Feedback(derive.FromKey(m.Classes, m.affectedByClass))),

		placement(m.peers, m.IPCacheEntries, peerInKernel),
		placement(m.subjects, m.PodEntries, subjectInKernel),
		derive.Feedback(placement(m.peers, m.IPCache, desiredPeer)),
		derive.Feedback(placement(m.subjects, m.Locals, desiredSubject)),
	}
}

// single is the prefix of one address.
func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// affectSet affects the members with a label set under all roles.
func affectSet(id tables.LabelSetID, affect func(memberKey)) {
	affect(memberKey{set: id})
}

func (m *members) affectedByNamespace(_ statedb.ReadTxn, n *tables.Namespace, affect func(memberKey)) {
	for set := range m.labels.with(tables.NamespaceAnchor(n.Name)) {
		affectSet(set.ID, affect)
	}
}

// affectedByNode are the label sets for which the node matters, and the node
// itself as a peer.
func (m *members) affectedByNode(txn statedb.ReadTxn, old, new *tables.Node, affect func(memberKey)) {
	relabelled := old == nil || new == nil || !maps.Equal(old.Labels, new.Labels)
	addrs := slices.Concat(nodeAddrs(old), nodeAddrs(new))
	if old != nil && new != nil && slices.Equal(nodeAddrs(old), nodeAddrs(new)) {
		addrs = nil
	}
	name := nodeName(old, new)
	if relabelled {
		for member := range m.Output.List(txn, tables.ClassMembersByNode(name)) {
			if member.Role == bpf.RoleEgress {
				affect(keyOfMember(member))
			}
		}
	}
	if relabelled || len(addrs) > 0 {
		affect(memberKey{role: bpf.RolePeer, node: name})
	}
	for _, a := range addrs {
		affect(addressKey(bpf.RolePeer, single(a)))
	}
}

func nodeAddrs(n *tables.Node) []netip.Addr {
	if n == nil {
		return nil
	}
	return slices.Concat(n.InternalIPs, n.OtherIPs)
}

func nodeName(old, new *tables.Node) string {
	if new != nil {
		return new.Name
	}
	return old.Name
}

func (m *members) affectedByCiliumNode(_ statedb.ReadTxn, old, new *tables.CiliumNode, affect func(memberKey)) {
	for _, n := range []*tables.CiliumNode{old, new} {
		if n == nil {
			continue
		}
		affect(memberKey{role: bpf.RolePeer, node: n.Name})
		for _, a := range n.Addrs {
			affect(addressKey(bpf.RolePeer, single(a)))
		}
	}
}

// affectedByHost is this node as a peer, and who has the address or prefix.
func (m *members) affectedByHost(prefix netip.Prefix, affect func(memberKey)) {
	affect(memberKey{role: bpf.RolePeer, node: m.Places.LocalNode.Name})
	affect(addressKey(bpf.RolePeer, prefix))
}

// affectedByPrefix are the prefix itself, the selectors that wait for it, and if
// pods and nodes are told apart by it, those in it.
func (m *members) affectedByPrefix(txn statedb.ReadTxn, old, new *tables.PeerPrefix, affect func(memberKey)) {
	row := new
	if row == nil {
		row = old
	}
	affect(keyOfPrefix(row))
	m.peers.affectedAsLeaver(row.Prefix, affect)
	for s := range m.Selectors.List(txn, tables.SelectorsByPrefix(row.Prefix)) {
		affect(keyOfEvaluated(s))
	}
	if old != nil && new != nil && old.Pods == new.Pods && old.Cluster == new.Cluster {
		return
	}
	for c := range tables.IPCacheWithin(txn, m.IPCache, row.Prefix) {
		affect(addressKey(bpf.RolePeer, c.Prefix))
	}
	if old != nil && old.Pods || new != nil && new.Pods {
		m.affectedInside(txn, row.Prefix, affect)
	}
}

// affectedInside are the pods and nodes with an address in a prefix.
func (m *members) affectedInside(txn statedb.ReadTxn, prefix netip.Prefix, affect func(memberKey)) {
	first := prefix.Masked().Addr()
	for e := range tables.Inside(prefix, m.Places.Endpoints.LowerBound(txn, tables.EndpointsByAddr(first)), func(e *tables.Endpoint) []netip.Addr { return e.Addrs }) {
		affect(memberKey{role: bpf.RolePeer, set: e.LabelSet.ID})
	}
	for n := range tables.Inside(prefix, m.Places.Nodes.LowerBound(txn, tables.NodesByAddr(first)), nodeAddrs) {
		affect(memberKey{role: bpf.RolePeer, node: n.Name})
	}
	for n := range tables.Inside(prefix, m.Places.CiliumNodes.LowerBound(txn, tables.CiliumNodesByAddr(first)), func(n *tables.CiliumNode) []netip.Addr { return n.Addrs }) {
		affect(memberKey{role: bpf.RolePeer, node: n.Name})
	}
	affect(memberKey{role: bpf.RolePeer, node: m.Places.LocalNode.Name})
}

// affectedByEndpoint is nothing for one with known labels at a known place, as
// long as it is not the last of its kind.
func (m *members) affectedByEndpoint(txn statedb.ReadTxn, old, new *tables.Endpoint, affect func(memberKey)) {
	moved := old == nil || new == nil || old.Node != new.Node || old.LabelSet.ID != new.LabelSet.ID
	if !moved && old.SameClaim(new) {
		return
	}
	if new != nil && moved {
		m.labels.take(txn, m.Places.Endpoints, new.LabelSet)
	}
	for _, e := range []*tables.Endpoint{old, new} {
		if e == nil {
			continue
		}
		all := moved && m.comesOrGoes(txn, e.LabelSet.ID)
		if all {
			affectSet(e.LabelSet.ID, affect)
		} else if moved {
			m.affectedByEgressEndpoint(txn, e, affect)
		}
		for _, s := range [...]*policyScope{m.peers, m.subjects} {
			if !all && !s.place.complete(txn, e) {
				affect(memberKey{role: s.role, set: e.LabelSet.ID})
			}
			for _, addr := range e.Addrs {
				s.affectedAsLeaver(single(addr), affect) // it may be back before it has left
				if !s.settled(txn, single(addr)) {
					affect(addressKey(s.role, single(addr)))
				}
			}
		}
	}
}

// comesOrGoes reports whether no endpoint has a label set, or none had it, with an
// address at least.
func (m *members) comesOrGoes(txn statedb.ReadTxn, id tables.LabelSetID) bool {
	if tables.LabelSetByID(txn, m.Places.Endpoints, id) == nil {
		return true
	}
	for range m.Output.Prefix(txn, tables.ClassMembersOfLabelSet(bpf.RolePeer, id)) {
		return false
	}
	return true
}

// affectedByEgressEndpoint is the label set of the endpoint if the node matters
// for it: the endpoint may be the first or the last on its node.
func (m *members) affectedByEgressEndpoint(txn statedb.ReadTxn, e *tables.Endpoint, affect func(memberKey)) {
	for member := range m.Output.Prefix(txn, tables.ClassMembersOfLabelSet(bpf.RoleEgress, e.LabelSet.ID)) {
		if member.Node != "" {
			affect(memberKey{role: bpf.RoleEgress, set: e.LabelSet.ID})
		}
		return
	}
}

// affectedByEntry has a round look whether classes can be merged that the kernel knows
// by one signature.
func (m *members) affectedByEntry(txn statedb.ReadTxn, e *tables.ClassEntry, affect func(memberKey)) {
	p := m.partitions[e.Key.Role]
	if p == nil || !p.isDouble(txn, e.Value.Digest) {
		return
	}
	p.double[e.Value.Digest] = struct{}{}
	affect(classKey(e.Key.Role, e.Key.Number, netip.Prefix{}))
}

// hasDoubles reports whether more than one number may stand for a signature.
func (m *members) hasDoubles(statedb.ReadTxn) bool {
	for _, p := range m.partitions {
		if len(p.double) > 0 {
			return true
		}
	}
	return false
}

// affectedByClass has a round look whether a class can be merged with another one,
// which is when no change of its meaning is under way any more.
func (m *members) affectedByClass(_ statedb.ReadTxn, c *tables.Class, affect func(memberKey)) {
	if p := m.partitions[c.Role]; p != nil && len(p.double) > 0 {
		affect(classKey(c.Role, c.Number, netip.Prefix{}))
	}
}
