// SPDX-License-Identifier: Apache-2.0

package forwarding

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/cilium/statedb"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// mostBackends is how many backends of a kind matter: with one more than a frontend lists, it has
// more.
const mostBackends = bpf.FrontendBackends + 1

// backendList has backends, each once, up to mostBackends.
type backendList struct{ outside, pods, nodes []netip.AddrPort }

func add(to *[]netip.AddrPort, addr netip.Addr, ports []uint16) {
	for _, port := range ports {
		b := netip.AddrPortFrom(addr, port)
		if len(*to) < mostBackends && !slices.Contains(*to, b) {
			*to = append(*to, b)
		}
	}
}

// addNode adds a pod of the host network: one for each port, as nodes are judged alike but by rules
// about their addresses.
func (l *backendList) addNode(addr netip.Addr, ports []uint16) {
	for _, port := range ports {
		same := func(b netip.AddrPort) bool { return b.Port() == port }
		if !slices.ContainsFunc(l.nodes, same) {
			add(&l.nodes, addr, []uint16{port})
		}
	}
}

// ordered returns the backends that a frontend lists, those that no pod has first.
func (l *backendList) ordered() (backends []netip.AddrPort, more bool) {
	slices.SortFunc(l.outside, netip.AddrPort.Compare)
	slices.SortFunc(l.pods, netip.AddrPort.Compare)
	slices.SortFunc(l.nodes, netip.AddrPort.Compare)
	backends = slices.Concat(l.outside, l.pods, l.nodes)
	return backends[:min(len(backends), bpf.FrontendBackends)], len(backends) > bpf.FrontendBackends
}

// serviceBackends are the addresses of a service of one family that matter, whatever the port: no
// more of each kind than mostBackends of each slice.
type serviceBackends struct {
	selected []podBackend // one of each label set that the service selects
	slices   []sliceBackends
}

type podBackend struct {
	addr   netip.Addr
	labels *tables.LabelSet
}

type sliceBackends struct {
	ports         map[portName][]uint16
	outside, pods []netip.Addr
	node          netip.Addr   // of a pod of the host network; invalid: none
	selected      []podBackend // that the service selects, one of each label set
}

// backendsOf returns the addresses of a service. A slice may say of any address that it is a pod's:
// only those are left out that the service selects, as they are known by their label sets.
func (f *frontendParams) backendsOf(
	txn statedb.ReadTxn, s *tables.Service, v4 bool,
) *serviceBackends {
	all := &serviceBackends{}
	for m := range f.Members.Prefix(txn, tables.MembersOfNamespace(s.Namespace)) {
		if len(all.selected) == mostBackends {
			break
		}
		if m.Undesired || !selects(s, m) {
			continue
		}
		for row := range f.IPCache.List(txn, tables.IPCacheByMember(m.Number)) {
			if row.Prefix.Addr().Is4() == v4 {
				all.selected = append(all.selected, podBackend{row.Prefix.Addr(), m.Labels})
			}
			break // all of them are of one family, and judged alike
		}
	}
	for b := range f.Backends.List(txn, tables.BackendSlicesByService(s.Name)) {
		of := sliceBackends{ports: map[portName][]uint16{}}
		for _, port := range b.Ports {
			name := portName{port.Name, port.Protocol}
			of.ports[name] = append(of.ports[name], port.Port)
		}
		for _, addr := range b.Addrs {
			if addr.Is4() == v4 {
				of.add(addr, f.podAt(txn, addr), nil)
			}
		}
		for _, addr := range b.PodAddrs {
			switch {
			case addr.Is4() != v4:
			case f.nodeOf(txn, addr) != "":
				of.node = cmp.Or(of.node, addr)
			default:
				of.add(addr, f.podAt(txn, addr), s)
			}
		}
		all.slices = append(all.slices, of)
	}
	return all
}

// add adds an address, of a member that is pods, or nil. s is the service if the slice says that
// it is of a pod.
func (b *sliceBackends) add(addr netip.Addr, m *tables.Member, s *tables.Service) {
	switch {
	case m == nil:
		if len(b.outside) < mostBackends {
			b.outside = append(b.outside, addr)
		}
	case s == nil || !selects(s, m):
		if len(b.pods) < mostBackends {
			b.pods = append(b.pods, addr)
		}
	default:
		known := func(p podBackend) bool { return p.labels.ID == m.Labels.ID }
		if len(b.selected) < mostBackends && !slices.ContainsFunc(b.selected, known) {
			b.selected = append(b.selected, podBackend{addr, m.Labels})
		}
	}
}

// memberAt returns the member of an address, and whether a pod has the address; nil if nothing has.
func (f *frontendParams) memberAt(
	txn statedb.ReadTxn, addr netip.Addr,
) (m *tables.Member, ofPod bool) {
	prefix := netip.PrefixFrom(addr, addr.BitLen())
	row, _, found := f.IPCache.Get(txn, tables.IPCacheByPrefix(prefix))
	if !found {
		return nil, false
	}
	m, _, _ = f.Members.Get(txn, tables.MemberByNumber(row.Member))
	return m, row.Flags&bpf.IPCachePod != 0
}

// podAt returns the member of the pod that has an address, nil if none has.
func (f *frontendParams) podAt(txn statedb.ReadTxn, addr netip.Addr) *tables.Member {
	m, ofPod := f.memberAt(txn, addr)
	if !ofPod {
		return nil
	}
	return m
}

// nodeOf returns the node that has an address, "" if none has.
func (f *frontendParams) nodeOf(txn statedb.ReadTxn, addr netip.Addr) string {
	m, _ := f.memberAt(txn, addr)
	if m == nil {
		return ""
	}
	return m.Node
}

// at adds where a port of the service leads.
func (all *serviceBackends) at(p tables.ServicePort, to *backendList) {
	var known []uint16
	for _, b := range all.slices {
		known = append(known, b.ports[nameOf(p)]...)
	}
	slices.Sort(known)
	known = slices.Compact(known)
	for _, pod := range all.selected {
		add(&to.pods, pod.addr, targets(p, pod.labels, known))
	}
	for _, b := range all.slices {
		ports := b.ports[nameOf(p)]
		for _, addr := range b.outside {
			add(&to.outside, addr, ports)
		}
		for _, addr := range b.pods {
			add(&to.pods, addr, ports)
		}
		if b.node.IsValid() {
			to.addNode(b.node, ports)
		}
		for _, pod := range b.selected {
			own := targets(p, pod.labels, known)
			other := slices.DeleteFunc(slices.Clone(ports),
				func(port uint16) bool { return slices.Contains(own, port) })
			add(&to.pods, pod.addr, other)
		}
	}
}

// frontendCache has what services have in a transaction: they, and their slices, may have thousands
// of ports.
type frontendCache struct {
	backends map[serviceFamily]*serviceBackends
	served   map[tables.Name]map[servedPort]bool
}

func newFrontendCache() *frontendCache {
	return &frontendCache{
		backends: map[serviceFamily]*serviceBackends{},
		served:   map[tables.Name]map[servedPort]bool{},
	}
}

type serviceFamily struct {
	tables.Name
	v4 bool
}

// portName is how slices call a port of their service.
type portName struct {
	name     string
	protocol uint8
}

func nameOf(p tables.ServicePort) portName { return portName{p.Name, p.Protocol} }

type servedPort struct {
	portName
	family uint8
}

// addNodePort adds the services with a port of all nodes, and where it leads.
func (f *frontendParams) addNodePort(
	txn statedb.ReadTxn, cache *frontendCache, row *tables.Frontend, to *backendList,
) {
	for s := range f.Services.List(txn, tables.ServicesByNodePort(int(row.Port))) {
		for _, p := range s.Ports {
			if p.NodePort != row.Port || p.Protocol != row.Protocol ||
				!f.isServed(txn, cache, s, p, familyOf(row.Addr)) {
				continue
			}
			row.AtNode = true
			row.Origins = append(row.Origins, frontendOrigin{originService, s.Name}.String())
			key := serviceFamily{s.Name, row.Addr.Is4()}
			if cache.backends[key] == nil {
				cache.backends[key] = f.backendsOf(txn, s, key.v4)
			}
			cache.backends[key].at(p, to)
		}
	}
}

// targets returns the ports of a pod to which a port of its service may lead: of those with the
// name that the service has for it, the ones that slices know.
func targets(p tables.ServicePort, set *tables.LabelSet, known []uint16) (ports []uint16) {
	if p.TargetName == "" {
		return []uint16{p.TargetPort}
	}
	for _, named := range set.NamedPorts {
		if named.Name == p.TargetName && named.Protocol == p.Protocol &&
			slices.Contains(known, named.Port) {
			ports = append(ports, named.Port)
		}
	}
	return ports
}

// selects reports whether a service may select the pods of a member: it does without the labels
// that change with each rollout.
func selects(s *tables.Service, m *tables.Member) bool {
	return len(s.Selector) > 0 && m.Labels != nil && m.Namespace == s.Namespace &&
		labels.SelectorFromSet(s.Kept()).Matches(m.Labels.Labels)
}

// addHostPort adds the pods to which a plugin of the CNI translates a port of their node.
func (f *frontendParams) addHostPort(txn statedb.ReadTxn, row *tables.Frontend, to *backendList) {
	nodes := f.nodesAt(txn, row.Addr)
	for e := range f.Endpoints.List(txn, tables.EndpointsByHostPort(int(row.Port))) {
		if !slices.Contains(nodes, e.Node) {
			continue // many nodes may have a pod with the port
		}
		for _, p := range e.HostPorts {
			if p.Port != row.Port || p.Protocol != row.Protocol ||
				!slices.Contains(f.hostAddrs(txn, e, p), row.Addr) {
				continue
			}
			i := slices.IndexFunc(e.Addrs, func(a netip.Addr) bool { return a.Is4() == row.Addr.Is4() })
			if i < 0 {
				continue
			}
			row.Origins = append(row.Origins, frontendOrigin{originPod, e.Name}.String())
			if e.Node != f.LocalNode.Name {
				row.AtNode = true
				add(&to.pods, e.Addrs[i], []uint16{p.ContainerPort})
			}
		}
	}
}

// nodesAt returns the nodes that have an address of a frontend.
func (f *frontendParams) nodesAt(txn statedb.ReadTxn, addr netip.Addr) []string {
	if addr.IsLoopback() {
		return []string{f.LocalNode.Name}
	}
	nodes := []string{f.nodeOf(txn, addr)}
	for n := range f.Nodes.List(txn, tables.NodesByAddr(addr)) {
		nodes = append(nodes, n.Name)
	}
	return nodes
}
