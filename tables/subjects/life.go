// SPDX-License-Identifier: Apache-2.0

package subjects

import (
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

type podKey = bpf.PodKey

// An object is removed in two steps. When nothing desired refers to it any more, it is marked. A
// later transaction, whose snapshot has the mark, deletes it if no mirror refers to it. Its content
// does not change until then.

func (c *round) releaseSubject(number uint32) error {
	s, _, found := c.Subjects.Get(c.out, tables.SubjectByNumber(number))
	if _, _, used := c.Pods.Get(c.out, tables.PodsBySubject(number)); !found || used {
		return nil
	}
	c.mark(key{kind: ofUndesired})
	if s.Undesired { // since a fork, when the last pods had not left it yet
		return nil
	}
	undesired := tables.Clone(s)
	undesired.Undesired = true
	return derive.Insert(c.out, c.Subjects, undesired)
}

func (c *round) releaseRuleset(number uint32) error {
	r, _, found := c.Rulesets.Get(c.out, tables.RulesetByNumber(number))
	if !found || r.Undesired {
		return nil
	}
	if _, _, used := c.Subjects.Get(c.out, tables.SubjectsByRuleset(number)); used {
		return nil
	}
	undesired := *r
	undesired.Undesired = true
	c.mark(key{kind: ofUndesired})
	return derive.Insert(c.out, c.Rulesets, &undesired)
}

func (c *round) releaseEgressRuleset(number uint32) error {
	r, _, found := c.EgressRulesets.Get(c.out, tables.EgressRulesetByNumber(number))
	if !found || r.Undesired {
		return nil
	}
	if _, _, used := c.Routes.Get(c.out, tables.RoutesByRuleset(number)); used {
		return nil
	}
	undesired := *r
	undesired.Undesired = true
	c.mark(key{kind: ofUndesired})
	return derive.Insert(c.out, c.EgressRulesets, &undesired)
}

func (c *round) releaseGroup(number uint32) error {
	g, _, found := c.Groups.Get(c.out, tables.EgressGroupByNumber(number))
	if !found || g.Undesired {
		return nil
	}
	_, _, used := c.EgressRules.Get(c.out, tables.EgressRulesByGroup(number))
	_, _, named := c.EgressPolicies.Get(c.in, tables.EgressPoliciesByGroup(g.Digest))
	if used || named {
		return nil
	}
	undesired := *g
	undesired.Undesired = true
	c.mark(key{kind: ofUndesired})
	return derive.Insert(c.out, c.Groups, &undesired)
}

// sweep deletes the objects that were marked before this transaction, are still marked, and to
// which no mirror refers. Objects that refer to others are swept before these.
func (c *round) sweep() error {
	for _, sweep := range []func() error{
		c.sweepSubjects, c.sweepRulesets, c.sweepEgressRulesets, c.sweepGroups,
	} {
		if err := sweep(); err != nil {
			return err
		}
	}
	return nil
}

// refersTo reports whether a mirror has an entry that refers to an object.
func refersTo[K, V tables.MapPart](
	in statedb.ReadTxn, mirrors statedb.Table[*tables.Mirror[K, V]], number uint32,
) bool {
	_, _, refers := mirrors.Get(in, tables.MirrorsTo[K, V](number))
	return refers
}

func (c *round) sweepSubjects() error {
	for marked := range c.Subjects.List(c.in, tables.SubjectsUndesired(true)) {
		s, _, found := c.Subjects.Get(c.out, tables.SubjectByNumber(marked.Number))
		_, _, desired := c.Pods.Get(c.in, tables.PodsBySubject(marked.Number))
		used := refersTo(c.in, c.PodMirrors, marked.Number)
		if !found || desired || used {
			continue
		}
		if err := derive.Delete(c.out, c.Subjects, s); err != nil {
			return err
		}
		if err := c.releaseRuleset(s.Ruleset); err != nil {
			return err
		}
		route, _, routed := c.Routes.Get(c.out, tables.RouteBySubject(s.Number))
		if !routed {
			continue
		}
		if err := derive.Delete(c.out, c.Routes, route); err != nil {
			return err
		}
		if err := c.releaseEgressRuleset(route.EgressRuleset); err != nil {
			return err
		}
	}
	return nil
}

func (c *round) sweepRulesets() error {
	freed := false // selectors, or subjects that were isolated as the kernel had them in a ruleset
	for marked := range c.Rulesets.List(c.in, tables.RulesetsUndesired(true)) {
		r, _, found := c.Rulesets.Get(c.out, tables.RulesetByNumber(marked.Number))
		used := refersTo(c.in, c.SubjectMirrors, marked.Number)
		if !found || !r.Undesired || used {
			continue
		}
		if err := derive.Delete(c.out, c.Rulesets, r); err != nil {
			return err
		}
		c.sizes = nil
		_, _, refused := c.Refusals.Get(c.in, tables.RefusalOfRuleset(r.Number))
		freed = freed || refused
		for _, number := range r.Selectors() {
			if _, _, inUse := c.Rulesets.Get(c.out, tables.RulesetsBySelector(number)); inUse {
				continue
			}
			if s, _, found := c.Selectors.Get(c.out, tables.SelectorByNumber(number)); found {
				if err := c.leaveUse(s); err != nil {
					return err
				}
				freed = true
			}
		}
	}
	if freed {
		c.markIsolated(c.out, c.mark)
	}
	return nil
}

func (c *round) sweepEgressRulesets() error {
	for marked := range c.EgressRulesets.List(c.in, tables.EgressRulesetsUndesired(true)) {
		r, _, found := c.EgressRulesets.Get(c.out, tables.EgressRulesetByNumber(marked.Number))
		used := refersTo(c.in, c.RouteMirrors, marked.Number)
		if !found || !r.Undesired || used {
			continue
		}
		if err := derive.Delete(c.out, c.EgressRulesets, r); err != nil {
			return err
		}
		rules := statedb.Collect(c.EgressRules.Prefix(c.out, tables.EgressRulesOfRuleset(r.Number)))
		for _, rule := range rules {
			if err := derive.Delete(c.out, c.EgressRules, rule); err != nil {
				return err
			}
		}
		for _, rule := range rules {
			if err := c.releaseGroup(rule.Group); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *round) sweepGroups() error {
	for marked := range c.Groups.List(c.in, tables.EgressGroupsUndesired(true)) {
		g, _, found := c.Groups.Get(c.out, tables.EgressGroupByNumber(marked.Number))
		used := refersTo(c.in, c.EgressMirrors, marked.Number)
		if !found || !g.Undesired || used {
			continue
		}
		if err := derive.Delete(c.out, c.Groups, g); err != nil {
			return err
		}
	}
	return nil
}
