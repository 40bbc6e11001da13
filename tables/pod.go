// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/sluice-net/sluice/bpf"
)

// Pod is an address of a pod of this node, or of a pod that this node may be the gateway
// of. An entry of sluice_pods.
type Pod struct {
	Addr     netip.Addr `json:"addr"`
	Endpoint Name       `json:"endpoint"`
	Subject  uint32     `json:"subject"`
	Local    bool       `json:"local"`
	IfIndex  uint32     `json:"ifIndex,omitempty"` // host side of the pod's veth, 0 while not known
	MAC      string     `json:"mac,omitempty"`     // of the pod's own interface
	Reason   string     `json:"reason,omitempty"`  // why the pod is held

	Reconciled `yaml:",inline"`
}

// Equal reports whether two rows want the same, whatever their status.
func (p *Pod) Equal(o *Pod) bool { return sameButStatus(p, o) }

// MapKey is the key in sluice_pods.
func (p *Pod) MapKey() bpf.PodKey { return bpf.PodKey{Addr: bpf.AddressFrom(p.Addr)} }

// MapValue is the value in sluice_pods.
func (p *Pod) MapValue() bpf.PodValue {
	v := bpf.PodValue{Subject: p.Subject, IfIndex: p.IfIndex}
	if p.Local {
		v.Flags, v.Namespace = bpf.PodLocal, bpf.NamespaceDigest(p.Endpoint.Namespace)
	}
	if mac, err := net.ParseMAC(p.MAC); err == nil && len(mac) == len(v.MAC) {
		copy(v.MAC[:], mac)
	}
	return v
}

// TableHeader implements [statedb.TableWritable].
func (*Pod) TableHeader() []string {
	return []string{
		"Address", "Pod", "Subject", "Local", "IfIndex", "MAC", "Reason", "Status", "Error",
	}
}

// TableRow implements [statedb.TableWritable].
func (p *Pod) TableRow() []string {
	return []string{
		p.Addr.String(), p.Endpoint.String(), number(p.Subject), fmt.Sprint(p.Local),
		numberOrDash(p.IfIndex), orDash(p.MAC), orDash(p.Reason),
		p.Status.Kind.String(), orDash(p.Status.GetError()),
	}
}

var (
	podAddr = UniqueIndex("addr", AddrKeys,
		func(p *Pod) netip.Addr { return p.Addr })
	podSubject = Index("subject", Uint32Keys,
		func(p *Pod) uint32 { return p.Subject })
	podIfIndex = IndexIf("ifindex", Uint32Keys,
		func(p *Pod) (uint32, bool) { return p.IfIndex, p.IfIndex != 0 })

	// PodByAddr queries the pod with an address.
	PodByAddr = podAddr.Query

	// PodsBySubject queries the pods of a subject.
	PodsBySubject = podSubject.Query

	// PodsByIfIndex queries the pods to which a device leads.
	PodsByIfIndex = podIfIndex.Query
)

// NewPodTable creates the table of pods by address.
var NewPodTable = Declare("pods", podAddr, podSubject, podIfIndex)

// SubjectDef identifies a subject: a label set of pods of this node, or of others.
type SubjectDef struct {
	LabelSet LabelSetID `json:"labelSet"`
	Local    bool       `json:"local"`

	// Node is set for pods of other nodes, if some egress policy selects nodes.
	Node string `json:"node,omitempty"`
}

// Subject is a label set of pods whose traffic is judged or routed here. An entry of
// sluice_subjects, whose ruleset is 0 for pods of other nodes, which are not judged. If its ruleset
// or egress ruleset changes while an address leaves it, the label set gets a new subject, and this
// one keeps its rulesets.
type Subject struct {
	Life       `yaml:",inline"`
	SubjectDef `yaml:",inline"`

	Ruleset    uint32 `json:"ruleset"`
	Reconciled `yaml:",inline"`
}

// Equal reports whether two rows want the same, whatever their status.
func (s *Subject) Equal(o *Subject) bool {
	return s.Life == o.Life && s.SubjectDef == o.SubjectDef && s.Ruleset == o.Ruleset
}

// MapKey is the key in sluice_subjects.
func (s *Subject) MapKey() bpf.SubjectKey { return bpf.SubjectKey{Subject: s.Number} }

// MapValue is the value in sluice_subjects.
func (s *Subject) MapValue() bpf.SubjectValue { return bpf.SubjectValue{Ruleset: s.Ruleset} }

// TableHeader implements [statedb.TableWritable].
func (*Subject) TableHeader() []string {
	return []string{
		"Number", "LabelSet", "Local", "Node", "Ruleset", "Undesired", "Status", "Error",
	}
}

// TableRow implements [statedb.TableWritable].
func (s *Subject) TableRow() []string {
	return []string{
		number(s.Number), s.LabelSet.String()[:8], fmt.Sprint(s.Local), orDash(s.Node),
		number(s.Ruleset), trueOrDash(s.Undesired), s.Status.Kind.String(), orDash(s.Status.GetError()),
	}
}

var (
	subjectNumber = UniqueIndex("number", Uint32Keys,
		func(s *Subject) uint32 { return s.Number })
	subjectLabelSet = Index("label-set", DigestKeys,
		func(s *Subject) LabelSetID { return s.LabelSet })
	subjectRuleset = IndexIf("ruleset", Uint32Keys,
		func(s *Subject) (uint32, bool) { return s.Ruleset, s.Ruleset != 0 })
	subjectLocal     = FlagIndex("local", func(s *Subject) bool { return s.Local && !s.Undesired })
	subjectUndesired = FlagIndex("undesired", func(s *Subject) bool { return s.Undesired })

	// SubjectByNumber queries a subject by its number.
	SubjectByNumber = subjectNumber.Query

	// SubjectsByLabelSet queries the subjects of a label set: the desired ones, one for each
	// node that matters, and those that addresses leave.
	SubjectsByLabelSet = subjectLabelSet.Query

	// SubjectsByRuleset queries the subjects of a ruleset.
	SubjectsByRuleset = subjectRuleset.Query

	// SubjectsLocal queries, by true, the subjects that pods of this node are desired in.
	SubjectsLocal = subjectLocal.Query

	// SubjectsUndesired queries, by true, the subjects that no pod is desired in.
	SubjectsUndesired = subjectUndesired.Query
)

// NewSubjectTable creates the table of subjects.
var NewSubjectTable = Declare("subjects", subjectNumber, subjectLabelSet, subjectRuleset,
	subjectLocal, subjectUndesired)

// SubjectRoute is the egress ruleset of a subject that egress policies select. An entry of
// sluice_routes.
type SubjectRoute struct {
	Subject       uint32 `json:"subject"`
	EgressRuleset uint32 `json:"egressRuleset"`
	Reconciled    `yaml:",inline"`
}

// Equal reports whether two rows want the same, whatever their status.
func (r *SubjectRoute) Equal(o *SubjectRoute) bool {
	return r.Subject == o.Subject && r.EgressRuleset == o.EgressRuleset
}

// MapKey is the key in sluice_routes.
func (r *SubjectRoute) MapKey() bpf.SubjectKey { return bpf.SubjectKey{Subject: r.Subject} }

// MapValue is the value in sluice_routes.
func (r *SubjectRoute) MapValue() bpf.RouteValue {
	return bpf.RouteValue{EgressRuleset: r.EgressRuleset}
}

// TableHeader implements [statedb.TableWritable].
func (*SubjectRoute) TableHeader() []string {
	return []string{"Subject", "EgressRuleset", "Status", "Error"}
}

// TableRow implements [statedb.TableWritable].
func (r *SubjectRoute) TableRow() []string {
	return []string{
		number(r.Subject), number(r.EgressRuleset), r.Status.Kind.String(),
		orDash(r.Status.GetError()),
	}
}

var (
	routeSubject = UniqueIndex("subject", Uint32Keys,
		func(r *SubjectRoute) uint32 { return r.Subject })
	routeRuleset = Index("egress-ruleset", Uint32Keys,
		func(r *SubjectRoute) uint32 { return r.EgressRuleset })

	// RouteBySubject queries the route of a subject.
	RouteBySubject = routeSubject.Query

	// RoutesByRuleset queries the routes to an egress ruleset.
	RoutesByRuleset = routeRuleset.Query
)

// NewSubjectRouteTable creates the table of routes.
var NewSubjectRouteTable = Declare("subject-routes", routeSubject, routeRuleset)
