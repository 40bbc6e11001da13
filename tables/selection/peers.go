// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// peerPlace is what is particular to peers: label sets and nodes, each divided by
// the prefixes that some selector tells their addresses apart by, and prefixes.
type peerPlace struct{ *members }

func (p *peerPlace) signatures(r *round, key memberKey) (wanted []*tables.ClassMember) {
	switch {
	case key.set != tables.LabelSetID{}:
		return p.pods(r, key.set)
	case key.node != "":
		return p.node(r, key.node)
	}
	if row, _, found := p.Places.PeerPrefixes.Get(r.txn, tables.PeerPrefixByPrefix(key.prefix)); found {
		wanted = append(wanted, p.outside(r, row))
	}
	return wanted
}

// ofCluster is what chooses all that is inside the cluster.
var ofCluster = tables.EntitySelector(tables.EntityCluster).ID()

func (p *peerPlace) pods(r *round, id tables.LabelSetID) (wanted []*tables.ClassMember) {
	first, _, found := p.Places.Endpoints.Get(r.txn, tables.EndpointsByLabelSet(id))
	if !found {
		return nil
	}
	common := append(r.common[:0], ofCluster)
	for _, s := range r.chooser.choosing(r.txn, first.LabelSet) {
		common = append(common, s.ID)
	}
	r.common = common
	ports := r.ports(first.LabelSet)
	if r.together && len(first.Addrs) > 0 {
		m := &tables.ClassMember{Role: bpf.RolePeer, LabelSet: id}
		r.signer.sign(m, common, ports)
		return []*tables.ClassMember{m}
	}
	for e := range p.Places.Endpoints.List(r.txn, tables.EndpointsByLabelSet(id)) {
		for _, addr := range e.Addrs {
			m := &tables.ClassMember{Role: bpf.RolePeer, LabelSet: id, Prefix: p.Places.Covering(r.txn, single(addr))}
			if !hasPrefix(wanted, m.Prefix) {
				p.sign(r, m, common, ports, func(s *tables.Selector) bool { return s.MatchesPods })
				wanted = append(wanted, m)
			}
		}
	}
	return wanted
}

// tellsPodsApart reports whether some prefix does.
func (m *members) tellsPodsApart(txn statedb.ReadTxn) bool {
	for prefix := range m.Places.PeerPrefixes.All(txn) {
		if prefix.Pods {
			return true
		}
	}
	return false
}

func hasPrefix(members []*tables.ClassMember, prefix netip.Prefix) bool {
	return slices.ContainsFunc(members, func(m *tables.ClassMember) bool { return m.Prefix == prefix })
}

func (p *peerPlace) node(r *round, name string) (wanted []*tables.ClassMember) {
	entity := tables.EntityRemoteNode
	if name == p.Places.LocalNode.Name {
		entity = tables.EntityHost
	}
	common := []tables.SelectorID{ofCluster, tables.EntitySelector(entity).ID()}
	if node, _, found := p.Places.Nodes.Get(r.txn, tables.NodeByName(name)); found {
		for s := range p.Selectors.List(r.txn, tables.SelectorsByKind(tables.PeerNodes)) {
			if s.ChoosesNode(node.Labels) {
				common = append(common, s.ID)
			}
		}
	}
	for _, prefix := range p.Places.NodePrefixes(r.txn, name) {
		m := &tables.ClassMember{Role: bpf.RolePeer, Node: name, Prefix: p.Places.Covering(r.txn, prefix)}
		if !hasPrefix(wanted, m.Prefix) {
			p.sign(r, m, common, nil, func(s *tables.Selector) bool { return s.MatchesNodes })
			wanted = append(wanted, m)
		}
	}
	return wanted
}

// outside is what is neither a pod nor a node. An address of the cluster that
// nobody is known to have counts as one of a pod.
func (p *peerPlace) outside(r *round, row *tables.PeerPrefix) *tables.ClassMember {
	common := []tables.SelectorID{ofCluster}
	if !row.Cluster {
		version := tables.EntityWorldIPv4
		if row.Prefix.Addr().Is6() {
			version = tables.EntityWorldIPv6
		}
		common = []tables.SelectorID{tables.EntitySelector(tables.EntityWorld).ID(), tables.EntitySelector(version).ID()}
	}
	m := &tables.ClassMember{Role: bpf.RolePeer, Prefix: row.Prefix}
	p.sign(r, m, common, nil, func(s *tables.Selector) bool { return !row.Cluster || s.MatchesPods })
	return m
}

// sign completes a member with the selectors that mean its prefix, if they
// mean its kind there, beside those that it has in common with others.
func (p *peerPlace) sign(r *round, m *tables.ClassMember, common []tables.SelectorID, ports []tables.NamedPort, means func(*tables.Selector) bool) {
	selectors := slices.Clip(common)
	for _, s := range p.containing(r.txn, m.Prefix) {
		if means(s) {
			selectors = append(selectors, s.ID)
		}
	}
	r.signer.sign(m, selectors, ports)
}

// complete reports whether the members with the label set of an endpoint, that
// may be gone, are there at its addresses, and none that has no address any more.
func (p *peerPlace) complete(txn statedb.ReadTxn, e *tables.Endpoint) bool {
	for _, addr := range e.Addrs {
		covering := p.Places.Covering(txn, single(addr))
		_, _, is := p.Output.Get(txn, tables.ClassMemberByKey(tables.MemberKey{Role: bpf.RolePeer, LabelSet: e.LabelSet.ID, Prefix: covering}))
		if is != p.someoneAt(txn, e.LabelSet.ID, covering) {
			return false
		}
	}
	return true
}

func (p *peerPlace) someoneAt(txn statedb.ReadTxn, id tables.LabelSetID, covering netip.Prefix) bool {
	for e := range p.Places.Endpoints.List(txn, tables.EndpointsByLabelSet(id)) {
		for _, addr := range e.Addrs {
			if p.Places.Covering(txn, single(addr)) == covering {
				return true
			}
		}
	}
	return false
}

func (p *peerPlace) key(txn statedb.ReadTxn, prefix netip.Prefix) tables.MemberKey {
	return p.Places.Key(txn, prefix)
}

// classes looks also at what is around a prefix that has no entry, or soon has none.
func (p *peerPlace) classes(txn statedb.ReadTxn, prefix netip.Prefix) (kernel, desired uint32) {
	e, isThere := p.entry(txn, prefix)
	if isThere {
		kernel = e.Value.PeerClass
	}
	c, _, isWanted := p.IPCache.Get(txn, tables.IPCacheByPrefix(prefix))
	if isWanted {
		desired = c.PeerClass
	}
	if isThere && isWanted || prefix.Bits() == 0 || isThere && p.IPCache.NumObjects(txn) == 0 { // as at the start
		return kernel, desired
	}
	if _, _, named := p.Places.PeerPrefixes.Get(txn, tables.PeerPrefixByPrefix(prefix)); !named {
		return kernel, desired
	}
	around, _ := tables.PeerClassInKernel(txn, p.IPCacheEntries, netip.PrefixFrom(prefix.Addr(), prefix.Bits()-1).Masked())
	if isThere {
		return kernel, around
	}
	return around, desired
}

func (p *peerPlace) isStale(txn statedb.ReadTxn, prefix netip.Prefix, key tables.MemberKey) bool {
	if key.Node != "" || key.LabelSet != (tables.LabelSetID{}) || key.Prefix == prefix {
		return false
	}
	if c, _, isWanted := p.IPCache.Get(txn, tables.IPCacheByPrefix(prefix)); isWanted {
		return !c.IsOutside()
	}
	_, isThere := p.entry(txn, prefix)
	return isThere
}

// entry returns what the kernel has of one very prefix.
func (p *peerPlace) entry(txn statedb.ReadTxn, prefix netip.Prefix) (e *tables.IPCacheEntry, isThere bool) {
	e, _, isThere = p.IPCacheEntries.Get(txn, tables.MapEntryByKey[bpf.IPCacheKey, bpf.IPCacheValue](bpf.IPCacheKeyFrom(prefix)))
	return e, isThere
}

// heirs are the prefixes without an entry, or soon without: see classes.
func (p *peerPlace) heirs(txn statedb.ReadTxn, prefix netip.Prefix) iter.Seq[netip.Prefix] {
	return func(yield func(netip.Prefix) bool) {
		if prefix.IsSingleIP() || p.IPCache.NumObjects(txn) == 0 { // as at the start, when all are looked at
			return
		}
		for inside := range tables.PeerPrefixesInside(txn, p.Places.PeerPrefixes, prefix) {
			if inside.Prefix == prefix {
				continue
			}
			_, isThere := p.entry(txn, inside.Prefix)
			_, _, isWanted := p.IPCache.Get(txn, tables.IPCacheByPrefix(inside.Prefix))
			if !(isThere && isWanted) && !yield(inside.Prefix) {
				return
			}
		}
	}
}

func (p *peerPlace) pending(txn statedb.ReadTxn, prefix netip.Prefix) bool {
	c, _, found := p.IPCache.Get(txn, tables.IPCacheByPrefix(prefix))
	return found && isPending(c.Status)
}

func (p *peerPlace) failed(txn statedb.ReadTxn, prefix netip.Prefix) bool {
	c, _, found := p.IPCache.Get(txn, tables.IPCacheByPrefix(prefix))
	return found && isFailed(c.Status)
}

func (p *peerPlace) named(txn statedb.ReadTxn, number uint32) bool {
	_, _, found := p.PolicyEntries.Get(txn, tables.PolicyMapEntriesByPeer(number))
	return found
}

// prefixes returns what changes its class with a member; of a prefix, also what
// the ipcache has inside it, such as addresses of services.
func (p *peerPlace) prefixes(txn statedb.ReadTxn, m *tables.ClassMember) (prefixes []netip.Prefix) {
	if m.Node != "" {
		for _, prefix := range p.Places.NodePrefixes(txn, m.Node) {
			if p.Places.Covering(txn, prefix) == m.Prefix {
				prefixes = append(prefixes, prefix)
			}
		}
		return prefixes
	}
	if m.LabelSet == (tables.LabelSetID{}) {
		prefixes = append(prefixes, m.Prefix)
		for c := range tables.IPCacheWithin(txn, p.IPCache, m.Prefix) {
			if c.Prefix != m.Prefix && p.Places.Key(txn, c.Prefix) == m.Key() {
				prefixes = append(prefixes, c.Prefix)
			}
		}
		return prefixes
	}
	for e := range p.Places.Endpoints.List(txn, tables.EndpointsByLabelSet(m.LabelSet)) {
		for _, addr := range e.Addrs {
			if m.Prefix.IsValid() && !m.Prefix.Contains(addr) {
				continue // without a look at all prefixes: there may be many members
			}
			if p.Places.Covering(txn, single(addr)) == m.Prefix {
				prefixes = append(prefixes, single(addr))
			}
		}
	}
	return prefixes
}
