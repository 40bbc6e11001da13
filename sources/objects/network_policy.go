// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"strconv"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-net/sluice/tables"
)

// kubernetesPolicy is a NetworkPolicy of networking.k8s.io.
type kubernetesPolicy struct {
	object
	Spec *struct {
		PodSelector *metav1.LabelSelector `json:"podSelector" protobuf:"bytes,1"`
		PolicyTypes []string              `json:"policyTypes" protobuf:"bytes,4"`
		Ingress     []struct {
			From  []kubernetesPeer `json:"from" protobuf:"bytes,2"`
			Ports []kubernetesPort `json:"ports" protobuf:"bytes,1"`
		} `json:"ingress" protobuf:"bytes,2"`
		Egress []struct {
			To    []kubernetesPeer `json:"to" protobuf:"bytes,2"`
			Ports []kubernetesPort `json:"ports" protobuf:"bytes,1"`
		} `json:"egress" protobuf:"bytes,3"`
	} `json:"spec" protobuf:"bytes,2"`
}

func (*kubernetesPolicy) strict() {}

type kubernetesPeer struct {
	PodSelector       *metav1.LabelSelector `json:"podSelector" protobuf:"bytes,1"`
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector" protobuf:"bytes,2"`
	IPBlock           *struct {
		CIDR   string   `json:"cidr" protobuf:"bytes,1"`
		Except []string `json:"except" protobuf:"bytes,2"`
	} `json:"ipBlock" protobuf:"bytes,3"`
}

type kubernetesPort struct {
	Protocol string `json:"protocol" protobuf:"bytes,1"`
	Port     any    `json:"port" protobuf:"bytes,2"` // number or name
	EndPort  int32  `json:"endPort" protobuf:"varint,3"`
}

func kubernetesPolicies(o *kubernetesPolicy, name tables.Name, errs *fieldErrors) []*tables.NetworkPolicy {
	p := &tables.NetworkPolicy{
		Kind: tables.PolicyKubernetes, Name: name, UID: o.Metadata.UID, Created: o.created(errs), Generation: o.Metadata.Generation,
	}
	r := newPolicyReader(name.Namespace, errs)
	if rule, ok := r.kubernetesRule(o); ok {
		p.Rules = one(rule)
	}
	p.Errors = r.errors()
	return one(p)
}

// kubernetesRule returns the rule of a policy, and whether its subject can be told.
func (r *policyReader) kubernetesRule(o *kubernetesPolicy) (out tables.PolicyRule, ok bool) {
	if o.Spec == nil {
		r.add("spec", "required")
		return out, false
	}
	ingress, egress := r.policyTypes(o.Spec.PolicyTypes, len(o.Spec.Egress) > 0 || r.bad("spec.egress"))
	out = tables.PolicyRule{Field: "spec"}
	const podSelector = "spec.podSelector"
	out.Subject.Pods = r.inNamespace(podSelector, o.Spec.PodSelector)
	out.Ingress.DefaultDeny, out.Egress.DefaultDeny = ingress, egress
	for i, item := range o.Spec.Ingress {
		t := r.kubernetesItem(indexed("spec.ingress", i), "from", item.From, item.Ports)
		if ingress {
			out.Ingress.Traffic = append(out.Ingress.Traffic, t)
		}
	}
	for i, item := range o.Spec.Egress {
		t := r.kubernetesItem(indexed("spec.egress", i), "to", item.To, item.Ports)
		if egress {
			out.Egress.Traffic = append(out.Egress.Traffic, t)
		}
	}
	return out, !r.bad(podSelector)
}

// policyTypes returns the directions that a policy is about. If that cannot be
// told, it is both.
func (r *policyReader) policyTypes(types []string, hasEgress bool) (ingress, egress bool) {
	const field = "spec.policyTypes"
	for i, t := range types {
		switch networkingv1.PolicyType(t) {
		case networkingv1.PolicyTypeIngress:
			ingress = true
		case networkingv1.PolicyTypeEgress:
			egress = true
		default:
			r.add(indexed(field, i), strconv.Quote(t)+" is neither Ingress nor Egress")
		}
	}
	if r.bad(field) {
		return true, true
	}
	if len(types) == 0 {
		return true, hasEgress
	}
	return ingress, egress
}

// kubernetesItem reads an item of ingress or egress.
func (r *policyReader) kubernetesItem(field, peersName string, peers []kubernetesPeer, ports []kubernetesPort) tables.PolicyTraffic {
	t := tables.PolicyTraffic{Field: field}
	var (
		peerField, portField = field + "." + peersName, field + ".ports"
		p                    peerList
		l                    portList
	)
	p.present = len(peers) > 0 || r.bad(peerField)
	for i := range peers {
		field := indexed(peerField, i)
		p.add(r, field, r.kubernetesPeer(field, &peers[i]))
	}
	l.present = len(ports) > 0 || r.bad(portField)
	for i, port := range ports {
		field := indexed(portField, i)
		l.add(r, &l.list, field, r.kubernetesPort(field, port))
	}
	if r.badBeside(field, func(name string) bool { return name == peersName || name == "ports" }) {
		return t // what it is meant to restrict is unknown
	}
	if l.present && len(l.list) == 0 {
		return t
	}
	t.AnyPeer, t.Peers, t.Ports = !p.present, p.list, l.list
	return t
}

func (r *policyReader) kubernetesPeer(field string, in *kubernetesPeer) tables.PolicyPeer {
	switch {
	case in.IPBlock != nil && (in.PodSelector != nil || in.NamespaceSelector != nil):
		r.add(field, "ipBlock excludes podSelector and namespaceSelector")
	case in.IPBlock != nil:
		p := &tables.PeerPrefixes{MatchesPods: true, CIDR: r.prefix(field+".ipBlock.cidr", in.IPBlock.CIDR)}
		r.except(field+".ipBlock", p, in.IPBlock.Except, false)
		return tables.PolicyPeer{Kind: tables.PeerCIDR, PeerPrefixes: p}
	case in.NamespaceSelector != nil:
		return tables.PolicyPeer{Kind: tables.PeerPods, Pods: tables.EgressSelector{
			Namespaces: r.selector(field+".namespaceSelector", in.NamespaceSelector),
			Pods:       r.podSelector(field+".podSelector", in.PodSelector),
		}}
	case in.PodSelector != nil:
		return tables.PolicyPeer{Kind: tables.PeerPods, Pods: tables.EgressSelector{Pods: r.inNamespace(field+".podSelector", in.PodSelector)}}
	default:
		r.missing(field, "needs one of podSelector, namespaceSelector and ipBlock")
	}
	return tables.PolicyPeer{}
}

// inNamespace returns the canonical text of a selector of pods in the policy's
// namespace.
func (r *policyReader) inNamespace(field string, s *metav1.LabelSelector) string {
	if s == nil {
		s = &metav1.LabelSelector{}
	}
	if other, named := s.MatchLabels[labelNamespace]; named && other != r.namespace {
		r.add(field, "a policy selects in its own namespace, not in "+strconv.Quote(other))
		return ""
	}
	scoped := s.DeepCopy()
	if scoped.MatchLabels == nil {
		scoped.MatchLabels = map[string]string{}
	}
	scoped.MatchLabels[labelNamespace] = r.namespace
	return r.podSelector(field, scoped)
}

func (r *policyReader) kubernetesPort(field string, in kubernetesPort) tables.PolicyPort {
	port := tables.PolicyPort{Last: 65535}
	switch v := in.Port.(type) {
	case nil:
	case int64:
		if v < 1 || v > 65535 {
			r.add(field+".port", strconv.FormatInt(v, 10)+" is no port number")
			break
		}
		port.First, port.Last = uint16(v), uint16(v)
	case string:
		var err error
		if port, err = portOf(v); err != nil || port.Name == "" || port.Name != v {
			r.add(field+".port", strconv.Quote(v)+" is no name of a port")
		}
	default:
		r.add(field+".port", "is neither a number nor a name")
	}
	protocol, known := protocolNumber(in.Protocol)
	if !known || strings.ToUpper(in.Protocol) != in.Protocol {
		r.add(field+".protocol", strconv.Quote(in.Protocol)+": must be TCP, UDP or SCTP")
	}
	port.Protocol = protocol
	r.endPort(field+".endPort", &port, int64(in.EndPort))
	return port
}
