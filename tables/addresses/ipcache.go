// SPDX-License-Identifier: Apache-2.0

package addresses

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

type ipcacheParams struct {
	cell.In

	IPCache     statedb.RWTable[*tables.IPCache]
	Endpoints   statedb.Table[*tables.Endpoint]
	Nodes       statedb.Table[*tables.Node]
	CiliumNodes statedb.Table[*tables.CiliumNode]
	Services    statedb.Table[*tables.Service]
	Backends    statedb.Table[*tables.BackendSlice]
	Addresses   statedb.Table[*tables.NodeAddress]
	Routes      statedb.Table[*tables.Route]
	Cluster     tables.ClusterPrefixes
	LocalNode   tables.LocalNode

	Members      statedb.Table[*tables.ClassMember]
	PeerPrefixes statedb.Table[*tables.PeerPrefix]
	Readiness    statedb.Table[*tables.PolicyReadiness]
	Entries      statedb.Table[*tables.IPCacheEntry]
	Places       tables.PeerPlaces
}

// localScope are destinations that stay on the link or the node, whatever
// policies say: link-local addresses with the metadata service and node-local
// DNS, multicast, broadcast and loopback.
var localScope = []netip.Prefix{
	netip.MustParsePrefix("127.0.0.0/8"),
	netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("224.0.0.0/4"),
	netip.MustParsePrefix("255.255.255.255/32"),
	netip.MustParsePrefix("::1/128"),
	netip.MustParsePrefix("fe80::/10"),
	netip.MustParsePrefix("ff00::/8"),
}

// ipcache is the rule of what is known of each address and prefix, with what it
// knows of its inputs from one round to the next.
type ipcache struct {
	*ipcacheParams

	// named is of what anything but a pod is said to have: all else, as are most
	// addresses, need be looked up among pods only.
	named map[netip.Prefix]struct{}

	// unplaced has no member as a peer yet, by the prefixes that there are: with
	// others it may be of one that has been there for long.
	unplaced map[netip.Prefix]struct{}

	// moved are the nodes that are reached by another address than in the last round.
	moved map[string]struct{}

	remaining map[netip.Prefix]struct{} // of the rows that Remain
}

func newIPCache(params *ipcacheParams) *ipcache {
	c := &ipcache{
		ipcacheParams: params, moved: map[string]struct{}{},
		named: map[netip.Prefix]struct{}{}, unplaced: map[netip.Prefix]struct{}{}, remaining: map[netip.Prefix]struct{}{},
	}
	for _, prefix := range c.seed() {
		c.named[prefix] = struct{}{}
	}
	return c
}

func (c *ipcache) seed() []netip.Prefix { return slices.Concat(localScope, c.Cluster) }

// deriveIPCache keeps what is known of each address and prefix.
func deriveIPCache(p derive.Params, params ipcacheParams) error {
	c := newIPCache(&params)
	_, err := derive.Register(p, derive.Rule[netip.Prefix, *tables.IPCache]{
		Output: c.IPCache,
		Inputs: c.inputs(),
		Await:  c.classesReady,
		Seed:   c.seed(),
		Existing: func(txn statedb.ReadTxn, prefix netip.Prefix) iter.Seq2[*tables.IPCache, statedb.Revision] {
			return c.IPCache.List(txn, tables.IPCacheByPrefix(prefix))
		},
		Plan: func(txn statedb.ReadTxn, prefixes []netip.Prefix) ([]netip.Prefix, func(netip.Prefix) []*tables.IPCache) {
			return c.withMoved(txn, prefixes), func(prefix netip.Prefix) []*tables.IPCache { return c.rows(txn, prefix) }
		},
		Equal: (*tables.IPCache).Equal,
	})
	return err
}

func (c *ipcache) inputs() []derive.Input[netip.Prefix] {
	return []derive.Input[netip.Prefix]{
		derive.FromIf(c.Endpoints, movesPeer, func(_ statedb.ReadTxn, e *tables.Endpoint, affect func(netip.Prefix)) {
			for _, a := range e.Addrs {
				affect(single(a))
			}
		}),
		derive.Initially(c.affectedAsNode, derive.FromChange(c.Nodes, c.nodeChanged)),
		derive.From(c.CiliumNodes, func(_ statedb.ReadTxn, n *tables.CiliumNode, affect func(netip.Prefix)) {
			c.nameAll(n.Addrs, affect)
		}),
		derive.FromIf(c.Services,
			func(old, new *tables.Service) bool { return !slices.Equal(old.Addrs, new.Addrs) },
			func(_ statedb.ReadTxn, s *tables.Service, affect func(netip.Prefix)) { c.nameAll(s.Addrs, affect) }),
		derive.Where(isOfAPIServer, derive.FromIf(c.Backends, tables.DifferentBackends,
			func(_ statedb.ReadTxn, b *tables.BackendSlice, affect func(netip.Prefix)) { c.nameAll(b.Addrs, affect) })),
		derive.From(c.Addresses, func(_ statedb.ReadTxn, a *tables.NodeAddress, affect func(netip.Prefix)) {
			c.name(single(a.Addr), affect)
		}),
		derive.From(c.Routes, func(txn statedb.ReadTxn, r *tables.Route, affect func(netip.Prefix)) {
			if r.Table == tables.RouteTableLocal {
				c.name(r.Destination, affect)
				c.heirs(txn, r.Destination, affect)
			}
		}),
		derive.FromIf(c.PeerPrefixes,
			func(old, new *tables.PeerPrefix) bool { return old.Pods != new.Pods },
			func(_ statedb.ReadTxn, p *tables.PeerPrefix, affect func(netip.Prefix)) {
				affect(p.Prefix)
				for prefix := range c.unplaced {
					affect(prefix)
				}
			}),
		derive.Joined(derive.Where(func(m *tables.ClassMember) bool { return !m.IsOfEgress() }, derive.FromChange(c.Members, c.memberChanged))),
		derive.From(c.Readiness, c.affectedByReadiness),
		derive.While(c.somethingRemains, derive.FromKey(c.Entries, c.affectedByEntry)),
	}
}

// single is the prefix of one address.
func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// name notes that something other than a pod has, or had, a prefix, which is affected.
func (c *ipcache) name(prefix netip.Prefix, affect func(netip.Prefix)) {
	c.named[prefix] = struct{}{}
	affect(prefix)
}

func (c *ipcache) nameAll(addrs []netip.Addr, affect func(netip.Prefix)) {
	for _, a := range addrs {
		c.name(single(a), affect)
	}
}

func isOfAPIServer(b *tables.BackendSlice) bool { return b.Service == tables.KubernetesAPIService }

// movesPeer reports whether a change of an endpoint can change what an address
// of it is as a peer.
func movesPeer(old, new *tables.Endpoint) bool {
	return old.LabelSet.ID != new.LabelSet.ID || movesAddress(old, new)
}

// movesAddress reports whether a change of an endpoint can change who has an
// address or where.
func movesAddress(old, new *tables.Endpoint) bool {
	return old.Node != new.Node || !old.SameClaim(new)
}

func movesNode(old, new *tables.Node) bool {
	return !slices.Equal(old.InternalIPs, new.InternalIPs) ||
		!slices.Equal(old.OtherIPs, new.OtherIPs) || !slices.Equal(old.PodCIDRs, new.PodCIDRs) ||
		!slices.Equal(old.TunnelIPs, new.TunnelIPs)
}

// affectedAsNode are the node's own addresses and prefixes.
func (c *ipcache) affectedAsNode(_ statedb.ReadTxn, n *tables.Node, affect func(netip.Prefix)) {
	c.nameAll(n.InternalIPs, affect)
	c.nameAll(n.OtherIPs, affect)
	c.nameAll(n.TunnelIPs, affect)
	for _, p := range n.PodCIDRs {
		c.name(p, affect)
	}
}

// nodeChanged affects the node's own addresses and prefixes, and those of its pods if
// they are reached by another address of it: see withMoved.
func (c *ipcache) nodeChanged(txn statedb.ReadTxn, old, new *tables.Node, affect func(netip.Prefix)) {
	if old != nil && new != nil && !movesNode(old, new) {
		return
	}
	reached := func(n *tables.Node) (by netip.Addr) {
		if n == nil {
			return by
		}
		c.affectedAsNode(txn, n, affect)
		for _, p := range n.PodCIDRs {
			c.heirs(txn, p, affect)
		}
		return n.UnderlayIP()
	}
	if reached(old) != reached(new) {
		c.moved[cmp.Or(old, new).Name] = struct{}{}
	}
}

// withMoved adds the addresses of the pods of nodes that have moved. All of these in a
// round cost one look at all pods: nodes seldom move, and an index of pods by their
// nodes is large. A node that moves has an address that is affected itself, so that
// there is something to add to.
func (c *ipcache) withMoved(txn statedb.ReadTxn, prefixes []netip.Prefix) []netip.Prefix {
	if len(c.moved) == 0 {
		return prefixes
	}
	affected := make(map[netip.Prefix]struct{}, len(prefixes))
	for _, p := range prefixes {
		affected[p] = struct{}{}
	}
	for e := range c.Endpoints.All(txn) {
		if _, moved := c.moved[e.Node]; !moved {
			continue
		}
		for _, a := range e.Addrs {
			p := single(a)
			if _, ok := affected[p]; !ok {
				affected[p] = struct{}{}
				prefixes = append(prefixes, p)
			}
		}
	}
	clear(c.moved)
	return prefixes
}
