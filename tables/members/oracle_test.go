// SPDX-License-Identifier: Apache-2.0

package members

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/policy/policytest"
)

// world is what a naive evaluation of the base tables says of addresses.
func (h *harness) world(txn statedb.ReadTxn) *policytest.World {
	base := h.base()
	w := base.World(txn, policytest.Options{ClusterCIDRs: []netip.Prefix{clusterCIDR}})
	for c := range h.inputs.CiliumNodes.All(txn) {
		if _, _, found := h.inputs.Nodes.Get(txn, tables.NodeByName(c.Name)); !found {
			w.Nodes = append(w.Nodes, &tables.Node{Name: c.Name}) // a node all the same
		}
	}
	policy := &tables.NetworkPolicy{Kind: tables.PolicyCilium, Rules: []tables.PolicyRule{{}}}
	traffic := &policy.Rules[0].Egress.Traffic
	for s := range h.inputs.Selectors.All(txn) {
		*traffic = append(*traffic, tables.PolicyTraffic{Peers: s.Peers})
	}
	for r := range h.inputs.Rulesets.All(txn) {
		*traffic = append(*traffic, tables.PolicyTraffic{AnyPeer: true, Ports: r.Rules[0].Ports})
	}
	w.Policies = []*tables.NetworkPolicy{policy}
	return w
}

// should is what [harness.says] should say, of selectors that the class does not omit.
func (h *harness) should(
	w *policytest.World, a netip.Addr, omits func(*tables.Selector) bool,
) []string {
	signature := strings.Split(w.PeerSignature(a), "; ")
	parts := []string{}
	txn := h.db.ReadTxn()
	for s := range h.inputs.Selectors.All(txn) {
		if omits(s) || s.Peers[0].Kind == tables.PeerNodes && !h.isOfObject(txn, w, a) {
			continue
		}
		signed := func(p tables.PolicyPeer) bool { return slices.Contains(signature, p.String()) }
		if slices.ContainsFunc(s.Peers, signed) {
			parts = append(parts, s.Text)
		}
	}
	if pod := w.Pod(a); pod != nil {
		for _, p := range pod.LabelSet.NamedPorts {
			number := tables.PolicyPort{Protocol: p.Protocol, First: p.Port, Last: p.Port}
			if slices.Contains(signature, number.String()+" is "+p.Name) {
				parts = append(parts, p.String())
			}
		}
	}
	slices.Sort(parts)
	return slices.Compact(parts)
}

// isOfObject reports whether there is an object for the node that has an address.
func (h *harness) isOfObject(txn statedb.ReadTxn, w *policytest.World, a netip.Addr) bool {
	for n := range h.inputs.Nodes.All(txn) {
		if slices.Contains(w.NodeAddrs(n), a) || n.Name == here && slices.Contains(w.HostAddrs, a) {
			return true
		}
	}
	return false
}

// known is what objects say of some very prefix.
type known struct {
	flags  bpf.IPCacheFlags
	tunnel netip.Addr
}

// allKnown returns it of all prefixes of which they say something.
func (h *harness) allKnown(txn statedb.ReadTxn) map[netip.Prefix]known {
	all := map[netip.Prefix]known{}
	underlay := map[string]netip.Addr{}
	say := func(p netip.Prefix, flags bpf.IPCacheFlags, node string) {
		k := all[p]
		if k.flags |= flags; !k.tunnel.IsValid() {
			k.tunnel = underlay[node]
		}
		if k.flags&(bpf.IPCacheHost|bpf.IPCacheNode) != 0 {
			k.tunnel = netip.Addr{}
		}
		all[p] = k
	}
	for n := range h.inputs.Nodes.All(txn) {
		if n.Name != here {
			underlay[n.Name] = n.UnderlayIP()
		}
	}
	local := map[string]bpf.IPCacheFlags{here: bpf.IPCacheHost}
	for a := range h.inputs.Addresses.All(txn) {
		say(single(a.Addr), bpf.IPCacheHost|bpf.IPCacheInCluster, "")
	}
	for r := range h.inputs.Routes.All(txn) {
		if r.Type == "local" {
			say(r.Destination, bpf.IPCacheHost|bpf.IPCacheInCluster, "")
		} else {
			say(r.Destination, bpf.IPCacheLocalScope, "")
		}
	}
	for n := range h.inputs.Nodes.All(txn) {
		for _, a := range slices.Concat(n.InternalIPs, n.OtherIPs) {
			say(single(a), bpf.IPCacheNode|bpf.IPCacheInCluster|local[n.Name], "")
		}
	}
	for n := range h.inputs.CiliumNodes.All(txn) {
		for _, a := range n.Addrs {
			say(single(a), bpf.IPCacheNode|bpf.IPCacheInCluster|local[n.Name], "")
		}
	}
	localPods := map[string]bpf.IPCacheFlags{here: bpf.IPCacheLocalPods}
	for e := range h.inputs.Endpoints.All(txn) {
		for _, a := range e.Addrs {
			say(single(a), bpf.IPCachePod|bpf.IPCacheInCluster|localPods[e.Node], e.Node)
		}
	}
	for n := range h.inputs.Nodes.All(txn) {
		for _, a := range n.TunnelIPs {
			if owner, _ := tables.AddrOwner(txn, h.inputs.Endpoints, a); owner == nil {
				say(single(a), bpf.IPCacheInCluster, "")
			}
		}
		for _, p := range n.PodCIDRs {
			say(p, bpf.IPCacheInCluster|localPods[n.Name], n.Name)
		}
	}
	for s := range h.inputs.Services.All(txn) {
		for _, a := range s.Addrs {
			say(single(a), bpf.IPCacheService|bpf.IPCacheInCluster, "")
		}
	}
	for b := range h.inputs.Backends.All(txn) {
		for _, a := range b.Addrs {
			if b.Service == tables.KubernetesAPIService {
				say(single(a), bpf.IPCacheAPIServer|bpf.IPCacheInCluster, "")
			}
		}
	}
	say(clusterCIDR, bpf.IPCacheInCluster, "")
	for _, p := range localScope {
		say(p, bpf.IPCacheLocalScope, "")
	}
	return all
}

// named returns the prefixes of which there have to be rows of peer-prefixes.
func (h *harness) named(txn statedb.ReadTxn) map[netip.Prefix]bool {
	named := map[netip.Prefix]bool{clusterCIDR: true, world[0]: true, world[1]: true}
	for n := range h.inputs.Nodes.All(txn) {
		for _, p := range n.PodCIDRs {
			named[p] = true
		}
	}
	for s := range h.inputs.Selectors.All(txn) {
		for _, b := range s.Blocks {
			for _, p := range append(slices.Clone(b.Except), b.Prefix) {
				named[p] = true
			}
		}
	}
	return named
}

// check compares everything with a naive evaluation.
func (h *harness) check(addrs []netip.Addr) {
	h.Helper()
	txn := h.db.ReadTxn()
	w, all, named := h.world(txn), h.allKnown(txn), h.named(txn)
	exact := map[string]int{}
	for c := range h.Classes.All(txn) {
		if c.Precision == tables.Exact && !c.Undesired {
			exact[c.Namespace]++
		}
	}
	for _, a := range addrs {
		class := h.class(a)
		if pod := w.Pod(a); class.Precision != tables.Exact {
			require.GreaterOrEqual(h, exact[pod.LabelSet.Namespace], int(h.Share),
				"%s is in a class that is %s", a, class.Precision)
		}
		if class.Precision != tables.Refused {
			require.Equal(h, h.should(w, a, class.Omits), h.says(a),
				"what selects %s: %v", a, h.row(a).TableRow())
		}
		var want known
		longest := -1
		for p, k := range all {
			if p.Contains(a) && p.Bits() > longest {
				want, longest = k, p.Bits()
			}
		}
		row := h.row(a)
		require.Equal(h, want.flags, row.Flags, "flags of %s: %v", a, row.TableRow())
		require.Equal(h, want.tunnel, row.Tunnel, "tunnel to %s: %v", a, row.TableRow())
	}
	for row := range h.IPCache.All(txn) {
		_, is := all[row.Prefix]
		require.True(h, is || named[row.Prefix], "no reason for %v", row.TableRow())
		require.Equal(h, !is, row.Inherits, row.TableRow())
		delete(all, row.Prefix)
		if member, _, _ := h.Members.Get(txn, tables.MemberByNumber(row.Member)); member.Undesired {
			require.Fail(h, "undesired", row.TableRow())
		}
	}
	require.Empty(h, all, "no rows")
	for p := range h.PeerPrefixes.All(txn) {
		require.True(h, named[p.Prefix], "no reason for %v", p.TableRow())
		delete(named, p.Prefix)
		for _, n := range p.Named {
			s, _, found := h.inputs.Selectors.Get(txn, tables.SelectorByNumber(n))
			require.True(h, found && s.Names(p.Prefix), "%d does not name %s", n, p.Prefix)
		}
	}
	require.Empty(h, named, "no rows")
	for s := range h.inputs.Selectors.All(txn) {
		match, _, _ := h.Matches.Get(txn, tables.SelectorMatchByNumber(s.Number))
		require.True(h, match.IsComplete(), s.Text)
	}
	require.Equal(h, h.inputs.Selectors.NumObjects(txn), h.Matches.NumObjects(txn))
}
