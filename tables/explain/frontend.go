// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"iter"
	"net/netip"
	"slices"
	"strings"

	"github.com/cilium/statedb"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// leads is where the host's translation leads what a pod sends, as the programs have it.
type leads uint8

const (
	leadsNowhere leads = iota
	leadsOn            // to a backend, by which alone the packet is judged
	leadsAway          // the same, but the packet is judged by its destination too
	leadsAtNode        // to a backend that another node chooses: it is judged by all of them too
)

// leadsOf looks a packet's destination up as the programs do.
func leadsOf(v view, p packet, pod bpf.PodValue) (leads, bpf.FrontendValue) {
	known, _ := v.known(p.to)
	if known.Flags&bpf.IPCacheService != 0 {
		return leadsOn, bpf.FrontendValue{}
	}
	f, found := frontendOf(v.frontend, p.to, p.traffic, known.Flags)
	isOfNode := known.Flags&(bpf.IPCacheHost|bpf.IPCacheNode) != 0
	switch {
	case !found:
		return leadsNowhere, f
	case f.Flags&bpf.FrontendAtNode != 0 && known.Flags&bpf.IPCacheHost == 0:
		return leadsAtNode, f
	case (f.Namespace == bpf.AllNamespaces || f.Namespace == pod.Namespace) &&
		(known.Flags == 0 || isOfNode):
		return leadsOn, f
	}
	return leadsAway, f
}

// frontendOf finds what translates traffic to a place, of which the flags are known.
func frontendOf[V any](
	lookUp func(bpf.FrontendKey) (V, bool), to netip.Prefix, t Traffic, flags bpf.IPCacheFlags,
) (found V, ok bool) {
	switch t.Protocol {
	case unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP:
	default:
		return found, false
	}
	if !to.IsSingleIP() {
		return found, false
	}
	family := bpf.FamilyIPv6
	if to.Addr().Is4() {
		family = bpf.FamilyIPv4
	}
	var addrs []netip.Addr
	if flags&(bpf.IPCacheHost|bpf.IPCacheNode) != 0 {
		addrs = append(addrs, bpf.AnyNode(family))
	}
	addrs = append(addrs, to.Addr())
	if flags&bpf.IPCacheHost != 0 {
		addrs = append(addrs, bpf.ThisHost(family))
	}
	for _, addr := range addrs {
		if v, ok := lookUp(bpf.FrontendKeyFrom(addr, t.Protocol, t.Port)); ok {
			return v, true
		}
	}
	return found, false
}

// judgeBackends decides by all backends that another node may choose: one that is denied is enough.
func judgeBackends(
	v view, f bpf.FrontendValue, p packet, pod bpf.PodValue, so Judgement,
) Judgement {
	if f.Flags&bpf.FrontendMore != 0 {
		so.Decision = Decision{Verdict: Denied, Reason: ReasonManyBackends, Rules: []Rule{}}
		return so
	}
	none := func(bpf.IPCacheValue) (Decision, bool) { return Decision{}, false }
	for _, b := range f.Backends[:f.Count] {
		traffic := p.traffic
		traffic.Port = b.AddrPort().Port()
		place := netip.PrefixFrom(b.AddrPort().Addr(), b.AddrPort().Addr().BitLen())
		if j := judgeOf(v, pod, bpf.DirectionEgress, place, traffic, none); j.Verdict == Denied {
			return j
		}
	}
	return so
}

// servicesAt yields the services with a cluster address, and those that are translated at an
// address beside these.
func (e *Explainer) servicesAt(txn statedb.ReadTxn, addr netip.Addr) iter.Seq[*tables.Service] {
	return func(yield func(*tables.Service) bool) {
		for s := range e.t.Services.List(txn, tables.ServicesByAddr(addr)) {
			if !yield(s) {
				return
			}
		}
		for s := range e.t.Services.List(txn, tables.ServicesByExternal(addr)) {
			served := slices.ContainsFunc(s.Ports, func(p tables.ServicePort) bool {
				f := e.frontendAt(txn, addr, Traffic{Protocol: p.Protocol, Port: p.Port})
				return f != nil && slices.Contains(f.Origins, "service "+s.Name.String())
			})
			if served && !yield(s) {
				return
			}
		}
	}
}

// frontendAt returns what translates traffic to an address, nil if there is nothing.
func (e *Explainer) frontendAt(
	txn statedb.ReadTxn, addr netip.Addr, t Traffic,
) *tables.Frontend {
	w := &wanted{e, txn}
	place := netip.PrefixFrom(addr, addr.BitLen())
	known, _ := w.known(place)
	f, _ := frontendOf(func(k bpf.FrontendKey) (*tables.Frontend, bool) {
		row, _, found := e.t.Frontends.Get(txn, tables.FrontendByKey(k))
		return row, found
	}, place, t, known.Flags)
	return f
}

// frontendPorts returns the ports of services that are translated at an address that is not one of
// the cluster's own: external ones, and ports of nodes.
func (e *Explainer) frontendPorts(
	txn statedb.ReadTxn, t Traffic, addr netip.Addr,
) (asked []servicePort) {
	if !addr.IsValid() {
		return nil
	}
	if t.Name != "" {
		for s := range e.t.Services.List(txn, tables.ServicesByExternal(addr)) {
			for _, p := range s.Ports {
				if p.Name == t.Name && p.Protocol == t.Protocol {
					named := Traffic{Protocol: p.Protocol, Port: p.Port}
					asked = append(asked, e.frontendPorts(txn, named, addr)...)
				}
			}
		}
		return asked
	}
	f := e.frontendAt(txn, addr, t)
	if f == nil {
		return nil
	}
	for _, origin := range f.Origins {
		kind, name, _ := strings.Cut(origin, " ")
		namespace, name, _ := strings.Cut(name, "/")
		full := tables.Name{Namespace: namespace, Name: name}
		if kind == "pod" {
			asked = append(asked, servicePort{pod: full, ServicePort: tables.ServicePort{
				Protocol: t.Protocol, Port: t.Port,
			}})
			continue
		}
		s, _, found := e.t.Services.Get(txn, tables.ServiceByName(full))
		if !found {
			continue
		}
		for _, p := range s.Ports {
			if p.Protocol == t.Protocol && (p.Port == t.Port && slices.Contains(s.External(), addr) ||
				p.NodePort == t.Port && f.Addr.IsUnspecified()) {
				asked = append(asked, servicePort{ServicePort: p, service: s})
			}
		}
	}
	return asked
}

// behindHostPort returns where a port of a node leads of which the CNI has a plugin.
func (e *Explainer) behindHostPort(
	txn statedb.ReadTxn, p servicePort,
) (backends []netip.AddrPort) {
	pod, _, found := e.t.Endpoints.Get(txn, tables.EndpointByName(p.pod))
	if !found {
		return nil
	}
	for _, h := range pod.HostPorts {
		if h.Port == p.Port && h.Protocol == p.Protocol {
			for _, a := range pod.Addrs {
				backends = append(backends, netip.AddrPortFrom(a, h.ContainerPort))
			}
		}
	}
	return backends
}
