// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

type ruleParams struct {
	cell.In

	Rules    statedb.RWTable[*tables.EgressRule]
	Classes  statedb.Table[*tables.EgressClass]
	Policies statedb.Table[*tables.EgressPolicy]
	Groups   statedb.Table[*tables.EgressGroup]
}

// deriveRules keeps where the traffic of each class goes, by destination.
func deriveRules(p derive.Params, r ruleParams) error {
	_, err := derive.Register(p, derive.Rule[uint32, *tables.EgressRule]{
		Output: r.Rules,
		Inputs: []derive.Input[uint32]{
			derive.FromIf(r.Classes,
				func(old, new *tables.EgressClass) bool { return !slices.Equal(old.Policies, new.Policies) },
				func(_ statedb.ReadTxn, c *tables.EgressClass, affect func(uint32)) { affect(c.Number) }),
			derive.From(r.Policies, func(txn statedb.ReadTxn, p *tables.EgressPolicy, affect func(uint32)) {
				r.classesOf(txn, p.Name, affect)
			}),
			derive.FromIf(r.Groups,
				func(old, new *tables.EgressGroup) bool {
					return old.Number != new.Number || !slices.Equal(old.Policies, new.Policies)
				},
				func(txn statedb.ReadTxn, g *tables.EgressGroup, affect func(uint32)) {
					for _, policy := range g.Policies {
						r.classesOf(txn, policy, affect)
					}
				}),
		},
		Existing: func(txn statedb.ReadTxn, class uint32) iter.Seq2[*tables.EgressRule, statedb.Revision] {
			return r.Rules.Prefix(txn, tables.EgressRulesOfClass(class))
		},
		Rows:  r.rows,
		Equal: (*tables.EgressRule).Equal,
	})
	return err
}

func (r *ruleParams) classesOf(txn statedb.ReadTxn, policy string, affect func(uint32)) {
	for c := range r.Classes.List(txn, tables.EgressClassesByPolicy(policy)) {
		affect(c.Number)
	}
}

// contender is a policy that applies to a class.
type contender struct {
	policy   *tables.EgressPolicy
	selector string
	group    uint32
}

func (r *ruleParams) rows(txn statedb.ReadTxn, number uint32) []*tables.EgressRule {
	class, _, found := r.Classes.Get(txn, tables.EgressClassByNumber(number))
	if !found {
		return nil
	}
	contenders, prefixes, known := contendersOf(txn, class, r.Policies, r.Groups)
	if !known {
		// Until then all stays as it is: no other policy wins in its place.
		return statedb.Collect(r.Rules.Prefix(txn, tables.EgressRulesOfClass(number)))
	}
	rules := make([]*tables.EgressRule, 0, len(prefixes))
	for prefix := range prefixes {
		rules = append(rules, decide(contenders, number, prefix))
	}
	slices.SortFunc(rules, func(a, b *tables.EgressRule) int {
		if c := a.Destination.Addr().Compare(b.Destination.Addr()); c != 0 {
			return c
		}
		return a.Destination.Bits() - b.Destination.Bits()
	})
	return rules
}

// contendersOf returns the policies that apply to a class, in order, and the
// prefixes that they name. That is not known while the class is about to take in
// the change of a policy, or a group to be derived.
func contendersOf(txn statedb.ReadTxn, class *tables.EgressClass, policies statedb.Table[*tables.EgressPolicy], groups statedb.Table[*tables.EgressGroup],
) (contenders []contender, prefixes map[netip.Prefix]struct{}, known bool) {
	prefixes = map[netip.Prefix]struct{}{}
	for _, choice := range class.Policies {
		p, revision, found := policies.Get(txn, tables.EgressPolicyByName(choice.Policy))
		if !found || revision != choice.Revision {
			return nil, nil, false
		}
		g, _, found := groups.Get(txn, tables.EgressGroupByDigest(tables.GroupDigest(p.Gateways)))
		if !found {
			return nil, nil, false
		}
		contenders = append(contenders, contender{p, choice.Selector, g.Number})
		named(p, prefixes)
	}
	return contenders, prefixes, true
}

// named adds the prefixes that a policy names.
func named(p *tables.EgressPolicy, prefixes map[netip.Prefix]struct{}) {
	for _, prefix := range slices.Concat(p.Destinations, p.Excluded) {
		prefixes[prefix] = struct{}{}
	}
}

// decide returns the rule for destinations of which the prefix is the longest
// that any of the contenders, in order of precedence, names. Each contender
// has the longest of its own prefixes that contain the destination: a
// destination, or an exclusion, by which it has no say. Of those that have,
// the longest prefix wins, and then the order.
func decide(contenders []contender, class uint32, prefix netip.Prefix) *tables.EgressRule {
	rule := &tables.EgressRule{Class: class, Destination: prefix, Group: bpf.GroupExcluded, Reconciled: tables.Pending()}
	best := -1
	for _, c := range contenders {
		destination := longest(c.policy.Destinations, prefix)
		excluded := longest(c.policy.Excluded, prefix)
		switch {
		case destination < 0 && excluded < 0:
		case excluded >= destination:
			if rule.Policy == "" {
				rule.Policy, rule.Selector = c.policy.Name, c.selector
			}
		case destination > best:
			best = destination
			rule.Group, rule.Policy, rule.Selector = c.group, c.policy.Name, c.selector
		case destination == prefix.Bits():
			rule.Overrides = append(rule.Overrides, c.policy.Name)
		}
	}
	return rule
}

// longest returns the length of the longest of some prefixes that contains
// another one, -1 if none does.
func longest(prefixes []netip.Prefix, contained netip.Prefix) int {
	bits := -1
	for _, p := range prefixes {
		if p.Bits() > bits && p.Bits() <= contained.Bits() && p.Contains(contained.Addr()) {
			bits = p.Bits()
		}
	}
	return bits
}
