// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
	"github.com/sluice-net/sluice/tables/policy"
)

type policyStatusParams struct {
	cell.In

	Output   statedb.RWTable[*tables.EgressPolicyStatus]
	Policies statedb.Table[*tables.EgressPolicy]
	Compiled statedb.Table[*tables.CompiledPolicy]
	Groups   statedb.Table[*tables.EgressGroup]
	Gateways statedb.Table[*tables.EgressGateway]
	Rulesets statedb.Table[*tables.EgressRuleset]
	Rules    statedb.Table[*tables.EgressRule]
	Routes   statedb.Table[*tables.SubjectRoute]
	Subjects statedb.Table[*tables.Subject]
	Mirrors  statedb.Table[*tables.RouteMirror]

	policy.Placement
}

// derivePolicyStatus reports no policy as applied before packets use this agent's slot of maps.
func derivePolicyStatus(
	p derive.Params, s policyStatusParams, slots statedb.Table[*tables.Slot],
) error {
	rule := s.declare()
	rule.After = []statedb.TableMeta{slots}
	return derive.Register(p, rule)
}

// declare is the rule that keeps the status of each policy on this node. Its keys are names of
// policies.
func (s *policyStatusParams) declare() derive.Rule[string] {
	return derive.Rule[string]{
		Outputs: []statedb.TableMeta{s.Output},
		Inputs: []derive.Input[string]{
			derive.From(s.Policies, markPolicy),
			derive.From(s.Compiled, markCompiled),
			derive.From(s.Groups, markUsers),
			derive.FromIf(s.Gateways, statusChanged, s.markGateway),
			derive.From(s.Rulesets, markRuleset),
			derive.From(s.Rules, markRule),
			derive.From(s.Routes, s.markRoute),
			derive.FromIf(s.Subjects, isDesiredOtherwise, s.markSubject),
			derive.From(s.Mirrors, s.markMirror),
			derive.FromIf(s.Pods, policy.MovesPod, s.markPod),
			derive.FromIf(s.PodMirrors, policy.MovesPodMirror, s.markPodMirror),
		},
		Compute: s.compute,
	}
}

// statusRound is one call of compute, with what it has computed so far.
type statusRound struct {
	*policyStatusParams
	in       statedb.ReadTxn
	rulesets map[uint32]progress
	groups   map[uint32]progress
	moving   map[uint32]bool // subjects with pods that come from an undesired one
}

// progress is how much of a ruleset or group the kernel has.
type progress struct {
	isDesired bool
	isDone    bool
	isOutside bool   // a pod has not moved to it yet
	refused   string // what the kernel refused, empty if nothing
	drops     string // why a bucket drops packets, empty if none does
}

func (s *policyStatusParams) newRound(in statedb.ReadTxn) *statusRound {
	c := &statusRound{
		policyStatusParams: s, in: in, rulesets: map[uint32]progress{},
		groups: map[uint32]progress{},
		moving: map[uint32]bool{},
	}
	for left := range s.Subjects.List(in, tables.SubjectsUndesired(true)) {
		mirrors := s.PodMirrors.List(in, tables.MirrorsTo[bpf.PodKey, bpf.PodValue](left.Number))
		for m := range mirrors {
			pod, _, found := s.Pods.Get(in, tables.PodByAddr(m.Key.Addr.Addr()))
			if found && pod.Subject != left.Number {
				c.moving[pod.Subject] = true
			}
		}
	}
	return c
}

func (s *policyStatusParams) compute(
	in statedb.ReadTxn, out statedb.WriteTxn, names []string, mark func(string),
) error {
	c := s.newRound(in)
	row := func(_ statedb.ReadTxn, name string) *tables.EgressPolicyStatus { return c.row(name) }
	return derive.Each(s.Output, tables.EgressPolicyStatusByPolicy,
		(*tables.EgressPolicyStatus).Equal, row)(in, out, names, mark)
}

// row returns the status of a policy, nil if there is none.
func (c *statusRound) row(name string) *tables.EgressPolicyStatus {
	p, revision, found := c.Policies.Get(c.in, tables.EgressPolicyByName(name))
	if !found {
		return nil
	}
	row := &tables.EgressPolicyStatus{Policy: name, UID: p.UID, Generation: p.Generation}
	if former, _, found := c.Output.Get(c.in, tables.EgressPolicyStatusByPolicy(name)); found {
		row.Applied = former.Applied
	}
	for _, e := range p.Errors {
		row.Errors = append(row.Errors, e.Error())
	}
	digest := tables.GroupDigest(p.Gateways)
	if g, _, found := c.Groups.Get(c.in, tables.EgressGroupByDigest(digest)); found {
		for _, choice := range g.Gateways {
			row.Gateways = append(row.Gateways, choice.String())
		}
	}
	c.addRules(row)
	compiled, _, found := c.Compiled.Get(
		c.in, tables.CompiledPolicyByID(tables.EgressPolicyID(name)),
	)
	switch {
	case !found || compiled.Revision != revision:
		row.Pending = "its rules have yet to be made"
	case c.hasFormer(name, row.Applied != revision):
		row.Pending = "the kernel has yet to lose what it said before"
	case c.isOutside(name):
		row.Pending = "pods have yet to move to its rules"
	case row.Programmed == row.Rules:
		row.Applied = revision
	}
	return row
}

// addRules fills in the status of a policy's destinations, in the rulesets that subjects are
// desired to have.
func (c *statusRound) addRules(row *tables.EgressPolicyStatus) {
	for r := range c.Rules.List(c.in, tables.EgressRulesByPolicy(row.Policy)) {
		ruleset := c.ruleset(r.Ruleset)
		if !ruleset.isDesired {
			continue
		}
		if r.Policy != row.Policy {
			row.LosesTo = append(row.LosesTo, fmt.Sprintf("%s goes to policy %s", r.Destination, r.Policy))
			continue
		}
		if len(r.Overrides) > 0 && r.Group != bpf.GroupExcluded {
			row.Conflicts = append(row.Conflicts,
				fmt.Sprintf("%s is also wanted by %v", r.Destination, r.Overrides))
		}
		group := progress{isDone: true}
		if r.Group != bpf.GroupExcluded {
			group = c.group(r.Group)
		}
		row.Rules++
		row.Drops = cmp.Or(row.Drops, group.drops)
		if refused := cmp.Or(refusedOf(r), group.refused, ruleset.refused); refused != "" {
			row.Failed++
			row.Refused = cmp.Or(row.Refused, refused)
		}
		if isDone(r.Status) && group.isDone && ruleset.isDone {
			row.Programmed++
		}
	}
	slices.Sort(row.LosesTo)
	row.LosesTo = slices.Compact(row.LosesTo)
	row.Conflicts = append(row.Conflicts, row.LosesTo...)
	slices.Sort(row.Conflicts)
	row.Conflicts = slices.Compact(row.Conflicts)
}

func isDone(s reconciler.Status) bool { return s.Kind == reconciler.StatusKindDone }

func refusedOf(r *tables.EgressRule) string {
	if !policy.IsRefused(r.Status) {
		return ""
	}
	return fmt.Sprintf("%s: %s", r.Destination, r.Status.GetError())
}

// ruleset returns whether a subject is desired to have a ruleset, and whether the kernel has the
// route of each such subject. It checks the pods of this node only: those that this node is the
// gateway of are too many to check all for a change of one.
func (c *statusRound) ruleset(number uint32) progress {
	if s, known := c.rulesets[number]; known {
		return s
	}
	s := progress{isDone: true}
	for route := range c.Routes.List(c.in, tables.RoutesByRuleset(number)) {
		subject, _, found := c.Subjects.Get(c.in, tables.SubjectByNumber(route.Subject))
		if !found || subject.Undesired {
			continue
		}
		s.isDesired = true
		s.isDone = s.isDone && isDone(route.Status) &&
			policy.InKernel(c.in, c.Mirrors, route.MapKey(), route.MapValue())
		if policy.IsRefused(route.Status) {
			s.refused = cmp.Or(s.refused, route.Status.GetError())
		}
		s.isOutside = s.isOutside || c.moving[subject.Number]
		if subject.Local {
			s.isOutside = s.isOutside || c.Outside(c.in, subject.Number)
			s.refused = cmp.Or(s.refused, c.Refused(c.in, subject.Number))
		}
	}
	c.rulesets[number] = s
	return s
}

// group returns whether the kernel has all buckets of a group.
func (c *statusRound) group(number uint32) progress {
	if s, known := c.groups[number]; known {
		return s
	}
	var s progress
	done := 0
	for bucket := range c.Gateways.Prefix(c.in, tables.EgressGatewaysOfGroup(number)) {
		s.drops = cmp.Or(s.drops, bucket.Reason)
		if isDone(bucket.Status) {
			done++
		}
		if policy.IsRefused(bucket.Status) {
			s.refused = cmp.Or(s.refused, bucket.Status.GetError())
		}
	}
	s.isDone = done == bpf.GatewayBuckets
	c.groups[number] = s
	return s
}

// isOutside reports whether the kernel has a pod of a policy in another subject than desired.
func (c *statusRound) isOutside(name string) bool {
	for r := range c.Rulesets.List(c.in, tables.EgressRulesetsByPolicy(name)) {
		if c.ruleset(r.Number).isOutside {
			return true
		}
	}
	return false
}

// hasFormer reports whether the kernel still has former rules of a policy: in a subject whose
// ruleset is about to change; or, if the present policy has not been applied yet, in an undesired
// subject that pods leave, which keeps the rules that it had.
func (c *statusRound) hasFormer(name string, countsLeaving bool) bool {
	for r := range c.Rulesets.List(c.in, tables.EgressRulesetsByPolicy(name)) {
		mirrors := c.Mirrors.List(c.in, tables.MirrorsTo[bpf.SubjectKey, bpf.RouteValue](r.Number))
		for m := range mirrors {
			subject, _, found := c.Subjects.Get(c.in, tables.SubjectByNumber(m.Key.Subject))
			route, _, routed := c.Routes.Get(c.in, tables.RouteBySubject(m.Key.Subject))
			switch {
			case !found: // no pod is in it any more
			case !routed || route.EgressRuleset != r.Number:
				return true
			case subject.Undesired && countsLeaving && c.Has(c.in, subject.Number):
				return true
			}
		}
	}
	return false
}
