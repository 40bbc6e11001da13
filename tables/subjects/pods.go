// SPDX-License-Identifier: Apache-2.0

package subjects

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

// pod brings the row of an address up to date.
func (c *round) pod(addr netip.Addr) error {
	row, err := c.podRow(addr)
	if err != nil {
		return err
	}
	former, _, had := c.Pods.Get(c.out, tables.PodByAddr(addr)) // a fork may have changed it
	switch {
	case row != nil && had && row.Equal(former):
		return nil
	case row != nil:
		err = derive.Insert(c.out, c.Pods, row)
	case had:
		err = derive.Delete(c.out, c.Pods, former)
	}
	if err != nil || !had || row != nil && row.Subject == former.Subject {
		return err
	}
	return c.releaseSubject(former.Subject)
}

// podRow returns the row of an address, nil if the pod is neither of this node nor served by it. A
// pod of this node without a subject is held.
func (c *round) podRow(addr netip.Addr) (row *tables.Pod, err error) {
	row = &tables.Pod{Addr: addr, Reconciled: tables.Pending()}
	e, _, local := c.Locals.Get(c.in, tables.LocalEndpointByAddr(addr))
	def, set, endpoint := c.belongsTo(addr)
	switch {
	case local:
		row.Endpoint, row.Local, row.IfIndex, row.MAC = e.Endpoint, true, e.IfIndex, e.MAC
	case set == nil:
		return nil, nil
	default:
		row.Endpoint = endpoint
	}
	switch {
	case set != nil:
		row.Subject, err = c.subjectOf(def, set)
	case e.LabelSet != nil:
		row.Reason = fmt.Sprintf("there is no Namespace %s, whose labels policies look at",
			e.Endpoint.Namespace)
	}
	return row, err
}

// belongsTo returns the subject of an address with its label set, and the endpoint: a pod of this
// node, or of another node if some egress policy selects it and this node may be its gateway. The
// label set is nil if the address has no subject, or if policies may select the pod by labels of a
// namespace without an object.
func (c *round) belongsTo(
	addr netip.Addr,
) (def tables.SubjectDef, set *tables.LabelSet, endpoint tables.Name) {
	if e, _, local := c.Locals.Get(c.in, tables.LocalEndpointByAddr(addr)); local {
		if e.LabelSet == nil || c.isUnknown(e.LabelSet) {
			return def, nil, endpoint
		}
		return tables.SubjectDef{LabelSet: e.LabelSet.ID, Local: true}, e.LabelSet, e.Endpoint
	}
	owner, _ := tables.AddrOwner(c.in, c.Endpoints, addr)
	if owner == nil || owner.Node == c.LocalNode.Name {
		return def, nil, endpoint
	}
	def.LabelSet = owner.LabelSet.ID
	if _, _, found := c.EgressPolicies.Get(c.in, tables.EgressPoliciesOfNodes(true)); found {
		def.Node = owner.Node
	}
	if !c.isServedHere(def, owner) {
		return tables.SubjectDef{}, nil, endpoint
	}
	return def, owner.LabelSet, owner.Name
}

// isServedHere reports whether this node may be the gateway of another node's pods of a subject, of
// which e is one.
func (c *round) isServedHere(def tables.SubjectDef, e *tables.Endpoint) bool {
	if served, known := c.served[def]; known {
		return served
	}
	policies, unknown := c.egressPolicies(e.LabelSet, e.Node)
	c.served[def] = !unknown && slices.ContainsFunc(policies, func(a applying) bool {
		serving, known := c.serves[a.policy]
		if !known {
			node, _, _ := c.Nodes.Get(c.in, tables.NodeByName(c.LocalNode.Name))
			serving = serves(a.policy, node)
			c.serves[a.policy] = serving
		}
		return serving
	})
	return c.served[def]
}

// isUnknown reports whether it depends on labels of a namespace without an object which policies
// select a label set of this node.
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

// subjectOf returns the number of a subject, and creates it if there is none. It brings the subject
// up to date: a new pod of it must not meet a combination of its labels with former policies.
func (c *round) subjectOf(def tables.SubjectDef, set *tables.LabelSet) (number uint32, err error) {
	if number, known := c.subjects[def]; known {
		return number, nil
	}
	s := c.desiredSubject(def)
	now, err := c.roles(s, def, set)
	if err != nil {
		return 0, err
	}
	if s != nil {
		number, err = c.updateSubject(s, now)
	} else {
		number, err = c.makeSubject(def, now)
	}
	c.subjects[def] = number
	return number, err
}

// desiredSubject returns the desired subject of a definition, nil if there is none. An undesired
// one stays so: its roles are former ones.
func (c *round) desiredSubject(def tables.SubjectDef) *tables.Subject {
	for s := range c.Subjects.List(c.out, tables.SubjectsByLabelSet(def.LabelSet)) {
		if s.SubjectDef == def && !s.Undesired {
			return s
		}
	}
	return nil
}

func (c *round) makeSubject(def tables.SubjectDef, now roles) (number uint32, err error) {
	s := &tables.Subject{
		Life: tables.Life{Number: c.number()}, SubjectDef: def, Reconciled: tables.Pending(),
	}
	return s.Number, c.setRoles(s, roles{}, now)
}

// roles are the rulesets of a subject.
type roles struct {
	ruleset uint32
	egress  uint32 // egress ruleset, 0 for none
}

// roles returns what the roles of a subject shall be, which is nil if there is none yet.
func (c *round) roles(
	s *tables.Subject, def tables.SubjectDef, set *tables.LabelSet,
) (r roles, err error) {
	node := def.Node
	if def.Local {
		node = c.LocalNode.Name
		if refused, needs := c.refusedInKernel(s); refused != nil {
			r.ruleset, err = c.isolate(refused, "", needs)
		} else {
			r.ruleset, err = c.ruleset(set)
		}
		if err != nil {
			return r, err
		}
	}
	r.egress, err = c.egressRuleset(set, node)
	return r, err
}

// setRoles writes the changes of a subject's roles.
func (c *round) setRoles(s *tables.Subject, before, now roles) error {
	if now.ruleset != before.ruleset || before == (roles{}) {
		changed := tables.WithStatus(s, reconciler.StatusPending())
		changed.Ruleset = now.ruleset
		if err := derive.Insert(c.out, c.Subjects, changed); err != nil {
			return err
		}
		if err := c.releaseRuleset(before.ruleset); err != nil {
			return err
		}
	}
	if now.egress == before.egress {
		return nil
	}
	route := &tables.SubjectRoute{
		Subject: s.Number, EgressRuleset: now.egress, Reconciled: tables.Pending(),
	}
	write := derive.Insert[*tables.SubjectRoute]
	if now.egress == 0 {
		write = derive.Delete
	}
	if err := write(c.out, c.Routes, route); err != nil {
		return err
	}
	return c.releaseEgressRuleset(before.egress)
}

// updateSubject changes the roles of a subject, or gives its label set another subject: an address
// that leaves the former one must not meet a combination of its former labels with later policies.
func (c *round) updateSubject(s *tables.Subject, now roles) (number uint32, err error) {
	before := roles{ruleset: s.Ruleset}
	if route, _, routed := c.Routes.Get(c.out, tables.RouteBySubject(s.Number)); routed {
		before.egress = route.EgressRuleset
	}
	switch {
	case now == before:
		return s.Number, nil
	case c.isLeft(s):
		return c.fork(s, now)
	}
	return s.Number, c.setRoles(s, before, now)
}

// isLeft reports whether an address is leaving a subject: the kernel or the previous transaction
// has it there, and it is now desired in another subject or in none.
func (c *round) isLeft(s *tables.Subject) bool {
	for p := range c.Pods.List(c.in, tables.PodsBySubject(s.Number)) {
		if !c.stays(p.Addr, s) {
			return true
		}
	}
	for m := range c.PodMirrors.List(c.in, tables.MirrorsTo[podKey, bpf.PodValue](s.Number)) {
		addr := m.Key.Addr.Addr()
		p, _, found := c.Pods.Get(c.in, tables.PodByAddr(addr))
		isChecked := found && p.Subject == s.Number
		if !isChecked && !c.stays(addr, s) {
			return true
		}
	}
	return false
}

// stays reports whether an address is desired in a subject, and belongs to it.
func (c *round) stays(addr netip.Addr, s *tables.Subject) bool {
	p, _, found := c.Pods.Get(c.out, tables.PodByAddr(addr))
	if !found || p.Subject != s.Number {
		return false
	}
	def, set, _ := c.belongsTo(addr)
	return set != nil && def == s.SubjectDef
}

// fork creates another subject with the same definition, for all pods that stay. The others are
// marked, and leave when their keys are computed.
func (c *round) fork(s *tables.Subject, now roles) (number uint32, err error) {
	undesired := tables.Clone(s)
	undesired.Undesired = true
	if err := derive.Insert(c.out, c.Subjects, undesired); err != nil {
		return 0, err
	}
	if number, err = c.makeSubject(s.SubjectDef, now); err != nil {
		return 0, err
	}
	for _, p := range statedb.Collect(c.Pods.List(c.out, tables.PodsBySubject(s.Number))) {
		if !c.stays(p.Addr, s) {
			continue
		}
		moved := tables.WithStatus(p, reconciler.StatusPending())
		moved.Subject = number
		if err := derive.Insert(c.out, c.Pods, moved); err != nil {
			return 0, err
		}
	}
	c.mark(key{kind: ofUndesired})
	return number, nil
}
