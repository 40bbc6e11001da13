// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-net/sluice/tables"
)

type ciliumCIDR struct {
	CIDR              string                `json:"cidr"`
	Except            []string              `json:"except"`
	CIDRGroupRef      string                `json:"cidrGroupRef"`
	CIDRGroupSelector *metav1.LabelSelector `json:"cidrGroupSelector"`
}

type ciliumService struct {
	K8sService *struct {
		ServiceName string `json:"serviceName"`
		Namespace   string `json:"namespace"`
	} `json:"k8sService"`
	K8sServiceSelector *struct {
		Selector  *metav1.LabelSelector `json:"selector"`
		Namespace string                `json:"namespace"`
	} `json:"k8sServiceSelector"`
}

// peerList is what an item says of peers.
type peerList struct {
	list        []tables.PolicyPeer
	seen        map[string]bool // their texts
	present     bool            // something is said, even if by an empty list
	bad         bool            // something is left out because of a mistake
	unsupported fieldErrors
}

// add appends a peer, unless what it is made from has a mistake.
func (l *peerList) add(r *policyReader, field string, p tables.PolicyPeer) {
	if r.bad(field) {
		l.bad = true
		return
	}
	if l.seen == nil {
		l.seen = map[string]bool{}
	}
	if text := p.String(); !l.seen[text] {
		l.seen[text] = true
		l.list = append(l.list, p)
	}
}

// ciliumPeers reads all fields of an item that name peers. As for Cilium, an item that has
// an empty list of endpoints, nodes, entities or prefixes matches nothing, whatever its other
// fields say, while an empty list of services, groups or names is like none.
func (r *policyReader) ciliumPeers(field string, in *ciliumItem) peerList {
	var l peerList
	nothing := false
	each := func(name string, given bool, count int, read func(field string, i int) tables.PolicyPeer) {
		field := field + "." + in.prefix + name
		l.present = l.present || given || r.bad(field)
		nothing = nothing || given && count == 0
		l.bad = l.bad || count == 0 && r.bad(field)
		for i := range count {
			item := indexed(field, i)
			l.add(r, item, read(item, i))
		}
	}
	each("Endpoints", in.endpoints != nil, len(in.endpoints), func(field string, i int) tables.PolicyPeer {
		return r.endpointPeer(field, in.endpoints[i])
	})
	each("CIDR", in.cidr != nil, len(in.cidr), func(field string, i int) tables.PolicyPeer {
		return tables.PolicyPeer{Kind: tables.PeerCIDR, PeerPrefixes: &tables.PeerPrefixes{CIDR: r.addrOrPrefix(field, in.cidr[i])}}
	})
	each("CIDRSet", in.cidrSet != nil, len(in.cidrSet), func(field string, i int) tables.PolicyPeer {
		return r.cidrSetPeer(field, &in.cidrSet[i], in.denies)
	})
	each("Entities", in.entities != nil, len(in.entities), func(field string, i int) tables.PolicyPeer {
		entity := r.entity(field, in.entities[i])
		if entity == tables.EntityCluster { // for Cilium with the API server, also outside
			l.add(r, field, tables.PolicyPeer{Kind: tables.PeerEntity, Entity: tables.EntityKubeAPIServer})
		}
		return tables.PolicyPeer{Kind: tables.PeerEntity, Entity: entity}
	})
	each("Nodes", in.nodes != nil, len(in.nodes), func(field string, i int) tables.PolicyPeer {
		return r.nodePeer(field, in.nodes[i])
	})
	each("Services", len(in.services) > 0, len(in.services), func(field string, i int) tables.PolicyPeer {
		return r.servicePeer(field, &in.services[i], in.denies)
	})
	if nothing {
		l.list = nil
	}
	r.unsupportedPeers(&l, field+"."+in.prefix+"Groups", in.groups, "groups of a cloud provider are not supported")
	r.unsupportedPeers(&l, field+"."+in.prefix+"FQDNs", in.fqdns, "needs a proxy for names, which is not supported")
	return l
}

func (r *policyReader) unsupportedPeers(l *peerList, field string, items []any, reason string) {
	l.present = l.present || len(items) > 0 || r.bad(field)
	l.bad = l.bad || r.bad(field)
	if len(items) > 0 {
		l.unsupported.add(field, reason)
	}
}

// addrOrPrefix parses a prefix, or an address for the prefix that is only it.
func (r *policyReader) addrOrPrefix(field, text string) netip.Prefix {
	if !strings.Contains(text, "/") {
		if a, err := netip.ParseAddr(text); err == nil && !a.Is4In6() && a.Zone() == "" {
			return netip.PrefixFrom(a, a.BitLen())
		}
	}
	return r.prefix(field, text)
}

func (r *policyReader) prefix(field, text string) netip.Prefix {
	p, err := parsePrefix(text)
	if err != nil {
		r.add(field, err.Error())
	}
	return p
}

// cidrSetPeer reads an item of a CIDR set. Of a deny, an exception that is wrong
// is left out and the rest stays; without it an allow would be wider.
func (r *policyReader) cidrSetPeer(field string, in *ciliumCIDR, denies bool) tables.PolicyPeer {
	p := tables.PolicyPeer{Kind: tables.PeerCIDRGroups, PeerPrefixes: &tables.PeerPrefixes{Group: in.CIDRGroupRef}}
	given := 0
	for _, is := range []bool{in.CIDR != "", in.CIDRGroupRef != "", in.CIDRGroupSelector != nil} {
		if is {
			given++
		}
	}
	switch {
	case given > 1:
		r.add(field, "only one of cidr, cidrGroupRef and cidrGroupSelector is allowed")
	case in.CIDR != "":
		p.Kind, p.CIDR = tables.PeerCIDR, r.prefix(field+".cidr", in.CIDR)
	case in.CIDRGroupSelector != nil:
		p.Labels = r.selector(field+".cidrGroupSelector", withoutSources(in.CIDRGroupSelector))
	case in.CIDRGroupRef == "":
		r.missing(field, "needs one of cidr, cidrGroupRef and cidrGroupSelector")
	}
	r.except(field, p.PeerPrefixes, in.Except, denies)
	return p
}

// except reads the exceptions from prefixes.
func (r *policyReader) except(field string, p *tables.PeerPrefixes, texts []string, denies bool) {
	report := r.add
	if denies {
		report = r.addLate
	}
	for i, text := range texts {
		field := indexed(field+".except", i)
		if r.bad(field) {
			continue
		}
		except, err := parsePrefix(text)
		switch {
		case err != nil:
			report(field, err.Error())
		case p.CIDR.IsValid() && (except.Bits() < p.CIDR.Bits() || !p.CIDR.Contains(except.Addr())):
			report(field, strconv.Quote(text)+" is not inside "+p.CIDR.String())
		default:
			p.Except = append(p.Except, except)
		}
	}
	p.Except = distinct(p.Except)
}

var entities = []tables.PolicyEntity{
	tables.EntityAll, tables.EntityWorld, tables.EntityWorldIPv4, tables.EntityWorldIPv6, tables.EntityCluster, tables.EntityHost,
	tables.EntityRemoteNode, tables.EntityKubeAPIServer, tables.EntityInit, tables.EntityHealth, tables.EntityUnmanaged,
	tables.EntityIngress, tables.EntityNone,
}

func (r *policyReader) entity(field, name string) tables.PolicyEntity {
	entity := tables.PolicyEntity(name)
	if !slices.Contains(entities, entity) {
		r.add(field, strconv.Quote(name)+" is no entity")
	}
	return entity
}

func (r *policyReader) nodePeer(field string, s *metav1.LabelSelector) tables.PolicyPeer {
	if s == nil {
		r.add(field, "required")
	}
	return tables.PolicyPeer{Kind: tables.PeerNodes, Labels: r.selector(field, withoutSources(s))}
}

// servicePeer reads a service. One that is named without a namespace is in that
// of the policy.
func (r *policyReader) servicePeer(field string, in *ciliumService, denies bool) tables.PolicyPeer {
	p := tables.PolicyPeer{Kind: tables.PeerServices, PeerService: &tables.PeerService{Wide: denies}}
	switch name, selector := in.K8sService, in.K8sServiceSelector; {
	case name != nil && selector != nil:
		r.add(field, "only one of k8sService and k8sServiceSelector is allowed")
	case name != nil:
		p.Service = tables.Name{Namespace: name.Namespace, Name: name.ServiceName}
		if p.Service.Name == "" {
			r.add(field+".k8sService.serviceName", "required")
		}
		if p.Service.Namespace == "" {
			p.Service.Namespace = r.namespace
		}
		if p.Service.Namespace == "" {
			r.add(field+".k8sService.namespace", "required in a clusterwide policy")
		}
	case selector != nil:
		p.Service.Namespace = selector.Namespace
		if selector.Selector == nil {
			r.add(field+".k8sServiceSelector.selector", "required")
		}
		p.Labels = r.selector(field+".k8sServiceSelector.selector", withoutSources(selector.Selector))
	default:
		r.missing(field, "needs k8sService or k8sServiceSelector")
	}
	return p
}
