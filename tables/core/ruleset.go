// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"slices"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// Rule is what one item of a policy says of one direction, as part of a [Ruleset].
type Rule struct {
	tables.RuleID `yaml:",inline"`

	Field string `json:"field"` // of the object, such as spec.ingress[1]

	// DefaultDeny is set in the rule about the default of a direction, which says nothing
	// else.
	DefaultDeny bool `json:"defaultDeny,omitempty"`

	Deny    bool     `json:"deny,omitempty"`
	AnyPeer bool     `json:"anyPeer,omitempty"`
	Peers   []uint32 `json:"peers,omitempty"` // numbers of selectors, in order

	// Ports are those of the destination; none are all, of every protocol. Names of ports
	// of the subject itself, in ingress rules, are resolved; those of peers, in egress rules,
	// are not.
	Ports []tables.PolicyPort `json:"ports,omitempty"`

	// NoPorts is set if the rule is about ports, and the subject has none of their names.
	NoPorts bool `json:"noPorts,omitempty"`
}

// Ruleset is the whole compiled network policy of a subject.
type Ruleset struct {
	Life   `yaml:",inline"`
	Digest bpf.Digest `json:"digest"`

	Rules []*Rule `json:"rules,omitempty"` // in order of policy and place

	// AlwaysDeny is set if what no rule allows is denied in both directions, as
	// --enforcement=always has it.
	AlwaysDeny bool `json:"alwaysDeny,omitempty"`

	// TooLarge says why the policies of the subject are not enforced: it is isolated in the
	// directions that they are about instead.
	TooLarge string `json:"tooLarge,omitempty"`
}

// Policies returns the policies that the rules are of, each once and in order.
func (r *Ruleset) Policies() []tables.PolicyID {
	var ids []tables.PolicyID
	for _, rule := range r.Rules {
		if n := len(ids); n == 0 || ids[n-1] != rule.Policy {
			ids = append(ids, rule.Policy)
		}
	}
	return ids
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

// TableHeader implements [statedb.TableWritable].
func (*Ruleset) TableHeader() []string {
	return []string{"Number", "Policies", "Rules", "TooLarge", "Undesired"}
}

// TableRow implements [statedb.TableWritable].
func (r *Ruleset) TableRow() []string {
	var policies []string
	for _, id := range r.Policies() {
		policies = append(policies, id.String())
	}
	return []string{
		number(r.Number), tables.ListColumn(policies, ", "), fmt.Sprint(len(r.Rules)),
		tables.OrDash(r.TooLarge), trueOrDash(r.Undesired),
	}
}

var (
	rulesetNumber = statedb.Index[*Ruleset, uint32]{
		Name: "number", Unique: true, FromKey: index.Uint32, FromString: index.Uint32String,
		FromObject: func(r *Ruleset) index.KeySet { return index.NewKeySet(index.Uint32(r.Number)) },
	}
	rulesetDigest = statedb.Index[*Ruleset, bpf.Digest]{
		Name: "digest", Unique: true, FromKey: tables.DigestKey, FromString: tables.DigestFromString,
		FromObject: func(r *Ruleset) index.KeySet { return index.NewKeySet(tables.DigestKey(r.Digest)) },
	}
	rulesetSelector = statedb.Index[*Ruleset, uint32]{
		Name: "selector", FromKey: index.Uint32, FromString: index.Uint32String,
		FromObject: func(r *Ruleset) index.KeySet { return uint32Keys(r.Selectors()) },
	}
	rulesetPort = statedb.Index[*Ruleset, string]{
		Name: "port", FromKey: index.String, FromString: index.FromString,
		FromObject: func(r *Ruleset) index.KeySet { return index.StringSlice(r.PeerPorts()) },
	}
	rulesetPolicy = statedb.Index[*Ruleset, tables.PolicyID]{
		Name: "policy", FromKey: tables.PolicyID.Key, FromString: tables.PolicyKeyFromString,
		FromObject: func(r *Ruleset) index.KeySet {
			var keys []index.Key
			for _, id := range r.Policies() {
				keys = append(keys, id.Key())
			}
			return index.NewKeySet(keys...)
		},
	}
	rulesetUndesired = statedb.Index[*Ruleset, bool]{
		Name: "undesired", FromKey: index.Bool, FromString: index.BoolString,
		FromObject: func(r *Ruleset) index.KeySet { return marked(r.Undesired) },
	}

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

	// RulesetsUndesired queries, by true, the rulesets that no subject is desired in.
	RulesetsUndesired = rulesetUndesired.Query
)

// NewRulesetTable creates the table of rulesets.
func NewRulesetTable(db *statedb.DB) (statedb.RWTable[*Ruleset], error) {
	return statedb.NewTable(db, "rulesets", rulesetNumber, rulesetDigest, rulesetSelector, rulesetPort,
		rulesetPolicy, rulesetUndesired)
}

// CompiledPolicy says that the rulesets of all label sets of this node that a network policy
// selects have its rules.
type CompiledPolicy struct {
	Policy     tables.PolicyID  `json:"policy"`
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
	compiledPolicyID = statedb.Index[*CompiledPolicy, tables.PolicyID]{
		Name: "policy", Unique: true, FromKey: tables.PolicyID.Key, FromString: tables.PolicyKeyFromString,
		FromObject: func(p *CompiledPolicy) index.KeySet { return index.NewKeySet(p.Policy.Key()) },
	}

	// CompiledPolicyByID queries whether a policy is compiled.
	CompiledPolicyByID = compiledPolicyID.Query
)

// NewCompiledPolicyTable creates the table of policies that are compiled.
func NewCompiledPolicyTable(db *statedb.DB) (statedb.RWTable[*CompiledPolicy], error) {
	return statedb.NewTable(db, "compiled-policies", compiledPolicyID)
}
