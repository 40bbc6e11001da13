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
	enforcedPolicyIDIndex = statedb.Index[*EnforcedPolicy, PolicyID]{
		Name:       "policy",
		FromObject: func(p *EnforcedPolicy) index.KeySet { return index.NewKeySet(p.Policy.Key()) },
		FromKey:    PolicyID.Key,
		FromString: index.FromString,
		Unique:     true,
	}

	enforcedPolicySelectorIndex = statedb.Index[*EnforcedPolicy, SelectorID]{
		Name: "selector",
		FromObject: func(p *EnforcedPolicy) index.KeySet {
			ids := p.Selectors()
			keys := make([]index.Key, len(ids))
			for i, id := range ids {
				keys[i] = selectorIDKey(id)
			}
			return index.NewKeySet(keys...)
		},
		FromKey:    selectorIDKey,
		FromString: selectorIDFromString,
	}

	// EnforcedPolicyByID queries what is in force of a policy.
	EnforcedPolicyByID = enforcedPolicyIDIndex.Query

	// EnforcedPoliciesBySelector queries the policies of which a rule names a
	// selector, as its subject, among its peers, or as the name of a port; a
	// retired one too.
	EnforcedPoliciesBySelector = enforcedPolicySelectorIndex.Query
)

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
		for p := range policies.List(txn, EnforcedPoliciesBySelector(id)) {
			for _, r := range p.Rules {
				if wanted(r) && !yield(r) {
					return
				}
			}
		}
	}
}

// NewEnforcedPolicyTable creates the table of what is in force of each policy.
func NewEnforcedPolicyTable(db *statedb.DB) (statedb.RWTable[*EnforcedPolicy], error) {
	return statedb.NewTable(db, "policy-rules", enforcedPolicyIDIndex, enforcedPolicySelectorIndex)
}
