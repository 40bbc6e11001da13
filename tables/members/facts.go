// SPDX-License-Identifier: Apache-2.0

package members

import (
	"net/netip"
	"slices"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// facts is all that objects say about a prefix. If objects disagree about the tunnel, the first
// source that has one decides: this node, another node, a pod, a node's pod prefix.
type facts struct {
	flags     bpf.IPCacheFlags
	tunnel    netip.Addr
	origins   []string
	conflicts []string         // other pods that claim the address
	node      string           // the node that has it: this node, if several have it
	pod       *tables.Endpoint // the pod that has it
}

func (f *facts) add(flags bpf.IPCacheFlags, origin string) {
	f.flags |= flags
	if !slices.Contains(f.origins, origin) {
		f.origins = append(f.origins, origin)
	}
}

func (f *facts) isOfNode() bool { return f.flags&(bpf.IPCacheHost|bpf.IPCacheNode) != 0 }

func (r *rule) facts(txn statedb.ReadTxn, prefix netip.Prefix) *facts {
	f := &facts{}
	if prefix.IsSingleIP() {
		addr := prefix.Addr()
		for a := range tables.ListIfAny(txn, r.Addresses, tables.NodeAddressesByAddr(addr)) {
			f.add(bpf.IPCacheHost|bpf.IPCacheInCluster, "device "+a.Device)
			r.addNode(f, r.LocalNode.Name)
		}
		r.addNodes(txn, f, addr)
		r.addPod(txn, f, addr)
		r.addServices(txn, f, addr)
	}
	r.addPrefix(txn, f, prefix)
	return f
}

func (r *rule) addNode(f *facts, name string) {
	if f.node == "" || name == r.LocalNode.Name {
		f.node = name
	}
}

func (r *rule) addNodes(txn statedb.ReadTxn, f *facts, addr netip.Addr) {
	add := func(name string) {
		flags := bpf.IPCacheNode | bpf.IPCacheInCluster
		if name == r.LocalNode.Name {
			flags |= bpf.IPCacheHost
		}
		f.add(flags, "node "+name)
		r.addNode(f, name)
	}
	for n := range tables.ListIfAny(txn, r.Nodes, tables.NodesByAddr(addr)) {
		add(n.Name)
	}
	for n := range tables.ListIfAny(txn, r.CiliumNodes, tables.CiliumNodesByAddr(addr)) {
		add(n.Name)
	}
	for b := range tables.ListIfAny(txn, r.Backends, tables.BackendSlicesByNodeAddr(addr)) {
		// In their namespace only agents can write slices. Of this node its devices tell.
		if b.Namespace == string(r.Agents) && b.Node.Name != r.LocalNode.Name {
			add(b.Node.Name)
			break // one will do: some addresses are the same on all nodes
		}
	}
}

func (r *rule) addPod(txn statedb.ReadTxn, f *facts, addr netip.Addr) {
	owner, others := tables.AddrOwner(txn, r.Endpoints, addr)
	if owner == nil {
		// The address may be in the pod prefix of another node without being one of its pods.
		for n := range tables.ListIfAny(txn, r.Nodes, tables.NodesByTunnelAddr(addr)) {
			f.add(bpf.IPCacheInCluster, "tunnel of node "+n.Name)
		}
		return
	}
	f.add(bpf.IPCachePod|bpf.IPCacheInCluster|r.localPods(owner.Node), "pod "+owner.Name.String())
	if !f.isOfNode() {
		f.tunnel = r.tunnelTo(txn, owner.Node)
	}
	for _, e := range others {
		f.conflicts = append(f.conflicts, e.Name.String())
	}
	slices.Sort(f.conflicts)
	f.pod = owner
}

// localPods returns the flag of addresses for pods of this node, none for those of other nodes.
func (r *rule) localPods(node string) bpf.IPCacheFlags {
	if node != r.LocalNode.Name {
		return 0
	}
	return bpf.IPCacheLocalPods
}

// tunnelTo returns the address to encapsulate to for pods on a node. It is invalid if that is this
// node, or not known.
func (r *rule) tunnelTo(txn statedb.ReadTxn, node string) netip.Addr {
	n, _, found := r.Nodes.Get(txn, tables.NodeByName(node))
	if !found || node == r.LocalNode.Name {
		return netip.Addr{}
	}
	return n.UnderlayIP()
}

func (r *rule) addServices(txn statedb.ReadTxn, f *facts, addr netip.Addr) {
	for s := range tables.ListIfAny(txn, r.Services, tables.ServicesByAddr(addr)) {
		f.add(bpf.IPCacheService|bpf.IPCacheInCluster, "service "+s.Name.String())
	}
	for b := range tables.ListIfAny(txn, r.Backends, tables.BackendSlicesByAddr(addr)) {
		if isOfAPIServer(b) {
			f.add(bpf.IPCacheAPIServer|bpf.IPCacheInCluster, "backend of "+b.Service.String())
		}
	}
}

// addPrefix adds what objects say about exactly this prefix.
func (r *rule) addPrefix(txn statedb.ReadTxn, f *facts, prefix netip.Prefix) {
	for n := range tables.ListIfAny(txn, r.Nodes, tables.NodesByPodCIDR(prefix)) {
		f.add(bpf.IPCacheInCluster|r.localPods(n.Name), "pod prefix of node "+n.Name)
		if !f.tunnel.IsValid() && !f.isOfNode() {
			f.tunnel = r.tunnelTo(txn, n.Name)
		}
	}
	if slices.Contains(r.Cluster, prefix) {
		f.add(bpf.IPCacheInCluster, "--cluster-cidrs")
	}
	if slices.Contains(localScope, prefix) {
		f.add(bpf.IPCacheLocalScope, "local scope")
	}
	for route := range tables.ListIfAny(txn, r.Routes, tables.RoutesByDestination(prefix)) {
		if route.Table != tables.RouteTableLocal {
			continue
		}
		switch route.Type {
		case "local", "anycast":
			f.add(bpf.IPCacheHost|bpf.IPCacheInCluster, "local route")
			r.addNode(f, r.LocalNode.Name)
		case "broadcast", "multicast":
			f.add(bpf.IPCacheLocalScope, route.Type+" route")
		}
	}
}

// inherited returns the facts of a prefix that no object names: those of the longest prefix around
// it. A lookup finds only the longest prefix, and must not lose facts.
func (r *rule) inherited(txn statedb.ReadTxn, prefix netip.Prefix) (f facts) {
	f.add(0, "peer prefix")
	for bits := prefix.Bits() - 1; bits >= 0; bits-- {
		around := netip.PrefixFrom(prefix.Addr(), bits).Masked()
		if of := r.facts(txn, around); of.flags != 0 {
			f.tunnel = of.tunnel
			f.add(of.flags, "inside "+around.String())
			break
		}
	}
	return f
}
