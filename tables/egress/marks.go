// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/policy"
)

func markPolicy(_ statedb.ReadTxn, p *tables.EgressPolicy, mark func(string)) { mark(p.Name) }

func markCompiled(_ statedb.ReadTxn, p *tables.CompiledPolicy, mark func(string)) {
	if p.Policy.Kind == tables.PolicyEgress {
		mark(p.Policy.Name.Name)
	}
}

// markUsers marks the policies that use a group.
func markUsers(_ statedb.ReadTxn, g *tables.EgressGroup, mark func(string)) {
	for _, name := range g.Policies {
		mark(name)
	}
}

// statusChanged reports whether the status of a bucket changed, or whether it drops packets. Its
// gateway does not matter.
func statusChanged(old, new *tables.EgressGateway) bool {
	return isDone(old.Status) != isDone(new.Status) || old.Reason != new.Reason ||
		policy.IsRefused(old.Status) != policy.IsRefused(new.Status)
}

func (s *policyStatusParams) markGateway(
	in statedb.ReadTxn, bucket *tables.EgressGateway, mark func(string),
) {
	if g, _, found := s.Groups.Get(in, tables.EgressGroupByNumber(bucket.Group)); found {
		markUsers(in, g, mark)
	}
}

func markRuleset(_ statedb.ReadTxn, r *tables.EgressRuleset, mark func(string)) {
	for _, name := range r.Policies {
		mark(name)
	}
}

func (s *policyStatusParams) markRulesetNumber(
	in statedb.ReadTxn, number uint32, mark func(string),
) {
	if r, _, found := s.Rulesets.Get(in, tables.EgressRulesetByNumber(number)); found {
		markRuleset(in, r, mark)
	}
}

func markRule(_ statedb.ReadTxn, r *tables.EgressRule, mark func(string)) {
	mark(r.Policy)
	for _, name := range r.Overrides {
		mark(name)
	}
}

func (s *policyStatusParams) markRoute(
	in statedb.ReadTxn, route *tables.SubjectRoute, mark func(string),
) {
	s.markRulesetNumber(in, route.EgressRuleset, mark)
}

func isDesiredOtherwise(old, new *tables.Subject) bool { return old.Undesired != new.Undesired }

// markSubject marks the policies of a subject.
func (s *policyStatusParams) markSubject(
	in statedb.ReadTxn, subject *tables.Subject, mark func(string),
) {
	if route, _, routed := s.Routes.Get(in, tables.RouteBySubject(subject.Number)); routed {
		s.markRoute(in, route, mark)
	}
}

func (s *policyStatusParams) markMirror(
	in statedb.ReadTxn, m *tables.RouteMirror, mark func(string),
) {
	for _, v := range m.Values() {
		s.markRulesetNumber(in, v.EgressRuleset, mark)
	}
	if route, _, routed := s.Routes.Get(in, tables.RouteBySubject(m.Key.Subject)); routed {
		s.markRoute(in, route, mark)
	}
}

// markPod marks the policies of a pod of this node.
func (s *policyStatusParams) markPod(in statedb.ReadTxn, p *tables.Pod, mark func(string)) {
	subject, _, found := s.Subjects.Get(in, tables.SubjectByNumber(p.Subject))
	if found && (subject.Local || subject.Undesired) {
		s.markSubject(in, subject, mark)
	}
}

// markPodMirror marks the policies of a pod of this node, and those of the subjects that a pod
// leaves and enters.
func (s *policyStatusParams) markPodMirror(
	in statedb.ReadTxn, m *tables.PodMirror, mark func(string),
) {
	pod, _, isDesired := s.Pods.Get(in, tables.PodByAddr(m.Key.Addr.Addr()))
	matters := isDesired && pod.Local
	for _, v := range m.Values() {
		left, _, found := s.Subjects.Get(in, tables.SubjectByNumber(v.Subject))
		if found && (left.Local || left.Undesired) {
			s.markSubject(in, left, mark)
			matters = true
		}
		if !found { // it was removed, as no pod is in it any more
			matters = true
		}
	}
	if !isDesired || !matters {
		return
	}
	if subject, _, found := s.Subjects.Get(in, tables.SubjectByNumber(pod.Subject)); found {
		s.markSubject(in, subject, mark)
	}
}
