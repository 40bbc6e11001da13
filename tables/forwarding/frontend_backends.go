// SPDX-License-Identifier: Apache-2.0

package forwarding

import (
	"net/netip"
	"slices"

	"github.com/cilium/statedb"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// addNodePort adds the services with a port of all nodes, and where it leads.
func (f *frontendParams) addNodePort(txn statedb.ReadTxn, row *tables.Frontend) {
	for s := range f.Services.List(txn, tables.ServicesByNodePort(int(row.Port))) {
		for _, p := range s.Ports {
			if p.NodePort != row.Port || p.Protocol != row.Protocol ||
				!f.isServed(txn, s, p, familyOf(row.Addr)) {
				continue
			}
			row.AtNode = true
			row.Origins = append(row.Origins, serviceOrigin(s.Name))
			row.Backends = append(row.Backends, f.backends(txn, s, p, row.Addr.Is4())...)
		}
	}
}

// backends returns where a port of a service may lead: the addresses in its slices, and of the pods
// that it selects one for each label set.
func (f *frontendParams) backends(
	txn statedb.ReadTxn, s *tables.Service, p tables.ServicePort, v4 bool,
) (backends []netip.AddrPort) {
	var known []uint16
	for b := range f.Backends.List(txn, tables.BackendSlicesByService(s.Name)) {
		ports := portsIn(b, p)
		known = append(known, ports...)
		for _, addr := range b.Addrs {
			if addr.Is4() == v4 {
				backends = append(backends, at(addr, ports)...)
			}
		}
	}
	for m := range f.Members.Prefix(txn, tables.MembersOfNamespace(s.Namespace)) {
		if m.Undesired || !selects(s, m) {
			continue
		}
		for row := range f.IPCache.List(txn, tables.IPCacheByMember(m.Number)) {
			if row.Prefix.Addr().Is4() == v4 {
				backends = append(backends, at(row.Prefix.Addr(), targets(p, m.Labels, known))...)
			}
			break // all of them are of one family, and judged alike
		}
	}
	return backends
}

func at(addr netip.Addr, ports []uint16) (all []netip.AddrPort) {
	for _, port := range ports {
		all = append(all, netip.AddrPortFrom(addr, port))
	}
	return all
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
func (f *frontendParams) addHostPort(txn statedb.ReadTxn, row *tables.Frontend) {
	for e := range f.Endpoints.List(txn, tables.EndpointsByHostPort(int(row.Port))) {
		for _, p := range e.HostPorts {
			if p.Port != row.Port || p.Protocol != row.Protocol ||
				!slices.Contains(f.hostAddrs(txn, e, p), row.Addr) {
				continue
			}
			i := slices.IndexFunc(e.Addrs, func(a netip.Addr) bool { return a.Is4() == row.Addr.Is4() })
			if i < 0 {
				continue
			}
			row.Origins = append(row.Origins, podOrigin(e.Name))
			if e.Node != f.LocalNode.Name {
				row.AtNode = true
				row.Backends = append(row.Backends, netip.AddrPortFrom(e.Addrs[i], p.ContainerPort))
			}
		}
	}
}

// ordered returns backends in order, each once, those that no pod has first.
func (f *frontendParams) ordered(
	txn statedb.ReadTxn, backends []netip.AddrPort,
) []netip.AddrPort {
	isPod := func(b netip.AddrPort) bool {
		prefix := netip.PrefixFrom(b.Addr(), b.Addr().BitLen())
		row, _, found := f.IPCache.Get(txn, tables.IPCacheByPrefix(prefix))
		return found && row.Flags&bpf.IPCachePod != 0
	}
	slices.SortFunc(backends, func(a, b netip.AddrPort) int {
		switch {
		case isPod(a) == isPod(b):
			return a.Compare(b)
		case isPod(b):
			return -1
		}
		return 1
	})
	return slices.Compact(backends)
}
