// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// oracle says what becomes of a packet, from the base tables and nothing else:
// naively, and sharing no code with what derives the kernel's entries.
type oracle struct {
	cell.In

	DB         *statedb.DB
	Endpoints  statedb.Table[*tables.Endpoint]
	Namespaces statedb.Table[*tables.Namespace]
	Nodes      statedb.Table[*tables.Node]
	Services   statedb.Table[*tables.Service]
	Cilium     statedb.Table[*tables.CiliumNode]
	Policies   statedb.Table[*tables.EgressPolicy]
	Devices    statedb.Table[*tables.Device]
	Addresses  statedb.Table[*tables.NodeAddress]
	Routes     statedb.Table[*tables.Route]
	LocalNode  tables.LocalNode
}

// What becomes of a packet, beside going to one of some gateways.
const (
	plain   = "plain"   // its ordinary way
	unknown = "unknown" // this node has nothing to do with it
	held    = "held"    // dropped, as it is not known yet what it is to become
)

// decision is what becomes of packets from src to dst on this node.
func (o *oracle) decision(txn statedb.ReadTxn, src, dst netip.Addr) string {
	owner := o.owner(txn, src)
	if owner == nil {
		return unknown
	}
	policies, undecided := o.choosing(txn, owner)
	local := owner.Node == o.LocalNode.Name
	switch {
	case !undecided:
	case !local:
		return unknown // its node holds it
	case o.covers(txn, dst):
		return held
	default:
		return plain
	}
	if !local && !slices.ContainsFunc(policies, func(p *tables.EgressPolicy) bool { return o.mayServe(txn, p) }) {
		return unknown
	}
	var winner *tables.EgressPolicy
	best := -1
	for _, p := range policies {
		destination, excluded := covering(p.Destinations, dst), covering(p.Excluded, dst)
		if destination > excluded && destination > best {
			winner, best = p, destination
		}
	}
	switch {
	case winner != nil:
		return o.gateways(txn, winner)
	case local:
		return plain
	default:
		return unknown
	}
}

func covering(prefixes []netip.Prefix, addr netip.Addr) (bits int) {
	bits = -1
	for _, p := range prefixes {
		if p.Contains(addr) {
			bits = max(bits, p.Bits())
		}
	}
	return bits
}

func (o *oracle) owner(txn statedb.ReadTxn, addr netip.Addr) (owner *tables.Endpoint) {
	for e := range o.Endpoints.All(txn) {
		if slices.Contains(e.Addrs, addr) && (owner == nil || e.Newer(owner)) {
			owner = e
		}
	}
	return owner
}

// owners returns who has each address, and where.
func (o *oracle) owners(txn statedb.ReadTxn) map[netip.Addr]string {
	owners := map[netip.Addr]string{}
	for e := range o.Endpoints.All(txn) {
		for _, a := range e.Addrs {
			owner := o.owner(txn, a)
			owners[a] = owner.Name.String() + " on " + owner.Node
		}
	}
	return owners
}

// covers reports whether a destination is one of some policy.
func (o *oracle) covers(txn statedb.ReadTxn, dst netip.Addr) (is bool) {
	for p := range o.Policies.All(txn) {
		is = is || covering(p.Destinations, dst) >= 0
	}
	return is
}

// choosing returns the policies that select an endpoint, the winning one first, and whether it
// depends on labels of its namespace, which is not known, if others do.
func (o *oracle) choosing(txn statedb.ReadTxn, e *tables.Endpoint) (policies []*tables.EgressPolicy, undecided bool) {
	namespace, known := labels.Set{"kubernetes.io/metadata.name": e.Namespace}, false
	for n := range o.Namespaces.All(txn) {
		if n.Name == e.Namespace {
			namespace, known = labels.Merge(n.Labels, namespace), true
		}
	}
	pod := labels.Merge(e.LabelSet.Labels.Set(), labels.Set{"io.kubernetes.pod.namespace": e.Namespace})
	pod["io.cilium.k8s.policy.cluster"] = "default"
	if e.LabelSet.ServiceAccount != "" {
		pod["io.cilium.k8s.policy.serviceaccount"] = e.LabelSet.ServiceAccount
	}
	for k, v := range namespace {
		pod["io.cilium.k8s.namespace.labels."+k] = v
	}
	node := labels.Set{}
	nodeKnown := false
	for n := range o.Nodes.All(txn) {
		if n.Name == e.Node {
			node, nodeKnown = n.Labels, true
		}
	}
	for p := range o.Policies.All(txn) {
		chosen := false
		for _, s := range p.Selectors {
			if asks := strings.Contains(s.Namespaces, "team"); asks && !known { // the one label that there is
				undecided = undecided || matches(s.Pods, pod)
			} else if matches(s.Namespaces, namespace) && matches(s.Pods, pod) && (s.Nodes == "" || nodeKnown && matches(s.Nodes, node)) {
				chosen = true
			}
		}
		if chosen {
			policies = append(policies, p)
		}
	}
	slices.SortFunc(policies, func(a, b *tables.EgressPolicy) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
	})
	return policies, undecided
}

func matches(selector string, set labels.Set) bool {
	s, err := labels.Parse(selector)
	return err == nil && s.Matches(set)
}

func (o *oracle) mayServe(txn statedb.ReadTxn, p *tables.EgressPolicy) bool {
	for n := range o.Nodes.All(txn) {
		for _, g := range p.Gateways {
			if n.Name == o.LocalNode.Name && g.Error == "" && matches(g.Nodes, n.Labels) {
				return true
			}
		}
	}
	return false
}

// gateways are the ways that the packets of a policy may take, in any bucket.
// Where this node is a candidate, what is sent to it leaves with an address of its
// own, in the buckets of other nodes too.
func (o *oracle) gateways(txn statedb.ReadTxn, p *tables.EgressPolicy) string {
	ways, others := map[string]bool{}, map[netip.Addr]bool{}
	var own []bpf.GatewayValue
	for _, g := range p.Gateways {
		var elected *tables.Node
		for n := range o.Nodes.All(txn) {
			if n.Name == o.LocalNode.Name && g.Error == "" && matches(g.Nodes, n.Labels) {
				var v bpf.GatewayValue
				if o.egress(txn, g, &v); v.IfIndex != 0 {
					own = append(own, v)
				}
			}
			if g.Error == "" && n.Ready && len(n.InternalIPs) > 0 && matches(g.Nodes, n.Labels) && (elected == nil || n.Name < elected.Name) {
				elected = n
			}
		}
		switch {
		case elected == nil:
		case elected.Name != o.LocalNode.Name:
			others[underlay(elected)] = true
		default:
			v := bpf.GatewayValue{Gateway: bpf.AddressFrom(underlay(elected))}
			o.egress(txn, g, &v)
			ways[v.String()] = true
		}
	}
	for addr := range others {
		for _, v := range own {
			v.Gateway = bpf.AddressFrom(addr)
			ways[v.String()] = true
		}
		if len(own) == 0 {
			ways[bpf.GatewayValue{Gateway: bpf.AddressFrom(addr)}.String()] = true
		}
	}
	if len(ways) == 0 {
		return "gateways " + bpf.GatewayValue{}.String()
	}
	return "gateways " + sortedKeys(ways)
}

func underlay(n *tables.Node) netip.Addr {
	for _, a := range n.InternalIPs {
		if a.Is4() {
			return a
		}
	}
	return n.InternalIPs[0]
}

// egress fills in what traffic leaves this node with.
func (o *oracle) egress(txn statedb.ReadTxn, g tables.GatewaySpec, v *bpf.GatewayValue) {
	device := 0
	switch {
	case g.Interface != "":
		for d := range o.Devices.All(txn) {
			if d.Name == g.Interface || slices.Contains(d.AltNames, g.Interface) {
				device = d.Index
			}
		}
	case g.EgressIP.IsValid():
		for a := range o.Addresses.All(txn) {
			if a.Addr == g.EgressIP {
				device = a.DeviceIndex
			}
		}
	default:
		device = o.defaultDevice(txn)
	}
	if device == 0 {
		return
	}
	for _, family := range []int{32, 128} {
		var first *tables.NodeAddress
		for a := range o.Addresses.All(txn) {
			if a.DeviceIndex == device && a.Addr.BitLen() == family && a.Scope == "global" && (first == nil || a.Order < first.Order) {
				first = a
			}
		}
		addr := netip.Addr{}
		if first != nil {
			addr = first.Addr
		}
		if g.EgressIP.IsValid() && g.EgressIP.BitLen() == family {
			addr = g.EgressIP
		}
		switch {
		case !addr.IsValid():
			continue
		case family == 32:
			v.Egress4 = addr.As4()
		default:
			v.Egress6 = bpf.AddressFrom(addr)
		}
		v.IfIndex = uint32(device)
	}
}

func (o *oracle) defaultDevice(txn statedb.ReadTxn) int {
	device := 0
	for _, destination := range []string{"0.0.0.0/0", "::/0"} {
		var best *tables.Route
		for r := range o.Routes.All(txn) {
			if r.Table == 254 && r.Type == "unicast" && r.Destination.String() == destination && (best == nil || r.Priority < best.Priority) {
				best = r
			}
		}
		switch {
		case best == nil:
		case device != 0 && device != best.DeviceIndex:
			return 0
		default:
			device = best.DeviceIndex
		}
	}
	return device
}

// inCluster reports whether an address is inside the cluster.
func (o *oracle) inCluster(txn statedb.ReadTxn, addr netip.Addr) bool {
	for e := range o.Endpoints.All(txn) {
		if slices.Contains(e.Addrs, addr) {
			return true
		}
	}
	for n := range o.Nodes.All(txn) {
		if slices.Contains(n.InternalIPs, addr) || slices.Contains(n.OtherIPs, addr) || covering(n.PodCIDRs, addr) >= 0 {
			return true
		}
	}
	for s := range o.Services.All(txn) {
		if slices.Contains(s.Addrs, addr) {
			return true
		}
	}
	for a := range o.Addresses.All(txn) {
		if a.Addr == addr {
			return true
		}
	}
	return false
}

// probes are the packets of interest: from every address that an endpoint has,
// to the ends of every prefix that a policy names, and some others.
func (o *oracle) probes(txn statedb.ReadTxn) (sources, destinations []netip.Addr) {
	seen := map[netip.Addr]bool{}
	for e := range o.Endpoints.All(txn) {
		for _, a := range e.Addrs {
			if !seen[a] {
				seen[a] = true
				sources = append(sources, a)
			}
		}
	}
	destinations = []netip.Addr{netip.MustParseAddr("203.0.113.200"), netip.MustParseAddr("2001:db8:ffff::1")}
	for p := range o.Policies.All(txn) {
		for _, prefix := range slices.Concat(p.Destinations, p.Excluded) {
			destinations = append(destinations, prefix.Addr())
			if next := prefix.Addr().Next(); prefix.Contains(next) {
				destinations = append(destinations, next)
			}
		}
	}
	slices.SortFunc(destinations, netip.Addr.Compare)
	return sources, slices.Compact(destinations)
}

func sortedKeys(set map[string]bool) string {
	keys := make([]string, 0, len(set))
	for k := range set {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return strings.Join(keys, " | ")
}
