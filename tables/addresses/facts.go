// SPDX-License-Identifier: Apache-2.0

package addresses

import (
	"net/netip"
	"slices"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// rows computes what is known of a prefix: what objects say of it or else of the
// prefix that it is in, and its class as the peer that it is a member of.
func (c *ipcache) rows(txn statedb.ReadTxn, prefix netip.Prefix) []*tables.IPCache {
	row, pod := c.facts(txn, prefix)
	member := c.member(txn, row, pod)
	if member == nil {
		c.unplaced[prefix] = struct{}{}
	} else {
		delete(c.unplaced, prefix)
	}
	delete(c.remaining, prefix)
	if row.Flags == 0 {
		delete(c.named, prefix)
		if !c.isPeer(txn, prefix, member) {
			if row.Remains = c.remains(txn, prefix, member); !row.Remains {
				return nil
			}
			c.remaining[prefix] = struct{}{}
		}
		c.inherit(txn, row)
	}
	if !c.classify(txn, row, member) {
		return nil
	}
	return []*tables.IPCache{row}
}

// isPeer reports whether a prefix is a member of its own. One that is none any more
// is for as long as class-members has not taken that in.
func (c *ipcacheParams) isPeer(txn statedb.ReadTxn, prefix netip.Prefix, member *tables.ClassMember) bool {
	_, _, named := c.PeerPrefixes.Get(txn, tables.PeerPrefixByPrefix(prefix))
	return named || member != nil && member.Prefix == prefix
}

// member returns the member that a prefix belongs to, nil while it is not known:
// [tables.PeerPlaces.Member], if one knows what objects say.
func (c *ipcache) member(txn statedb.ReadTxn, row *tables.IPCache, pod *tables.Endpoint) *tables.ClassMember {
	if pod == nil || row.Flags&(bpf.IPCacheHost|bpf.IPCacheNode) != 0 {
		key := c.Places.Key(txn, row.Prefix)
		if key.Node == "" && key.LabelSet == (tables.LabelSetID{}) {
			return c.outside(txn, row.Prefix)
		}
		m, _, _ := c.Members.Get(txn, tables.ClassMemberByKey(key))
		return m
	}
	m, _, _ := c.Members.Get(txn, tables.ClassMemberByKey(tables.MemberKey{
		Role: bpf.RolePeer, LabelSet: pod.LabelSet.ID, Prefix: c.Places.Covering(txn, row.Prefix),
	}))
	return m
}

// outside returns the member that a prefix belongs to which is neither of a pod nor of
// a node. As long as class-members has a longer one than there is now, it says of
// what is around that what it was: the prefix stays with the longer one.
func (c *ipcacheParams) outside(txn statedb.ReadTxn, prefix netip.Prefix) *tables.ClassMember {
	for bits := prefix.Bits(); bits >= 0; bits-- {
		around := netip.PrefixFrom(prefix.Addr(), bits).Masked()
		if m, _, found := c.Members.Get(txn, tables.ClassMemberByKey(tables.MemberKey{Role: bpf.RolePeer, Prefix: around})); found {
			return m
		}
		if _, _, named := c.PeerPrefixes.Get(txn, tables.PeerPrefixByPrefix(around)); named {
			return nil
		}
	}
	return nil
}

// facts is all that any object says of a prefix, together, and the pod that has it,
// nil if there is none. Where objects disagree about the tunnel, the first that has
// one decides: this node, another node, a pod, a node's pod prefix.
func (c *ipcache) facts(txn statedb.ReadTxn, prefix netip.Prefix) (row *tables.IPCache, pod *tables.Endpoint) {
	row = &tables.IPCache{Prefix: prefix, Reconciled: tables.Pending()}
	fact := func(flags bpf.IPCacheFlags, origin string) {
		row.Flags |= flags
		if !slices.Contains(row.Origins, origin) {
			row.Origins = append(row.Origins, origin)
		}
	}
	_, named := c.named[prefix]
	if prefix.IsSingleIP() {
		if named {
			c.hostFacts(txn, prefix.Addr(), fact)
			c.nodeFacts(txn, prefix.Addr(), fact)
		}
		pod = c.podFacts(txn, prefix.Addr(), row, fact)
		if named {
			c.serviceFacts(txn, prefix.Addr(), fact)
		}
	}
	if named {
		c.prefixFacts(txn, prefix, row, fact)
	}
	return row, pod
}

// inherit fills in what is known of a prefix that no object says anything of:
// what is known of the longest one that it is in. A look-up finds the longest
// prefix alone, and must not find less than it did.
func (c *ipcache) inherit(txn statedb.ReadTxn, row *tables.IPCache) {
	row.Inherits, row.Origins = true, []string{"peer prefix"}
	for bits := row.Prefix.Bits() - 1; bits >= 0; bits-- {
		covering, _ := c.facts(txn, netip.PrefixFrom(row.Prefix.Addr(), bits).Masked())
		if covering.Flags != 0 {
			row.Flags, row.Tunnel = covering.Flags, covering.Tunnel
			row.Origins = append(row.Origins, "inside "+covering.Prefix.String())
			return
		}
	}
}

type factFunc func(flags bpf.IPCacheFlags, origin string)

func (c *ipcacheParams) hostFacts(txn statedb.ReadTxn, addr netip.Addr, fact factFunc) {
	for a := range tables.Rare(txn, c.Addresses, tables.NodeAddressesByAddr(addr)) {
		fact(bpf.IPCacheHost|bpf.IPCacheInCluster, "device "+a.Device)
	}
}

func (c *ipcacheParams) nodeFacts(txn statedb.ReadTxn, addr netip.Addr, fact factFunc) {
	node := func(name string) {
		flags := bpf.IPCacheNode | bpf.IPCacheInCluster
		if name == c.LocalNode.Name {
			flags |= bpf.IPCacheHost
		}
		fact(flags, "node "+name)
	}
	for n := range tables.Rare(txn, c.Nodes, tables.NodesByAddr(addr)) {
		node(n.Name)
	}
	for n := range tables.Rare(txn, c.CiliumNodes, tables.CiliumNodesByAddr(addr)) {
		node(n.Name)
	}
}

func (c *ipcacheParams) podFacts(txn statedb.ReadTxn, addr netip.Addr, row *tables.IPCache, fact factFunc) *tables.Endpoint {
	owner, others := tables.AddrOwner(txn, c.Endpoints, addr)
	if owner == nil {
		// It may be in the pod prefix of another node, and is no pod of that one.
		for n := range tables.Rare(txn, c.Nodes, tables.NodesByTunnelAddr(addr)) {
			fact(bpf.IPCacheInCluster, "tunnel of node "+n.Name)
		}
		return nil
	}
	fact(bpf.IPCachePod|bpf.IPCacheInCluster|c.localPods(owner.Node), "pod "+owner.Name.String())
	if row.Flags&(bpf.IPCacheHost|bpf.IPCacheNode) == 0 {
		row.Tunnel = c.tunnelTo(txn, owner.Node)
	}
	for _, e := range others {
		row.Conflicts = append(row.Conflicts, e.Name.String())
	}
	slices.Sort(row.Conflicts)
	return owner
}

// localPods is the flag of what the pods of this node have, or get, addresses of: none
// of another node's.
func (c *ipcacheParams) localPods(node string) bpf.IPCacheFlags {
	if node != c.LocalNode.Name {
		return 0
	}
	return bpf.IPCacheLocalPods
}

// tunnelTo returns the address to encapsulate to for pods on a node, invalid
// if it is this node or not known.
func (c *ipcacheParams) tunnelTo(txn statedb.ReadTxn, nodeName string) netip.Addr {
	n, _, found := c.Nodes.Get(txn, tables.NodeByName(nodeName))
	if !found || nodeName == c.LocalNode.Name {
		return netip.Addr{}
	}
	return n.UnderlayIP()
}

func (c *ipcacheParams) serviceFacts(txn statedb.ReadTxn, addr netip.Addr, fact factFunc) {
	for s := range tables.Rare(txn, c.Services, tables.ServicesByAddr(addr)) {
		fact(bpf.IPCacheService|bpf.IPCacheInCluster, "service "+s.Name.String())
	}
	for b := range tables.Rare(txn, c.Backends, tables.BackendSlicesByAddr(addr)) {
		if isOfAPIServer(b) {
			fact(bpf.IPCacheAPIServer|bpf.IPCacheInCluster, "backend of "+b.Service.String())
		}
	}
}

func (c *ipcacheParams) prefixFacts(txn statedb.ReadTxn, prefix netip.Prefix, row *tables.IPCache, fact factFunc) {
	for n := range tables.Rare(txn, c.Nodes, tables.NodesByPodCIDR(prefix)) {
		fact(bpf.IPCacheInCluster|c.localPods(n.Name), "pod prefix of node "+n.Name)
		if !row.Tunnel.IsValid() && row.Flags&(bpf.IPCacheHost|bpf.IPCacheNode) == 0 {
			row.Tunnel = c.tunnelTo(txn, n.Name)
		}
	}
	if slices.Contains(c.Cluster, prefix) {
		fact(bpf.IPCacheInCluster, "--cluster-cidrs")
	}
	if slices.Contains(localScope, prefix) {
		fact(bpf.IPCacheLocalScope, "local scope")
	}
	for r := range tables.Rare(txn, c.Routes, tables.RoutesByDestination(prefix)) {
		if r.Table != tables.RouteTableLocal {
			continue
		}
		switch r.Type {
		case "local", "anycast":
			fact(bpf.IPCacheHost|bpf.IPCacheInCluster, "local route")
		case "broadcast", "multicast":
			fact(bpf.IPCacheLocalScope, r.Type+" route")
		}
	}
}
