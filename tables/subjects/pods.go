// SPDX-License-Identifier: Apache-2.0

package subjects

import (
	"net/netip"
	"slices"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/core"
	"github.com/sluice-net/sluice/tables/transform"
)

// pod brings the row of an address up to date.
func (c *round) pod(addr netip.Addr) error {
	former, _, had := c.Pods.Get(c.out, core.PodByAddr(addr))
	row, err := c.podRow(addr, former)
	if err != nil {
		return err
	}
	switch {
	case row != nil && had && row.Equal(former):
		return nil
	case row != nil:
		err = transform.Insert(c.out, c.Pods, row)
	case had:
		err = transform.Delete(c.out, c.Pods, former)
	}
	if err != nil || !had || row != nil && row.Subject == former.Subject {
		return err
	}
	return c.releaseSubject(former.Subject)
}

// podRow returns the row of an address, nil if this node has nothing to do with it.
func (c *round) podRow(addr netip.Addr, former *core.Pod) (*core.Pod, error) {
	if e, _, found := c.Locals.Get(c.in, core.LocalEndpointByAddr(addr)); found {
		return c.localPod(e, former)
	}
	owner, _ := tables.AddrOwner(c.in, c.Endpoints, addr)
	if owner == nil || owner.Node == c.LocalNode.Name {
		return nil, nil
	}
	def := core.SubjectDef{LabelSet: owner.LabelSet.ID}
	if _, _, found := c.EgressPolicies.Get(c.in, tables.EgressPoliciesOfNodes(true)); found {
		def.Node = owner.Node
	}
	policies, _ := c.egressPolicies(owner.LabelSet, owner.Node)
	if !slices.ContainsFunc(policies, func(a applying) bool { return c.serves(c.in, a.policy) }) {
		return nil, nil
	}
	subject, err := c.subjectOf(def, owner.LabelSet)
	return &core.Pod{
		Addr: addr, Endpoint: owner.Name, Subject: subject, Status: reconciler.StatusPending(),
	}, err
}

// localPod returns the row of a pod of this node. A pod of which it is not known what
// policies say has no subject: it is held. One of a namespace without an object, by whose
// labels policies may select it, keeps the subject that it has.
func (c *round) localPod(e *core.LocalEndpoint, former *core.Pod) (row *core.Pod, err error) {
	row = &core.Pod{
		Addr: e.Addr, Endpoint: e.Endpoint, Local: true, IfIndex: e.IfIndex, MAC: e.MAC,
		Status: reconciler.StatusPending(),
	}
	switch {
	case e.LabelSet == nil:
	case c.isUnknown(e.LabelSet):
		if former != nil && former.Endpoint == e.Endpoint {
			row.Subject = former.Subject
		}
	default:
		row.Subject, err = c.subjectOf(core.SubjectDef{LabelSet: e.LabelSet.ID, Local: true}, e.LabelSet)
	}
	return row, err
}

// isUnknown reports whether it depends on the labels of a namespace that has no object which
// policies select a label set of this node.
func (c *round) isUnknown(set *tables.LabelSet) bool {
	if _, _, found := c.Namespaces.Get(c.in, tables.NamespaceByName(set.Namespace)); found {
		return false
	}
	_, unknown := c.egressPolicies(set, c.LocalNode.Name)
	if c.Enforcement == tables.EnforcementNever || unknown {
		return unknown
	}
	_, unknown = c.networkPolicies(set)
	return unknown
}

// definition returns what an address belongs to as a subject now.
func (c *round) definition(addr netip.Addr) (def core.SubjectDef, found bool) {
	if e, _, local := c.Locals.Get(c.in, core.LocalEndpointByAddr(addr)); local {
		if e.LabelSet == nil || c.isUnknown(e.LabelSet) {
			return def, false
		}
		return core.SubjectDef{LabelSet: e.LabelSet.ID, Local: true}, true
	}
	owner, _ := tables.AddrOwner(c.in, c.Endpoints, addr)
	if owner == nil {
		return def, false
	}
	def.LabelSet = owner.LabelSet.ID
	if _, _, ofNodes := c.EgressPolicies.Get(c.in, tables.EgressPoliciesOfNodes(true)); ofNodes {
		def.Node = owner.Node
	}
	return def, true
}

// subjectOf returns the number of a subject, which is made if there is none.
func (c *round) subjectOf(def core.SubjectDef, set *tables.LabelSet) (uint32, error) {
	if s := c.desiredSubject(def); s != nil {
		return s.Number, nil
	}
	s := &core.Subject{Life: core.Life{Number: c.number()}, SubjectDef: def, Status: reconciler.StatusPending()}
	roles, err := c.roles(def, set)
	if err != nil {
		return 0, err
	}
	return s.Number, c.insertSubject(s, roles)
}

// desiredSubject returns the subject of a definition that new pods belong to, nil if there
// is none. One that pods have left belongs to its definition again.
func (c *round) desiredSubject(def core.SubjectDef) *core.Subject {
	for s := range c.Subjects.List(c.out, core.SubjectsByLabelSet(def.LabelSet)) {
		if s.SubjectDef == def && !s.Undesired {
			return s
		}
	}
	return nil
}

// roles are what policies say of a subject.
type roles struct {
	ruleset uint32
	egress  uint32 // egress ruleset, 0 for none
}

func (c *round) roles(def core.SubjectDef, set *tables.LabelSet) (r roles, err error) {
	node := def.Node
	if def.Local {
		node = c.LocalNode.Name
		if r.ruleset, err = c.ruleset(set); err != nil {
			return r, err
		}
	}
	r.egress, err = c.egressRuleset(set, node)
	return r, err
}

func (c *round) insertSubject(s *core.Subject, r roles) error {
	s.Ruleset = r.ruleset
	if err := transform.Insert(c.out, c.Subjects, s); err != nil || r.egress == 0 {
		return err
	}
	return transform.Insert(c.out, c.Routes, &core.Route{
		Subject: s.Number, EgressRuleset: r.egress, Status: reconciler.StatusPending(),
	})
}

// updateSubjects brings the subjects of a label set up to date with policies.
func (c *round) updateSubjects(id tables.LabelSetID) error {
	set := c.labelSet(id)
	if set == nil {
		return nil
	}
	for _, s := range statedb.Collect(c.Subjects.List(c.out, core.SubjectsByLabelSet(id))) {
		if s.Undesired {
			continue // it keeps its roles
		}
		if s.Local && c.isUnknown(set) {
			continue
		}
		if err := c.updateSubject(s, set); err != nil {
			return err
		}
	}
	return nil
}

func (c *round) labelSet(id tables.LabelSetID) *tables.LabelSet {
	if e, _, found := c.Locals.Get(c.in, core.LocalEndpointsByLabelSet(id)); found {
		return e.LabelSet
	}
	return tables.LabelSetByID(c.in, c.Endpoints, id)
}

// updateSubject gives a subject other roles, or its label set another subject: an address
// that leaves it must not meet a combination of its former labels with later policies.
func (c *round) updateSubject(s *core.Subject, set *tables.LabelSet) error {
	now, err := c.roles(s.SubjectDef, set)
	if err != nil {
		return err
	}
	before := roles{ruleset: s.Ruleset}
	route, _, routed := c.Routes.Get(c.out, core.RouteBySubject(s.Number))
	if routed {
		before.egress = route.EgressRuleset
	}
	switch {
	case now == before:
		return nil
	case c.isLeft(s):
		return c.fork(s, now)
	}
	changed := s.Clone().SetStatus(reconciler.StatusPending())
	if now.ruleset == before.ruleset {
		changed.Status = s.Status
	}
	if now.egress == 0 && routed {
		err = transform.Delete(c.out, c.Routes, route)
	} else if now.egress == before.egress {
		now.egress = 0 // its route stays
	}
	if err == nil {
		err = c.insertSubject(changed, now)
	}
	if err != nil {
		return err
	}
	if now.ruleset != before.ruleset {
		err = c.releaseRuleset(before.ruleset)
	}
	if err == nil && routed {
		err = c.releaseEgressRuleset(before.egress)
	}
	return err
}

// isLeft reports whether an address is leaving a subject: it is in it, in the kernel or as
// desired so far, and is to be in another one, or in none.
func (c *round) isLeft(s *core.Subject) bool {
	stays := func(addr netip.Addr) bool {
		def, found := c.definition(addr)
		return found && def == s.SubjectDef
	}
	for p := range c.Pods.List(c.out, core.PodsBySubject(s.Number)) {
		if !stays(p.Addr) {
			return true
		}
	}
	for m := range c.PodMirrors.List(c.in, core.MirrorsTo[podKey, core.PodValue](s.Number)) {
		addr := m.Key.Addr.Addr()
		if p, _, found := c.Pods.Get(c.out, core.PodByAddr(addr)); !found || p.Subject != s.Number || !stays(addr) {
			return true
		}
	}
	return false
}

// fork makes another subject of the same definition, to which all pods go that stay.
func (c *round) fork(s *core.Subject, now roles) error {
	undesired := s.Clone()
	undesired.Undesired = true
	if err := transform.Insert(c.out, c.Subjects, undesired); err != nil {
		return err
	}
	forked := &core.Subject{
		Life: core.Life{Number: c.number()}, SubjectDef: s.SubjectDef, Status: reconciler.StatusPending(),
	}
	if err := c.insertSubject(forked, now); err != nil {
		return err
	}
	for _, p := range statedb.Collect(c.Pods.List(c.out, core.PodsBySubject(s.Number))) {
		if def, found := c.definition(p.Addr); !found || def != s.SubjectDef {
			continue // its own key is marked
		}
		moved := p.Clone().SetStatus(reconciler.StatusPending())
		moved.Subject = forked.Number
		if err := transform.Insert(c.out, c.Pods, moved); err != nil {
			return err
		}
	}
	c.mark(key{kind: ofUndesired})
	return nil
}
