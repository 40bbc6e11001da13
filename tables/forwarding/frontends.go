// SPDX-License-Identifier: Apache-2.0

package forwarding

import (
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

type frontendParams struct {
	cell.In

	Config    Config
	Maps      bpf.Config
	LocalNode tables.LocalNode

	Frontends statedb.RWTable[*tables.Frontend]
	Services  statedb.Table[*tables.Service]
	Backends  statedb.Table[*tables.BackendSlice]
	Endpoints statedb.Table[*tables.Endpoint]
	Nodes     statedb.Table[*tables.Node]
	Members   statedb.Table[*tables.Member]
	IPCache   statedb.Table[*tables.IPCache]
}

var families = []uint8{bpf.FamilyIPv4, bpf.FamilyIPv6}

// deriveFrontends keeps what is translated beside cluster addresses. Only what kube-proxy does
// translate counts: a service that is not headless, at a port with a backend that it chooses.
func deriveFrontends(p derive.Params, f frontendParams) error {
	return derive.Register(p, f.rule())
}

// frontendKey is one frontend, or all that a service or a pod may have: the product of their
// addresses and ports would not fit in a queue.
type frontendKey struct {
	tables.FrontendID
	of frontendOrigin // none: one frontend
}

func (f frontendParams) rule() derive.Rule[frontendKey] {
	return derive.Rule[frontendKey]{
		Outputs: []statedb.TableMeta{f.Frontends},
		Inputs: []derive.Input[frontendKey]{
			derive.FromIf(f.Services, differentFrontends,
				func(_ statedb.ReadTxn, s *tables.Service, mark func(frontendKey)) {
					mark(frontendKey{of: frontendOrigin{originService, s.Name}})
				}),
			derive.FromIf(f.Backends, func(old, new *tables.BackendSlice) bool {
				return tables.DifferentBackends(old, new) || old.Serves != new.Serves ||
					!slices.Equal(old.Ports, new.Ports) || !slices.Equal(old.PodAddrs, new.PodAddrs)
			}, func(txn statedb.ReadTxn, b *tables.BackendSlice, mark func(frontendKey)) {
				if s, _, found := f.Services.Get(txn, tables.ServiceByName(b.Service)); found {
					mark(frontendKey{of: frontendOrigin{originService, s.Name}})
				}
			}),
			derive.FromIf(f.Endpoints, func(old, new *tables.Endpoint) bool {
				return old.Node != new.Node || !slices.Equal(old.HostPorts, new.HostPorts) ||
					len(new.HostPorts) > 0 && !slices.Equal(old.Addrs, new.Addrs)
			}, func(_ statedb.ReadTxn, e *tables.Endpoint, mark func(frontendKey)) {
				if len(e.HostPorts) > 0 {
					mark(frontendKey{of: frontendOrigin{originPod, e.Name}})
				}
			}),
			derive.FromIf(f.Nodes, func(old, new *tables.Node) bool {
				return !slices.Equal(old.InternalIPs, new.InternalIPs) ||
					!slices.Equal(old.OtherIPs, new.OtherIPs)
			}, func(txn statedb.ReadTxn, n *tables.Node, mark func(frontendKey)) {
				f.nodeChanged(txn, n.Name, mark)
			}),
			derive.FromIf(f.Members,
				func(old, new *tables.Member) bool { return old.Undesired != new.Undesired },
				f.memberChanged),
			derive.FromIf(f.IPCache,
				func(old, new *tables.IPCache) bool { return old.Member != new.Member },
				f.addressChanged),
		},
		Compute: f.compute,
	}
}

func differentFrontends(old, new *tables.Service) bool {
	return old.NotProxied != new.NotProxied || !slices.Equal(old.ExternalIPs, new.ExternalIPs) ||
		!slices.Equal(old.LoadBalancerIPs, new.LoadBalancerIPs) ||
		!slices.Equal(old.Addrs, new.Addrs) ||
		!slices.Equal(old.Ports, new.Ports) || !maps.Equal(old.Kept(), new.Kept())
}

// idsOf yields the frontends that a service or a pod may have, ports of all nodes first. Of a
// service these are at ports that are served.
func (f *frontendParams) idsOf(
	txn statedb.ReadTxn, cache *frontendCache, of frontendOrigin,
) iter.Seq[tables.FrontendID] {
	return func(yield func(tables.FrontendID) bool) {
		if of.kind == originPod {
			if e, _, found := f.Endpoints.Get(txn, tables.EndpointByName(of.Name)); found {
				f.hostPortsOf(txn, e, yield)
			}
			return
		}
		s, _, found := f.Services.Get(txn, tables.ServiceByName(of.Name))
		if !found {
			return
		}
		for id := range nodePortsOf(s) {
			if !yield(id) {
				return
			}
		}
		for _, p := range s.Ports {
			for _, family := range families {
				if f.isServed(txn, cache, s, p, family) && !externalsOf(s, p, family, yield) {
					return
				}
			}
		}
	}
}

func externalsOf(
	s *tables.Service, p tables.ServicePort, family uint8, yield func(tables.FrontendID) bool,
) (more bool) {
	for _, addr := range s.External() {
		id := tables.FrontendID{Addr: addr, Protocol: p.Protocol, Port: p.Port}
		if familyOf(addr) == family && !yield(id) {
			return false
		}
	}
	return true
}

func nodePortsOf(s *tables.Service) iter.Seq[tables.FrontendID] {
	return func(yield func(tables.FrontendID) bool) {
		for _, p := range s.Ports {
			for _, family := range families {
				id := tables.FrontendID{
					Addr: bpf.AnyNode(family), Protocol: p.Protocol, Port: p.NodePort,
				}
				if p.NodePort != 0 && !yield(id) {
					return
				}
			}
		}
	}
}

// addressChanged marks the ports of nodes that may lead to an address, or that it may have.
func (f *frontendParams) addressChanged(
	txn statedb.ReadTxn, row *tables.IPCache, mark func(frontendKey),
) {
	m, _, found := f.Members.Get(txn, tables.MemberByNumber(row.Member))
	switch {
	case !found:
	case row.Flags&bpf.IPCachePod != 0:
		f.memberChanged(txn, m, mark)
	case m.Node != "":
		f.nodeChanged(txn, m.Node, mark)
	}
}

// nodeChanged marks the pods to which ports of a node lead.
func (f *frontendParams) nodeChanged(
	txn statedb.ReadTxn, node string, mark func(frontendKey),
) {
	for e := range f.Endpoints.List(txn, tables.EndpointsWithHostPorts(node)) {
		mark(frontendKey{of: frontendOrigin{originPod, e.Name}})
	}
}

// memberChanged marks the ports of nodes that may lead to pods of a member.
func (f *frontendParams) memberChanged(
	txn statedb.ReadTxn, m *tables.Member, mark func(frontendKey),
) {
	if m.Namespace == "" {
		return
	}
	for s := range f.Services.List(txn, tables.ServicesWithNodePorts(m.Namespace)) {
		if selects(s, m) {
			for id := range nodePortsOf(s) {
				mark(frontendKey{FrontendID: id})
			}
		}
	}
}

// hostPortsOf yields the ports of its node that lead to an endpoint.
func (f *frontendParams) hostPortsOf(
	txn statedb.ReadTxn, e *tables.Endpoint, yield func(tables.FrontendID) bool,
) {
	for _, p := range e.HostPorts {
		for _, addr := range f.hostAddrs(txn, e, p) {
			if !yield(tables.FrontendID{Addr: addr, Protocol: p.Protocol, Port: p.Port}) {
				return
			}
		}
	}
}

// hostAddrs returns the addresses at which a port leads to an endpoint, as rows have them.
func (f *frontendParams) hostAddrs(
	txn statedb.ReadTxn, e *tables.Endpoint, p tables.HostPort,
) (addrs []netip.Addr) {
	if p.Addr.IsValid() && !p.Addr.IsUnspecified() {
		if e.Node == "" || f.nodeOf(txn, p.Addr) != e.Node {
			return nil // the author of a pod may name any address
		}
		return []netip.Addr{p.Addr}
	}
	if e.Node == f.LocalNode.Name {
		addrs = []netip.Addr{bpf.ThisHost(bpf.FamilyIPv4), bpf.ThisHost(bpf.FamilyIPv6)}
	} else if n, _, found := f.Nodes.Get(txn, tables.NodeByName(e.Node)); found {
		addrs = slices.Concat(n.InternalIPs, n.OtherIPs)
	}
	return slices.DeleteFunc(addrs, func(a netip.Addr) bool {
		return p.Addr.IsValid() && a.Is4() != p.Addr.Is4()
	})
}

// frontendOrigin is a service or a pod because of which there are frontends.
type frontendOrigin struct {
	kind string // originPod or originService, empty: none
	tables.Name
}

const (
	originPod     = "pod"
	originService = "service"
)

// String is what [tables.Frontend] has of it.
func (o frontendOrigin) String() string { return o.kind + " " + o.Name.String() }

func familyOf(a netip.Addr) uint8 {
	if a.Is4() {
		return bpf.FamilyIPv4
	}
	return bpf.FamilyIPv6
}

// row computes a frontend. A service takes its packets before a plugin of the CNI does.
func (f *frontendParams) row(
	txn statedb.ReadTxn, cache *frontendCache, id tables.FrontendID,
) *tables.Frontend {
	row := &tables.Frontend{FrontendID: id, Reconciled: tables.Pending()}
	var backends backendList
	switch {
	case id.Addr.IsUnspecified():
		f.addNodePort(txn, cache, row, &backends)
	case id.Addr.IsLoopback():
		f.addHostPort(txn, row, &backends)
	default:
		if f.addExternal(txn, cache, row); len(row.Origins) == 0 {
			f.addHostPort(txn, row, &backends)
		}
	}
	if len(row.Origins) == 0 {
		return nil
	}
	slices.Sort(row.Origins)
	row.Backends, row.More = backends.ordered()
	return row
}

// addExternal adds the services with an external or load balancer address.
func (f *frontendParams) addExternal(
	txn statedb.ReadTxn, cache *frontendCache, row *tables.Frontend,
) {
	all := false // rely on it
	for s := range f.Services.List(txn, tables.ServicesByExternal(row.Addr)) {
		served := slices.ContainsFunc(s.Ports, func(p tables.ServicePort) bool {
			return p.Port == row.Port && p.Protocol == row.Protocol &&
				f.isServed(txn, cache, s, p, familyOf(row.Addr))
		})
		if !served {
			continue
		}
		row.Origins = append(row.Origins, frontendOrigin{originService, s.Name}.String())
		all = all || f.Config.TrustExternalIPs || slices.Contains(s.LoadBalancerIPs, row.Addr)
		row.Disputed = row.Disputed || row.Namespace != "" && row.Namespace != s.Namespace
		row.Namespace = s.Namespace
	}
	if all || row.Disputed {
		row.Namespace, row.Disputed = "", !all
	}
}

// isServed reports whether kube-proxy translates a port of a service in a family.
func (f *frontendParams) isServed(
	txn statedb.ReadTxn, cache *frontendCache, s *tables.Service, p tables.ServicePort,
	family uint8,
) bool {
	ofFamily := func(a netip.Addr) bool { return familyOf(a) == family }
	if s.NotProxied || !slices.ContainsFunc(s.Addrs, ofFamily) {
		return false // without a cluster address of the family it leaves the service alone in it
	}
	served := cache.served[s.Name]
	if served == nil {
		served = map[servedPort]bool{}
		cache.served[s.Name] = served
		for b := range f.Backends.List(txn, tables.BackendSlicesByService(s.Name)) {
			for _, port := range b.Ports {
				served[servedPort{portName{port.Name, port.Protocol}, b.Serves}] = true
			}
		}
	}
	return served[servedPort{nameOf(p), family}]
}
