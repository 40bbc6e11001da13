// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"slices"
	"strconv"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"github.com/sluice-net/sluice/bpf"
)

// EnforcedRule is what one item of a policy says of one direction, as it is in
// force: a row of policy-rules. A policy that is new or changed comes into force
// at once with all its items, when the kernel has all addresses in classes that
// tell whether its selectors choose them; until then its former items stay.
type EnforcedRule struct {
	RuleID `yaml:",inline"`

	Field    string           `json:"field"`             // of the object, such as spec.ingress[1]
	Revision statedb.Revision `json:"revision" yaml:"-"` // of the policy's row that it was made from

	// Subject is the selector of the pods that it is about.
	Subject SelectorID `json:"subject"`

	// DefaultDeny is set in the row about the default of a direction, which says
	// nothing else.
	DefaultDeny bool `json:"defaultDeny,omitempty"`

	Deny    bool         `json:"deny,omitempty"`
	AnyPeer bool         `json:"anyPeer,omitempty"`
	Peers   []SelectorID `json:"peers,omitempty"`
	Ports   []PolicyPort `json:"ports,omitempty"` // none: all

	// Retired is set for what is no more in force, and stays until the kernel
	// has nothing left that comes of it: only then may its selectors go.
	Retired bool `json:"retired,omitempty"`
}

// RuleID identifies an [EnforcedRule].
type RuleID struct {
	Policy    PolicyID      `json:"policy"`
	Rule      int           `json:"rule"` // index of the policy's spec
	Direction bpf.Direction `json:"direction"`
	Item      int           `json:"item"`              // index of the traffic, -1 of the default
	Version   uint64        `json:"version,omitempty"` // of a retired one: a digest of its selectors
}

// Key is the index key of the identity.
func (id RuleID) Key() index.Key {
	b := append(policyPrefix(id.Policy), index.Uint32(uint32(id.Rule))...)
	b = append(b, byte(id.Direction))
	b = append(b, index.Uint32(uint32(id.Item+1))...)
	return append(b, index.Uint64(id.Version)...)
}

// policyPrefix is what the keys of all rules of a policy begin with.
func policyPrefix(id PolicyID) index.Key { return append(id.Key(), 0) }

// String is as in "NetworkPolicy/shop/web spec.ingress[0]", with the field.
func (r *EnforcedRule) String() string { return r.Policy.String() + " " + r.Field }

// Equal reports whether two rows say the same.
func (r *EnforcedRule) Equal(o *EnforcedRule) bool {
	return r.RuleID == o.RuleID && r.Field == o.Field && r.Revision == o.Revision && r.Subject == o.Subject &&
		r.DefaultDeny == o.DefaultDeny && r.Deny == o.Deny && r.AnyPeer == o.AnyPeer && r.Retired == o.Retired &&
		slices.Equal(r.Peers, o.Peers) && slices.Equal(r.Ports, o.Ports)
}

// Verdict is what the rule does to traffic.
func (r *EnforcedRule) Verdict() string {
	switch {
	case r.DefaultDeny:
		return "default deny"
	case r.Deny:
		return "deny"
	}
	return "allow"
}

// TableHeader implements [statedb.TableWritable].
func (*EnforcedRule) TableHeader() []string {
	return []string{"Policy", "Field", "Direction", "Verdict", "Subject", "Peers", "Ports", "Retired"}
}

// TableRow implements [statedb.TableWritable].
func (r *EnforcedRule) TableRow() []string {
	peers := listColumn(stringsOf(r.Peers), ",")
	if r.AnyPeer {
		peers = "any"
	}
	return []string{
		r.Policy.String(), r.Field, r.Direction.String(), r.Verdict(), r.Subject.String(), peers,
		listColumn(stringsOf(r.Ports), ","), strconv.FormatBool(r.Retired),
	}
}

var (
	enforcedRuleIDIndex = statedb.Index[*EnforcedRule, RuleID]{
		Name:       "id",
		FromObject: func(r *EnforcedRule) index.KeySet { return index.NewKeySet(r.RuleID.Key()) },
		FromKey:    RuleID.Key,
		FromString: func(s string) (index.Key, error) { return append(index.String(s), 0), nil },
		Unique:     true,
	}

	// Retired rules are of their selectors too, which they keep alive.
	enforcedRuleSelectorIndex = selectorIndex((*EnforcedRule).Selectors)

	// EnforcedRuleByID queries one rule.
	EnforcedRuleByID = enforcedRuleIDIndex.Query

	// EnforcedRulesBySelector queries the rules that name a selector, as their
	// subject, among their peers, or as the name of a port; retired ones too.
	EnforcedRulesBySelector = enforcedRuleSelectorIndex.Query
)

// EnforcedRulesOfPolicy queries, with Prefix, the rules of a policy.
func EnforcedRulesOfPolicy(id PolicyID) statedb.Query[*EnforcedRule] {
	return enforcedRuleIDIndex.QueryFromKey(policyPrefix(id))
}

// Selectors returns all selectors that the rule names, each once.
func (r *EnforcedRule) Selectors() []SelectorID {
	ids := append([]SelectorID{r.Subject}, r.Peers...)
	for _, p := range r.Ports {
		if p.Name != "" {
			ids = append(ids, PortSelectorID(NamedPortRole(r.Direction), p.Name, p.Protocol))
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// NamedPortRole returns on which side the name of a port is resolved: on the
// subject's own for what comes in, on the peer for what goes out.
func NamedPortRole(d bpf.Direction) bpf.Role {
	if d == bpf.DirectionIngress {
		return bpf.RoleSubject
	}
	return bpf.RolePeer
}

// NewEnforcedRuleTable creates the table of the rules that are in force.
func NewEnforcedRuleTable(db *statedb.DB) (statedb.RWTable[*EnforcedRule], error) {
	return statedb.NewTable(db, "policy-rules", enforcedRuleIDIndex, enforcedRuleSelectorIndex)
}
