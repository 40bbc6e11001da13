// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-net/sluice/tables"
)

// ciliumPolicy is a CiliumNetworkPolicy or a CiliumClusterwideNetworkPolicy.
type ciliumPolicy struct {
	object
	Spec  *ciliumRule   `json:"spec"`
	Specs []*ciliumRule `json:"specs"`
}

func (*ciliumPolicy) strict() {}

// ciliumRule is one rule. Fields of type any are accepted, or looked at only as
// to whether they are there.
type ciliumRule struct {
	EndpointSelector  *metav1.LabelSelector `json:"endpointSelector"`
	NodeSelector      *metav1.LabelSelector `json:"nodeSelector"`
	Ingress           []ciliumIngress       `json:"ingress"`
	IngressDeny       []ciliumIngress       `json:"ingressDeny"`
	Egress            []ciliumEgress        `json:"egress"`
	EgressDeny        []ciliumEgress        `json:"egressDeny"`
	EnableDefaultDeny struct {
		Ingress *bool `json:"ingress"`
		Egress  *bool `json:"egress"`
	} `json:"enableDefaultDeny"`
	Labels      any `json:"labels"`
	Description any `json:"description"`
	Log         any `json:"log"`
}

type ciliumIngress struct {
	FromEndpoints []*metav1.LabelSelector `json:"fromEndpoints"`
	FromRequires  any                     `json:"fromRequires"`
	FromCIDR      []string                `json:"fromCIDR"`
	FromCIDRSet   []ciliumCIDR            `json:"fromCIDRSet"`
	FromEntities  []string                `json:"fromEntities"`
	FromNodes     []*metav1.LabelSelector `json:"fromNodes"`
	FromGroups    []any                   `json:"fromGroups"`
	ciliumTraffic
}

type ciliumEgress struct {
	ToEndpoints []*metav1.LabelSelector `json:"toEndpoints"`
	ToRequires  any                     `json:"toRequires"`
	ToCIDR      []string                `json:"toCIDR"`
	ToCIDRSet   []ciliumCIDR            `json:"toCIDRSet"`
	ToEntities  []string                `json:"toEntities"`
	ToNodes     []*metav1.LabelSelector `json:"toNodes"`
	ToGroups    []any                   `json:"toGroups"`
	ToServices  []ciliumService         `json:"toServices"`
	ToFQDNs     []any                   `json:"toFQDNs"`
	ciliumTraffic
}

// ciliumTraffic is what items of both directions have.
type ciliumTraffic struct {
	ToPorts        []ciliumPorts `json:"toPorts"`
	ICMPs          []ciliumICMPs `json:"icmps"`
	Authentication *struct {
		Mode string `json:"mode"`
	} `json:"authentication"`
}

// ciliumItem is an item of either direction.
type ciliumItem struct {
	prefix    string // of the fields that name peers: from or to
	denies    bool
	endpoints []*metav1.LabelSelector
	requires  any
	cidr      []string
	cidrSet   []ciliumCIDR
	entities  []string
	nodes     []*metav1.LabelSelector
	groups    []any
	services  []ciliumService
	fqdns     []any
	*ciliumTraffic
}

func (i *ciliumIngress) item() ciliumItem {
	return ciliumItem{
		prefix: "from", endpoints: i.FromEndpoints, requires: i.FromRequires, cidr: i.FromCIDR,
		cidrSet:  i.FromCIDRSet,
		entities: i.FromEntities, nodes: i.FromNodes, groups: i.FromGroups,
		ciliumTraffic: &i.ciliumTraffic,
	}
}

func (e *ciliumEgress) item() ciliumItem {
	return ciliumItem{
		prefix: "to", endpoints: e.ToEndpoints, requires: e.ToRequires, cidr: e.ToCIDR,
		cidrSet:  e.ToCIDRSet,
		entities: e.ToEntities, nodes: e.ToNodes, groups: e.ToGroups, services: e.ToServices,
		fqdns:         e.ToFQDNs,
		ciliumTraffic: &e.ciliumTraffic,
	}
}

func ciliumItems[Item any, P interface {
	*Item
	item() ciliumItem
}](items []Item) []ciliumItem {
	out := make([]ciliumItem, len(items))
	for i := range items {
		out[i] = P(&items[i]).item()
	}
	return out
}

func ciliumPolicies(kind tables.PolicyKind) func(*ciliumPolicy, tables.Name, *fieldErrors) []*tables.NetworkPolicy {
	return func(o *ciliumPolicy, name tables.Name, errs *fieldErrors) []*tables.NetworkPolicy {
		p := &tables.NetworkPolicy{
			Kind: kind, Name: name, UID: o.Metadata.UID, Created: o.created(errs),
			Generation: o.Metadata.Generation,
		}
		r := newPolicyReader(name.Namespace, errs)
		if o.Spec != nil {
			p.Rules = r.ciliumRule(p.Rules, "spec", o.Spec)
		}
		for i, rule := range o.Specs {
			field := indexed("specs", i)
			if rule == nil {
				r.add(field, "required")
				continue
			}
			p.Rules = r.ciliumRule(p.Rules, field, rule)
		}
		if o.Spec == nil && len(o.Specs) == 0 && !r.bad("specs") {
			r.add("spec", "required, unless there are specs")
		}
		p.Errors, p.Unsupported = r.errors(), r.unsupported
		return one(p)
	}
}

// ciliumRule appends a rule, unless it is left out.
func (r *policyReader) ciliumRule(to []tables.PolicyRule, field string, in *ciliumRule) []tables.PolicyRule {
	out := tables.PolicyRule{Field: field}
	subject, ok := r.ciliumSubject(field, in)
	out.Subject = subject
	deny := in.EnableDefaultDeny
	out.Ingress = r.ciliumDirection(field, "ingress", deny.Ingress, ciliumItems(in.Ingress),
		ciliumItems(in.IngressDeny))
	out.Egress = r.ciliumDirection(field, "egress", deny.Egress, ciliumItems(in.Egress),
		ciliumItems(in.EgressDeny))
	if len(out.Ingress.Traffic)+len(out.Egress.Traffic) == 0 && !r.bad(field) {
		r.add(field, "needs one of ingress, ingressDeny, egress and egressDeny")
	}
	if !ok {
		return to
	}
	return append(to, out)
}

// ciliumSubject returns what a rule is about, and whether that can be told.
func (r *policyReader) ciliumSubject(field string, in *ciliumRule) (tables.EgressSelector, bool) {
	endpoints, nodes := field+".endpointSelector", field+".nodeSelector"
	if r.bad(endpoints) || r.bad(nodes) {
		return tables.EgressSelector{}, false
	}
	switch {
	case in.EndpointSelector != nil && in.NodeSelector != nil:
		r.add(nodes, "excludes endpointSelector")
	case in.EndpointSelector != nil:
		return r.subject(endpoints, in.EndpointSelector)
	case in.NodeSelector == nil:
		r.add(endpoints, "required")
	case r.namespace != "":
		r.add(nodes, "only clusterwide policies may have it")
	default:
		r.selector(nodes, withoutSources(in.NodeSelector))
		r.unsupported.add(nodes, "policies for nodes are not supported")
	}
	return tables.EgressSelector{}, false
}

// ciliumDirection reads the items of one direction.
func (r *policyReader) ciliumDirection(field, name string, explicit *bool, allow, deny []ciliumItem) tables.PolicyDirection {
	allowField, denyField := field+"."+name, field+"."+name+"Deny"
	out := tables.PolicyDirection{DefaultDeny: len(allow)+len(deny) > 0 || r.bad(allowField) ||
		r.bad(denyField)}
	switch {
	case r.bad(field + ".enableDefaultDeny." + name):
		out.DefaultDeny = true
	case explicit != nil:
		out.DefaultDeny = *explicit
	}
	for i := range allow {
		out.Traffic = append(out.Traffic, r.ciliumAllow(indexed(allowField, i), &allow[i])...)
	}
	if r.bad(denyField) && len(deny) == 0 { // no list
		out.Traffic = append(out.Traffic,
			tables.PolicyTraffic{Field: denyField, Deny: true, AnyPeer: true})
	}
	for i := range deny {
		out.Traffic = append(out.Traffic, r.ciliumDeny(indexed(denyField, i), &deny[i]))
	}
	return out
}

// ciliumAllow reads an item that allows. What needs a proxy is an item of its
// own, without effect.
func (r *policyReader) ciliumAllow(field string, in *ciliumItem) []tables.PolicyTraffic {
	peers, ports := r.ciliumPeers(field, in), r.ciliumPorts(field, in.ciliumTraffic)
	unsupported := append(peers.unsupported, r.authentication(field, in)...)
	doubtful := r.checkItem(field, in)
	t := tables.PolicyTraffic{Field: field, Unsupported: unsupported.reasons()}
	if !doubtful && len(unsupported) == 0 {
		t.AnyPeer = !peers.present && ports.present
		t.Peers, t.Ports = peers.list, ports.list
	}
	var out []tables.PolicyTraffic
	if ports.present && len(ports.list) == 0 {
		t.AnyPeer, t.Peers = false, nil
	}
	if len(ports.list) > 0 || len(ports.unsupported) == 0 || len(unsupported) > 0 {
		out = append(out, t)
	}
	for _, u := range ports.unsupported {
		out = append(out, tables.PolicyTraffic{Field: u.Field, Unsupported: u.Reason})
	}
	r.unsupported = append(append(r.unsupported, unsupported...), ports.unsupported...)
	return out
}

// ciliumDeny reads an item that denies.
func (r *policyReader) ciliumDeny(field string, in *ciliumItem) tables.PolicyTraffic {
	in.denies = true
	peers, ports := r.ciliumPeers(field, in), r.ciliumPorts(field, in.ciliumTraffic)
	unsupported := append(append(peers.unsupported, r.authentication(field, in)...),
		ports.unsupported...)
	doubtful := r.checkItem(field, in)
	t := tables.PolicyTraffic{Field: field, Deny: true, Unsupported: unsupported.reasons()}
	if peers.bad || len(peers.unsupported) > 0 || doubtful || !peers.present && (ports.present || in.requires != nil) {
		t.AnyPeer = true
	} else {
		t.Peers = peers.list
	}
	if !ports.bad {
		t.Ports = append(ports.list, ports.withProxy...)
	}
	r.unsupported = append(r.unsupported, unsupported...)
	return t
}

// authentication returns what an item asks for that the agent does not do.
func (r *policyReader) authentication(field string, in *ciliumItem) (unsupported fieldErrors) {
	if in.Authentication == nil {
		return nil
	}
	field += ".authentication"
	switch mode := in.Authentication.Mode; mode {
	case "disabled":
	case "required", "test-always-fail":
		unsupported.add(field, "mutual authentication is not supported")
	default:
		r.add(field+".mode", strconv.Quote(mode)+": must be disabled, required or test-always-fail")
	}
	return unsupported
}

// checkItem reports the mistakes that concern an item as a whole. It returns
// true if there are some, also such that are known already, after which it
// is unknown what the item is meant for.
func (r *policyReader) checkItem(field string, in *ciliumItem) bool {
	var kinds []string
	for _, k := range []struct {
		name  string
		count int
	}{
		{"Endpoints", len(in.endpoints)}, {"CIDR", len(in.cidr)}, {"CIDRSet", len(in.cidrSet)},
		{"Entities", len(in.entities)},
		{"Nodes", len(in.nodes)}, {"Groups", len(in.groups)}, {"Services", len(in.services)},
		{"FQDNs", len(in.fqdns)},
	} {
		if k.count > 0 {
			kinds = append(kinds, in.prefix+k.name)
		}
	}
	if in.requires != nil {
		r.add(field+"."+in.prefix+"Requires", "is not supported any more")
	}
	doubtful := r.badBeside(field, in.partial)
	if len(kinds) > 1 {
		r.add(field, "only one of "+strings.Join(kinds, ", ")+" is allowed")
		return doubtful || !in.denies // what is denied is all of them
	}
	return doubtful
}

// partial reports whether a mistake in a field of the item concerns only a part
// of it, which is left out. A deny can also do without what restricts it.
func (in *ciliumItem) partial(field string) bool {
	switch field {
	case "toPorts", "icmps":
		return true
	case in.prefix + "Requires", "authentication":
		return in.denies
	}
	peers, isPeers := strings.CutPrefix(field, in.prefix)
	switch peers {
	case "Endpoints", "CIDR", "CIDRSet", "Entities", "Nodes", "Groups", "Services", "FQDNs":
		return isPeers
	}
	return false
}
