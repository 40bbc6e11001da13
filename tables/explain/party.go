// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
)

// place returns the address or prefix of the party for lookups.
func (p *Party) place() netip.Prefix {
	if p.Address.IsValid() {
		return netip.PrefixFrom(p.Address, p.Address.BitLen())
	}
	return p.Prefix
}

// parties resolves both sides of a packet, in a family that they share.
func (e *Explainer) parties(txn statedb.ReadTxn, from, to string) (a, b Party, err error) {
	first, second := e.candidates(txn, from), e.candidates(txn, to)
	switch {
	case len(first) == 0:
		return a, b, e.noAddress(txn, FieldFrom, from)
	case len(second) == 0:
		return a, b, e.noAddress(txn, FieldTo, to)
	}
	for _, sender := range first {
		for _, receiver := range second {
			if sender.Addr().BitLen() == receiver.Addr().BitLen() {
				return e.describe(txn, from, sender), e.describe(txn, to, receiver), nil
			}
		}
	}
	return a, b, errorf(FieldTo, "%q has no address of the family of %q", to, from)
}

// noAddress returns the error for a text that names no address.
func (e *Explainer) noAddress(txn statedb.ReadTxn, field, text string) error {
	namespace, name, isPod := strings.Cut(text, "/")
	switch {
	case text == "":
		return errorf(field, "want namespace/pod, an address, or an entity")
	case isPod:
		if _, _, ok := e.t.Endpoints.Get(
			txn, tables.EndpointByName(tables.Name{Namespace: namespace, Name: name}),
		); ok {
			return errorf(field, "pod %s has no address", text)
		}
		return errorf(
			field, "there is no pod %s with an address of its own: the table endpoints has all", text,
		)
	case text == string(tables.EntityAll):
		return errorf(field, "all matches everything: name a single party, such as world or a pod")
	case slices.Contains(entities, tables.PolicyEntity(text)):
		return errorf(field, "no address of the entity %s is known", text)
	}
	return errorf(
		field, "%q is no namespace/pod, no address, and no entity: %s", text,
		strings.Join(Entities(), ", "),
	)
}

var entities = []tables.PolicyEntity{
	tables.EntityHost, tables.EntityRemoteNode, tables.EntityWorld, tables.EntityWorldIPv4,
	tables.EntityWorldIPv6, tables.EntityCluster, tables.EntityKubeAPIServer,
}

// Entities returns the entities that may be asked about.
func Entities() []string {
	names := make([]string, len(entities))
	for i, e := range entities {
		names[i] = string(e)
	}
	return names
}

// The outermost prefixes of entities that are no single address.
var (
	everywhere4 = netip.MustParsePrefix("0.0.0.0/0")
	everywhere6 = netip.MustParsePrefix("::/0")
)

// candidates returns the addresses of a party, the primary one first.
func (e *Explainer) candidates(txn statedb.ReadTxn, text string) (places []netip.Prefix) {
	if namespace, name, isPod := strings.Cut(text, "/"); isPod {
		pod, _, ok := e.t.Endpoints.Get(
			txn, tables.EndpointByName(tables.Name{Namespace: namespace, Name: name}),
		)
		if !ok {
			return nil
		}
		return single(pod.Addrs...)
	}
	switch tables.PolicyEntity(text) {
	case tables.EntityWorld:
		return []netip.Prefix{everywhere4, everywhere6}
	case tables.EntityWorldIPv4:
		return []netip.Prefix{everywhere4}
	case tables.EntityWorldIPv6:
		return []netip.Prefix{everywhere6}
	case tables.EntityHost:
		return e.host(txn)
	case tables.EntityRemoteNode:
		for n := range e.t.Nodes.All(txn) {
			if n.Name != e.t.LocalNode.Name && len(n.InternalIPs) > 0 {
				return single(n.InternalIPs...)
			}
		}
		return nil
	case tables.EntityCluster:
		for n := range e.t.Nodes.All(txn) {
			if len(n.PodCIDRs) > 0 {
				return n.PodCIDRs
			}
		}
		return e.t.Cluster
	case tables.EntityKubeAPIServer:
		return single(e.slices(txn, tables.KubernetesAPIService)...)
	}
	if addr, err := netip.ParseAddr(text); err == nil {
		return single(addr.WithZone("").Unmap())
	}
	return nil
}

func single(addrs ...netip.Addr) (places []netip.Prefix) {
	for _, a := range addrs {
		places = append(places, netip.PrefixFrom(a, a.BitLen()))
	}
	return places
}

// host returns the addresses of this node: those of its object, or else of its devices.
func (e *Explainer) host(txn statedb.ReadTxn) []netip.Prefix {
	if n, _, ok := e.t.Nodes.Get(
		txn, tables.NodeByName(e.t.LocalNode.Name),
	); ok && len(n.InternalIPs) > 0 {
		return single(n.InternalIPs...)
	}
	for a := range e.t.NodeAddresses.All(txn) {
		if a.Scope == "global" {
			return single(a.Addr)
		}
	}
	return nil
}

// slices returns the addresses that the slices of a service list.
func (e *Explainer) slices(txn statedb.ReadTxn, service tables.Name) (addrs []netip.Addr) {
	for s := range e.t.Backends.List(txn, tables.BackendSlicesByService(service)) {
		addrs = append(addrs, s.Addrs...)
	}
	return addrs
}

// describe returns a party with what the tables have for its address.
func (e *Explainer) describe(txn statedb.ReadTxn, text string, place netip.Prefix) Party {
	p := Party{Name: text, Prefix: place, PeerSelectors: []string{}}
	e.asPeer(txn, &p)
	if !place.IsSingleIP() {
		return p
	}
	p.Address, p.Prefix = place.Addr(), netip.Prefix{}
	if owner, _ := tables.AddrOwner(txn, e.t.Endpoints, p.Address); owner != nil {
		p.Pod, p.Node, p.Labels = owner.Name.String(), owner.Node, owner.LabelSet.Labels.Set()
	} else {
		p.Node = e.nodeOf(txn, p.Address)
	}
	for s := range e.servicesAt(txn, p.Address) {
		p.Services = append(p.Services, s.Name.String())
	}
	e.asPod(txn, &p)
	return p
}

func (e *Explainer) nodeOf(txn statedb.ReadTxn, addr netip.Addr) string {
	for n := range e.t.Nodes.List(txn, tables.NodesByAddr(addr)) {
		return n.Name
	}
	for range e.t.NodeAddresses.List(txn, tables.NodeAddressesByAddr(addr)) {
		return e.t.LocalNode.Name
	}
	return ""
}

// resolve replaces the name of a port by its number: that of the service's ports with the name, or
// the receiver's. If the receiver has several, as containers may, the question must name one.
func (e *Explainer) resolve(
	txn statedb.ReadTxn, t Traffic, to Party, ports []servicePort,
) (Traffic, error) {
	if t.Name == "" {
		return t, nil
	}
	var numbers []uint16
	for _, p := range ports {
		numbers = append(numbers, p.Port)
	}
	if len(ports) == 0 {
		numbers = e.named(txn, to.Address, t.Name, t.Protocol)
	}
	slices.Sort(numbers)
	numbers = slices.Compact(numbers)
	switch len(numbers) {
	case 0:
		return t, errorf(
			FieldPort, "%s has no port named %q for %s", to.Name, t.Name, protocolName(t.Protocol),
		)
	case 1:
		return Traffic{Protocol: t.Protocol, Port: numbers[0]}, nil
	}
	texts := make([]string, len(numbers))
	for i, n := range numbers {
		texts[i] = strconv.Itoa(int(n))
	}
	return t, errorf(FieldPort, "%s has several ports named %q for %s: ask for one of %s",
		to.Name, t.Name, protocolName(t.Protocol), strings.Join(texts, ", "))
}

// named returns the numbers of the ports that the pod with an address gives a name.
func (e *Explainer) named(
	txn statedb.ReadTxn, addr netip.Addr, name string, protocol uint8,
) (numbers []uint16) {
	owner, _ := tables.AddrOwner(txn, e.t.Endpoints, addr)
	if owner == nil {
		return nil
	}
	for _, p := range owner.LabelSet.NamedPorts {
		if p.Name == name && p.Protocol == protocol {
			numbers = append(numbers, p.Port)
		}
	}
	return numbers
}
