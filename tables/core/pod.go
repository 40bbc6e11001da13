// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// Pod is an address of a pod of this node, or of a pod that this node may be the gateway
// of. An entry of sluice_pods.
type Pod struct {
	Addr     netip.Addr  `json:"addr"`
	Endpoint tables.Name `json:"endpoint"`
	Subject  uint32      `json:"subject"`
	Local    bool        `json:"local"`
	IfIndex  uint32      `json:"ifIndex,omitempty"` // host side of the pod's veth, 0 while not known
	MAC      string      `json:"mac,omitempty"`     // of the pod's own interface

	Status reconciler.Status `json:"status"`
}

// Equal reports whether two rows want the same, whatever their status.
func (p *Pod) Equal(o *Pod) bool {
	a, b := *p, *o
	a.Status, b.Status = reconciler.Status{}, reconciler.Status{}
	return a == b
}

// MapKey is the key in sluice_pods.
func (p *Pod) MapKey() bpf.PodKey { return bpf.PodKey{Addr: bpf.AddressFrom(p.Addr)} }

// MapValue is the value in sluice_pods.
func (p *Pod) MapValue() PodValue {
	v := PodValue{Subject: p.Subject, IfIndex: p.IfIndex}
	if p.Local {
		v.Flags = PodLocal
	}
	if mac, err := net.ParseMAC(p.MAC); err == nil && len(mac) == len(v.MAC) {
		copy(v.MAC[:], mac)
	}
	return v
}

// Clone returns a shallow copy.
func (p *Pod) Clone() *Pod { c := *p; return &c }

// SetStatus sets the reconciliation status.
func (p *Pod) SetStatus(s reconciler.Status) *Pod { p.Status = s; return p }

// GetStatus returns the reconciliation status.
func (p *Pod) GetStatus() reconciler.Status { return p.Status }

// TableHeader implements [statedb.TableWritable].
func (*Pod) TableHeader() []string {
	return []string{"Address", "Pod", "Subject", "Local", "IfIndex", "MAC", "Status", "Error"}
}

// TableRow implements [statedb.TableWritable].
func (p *Pod) TableRow() []string {
	return []string{
		p.Addr.String(), p.Endpoint.String(), number(p.Subject), fmt.Sprint(p.Local),
		numberOrDash(p.IfIndex), tables.OrDash(p.MAC),
		p.Status.Kind.String(), tables.OrDash(p.Status.GetError()),
	}
}

var (
	podAddr = statedb.Index[*Pod, netip.Addr]{
		Name: "addr", Unique: true, FromKey: index.NetIPAddr, FromString: index.NetIPAddrString,
		FromObject: func(p *Pod) index.KeySet { return index.NewKeySet(index.NetIPAddr(p.Addr)) },
	}
	podSubject = statedb.Index[*Pod, uint32]{
		Name: "subject", FromKey: index.Uint32, FromString: index.Uint32String,
		FromObject: func(p *Pod) index.KeySet { return index.NewKeySet(index.Uint32(p.Subject)) },
	}
	podIfIndex = statedb.Index[*Pod, uint32]{
		Name: "ifindex", FromKey: index.Uint32, FromString: index.Uint32String,
		FromObject: func(p *Pod) index.KeySet { return nonZero(p.IfIndex) },
	}

	// PodByAddr queries the pod with an address.
	PodByAddr = podAddr.Query

	// PodsBySubject queries the pods of a subject.
	PodsBySubject = podSubject.Query

	// PodsByIfIndex queries the pods to which a device leads.
	PodsByIfIndex = podIfIndex.Query
)

// NewPodTable creates the table of pods by address.
func NewPodTable(db *statedb.DB) (statedb.RWTable[*Pod], error) {
	return statedb.NewTable(db, "pods", podAddr, podSubject, podIfIndex)
}

// EmptyRuleset is the number of the ruleset of pods that no policy selects: everything is
// allowed, and it has no entries. Others have greater numbers.
const EmptyRuleset = 1

// SubjectDef is what a subject stands for: a label set of pods of this node, or of others.
type SubjectDef struct {
	LabelSet tables.LabelSetID `json:"labelSet"`
	Local    bool              `json:"local"`

	// Node is that of pods of other nodes, where some egress policy selects nodes.
	Node string `json:"node,omitempty"`
}

// Subject is a label set of pods whose traffic is judged or routed here. An entry of
// sluice_subjects, whose ruleset is 0 for pods of other nodes, which are not judged. If its ruleset or egress ruleset changes while an address leaves it, the
// label set gets a new subject, and this one keeps what it has.
type Subject struct {
	Life       `yaml:",inline"`
	SubjectDef `yaml:",inline"`

	Ruleset uint32            `json:"ruleset"`
	Status  reconciler.Status `json:"status"`
}

// Equal reports whether two rows want the same, whatever their status.
func (s *Subject) Equal(o *Subject) bool {
	return s.Life == o.Life && s.SubjectDef == o.SubjectDef && s.Ruleset == o.Ruleset
}

// MapKey is the key in sluice_subjects.
func (s *Subject) MapKey() SubjectKey { return SubjectKey{s.Number} }

// MapValue is the value in sluice_subjects.
func (s *Subject) MapValue() SubjectValue { return SubjectValue{s.Ruleset} }

// Clone returns a shallow copy.
func (s *Subject) Clone() *Subject { c := *s; return &c }

// SetStatus sets the reconciliation status.
func (s *Subject) SetStatus(status reconciler.Status) *Subject { s.Status = status; return s }

// GetStatus returns the reconciliation status.
func (s *Subject) GetStatus() reconciler.Status { return s.Status }

// TableHeader implements [statedb.TableWritable].
func (*Subject) TableHeader() []string {
	return []string{"Number", "LabelSet", "Local", "Node", "Ruleset", "Undesired", "Status", "Error"}
}

// TableRow implements [statedb.TableWritable].
func (s *Subject) TableRow() []string {
	return []string{
		number(
			s.Number,
		), s.LabelSet.String()[:8], fmt.Sprint(s.Local), tables.OrDash(s.Node), number(s.Ruleset),
		trueOrDash(s.Undesired), s.Status.Kind.String(), tables.OrDash(s.Status.GetError()),
	}
}

var (
	subjectNumber = statedb.Index[*Subject, uint32]{
		Name: "number", Unique: true, FromKey: index.Uint32, FromString: index.Uint32String,
		FromObject: func(s *Subject) index.KeySet { return index.NewKeySet(index.Uint32(s.Number)) },
	}
	subjectLabelSet = statedb.Index[*Subject, tables.LabelSetID]{
		Name: "label-set", FromKey: tables.DigestKey, FromString: tables.DigestFromString,
		FromObject: func(s *Subject) index.KeySet { return index.NewKeySet(tables.DigestKey(s.LabelSet)) },
	}
	subjectRuleset = statedb.Index[*Subject, uint32]{
		Name: "ruleset", FromKey: index.Uint32, FromString: index.Uint32String,
		FromObject: func(s *Subject) index.KeySet { return nonZero(s.Ruleset) },
	}
	subjectLocal = statedb.Index[*Subject, bool]{
		Name: "local", FromKey: index.Bool, FromString: index.BoolString,
		FromObject: func(s *Subject) index.KeySet { return marked(s.Local && !s.Undesired) },
	}
	subjectUndesired = statedb.Index[*Subject, bool]{
		Name: "undesired", FromKey: index.Bool, FromString: index.BoolString,
		FromObject: func(s *Subject) index.KeySet { return marked(s.Undesired) },
	}

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
func NewSubjectTable(db *statedb.DB) (statedb.RWTable[*Subject], error) {
	return statedb.NewTable(db, "subjects", subjectNumber, subjectLabelSet, subjectRuleset,
		subjectLocal, subjectUndesired)
}

// Route is the egress ruleset of a subject that egress policies select. An entry of
// sluice_routes.
type Route struct {
	Subject       uint32            `json:"subject"`
	EgressRuleset uint32            `json:"egressRuleset"`
	Status        reconciler.Status `json:"status"`
}

// Equal reports whether two rows want the same, whatever their status.
func (r *Route) Equal(o *Route) bool {
	return r.Subject == o.Subject && r.EgressRuleset == o.EgressRuleset
}

// MapKey is the key in sluice_routes.
func (r *Route) MapKey() SubjectKey { return SubjectKey{r.Subject} }

// MapValue is the value in sluice_routes.
func (r *Route) MapValue() RouteValue { return RouteValue{r.EgressRuleset} }

// Clone returns a shallow copy.
func (r *Route) Clone() *Route { c := *r; return &c }

// SetStatus sets the reconciliation status.
func (r *Route) SetStatus(s reconciler.Status) *Route { r.Status = s; return r }

// GetStatus returns the reconciliation status.
func (r *Route) GetStatus() reconciler.Status { return r.Status }

// TableHeader implements [statedb.TableWritable].
func (*Route) TableHeader() []string {
	return []string{"Subject", "EgressRuleset", "Status", "Error"}
}

// TableRow implements [statedb.TableWritable].
func (r *Route) TableRow() []string {
	return []string{
		number(r.Subject), number(r.EgressRuleset), r.Status.Kind.String(),
		tables.OrDash(r.Status.GetError()),
	}
}

var (
	routeSubject = statedb.Index[*Route, uint32]{
		Name: "subject", Unique: true, FromKey: index.Uint32, FromString: index.Uint32String,
		FromObject: func(r *Route) index.KeySet { return index.NewKeySet(index.Uint32(r.Subject)) },
	}
	routeRuleset = statedb.Index[*Route, uint32]{
		Name: "egress-ruleset", FromKey: index.Uint32, FromString: index.Uint32String,
		FromObject: func(r *Route) index.KeySet { return index.NewKeySet(index.Uint32(r.EgressRuleset)) },
	}

	// RouteBySubject queries the route of a subject.
	RouteBySubject = routeSubject.Query

	// RoutesByRuleset queries the routes to an egress ruleset.
	RoutesByRuleset = routeRuleset.Query
)

// NewRouteTable creates the table of routes.
func NewRouteTable(db *statedb.DB) (statedb.RWTable[*Route], error) {
	return statedb.NewTable(db, "subject-routes", routeSubject, routeRuleset)
}
