// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"fmt"
	"slices"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
)

// Rule is one item of a policy in one direction, as part of a [Ruleset].
type Rule struct {
	RuleID `yaml:",inline"`

	// DefaultDeny is set in the rule for the default of a direction, which has no peers or ports.
	DefaultDeny bool `json:"defaultDeny,omitempty"`

	Deny    bool     `json:"deny,omitempty"`
	AnyPeer bool     `json:"anyPeer,omitempty"`
	Peers   []uint32 `json:"peers,omitempty"` // numbers of selectors, in order

	// DeniesCoarse is set if the rule denies what a foreign selector selects: it denies all
	// [Coarse] classes, as these do not tell whether the selector selects their members.
	DeniesCoarse bool `json:"deniesCoarse,omitempty"`

	// Ports are those of the destination; none are all, of every protocol. Names of ports
	// of the subject itself, in ingress rules, are resolved; those of peers, in egress rules,
	// are not.
	Ports []PolicyPort `json:"ports,omitempty"`

	// NoPorts is set if the rule names ports, and the subject has none of these names.
	NoPorts bool `json:"noPorts,omitempty"`
}

// Equal reports whether two rules are of the same place, and say the same.
func (r *Rule) Equal(o *Rule) bool {
	return r.RuleID == o.RuleID && r.DefaultDeny == o.DefaultDeny && r.Deny == o.Deny &&
		r.AnyPeer == o.AnyPeer && slices.Equal(r.Peers, o.Peers) &&
		r.DeniesCoarse == o.DeniesCoarse && slices.Equal(r.Ports, o.Ports) && r.NoPorts == o.NoPorts
}

// Ruleset is the whole compiled network policy of a subject.
type Ruleset struct {
	Life   `yaml:",inline"`
	Digest bpf.Digest `json:"digest"`

	// Policies are those that have rules about the subject, in order.
	Policies []PolicyID `json:"policies,omitempty"`

	Rules []*Rule `json:"rules,omitempty"` // in order of policy and place

	// AlwaysDeny denies everything that no rule allows in both directions, for
	// --enforcement=always.
	AlwaysDeny bool `json:"alwaysDeny,omitempty"`

	// TooLarge says why the policies are not enforced: the rules isolate the subject instead,
	// in the directions that the policies are about.
	TooLarge string `json:"tooLarge,omitempty"`

	// Needs is set if there was no room for the policies when they were tried before: see
	// [RulesetRefusal].
	Needs RulesetSize `json:"needs,omitzero"`
}

// Namespace returns the namespace of the policies that are not cluster-wide, empty if all are:
// the pods of a ruleset with such a policy are in its namespace.
func (r *Ruleset) Namespace() string {
	for _, id := range r.Policies {
		if id.Name.Namespace != "" {
			return id.Name.Namespace
		}
	}
	return ""
}

// PoliciesOf returns the policies of rules, which are in order, each once.
func PoliciesOf(rules []RuleID) (policies []PolicyID) {
	for _, rule := range rules {
		if n := len(policies); n == 0 || policies[n-1] != rule.Policy {
			policies = append(policies, rule.Policy)
		}
	}
	return policies
}

// Selectors returns the numbers of the selectors that the rules name, each once and in
// order.
func (r *Ruleset) Selectors() []uint32 {
	var numbers []uint32
	for _, rule := range r.Rules {
		numbers = append(numbers, rule.Peers...)
	}
	slices.Sort(numbers)
	return slices.Compact(numbers)
}

// PeerPorts returns the names of ports that egress rules name, in the form http/tcp.
func (r *Ruleset) PeerPorts() []string {
	var names []string
	for _, rule := range r.Rules {
		for _, p := range rule.Ports {
			if name := p.String(); p.Name != "" && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// DeniesCoarse reports whether a rule denies coarse classes.
func (r *Ruleset) DeniesCoarse() bool {
	return slices.ContainsFunc(r.Rules, func(rule *Rule) bool { return rule.DeniesCoarse })
}

// TableHeader implements [statedb.TableWritable].
func (*Ruleset) TableHeader() []string {
	return []string{"Number", "Policies", "Rules", "TooLarge", "Undesired"}
}

// TableRow implements [statedb.TableWritable].
func (r *Ruleset) TableRow() []string {
	var policies []string
	for _, id := range r.Policies {
		policies = append(policies, id.String())
	}
	return []string{
		number(r.Number), listColumn(policies, ", "), fmt.Sprint(len(r.Rules)),
		orDash(r.TooLarge), trueOrDash(r.Undesired),
	}
}

var (
	rulesetNumber = UniqueIndex("number", Uint32Keys,
		func(r *Ruleset) uint32 { return r.Number })
	rulesetDigest = UniqueIndex("digest", DigestKeys,
		func(r *Ruleset) bpf.Digest { return r.Digest })
	rulesetSelector = IndexEach("selector", Uint32Keys,
		func(r *Ruleset) []uint32 { return r.Selectors() })
	rulesetPort = IndexEach("port", StringKeys,
		func(r *Ruleset) []string { return r.PeerPorts() })
	rulesetPolicy = IndexEach("policy", PolicyKeys,
		func(r *Ruleset) []PolicyID { return r.Policies })
	rulesetCoarse    = FlagIndex("denies-coarse", (*Ruleset).DeniesCoarse)
	rulesetTooLarge  = FlagIndex("too-large", func(r *Ruleset) bool { return r.TooLarge != "" })
	rulesetUndesired = FlagIndex("undesired", func(r *Ruleset) bool { return r.Undesired })

	// RulesetByNumber queries a ruleset by its number.
	RulesetByNumber = rulesetNumber.Query

	// RulesetByDigest queries the ruleset with a content.
	RulesetByDigest = rulesetDigest.Query

	// RulesetsBySelector queries the rulesets that name a selector.
	RulesetsBySelector = rulesetSelector.Query

	// RulesetsByPort queries the rulesets that name a port of peers, in the form http/tcp.
	RulesetsByPort = rulesetPort.Query

	// RulesetsByPolicy queries the rulesets with rules of a policy.
	RulesetsByPolicy = rulesetPolicy.Query

	// RulesetsDenyingCoarse queries, by true, the rulesets with a rule that denies coarse classes.
	RulesetsDenyingCoarse = rulesetCoarse.Query

	// RulesetsTooLarge queries, by true, the rulesets that isolate pods as their policies are
	// too large.
	RulesetsTooLarge = rulesetTooLarge.Query

	// RulesetsUndesired queries, by true, the rulesets that no subject is desired in.
	RulesetsUndesired = rulesetUndesired.Query
)

// NewRulesetTable creates the table of rulesets.
var NewRulesetTable = Declare("rulesets", rulesetNumber, rulesetDigest, rulesetSelector,
	rulesetPort,
	rulesetPolicy, rulesetCoarse, rulesetTooLarge, rulesetUndesired)

// CompiledPolicy says that the rulesets of all label sets that a network policy, or an egress
// policy, selects have its rules.
type CompiledPolicy struct {
	Policy     PolicyID         `json:"policy"`
	Generation int64            `json:"generation,omitempty"` // of the object
	Revision   statedb.Revision `json:"revision" yaml:"-"`    // of its row in network-policies
}

// TableHeader implements [statedb.TableWritable].
func (*CompiledPolicy) TableHeader() []string { return []string{"Policy", "Generation"} }

// TableRow implements [statedb.TableWritable].
func (p *CompiledPolicy) TableRow() []string {
	return []string{p.Policy.String(), fmt.Sprint(p.Generation)}
}

var (
	compiledPolicyID = UniqueIndex("policy", PolicyKeys,
		func(p *CompiledPolicy) PolicyID { return p.Policy })

	// CompiledPolicyByID queries whether a policy is compiled.
	CompiledPolicyByID = compiledPolicyID.Query
)

// NewCompiledPolicyTable creates the table of policies that are compiled.
var NewCompiledPolicyTable = Declare("compiled-policies", compiledPolicyID)
