// SPDX-License-Identifier: Apache-2.0

package subjects

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
)

// events are random changes of the inputs of a harness.
type events struct {
	*harness
	*rand.Rand
}

var (
	namespaceNames = []string{"n1", "n2", "n3"}
	nodeNames      = []string{here, "a", "b"}
	podTexts       = []string{
		"", "app=a", "app=b", "!tier", "app=a,tier!=x", "io.kubernetes.pod.namespace=n1",
		"app=a,io.kubernetes.pod.namespace=n2", "io.cilium.k8s.namespace.labels.team=blue",
		"!io.cilium.k8s.namespace.labels.team,app=b", "io.cilium.k8s.policy.serviceaccount=sa",
	}
	namespaceTexts = []string{
		"", "", "", "team=blue", "!team", "kubernetes.io/metadata.name=n1", "team!=red",
	}
	nodeTexts    = []string{"zone=a", "zone=b", "egress=yes", "!egress", "zone=a,egress=yes"}
	somePrefixes = prefixesOf("0.0.0.0/0", "203.0.113.0/24", "203.0.113.128/25", "198.51.100.0/24",
		"203.0.113.200/32", "10.0.0.0/8", "10.0.0.0/30", "2001:db8::/32", "::/0")
	begin = time.Unix(1_700_000_000, 0).UTC()
)

func prefixesOf(texts ...string) (prefixes []netip.Prefix) {
	for _, text := range texts {
		prefixes = append(prefixes, netip.MustParsePrefix(text))
	}
	return prefixes
}

func pick[T any](e *events, from []T) T { return from[e.IntN(len(from))] }

func (e *events) one(in int) bool { return e.IntN(in) == 0 }

func (e *events) some(most int, of []netip.Prefix) (prefixes []netip.Prefix) {
	for range e.IntN(most + 1) {
		prefixes = append(prefixes, pick(e, of))
	}
	slices.SortFunc(prefixes, netip.Prefix.Compare)
	return slices.Compact(prefixes)
}

func canonical(text string) string {
	s, err := labels.Parse(text)
	if err != nil {
		panic(err)
	}
	return s.String()
}

func (e *events) selector(nodes bool) (s tables.EgressSelector) {
	s.Pods, s.Namespaces = canonical(pick(e, podTexts)), canonical(pick(e, namespaceTexts))
	if nodes && e.one(2) {
		s.Nodes = canonical(pick(e, nodeTexts))
	}
	return s
}

func (e *events) addr() netip.Addr {
	if e.one(6) {
		return netip.MustParseAddr(fmt.Sprintf("fd00::%d", e.IntN(3)))
	}
	return netip.AddrFrom4([4]byte{10, 0, 0, byte(e.IntN(8))})
}

func (e *events) labelSet(namespace string) *tables.LabelSet {
	set := labels.Set{}
	if !e.one(5) {
		set["app"] = pick(e, []string{"a", "b"})
	}
	if e.one(4) {
		set["tier"] = "x"
	}
	var ports []tables.NamedPort
	if e.one(3) {
		ports = append(ports, tables.NamedPort{Name: "http", Protocol: 6, Port: uint16(8080 + e.IntN(2))})
	}
	return tables.NewLabelSet(namespace, pick(e, []string{"", "", "sa"}), set, ports)
}

func (e *events) podName() tables.Name {
	return tables.Name{Namespace: pick(e, namespaceNames), Name: fmt.Sprint("p", e.IntN(4))}
}

func (e *events) peer(cilium bool) (p tables.PolicyPeer) {
	switch kind := e.IntN(9); kind {
	case 0, 1:
		p.Kind, p.Pods = tables.PeerPods, e.selector(false)
	case 2:
		p.Kind, p.Labels = tables.PeerNodes, canonical(pick(e, nodeTexts))
	case 3:
		p.Kind, p.Entity = tables.PeerEntity, pick(e, []tables.PolicyEntity{
			tables.EntityWorld, tables.EntityHost, tables.EntityKubeAPIServer, tables.EntityNone,
			tables.EntityInit, tables.EntityAll,
		})
	case 4, 5:
		p.Kind = tables.PeerCIDR
		p.PeerPrefixes = &tables.PeerPrefixes{CIDR: pick(e, somePrefixes), MatchesPods: !cilium}
		for _, except := range e.some(2, somePrefixes) {
			if except.Bits() > p.CIDR.Bits() && p.CIDR.Contains(except.Addr()) {
				p.Except = append(p.Except, except)
			}
		}
	case 6:
		p.Kind = tables.PeerCIDRGroups
		p.PeerPrefixes = &tables.PeerPrefixes{Except: e.some(1, somePrefixes)}
		if e.one(2) {
			p.Group = pick(e, []string{"g0", "g1"})
		} else {
			p.Labels = pick(e, []string{"team=blue", "team=red"})
		}
	default:
		p.Kind, p.PeerService = tables.PeerServices, &tables.PeerService{Wide: e.one(3)}
		if e.one(2) {
			p.Service = tables.Name{Namespace: pick(e, namespaceNames), Name: "s0"}
			break
		}
		p.Labels = pick(e, []string{"team=blue", "team=red"})
		if e.one(2) {
			p.Service.Namespace = pick(e, namespaceNames)
		}
	}
	return p
}

func (e *events) direction(field string, cilium bool) (d tables.PolicyDirection) {
	d.DefaultDeny = e.one(2)
	for i := range e.IntN(3) {
		t := tables.PolicyTraffic{
			Field: fmt.Sprintf("%s[%d]", field, i), Deny: e.one(3), AnyPeer: e.one(6),
		}
		for range e.IntN(3) {
			if !t.AnyPeer {
				t.Peers = append(t.Peers, e.peer(cilium))
			}
		}
		for range e.IntN(3) {
			t.Ports = append(t.Ports, pick(e, []tables.PolicyPort{
				{Protocol: 6, First: 80, Last: 80}, {Protocol: 17, First: 0, Last: 65535},
				{Protocol: 6, Name: "http"}, {Protocol: 6, Name: "all"},
				{Protocol: 6, First: 0, Last: 65535},
			}))
		}
		d.Traffic = append(d.Traffic, t)
	}
	return d
}

func (e *events) networkPolicy() *tables.NetworkPolicy {
	p := &tables.NetworkPolicy{Kind: pick(e, []tables.PolicyKind{
		tables.PolicyCiliumClusterwide, tables.PolicyCilium, tables.PolicyKubernetes,
	})}
	p.Name.Name = fmt.Sprint("p", e.IntN(2))
	if p.Kind.Namespaced() {
		p.Namespace = pick(e, namespaceNames)
	}
	fields := pick(e, [][]string{{"spec"}, {"spec"}, {"specs[0]", "specs[1]"}, {}})
	for _, field := range fields {
		cilium := p.Kind != tables.PolicyKubernetes
		p.Rules = append(p.Rules, tables.PolicyRule{
			Field: field, Subject: e.selector(false),
			Ingress: e.direction(field+".ingress", cilium), Egress: e.direction(field+".egress", cilium),
		})
	}
	return p
}

func (e *events) egressPolicy() *tables.EgressPolicy {
	p := &tables.EgressPolicy{
		Name: fmt.Sprint("e", e.IntN(4)), Created: begin.Add(time.Duration(e.IntN(3)) * time.Hour),
		Destinations: e.some(3, somePrefixes), Excluded: e.some(2, somePrefixes),
	}
	for range e.IntN(3) {
		p.Selectors = append(p.Selectors, e.selector(true))
	}
	for range e.IntN(3) {
		p.Gateways = append(p.Gateways, tables.GatewaySpec{
			Nodes: canonical(pick(e, append(nodeTexts, ""))), Error: pick(e, []string{"", "", "", "bad"}),
		})
	}
	return p
}

// event changes something, most often a little.
func (e *events) event() {
	switch e.IntN(20) {
	case 0, 1, 2:
		name := e.podName()
		change(e, e.Endpoints, &tables.Endpoint{
			Name: name, Node: pick(e, nodeNames), LabelSet: e.labelSet(name.Namespace),
			Addrs:   slices.Compact([]netip.Addr{e.addr(), e.addr()}),
			Created: begin.Add(time.Duration(e.IntN(3)) * time.Hour),
		})
	case 3: // relabeled, moved
		if list := all(e.db.ReadTxn(), e.Endpoints); len(list) > 0 {
			pod := *pick(e, list)
			if e.one(2) {
				pod.Node = pick(e, nodeNames)
			} else {
				pod.LabelSet = e.labelSet(pod.Namespace)
			}
			e.Endpoints.Put(&pod)
		}
	case 4, 5, 6, 7:
		row := &tables.LocalEndpoint{
			Addr: e.addr(), Endpoint: e.podName(), IfIndex: uint32(e.IntN(3)),
		}
		if !e.one(6) {
			row.LabelSet = e.labelSet(row.Endpoint.Namespace)
		}
		change(e, e.Locals, row)
	case 8, 9:
		change(e, e.Namespaces, &tables.Namespace{
			Name:   pick(e, namespaceNames),
			Labels: pick(e, []labels.Set{nil, {"team": "blue"}, {"team": "red"}}),
		})
	case 10, 11:
		n := &tables.Node{Name: pick(e, nodeNames), Ready: !e.one(3), Labels: labels.Set{
			"zone": pick(e, []string{"a", "b"}),
		}}
		if e.one(2) {
			n.Labels["egress"] = "yes"
		}
		if !e.one(4) {
			n.InternalIPs = []netip.Addr{netip.AddrFrom4([4]byte{192, 168, 0, byte(e.IntN(3))})}
		}
		change(e, e.Nodes, n)
	case 12, 13, 14:
		change(e, e.NetworkPolicies, e.networkPolicy())
	case 15, 16:
		change(e, e.EgressPolicies, e.egressPolicy())
	case 17:
		change(e, e.CIDRGroups, &tables.CIDRGroup{
			Name: fmt.Sprint("g", e.IntN(2)), Prefixes: e.some(3, somePrefixes),
			Labels: labels.Set{"team": pick(e, []string{"blue", "red"})},
		})
	case 18:
		s := &tables.Service{
			Name:   tables.Name{Namespace: pick(e, namespaceNames), Name: fmt.Sprint("s", e.IntN(2))},
			Labels: labels.Set{"team": pick(e, []string{"blue", "red"})},
		}
		if e.one(2) {
			s.Selector = labels.Set{"app": pick(e, []string{"a", "b", "not valid"}), "churns": "x"}
			if e.one(2) {
				s.Churning = []string{"churns"}
			}
		}
		change(e, e.Services, s)
	case 19:
		service := tables.KubernetesAPIService
		if e.one(2) {
			service = tables.Name{Namespace: pick(e, namespaceNames), Name: fmt.Sprint("s", e.IntN(2))}
		}
		change(e, e.Backends, &tables.BackendSlice{
			Name: tables.Name{Namespace: "n1", Name: fmt.Sprint("slice", e.IntN(3))}, Service: service,
			Addrs: []netip.Addr{e.addr()},
		})
	}
}

// change inserts a row, or deletes the one that it would replace.
func change[Row any](e *events, table tablestest.Table[Row], row Row) {
	if e.one(4) {
		table.Remove(row)
	} else {
		table.Put(row)
	}
}
