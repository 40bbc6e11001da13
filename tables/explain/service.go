// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/cilium/statedb"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/tables"
)

// servicePort is a port of a service that is asked for, or without a service one of a node that
// leads to a pod.
type servicePort struct {
	tables.ServicePort
	service *tables.Service
	pod     tables.Name
}

// servicePorts returns the ports of the services at an address that traffic to it is
// for. There are none if no service is there, and none of what is also an address of
// a pod or of a node, which may take what its services do not.
func (e *Explainer) servicePorts(
	txn statedb.ReadTxn, t Traffic, to Party,
) (asked []servicePort, err error) {
	if asked = e.frontendPorts(txn, t, to.Address); len(asked) > 0 {
		return asked, nil
	}
	var others []string
	for s := range e.t.Services.List(txn, tables.ServicesByAddr(to.Address)) {
		var texts []string
		for _, p := range s.Ports {
			texts = append(texts, p.String())
			if p.Protocol == t.Protocol &&
				(t.Name == "" && p.Port == t.Port || t.Name != "" && p.Name == t.Name) {
				asked = append(asked, servicePort{ServicePort: p, service: s})
			}
		}
		others = append(others, s.Name.String()+" has "+orNone(texts, "no port"))
	}
	if len(asked) > 0 || others == nil || to.Pod != "" || e.nodeOf(txn, to.Address) != "" {
		return asked, nil
	}
	return nil, errorf(
		FieldPort, "no service at %s has a port %s: %s", to.Address, t, strings.Join(others, "; "),
	)
}

// backends answers for the backends that ports of a service lead to, and lets the
// answer for the service follow from theirs.
func (e *Explainer) backends(
	txn statedb.ReadTxn, service *Policy, ports []servicePort,
) (answers []*Policy, err error) {
	for _, backend := range e.backendsOf(txn, service.To.Address, ports) {
		addr := backend.Addr()
		to := e.describe(txn, addr.String(), netip.PrefixFrom(addr, addr.BitLen()))
		traffic := Traffic{Protocol: protocolNumbers[service.Protocol], Port: backend.Port()}
		answer, err := e.answer(txn, service.From, to, traffic, true)
		if err != nil {
			return nil, err
		}
		answers = append(answers, answer)
	}
	for _, a := range answers {
		service.Ask = append(service.Ask, a.Ask...)
	}
	slices.Sort(service.Ask)
	service.Ask = slices.Compact(service.Ask)
	service.Decision = ofBackends(
		service.Decision, answers, func(p *Policy) Decision { return p.Decision },
	)
	if service.Kernel != nil {
		service.Kernel.Decision = ofBackends(
			service.Kernel.Decision, answers, func(p *Policy) Decision { return p.Kernel.Decision },
		)
	}
	return answers, nil
}

// ofBackends is the decision on a service: some backend is reached, or none, or there
// is none to be judged, or this node judges none.
func ofBackends(d Decision, answers []*Policy, of func(*Policy) Decision) Decision {
	switch {
	case d.Verdict == Denied:
		return d
	case len(answers) == 0:
		return Decision{d.Verdict, ReasonNoBackend, d.Rules, d.Pair, d.Entry}
	}
	first := of(answers[0])
	for _, a := range answers {
		switch got := of(a); got.Verdict {
		case Allowed:
			return Decision{Allowed, ReasonService, got.Rules, got.Pair, got.Entry}
		case NotJudged:
			first = got
		}
	}
	return Decision{first.Verdict, ReasonService, first.Rules, first.Pair, first.Entry}
}

// backendsOf returns where ports of the services at an address lead, in the family of
// the address and in order.
func (e *Explainer) backendsOf(
	txn statedb.ReadTxn, service netip.Addr, ports []servicePort,
) (backends []netip.AddrPort) {
	for _, p := range ports {
		if p.service == nil {
			backends = append(backends, e.behindHostPort(txn, p)...)
			continue
		}
		backends = append(backends, e.listed(txn, p)...)
		backends = append(backends, e.selected(txn, p)...)
	}
	backends = slices.DeleteFunc(
		backends, func(b netip.AddrPort) bool { return b.Addr().BitLen() != service.BitLen() },
	)
	slices.SortFunc(backends, netip.AddrPort.Compare)
	return slices.Compact(backends)
}

// listed returns the backends that the slices of a service list, other than pods that it selects.
func (e *Explainer) listed(txn statedb.ReadTxn, p servicePort) (backends []netip.AddrPort) {
	for s := range e.t.Backends.List(txn, tables.BackendSlicesByService(p.service.Name)) {
		addrs := s.Addrs
		if len(p.service.Selector) == 0 {
			addrs = slices.Concat(addrs, s.PodAddrs)
		}
		for _, a := range addrs {
			backends = appendPorts(backends, a, p.in(s))
		}
	}
	return backends
}

// selected returns the pods that a service selects. Slices list them too, without
// saying here which has which: of a name that is that of several ports of a pod they
// tell which are meant.
func (e *Explainer) selected(txn statedb.ReadTxn, p servicePort) (backends []netip.AddrPort) {
	if len(p.service.Selector) == 0 {
		return nil
	}
	var known []uint16
	for s := range e.t.Backends.List(txn, tables.BackendSlicesByService(p.service.Name)) {
		known = append(known, p.in(s)...)
	}
	isKnown := func(n uint16) bool { return slices.Contains(known, n) }
	selector := labels.SelectorFromSet(p.service.Selector)
	for pod := range e.t.Endpoints.Prefix(
		txn, tables.EndpointByName(tables.Name{Namespace: p.service.Namespace}),
	) {
		if !selector.Matches(pod.LabelSet.Labels) {
			continue
		}
		for _, a := range pod.Addrs {
			numbers := e.target(txn, p, a)
			if len(numbers) > 1 && slices.ContainsFunc(numbers, isKnown) {
				numbers = slices.DeleteFunc(numbers, func(n uint16) bool { return !isKnown(n) })
			}
			backends = appendPorts(backends, a, numbers)
		}
	}
	return backends
}

func appendPorts(to []netip.AddrPort, addr netip.Addr, ports []uint16) []netip.AddrPort {
	for _, port := range ports {
		to = append(to, netip.AddrPortFrom(addr, port))
	}
	return to
}

// in returns the numbers that a slice gives the port.
func (p servicePort) in(s *tables.BackendSlice) (numbers []uint16) {
	for _, b := range s.Ports {
		if b.Name == p.Name && b.Protocol == p.Protocol {
			numbers = append(numbers, b.Port)
		}
	}
	return numbers
}

// target returns the numbers of the port at an address as the service has it: none
// if it is a name that nothing there has.
func (e *Explainer) target(txn statedb.ReadTxn, p servicePort, addr netip.Addr) []uint16 {
	if p.TargetName == "" {
		return []uint16{p.TargetPort}
	}
	return e.named(txn, addr, p.TargetName, p.Protocol)
}
