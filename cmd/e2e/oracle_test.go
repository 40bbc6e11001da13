// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/bpf"
)

// decision is what becomes of a packet.
type decision struct {
	kind string
	ways string // that it may take, if it is redirected
}

const (
	plain      = "plain"   // its ordinary way
	unknown    = "unknown" // this node has nothing to do with the source
	held       = "held"    // dropped, as it is not known yet whether a policy concerns it
	redirected = "redirected"
)

// ways are gateways with what traffic leaves them with.
type ways map[bpf.GatewayValue]bool

func (w ways) String() string {
	var texts []string
	for way := range w {
		texts = append(texts, way.String())
	}
	slices.Sort(texts)
	return strings.Join(texts, " | ")
}

// decide says what is to become of packets from src to dst on the agent's node.
func (w *world) decide(src, dst netip.Addr) decision {
	owner := w.owner(src)
	if owner == nil {
		return decision{kind: unknown}
	}
	chosen := w.choosing(owner)
	if owner.node != localNode && !slices.ContainsFunc(chosen, w.mayServe) {
		return decision{kind: unknown}
	}
	var winner *policy
	best := -1
	for i, p := range chosen {
		to, not := covering(p.to, dst), covering(p.not, dst)
		if to > not && to > best {
			winner, best = &chosen[i], to
		}
	}
	if winner == nil {
		return decision{kind: plain}
	}
	return decision{kind: redirected, ways: w.waysOut(winner).String()}
}

// covering is the length of the longest prefix with an address, -1 for none.
func covering(prefixes []netip.Prefix, addr netip.Addr) (bits int) {
	bits = -1
	for _, p := range prefixes {
		if p.Contains(addr) {
			bits = max(bits, p.Bits())
		}
	}
	return bits
}

// owner is who has an address: of those that claim it the one created last, of
// those of one second the first by name.
func (w *world) owner(addr netip.Addr) (owner *endpoint) {
	for i, e := range w.endpoints {
		if !slices.Contains(e.addrs, addr) {
			continue
		}
		if owner == nil || e.created.After(owner.created) || e.created.Equal(owner.created) &&
			e.namespace+"/"+e.name < owner.namespace+"/"+owner.name {
			owner = &w.endpoints[i]
		}
	}
	return owner
}

// choosing are the policies that select an endpoint, the winning one first.
func (w *world) choosing(e *endpoint) (chosen []policy) {
	for _, p := range w.policies {
		if slices.ContainsFunc(p.selects, func(s selector) bool { return w.matches(s, e) }) {
			chosen = append(chosen, p)
		}
	}
	return chosen
}

func (w *world) matches(s selector, e *endpoint) bool {
	pod := labels.Merge(e.labels, labels.Set{"io.kubernetes.pod.namespace": e.namespace})
	for key, value := range w.namespaces[e.namespace] {
		pod["io.cilium.k8s.namespace.labels."+key] = value
	}
	if !s.namespaces.Matches(w.namespaces[e.namespace]) || !s.pods.Matches(pod) {
		return false
	}
	node := w.node(e.node)
	return s.nodes.Empty() || node != nil && s.nodes.Matches(node.labels)
}

func (w *world) node(name string) *node {
	for i, n := range w.nodes {
		if n.name == name {
			return &w.nodes[i]
		}
	}
	return nil
}

// mayServe reports whether the agent's node is a candidate of a policy.
func (w *world) mayServe(p policy) bool {
	local := w.node(localNode)
	return local != nil && slices.ContainsFunc(p.gateways, func(g gateway) bool {
		return g.nodes != nil && g.nodes.Matches(local.labels)
	})
}

// waysOut are the ways that the packets of a policy may take, in any bucket.
// What other nodes' buckets bring to this one leaves as its own do.
func (w *world) waysOut(p *policy) ways {
	out := ways{}
	var own []bpf.GatewayValue // what traffic leaves this node with, by item that selects it
	others := map[netip.Addr]bool{}
	for _, g := range p.gateways {
		var elected *node
		for i, n := range w.nodes {
			if n.name == localNode && g.nodes != nil && g.nodes.Matches(n.labels) {
				var way bpf.GatewayValue
				if w.net.leave(g, &way); way.IfIndex != 0 {
					own = append(own, way)
				}
			}
			if g.nodes != nil && g.nodes.Matches(n.labels) && n.ready && len(n.internal) > 0 && (elected == nil || n.name < elected.name) {
				elected = &w.nodes[i]
			}
		}
		switch {
		case elected == nil:
		case elected.name != localNode:
			others[elected.underlay()] = true
		default:
			way := bpf.GatewayValue{Gateway: bpf.AddressFrom(elected.underlay())}
			w.net.leave(g, &way)
			out[way] = true
		}
	}
	if len(own) == 0 {
		own = []bpf.GatewayValue{{}}
	}
	for addr := range others {
		for _, way := range own {
			way.Gateway = bpf.AddressFrom(addr)
			out[way] = true
		}
	}
	if len(out) == 0 {
		out[bpf.GatewayValue{}] = true // no gateway: dropped
	}
	return out
}

// underlay is the address by which other nodes reach a node, if it has one.
func (n *node) underlay() (addr netip.Addr) {
	for _, a := range n.internal {
		if !addr.IsValid() || a.Is4() && !addr.Is4() {
			addr = a
		}
	}
	return addr
}

// leave fills in what traffic leaves the agent's node with.
func (n *network) leave(g gateway, way *bpf.GatewayValue) {
	for _, d := range n.devices {
		has := slices.ContainsFunc(d.addrs, func(a address) bool { return a.Addr == g.ip })
		switch {
		case g.via != "" && !slices.Contains(d.names, g.via):
		case g.via == "" && g.ip.IsValid() && !has:
		case g.via == "" && !g.ip.IsValid() && d.index != n.defaultDevice():
		default:
			d.leave(g.ip, way)
		}
	}
}

func (d *device) leave(egressIP netip.Addr, way *bpf.GatewayValue) {
	for _, a := range append([]address{{egressIP, egressIP.IsValid()}}, d.addrs...) {
		switch {
		case !a.global:
			continue
		case a.Is4() && way.Egress4 == [4]byte{}:
			way.Egress4 = a.As4()
		case a.Is6() && way.Egress6 == bpf.Address{}:
			way.Egress6 = bpf.AddressFrom(a.Addr)
		}
		way.IfIndex = uint32(d.index)
	}
}

// defaultDevice is the device of the default routes; 0 if they have several.
func (n *network) defaultDevice() (index int) {
	for _, family := range []int{32, 128} {
		best := route{priority: -1}
		for _, r := range n.main {
			if r.destination.Bits() == 0 && r.destination.Addr().BitLen() == family && (best.priority < 0 || r.priority < best.priority) {
				best = r
			}
		}
		switch {
		case best.priority < 0:
		case index != 0 && index != best.device:
			return 0
		default:
			index = best.device
		}
	}
	return index
}

// pods is what sluice_pods is to hold, with one number for all subjects.
func (w *world) pods() map[bpf.PodKey]bpf.PodValue {
	pods := map[bpf.PodKey]bpf.PodValue{}
	for addr := range w.addresses() {
		owner := w.owner(addr)
		switch {
		case owner.node == localNode:
			value := w.localPod(addr)
			value.Namespace = bpf.NamespaceDigest(owner.namespace)
			pods[bpf.PodKey{Addr: bpf.AddressFrom(addr)}] = value
		case slices.ContainsFunc(w.choosing(owner), w.mayServe):
			pods[bpf.PodKey{Addr: bpf.AddressFrom(addr)}] = bpf.PodValue{Subject: known}
		}
	}
	// The pod with a device stays when its object is gone: until the device is gone too.
	if w.owner(localPod) == nil {
		pods[bpf.PodKey{Addr: bpf.AddressFrom(localPod)}] = w.localPod(localPod)
	}
	return pods
}

// localPod is what sluice_pods is to hold of an address of a pod of the agent's node.
func (w *world) localPod(addr netip.Addr) bpf.PodValue {
	value := bpf.PodValue{Subject: known, Flags: bpf.PodLocal}
	for _, r := range w.net.main {
		if r.destination == netip.PrefixFrom(addr, addr.BitLen()) {
			value.IfIndex = uint32(r.device)
			copy(value.MAC[:], w.net.macs[macKey{addr, r.device}])
		}
	}
	return value
}

// addresses are all that some endpoint claims.
func (w *world) addresses() map[netip.Addr]bool {
	all := map[netip.Addr]bool{}
	for _, e := range w.endpoints {
		for _, a := range e.addrs {
			all[a] = true
		}
	}
	return all
}

// signatures are the distinct sets of selectors by which endpoints are chosen,
// each of which has an egress ruleset at most.
func (w *world) signatures() map[string]bool {
	signatures := map[string]bool{}
	for i := range w.endpoints {
		chosenBy := map[string]bool{}
		for _, p := range w.policies {
			for _, s := range p.selects {
				if w.matches(s, &w.endpoints[i]) {
					chosenBy[s.namespaces.String()+"\n"+s.pods.String()+"\n"+s.nodes.String()] = true
				}
			}
		}
		if len(chosenBy) > 0 {
			signatures[strings.Join(slices.Sorted(maps.Keys(chosenBy)), "\n\n")] = true
		}
	}
	return signatures
}

// groups are the distinct lists of gateways.
func (w *world) groups() map[string]bool {
	groups := map[string]bool{}
	for _, p := range w.policies {
		var items []string
		for _, g := range p.gateways {
			items = append(items, g.String())
		}
		groups[strings.Join(items, "\n")] = true
	}
	return groups
}

var localScope = prefixes([]string{
	"127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "255.255.255.255/32", "::1/128", "fe80::/10", "ff00::/8",
})

// ipcache is what sluice_ipcache is to hold.
func (w *world) ipcache() map[bpf.IPCacheKey]bpf.IPCacheValue {
	known := map[bpf.IPCacheKey]bpf.IPCacheValue{}
	// on is the node whose pods have, or get, these addresses.
	fact := func(p netip.Prefix, flags bpf.IPCacheFlags, on string) {
		key := bpf.IPCacheKeyFrom(p)
		value := known[key]
		value.Flags |= flags
		if on == localNode {
			value.Flags |= bpf.IPCacheLocalPods
		}
		if n := w.node(on); n != nil && on != localNode && value.Tunnel == (bpf.Address{}) {
			value.Tunnel = bpf.AddressFrom(n.underlay())
		}
		if value.Flags&(bpf.IPCacheHost|bpf.IPCacheNode) != 0 {
			value.Tunnel = bpf.Address{}
		}
		known[key] = value
	}
	single := func(a netip.Addr, flags bpf.IPCacheFlags, on string) {
		fact(netip.PrefixFrom(a, a.BitLen()), flags|bpf.IPCacheInCluster, on)
	}
	for a := range w.addresses() {
		single(a, bpf.IPCachePod, w.owner(a).node)
	}
	told := w.cilium
	for _, n := range w.nodes {
		told = append(told, ciliumNode{n.name, append(n.internal[:len(n.internal):len(n.internal)], n.others...)})
		for _, p := range n.podCIDRs {
			fact(p, bpf.IPCacheInCluster, n.name)
		}
	}
	for _, n := range told {
		for _, a := range n.addrs {
			single(a, bpf.IPCacheNode, "")
			if n.name == localNode {
				single(a, bpf.IPCacheHost, "")
			}
		}
	}
	for _, a := range w.services {
		single(a, bpf.IPCacheService, "")
	}
	for _, a := range w.apiServers {
		single(a, bpf.IPCacheAPIServer, "")
	}
	for _, p := range localScope {
		fact(p, bpf.IPCacheLocalScope, "")
	}
	for _, d := range w.net.devices {
		for _, a := range d.addrs {
			single(a.Addr, bpf.IPCacheHost, "")
		}
	}
	for p, typ := range w.net.local {
		switch typ {
		case "local", "anycast":
			fact(p, bpf.IPCacheHost|bpf.IPCacheInCluster, "")
		case "broadcast", "multicast":
			fact(p, bpf.IPCacheLocalScope, "")
		}
	}
	return known
}
