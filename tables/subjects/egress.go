// SPDX-License-Identifier: Apache-2.0

package subjects

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"slices"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

// applying is an egress policy that selects a label set, and the index of its selector.
type applying struct {
	policy   *tables.EgressPolicy
	selector string
	prefixes *egressPrefixes // of the policy, while rules are made
}

// egressPolicies returns the policies that select pods with a label set on a node, in order of
// precedence. unknown says that others may select them, by labels of a namespace without an object.
func (c *round) egressPolicies(
	set *tables.LabelSet, nodeName string,
) (policies []applying, unknown bool) {
	namespace, _, _ := c.Namespaces.Get(c.in, tables.NamespaceByName(set.Namespace))
	node, _, _ := c.Nodes.Get(c.in, tables.NodeByName(nodeName))
	seen := map[*tables.EgressPolicy]bool{}
	for anchor := range set.Anchors {
		for p := range tables.ListIfAny(c.in, c.EgressPolicies, tables.EgressPoliciesBySource(anchor)) {
			if seen[p] {
				continue
			}
			seen[p] = true
			a := applying{policy: p}
			for _, s := range p.Selectors {
				m := c.matcher(s)
				unknown = unknown || namespace == nil && m.MayMatch(set)
				if !m.Matches(set, namespace) || !m.MatchesNode(node) {
					continue
				}
				if text := s.String(); a.selector == "" || text < a.selector {
					a.selector = text
				}
			}
			if a.selector != "" {
				policies = append(policies, a)
			}
		}
	}
	slices.SortFunc(policies, func(a, b applying) int {
		if a.policy.Before(b.policy) {
			return -1
		}
		return 1
	})
	return policies, unknown
}

// egressRuleset returns the number of the egress ruleset of pods with a label set on a node, 0 if
// there is none.
func (c *round) egressRuleset(set *tables.LabelSet, node string) (uint32, error) {
	policies, _ := c.egressPolicies(set, node)
	if len(policies) == 0 {
		return 0, nil
	}
	rules := c.egressRules(policies)
	c.work += len(rules)
	digest := digestOfEgress(policies, rules)
	if r, _, found := c.EgressRulesets.Get(c.out, tables.EgressRulesetByDigest(digest)); found {
		if !r.Undesired {
			return r.Number, nil
		}
		desired := *r
		desired.Undesired = false
		return r.Number, derive.Insert(c.out, c.EgressRulesets, &desired)
	}
	r := &tables.EgressRuleset{Life: tables.Life{Number: c.number()}, Digest: digest}
	for _, a := range policies {
		r.Policies = append(r.Policies, a.policy.Name)
	}
	for _, rule := range rules {
		row := rule.EgressRule
		row.Ruleset = r.Number
		if rule.gateways != nil {
			var err error
			if row.Group, err = c.group(rule.gateways); err != nil {
				return 0, err
			}
		}
		if err := derive.Insert(c.out, c.EgressRules, &row); err != nil {
			return 0, err
		}
	}
	return r.Number, derive.Insert(c.out, c.EgressRulesets, r)
}

// egressRule is a rule whose group has no number yet: that of the policy's gateways, none for an
// exclusion.
type egressRule struct {
	tables.EgressRule
	gateways *tables.EgressPolicy
}

// egressRules returns a rule for each prefix that some policies name, in order.
func (c *round) egressRules(policies []applying) []egressRule {
	var prefixes []netip.Prefix
	for i, a := range policies {
		prefixes = append(append(prefixes, a.policy.Destinations...), a.policy.Excluded...)
		policies[i].prefixes = c.prefixesOf(a.policy)
	}
	prefixes = ordered(prefixes)
	rules := make([]egressRule, len(prefixes))
	for i, prefix := range prefixes {
		rules[i] = decide(policies, prefix)
	}
	return rules
}

// decide returns the rule for destinations whose longest prefix, of all those in the policies, is
// this one. For each policy, the longest of its own prefixes that contain the destination counts: a
// destination, or an exclusion, by which it does not match. Of those that match, the longest prefix
// wins, and then the order of policies.
func decide(policies []applying, prefix netip.Prefix) egressRule {
	rule := egressRule{EgressRule: tables.EgressRule{
		Destination: prefix, Group: bpf.GroupExcluded, Reconciled: tables.Pending(),
	}}
	best := -1
	for _, a := range policies {
		destination := a.prefixes.destinations.longest(prefix)
		excluded := a.prefixes.excluded.longest(prefix)
		switch {
		case destination < 0 && excluded < 0:
		case excluded >= destination:
			if rule.Policy == "" {
				rule.Policy, rule.Selector = a.policy.Name, a.selector
			}
		case destination > best:
			best = destination
			rule.gateways, rule.Policy, rule.Selector = a.policy, a.policy.Name, a.selector
		case destination == prefix.Bits():
			rule.Overrides = append(rule.Overrides, a.policy.Name)
		}
	}
	return rule
}

// egressPrefixes are the prefixes of an egress policy.
type egressPrefixes struct{ destinations, excluded prefixSet }

func (c *round) prefixesOf(p *tables.EgressPolicy) *egressPrefixes {
	of := c.prefixes[p]
	if of == nil {
		of = &egressPrefixes{newPrefixSet(p.Destinations), newPrefixSet(p.Excluded)}
		c.prefixes[p] = of
	}
	return of
}

// prefixSet are prefixes, which may be many.
type prefixSet map[netip.Prefix]bool

func newPrefixSet(prefixes []netip.Prefix) prefixSet {
	s := prefixSet{}
	for _, p := range prefixes {
		s[p.Masked()] = true
	}
	return s
}

// longest returns the length of the longest prefix that contains another prefix, -1 if none does.
func (s prefixSet) longest(contained netip.Prefix) int {
	for bits := contained.Bits(); bits >= 0; bits-- {
		if s[netip.PrefixFrom(contained.Addr(), bits).Masked()] {
			return bits
		}
	}
	return -1
}

// digestOfEgress identifies the content of an egress ruleset.
func digestOfEgress(policies []applying, rules []egressRule) bpf.Digest {
	h := sha256.New()
	for _, a := range policies {
		fmt.Fprintf(h, "%q ", a.policy.Name)
	}
	for _, r := range rules {
		group := "excluded"
		if r.gateways != nil {
			group = tables.GroupDigest(r.gateways.Gateways).String()
		}
		fmt.Fprintf(h, "%s %s %q %q %q\n", r.Destination, group, r.Policy, r.Selector, r.Overrides)
	}
	return bpf.Digest(h.Sum(nil)[:16])
}

// group returns the number of the group of a policy's gateways.
func (c *round) group(p *tables.EgressPolicy) (uint32, error) {
	digest := tables.GroupDigest(p.Gateways)
	g, _, found := c.Groups.Get(c.out, tables.EgressGroupByDigest(digest))
	if found && !g.Undesired {
		return g.Number, nil
	}
	life := tables.Life{}
	if found {
		life.Number = g.Number
	} else {
		life.Number = c.number()
	}
	return life.Number, derive.Insert(c.out, c.Groups, c.elect(life, digest, p.Gateways))
}

// updateGroup brings a group up to date with nodes and policies. A policy has a group even while it
// selects no pods, so that its gateways are ready when the first one comes.
func (c *round) updateGroup(digest bpf.Digest) error {
	policy, _, named := c.EgressPolicies.Get(c.in, tables.EgressPoliciesByGroup(digest))
	former, _, found := c.Groups.Get(c.out, tables.EgressGroupByDigest(digest))
	switch {
	case !found && !named:
		return nil
	case !found || former.Undesired && named:
		_, err := c.group(policy)
		return err
	}
	specs := make([]tables.GatewaySpec, len(former.Gateways))
	for i, choice := range former.Gateways {
		specs[i] = choice.Spec
	}
	if g := c.elect(former.Life, digest, specs); !g.Equal(former) {
		if err := derive.Insert(c.out, c.Groups, g); err != nil {
			return err
		}
	}
	return c.releaseGroup(former.Number)
}

// elect elects a node for each item of a list of gateways: see [tables.Elections]. All nodes of
// the cluster elect the same, unless gateways are lost for some of them.
func (c *round) elect(
	life tables.Life, digest bpf.Digest, specs []tables.GatewaySpec,
) *tables.EgressGroup {
	g := &tables.EgressGroup{Life: life, Digest: digest}
	for p := range c.EgressPolicies.List(c.in, tables.EgressPoliciesByGroup(digest)) {
		g.Policies = append(g.Policies, p.Name)
	}
	g.Gateways = c.elections.Gateways(specs, c.owned)
	for i := range g.Gateways {
		c.towardsFixed(&g.Gateways[i])
	}
	g.Local = slices.ContainsFunc(g.Gateways, func(c tables.GatewayChoice) bool { return c.Local })
	return g
}
