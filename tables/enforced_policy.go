// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"iter"
	"slices"
	"strconv"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"github.com/sluice-net/sluice/bpf"
)

// EnforcedPolicy is what is in force of a network policy: a row of policy-rules. A
// policy that is new or changed comes into force at once with all its rules, when
// the kernel has all addresses in classes that tell whether its selectors choose
// them; until then its former rules stay.
type EnforcedPolicy struct {
	Policy   PolicyID         `json:"policy"`
	Revision statedb.Revision `json:"revision" yaml:"-"` // of the policy's row that Rules were made from

	Rules []*EnforcedRule `json:"rules,omitempty"` // in order

	// Retired are rules that are no more in force, and stay until the kernel has
	// nothing left that comes of them, and all that comes of those in their place: only
	// then may their selectors go. In order.
	Retired []*EnforcedRule `json:"retired,omitempty"`
}

// Equal reports whether two rows say the same.
func (p *EnforcedPolicy) Equal(o *EnforcedPolicy) bool {
	return p.Policy == o.Policy && p.Revision == o.Revision &&
		slices.EqualFunc(p.Rules, o.Rules, (*EnforcedRule).Equal) && slices.EqualFunc(p.Retired, o.Retired, (*EnforcedRule).Equal)
}

// Rule returns the rule with an identity, nil if there is none.
func (p *EnforcedPolicy) Rule(id RuleID) *EnforcedRule {
	rules := p.Rules
	if id.Version != 0 {
		rules = p.Retired
	}
	at, found := slices.BinarySearchFunc(rules, id, func(r *EnforcedRule, id RuleID) int { return r.Compare(id) })
	if !found {
		return nil
	}
	return rules[at]
}

// Selectors returns all selectors that the rules name, each once and in order;
// those of the retired ones too, which they keep alive.
func (p *EnforcedPolicy) Selectors() []SelectorID {
	var ids []SelectorID
	for _, rules := range [][]*EnforcedRule{p.Rules, p.Retired} {
		for _, r := range rules {
			ids = r.appendSelectors(ids)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// NamesInForce reports whether a rule in force names a selector.
func (p *EnforcedPolicy) NamesInForce(id SelectorID) bool {
	return slices.ContainsFunc(p.Rules, func(r *EnforcedRule) bool { return r.Names(id) })
}

// names reports whether a rule names a selector, in force or retired.
func (p *EnforcedPolicy) names(id SelectorID) bool {
	return p.NamesInForce(id) || slices.ContainsFunc(p.Retired, func(r *EnforcedRule) bool { return r.Names(id) })
}

// ChangedRules yields the rules in force by which two rows of a policy differ, as
// they were and as they are; nil where there is none. Either row may be nil.
func ChangedRules(old, new *EnforcedPolicy) iter.Seq2[*EnforcedRule, *EnforcedRule] {
	return func(yield func(*EnforcedRule, *EnforcedRule) bool) {
		var was, is []*EnforcedRule
		if old != nil {
			was = old.Rules
		}
		if new != nil {
			is = new.Rules
		}
		for len(was) > 0 || len(is) > 0 {
			var before, now *EnforcedRule
			if len(is) == 0 || len(was) > 0 && was[0].Compare(is[0].RuleID) <= 0 {
				before = was[0]
			}
			if len(was) == 0 || len(is) > 0 && is[0].Compare(was[0].RuleID) <= 0 {
				now = is[0]
			}
			if before != nil {
				was = was[1:]
			}
			if now != nil {
				is = is[1:]
			}
			if before != nil && now != nil && before.Equal(now) {
				continue
			}
			if !yield(before, now) {
				return
			}
		}
	}
}

// TableHeader implements [statedb.TableWritable].
func (*EnforcedPolicy) TableHeader() []string {
	return []string{"Policy", "Subjects", "Rules", "Retired"}
}

// TableRow implements [statedb.TableWritable].
func (p *EnforcedPolicy) TableRow() []string { return p.Row(SelectorID.String) }

// Row is what TableRow returns, with the selectors by the names that they are given.
func (p *EnforcedPolicy) Row(name func(SelectorID) string) []string {
	var subjects, rules []string
	for _, r := range p.Rules {
		if subject := name(r.Subject); !slices.Contains(subjects, subject) {
			subjects = append(subjects, subject)
		}
		rules = append(rules, r.text(name))
	}
	return []string{p.Policy.String(), listColumn(subjects, " | "), listColumn(rules, "; "), strconv.Itoa(len(p.Retired))}
}

var (
	enforcedPolicyIDIndex = UniqueIndex("policy", PolicyKeys,
		func(p *EnforcedPolicy) PolicyID { return p.Policy })

	enforcedPolicySelectorIndex = newIndex("selector", selectorIDKeys,
		func(p *EnforcedPolicy) index.KeySet { return selectorKeys(p.Selectors()) })

	// EnforcedPolicyByID queries what is in force of a policy.
	EnforcedPolicyByID = enforcedPolicyIDIndex.Query
)

// manySelectors are so many that a policy which names more is indexed by groups of
// them. A row that is written again costs its keys squared, and there may be tens of
// thousands of prefixes in one policy.
const manySelectors = 512

// selectorGroup is one of 1024: the identities are digests.
func selectorGroup(id SelectorID) index.Key { return index.Uint16(uint16(id >> 54)) }

// selectorKeys are the keys of a policy that names some selectors, which are in order.
func selectorKeys(ids []SelectorID) index.KeySet {
	key := selectorIDKey
	if len(ids) > manySelectors {
		key = selectorGroup
	}
	var keys []index.Key
	for _, id := range ids {
		if k := key(id); len(keys) == 0 || !k.Equal(keys[len(keys)-1]) {
			keys = append(keys, k)
		}
	}
	return index.NewKeySet(keys...)
}

// EnforcedPoliciesBySelector yields the policies of which a rule names a selector, as
// its subject, among its peers, or as the name of a port; a retired one too.
func EnforcedPoliciesBySelector(txn statedb.ReadTxn, policies statedb.Table[*EnforcedPolicy], id SelectorID) iter.Seq[*EnforcedPolicy] {
	return func(yield func(*EnforcedPolicy) bool) {
		for p := range Rare(txn, policies, enforcedPolicySelectorIndex.Query(id)) {
			if !yield(p) {
				return
			}
		}
		for p := range Rare(txn, policies, enforcedPolicySelectorIndex.QueryFromKey(selectorGroup(id))) {
			if p.names(id) && !yield(p) {
				return
			}
		}
	}
}

// EnforcedRuleByID returns the rule with an identity, nil if there is none.
func EnforcedRuleByID(txn statedb.ReadTxn, policies statedb.Table[*EnforcedPolicy], id RuleID) *EnforcedRule {
	p, _, found := policies.Get(txn, EnforcedPolicyByID(id.Policy))
	if !found {
		return nil
	}
	return p.Rule(id)
}

// EnforcedRulesBySubject yields the rules in force about the pods of a selector.
func EnforcedRulesBySubject(txn statedb.ReadTxn, policies statedb.Table[*EnforcedPolicy], subject SelectorID) iter.Seq[*EnforcedRule] {
	return enforcedRules(txn, policies, subject, func(r *EnforcedRule) bool { return r.Subject == subject })
}

// EnforcedRulesByPeer yields the rules in force that have a selector among their peers.
func EnforcedRulesByPeer(txn statedb.ReadTxn, policies statedb.Table[*EnforcedPolicy], peer SelectorID) iter.Seq[*EnforcedRule] {
	return enforcedRules(txn, policies, peer, func(r *EnforcedRule) bool { return r.NamesPeer(peer) })
}

// EnforcedRulesByPort yields the rules in force of a direction that name a port.
func EnforcedRulesByPort(txn statedb.ReadTxn, policies statedb.Table[*EnforcedPolicy], d bpf.Direction, name string, protocol uint8) iter.Seq[*EnforcedRule] {
	id := PortSelectorID(NamedPortRole(d), name, protocol)
	return enforcedRules(txn, policies, id, func(r *EnforcedRule) bool { return r.Direction == d && r.NamesPort(name, protocol) })
}

// enforcedRules yields the rules in force of the policies that name a selector, as
// far as they are asked for.
func enforcedRules(txn statedb.ReadTxn, policies statedb.Table[*EnforcedPolicy], id SelectorID, wanted func(*EnforcedRule) bool) iter.Seq[*EnforcedRule] {
	return func(yield func(*EnforcedRule) bool) {
		for p := range EnforcedPoliciesBySelector(txn, policies, id) {
			for _, r := range p.Rules {
				if wanted(r) && !yield(r) {
					return
				}
			}
		}
	}
}

// NewEnforcedPolicyTable creates the table of what is in force of each policy.
var NewEnforcedPolicyTable = Declare(
	"policy-rules", enforcedPolicyIDIndex, enforcedPolicySelectorIndex,
)
