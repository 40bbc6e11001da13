// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/statedb/index"

	"github.com/sluice-net/sluice/bpf"
)

// EnforcedRule is what one item of a policy says of one direction, as it is in
// force or was: see [EnforcedPolicy].
type EnforcedRule struct {
	RuleID `yaml:",inline"`

	Field string `json:"field"` // of the object, such as spec.ingress[1]

	// Subject is the selector of the pods that it is about.
	Subject SelectorID `json:"subject"`

	// DefaultDeny is set in the rule about the default of a direction, which says
	// nothing else.
	DefaultDeny bool `json:"defaultDeny,omitempty"`

	Deny    bool         `json:"deny,omitempty"`
	AnyPeer bool         `json:"anyPeer,omitempty"`
	Peers   []SelectorID `json:"peers,omitempty"` // in order
	Ports   []PolicyPort `json:"ports,omitempty"` // none: all
}

// RuleID identifies an [EnforcedRule].
type RuleID struct {
	Policy    PolicyID      `json:"policy"`
	Rule      int32         `json:"rule"` // index of the policy's spec
	Direction bpf.Direction `json:"direction"`
	Item      int32         `json:"item"`              // index of the traffic, -1 of the default
	Version   uint64        `json:"version,omitempty"` // of a retired one: a digest of its selectors
}

// digested is what the cookies of entries are a digest of.
func (id RuleID) digested() []byte {
	b := append(index.String(id.Policy.String()), 0)
	b = append(b, index.Uint32(uint32(id.Rule))...)
	b = append(b, byte(id.Direction))
	b = append(b, index.Uint32(uint32(id.Item+1))...)
	return append(b, index.Uint64(id.Version)...)
}

// Compare orders rules by policy, then as they are in it.
func (id RuleID) Compare(o RuleID) int {
	return cmp.Or(
		cmp.Compare(id.Policy.Kind, o.Policy.Kind),
		strings.Compare(id.Policy.Namespace, o.Policy.Namespace),
		strings.Compare(id.Policy.Name.Name, o.Policy.Name.Name),
		cmp.Compare(id.Rule, o.Rule),
		cmp.Compare(id.Direction, o.Direction),
		cmp.Compare(id.Item, o.Item),
		cmp.Compare(id.Version, o.Version),
	)
}

// String is as in "NetworkPolicy/shop/web spec.ingress[0]", with the field.
func (r *EnforcedRule) String() string { return r.Policy.String() + " " + r.Field }

// Equal reports whether two rules are the same.
func (r *EnforcedRule) Equal(o *EnforcedRule) bool {
	return r == o || r.Field == o.Field && r.SameVerdicts(o)
}

// SameVerdicts reports whether two versions of a rule say the same of all traffic,
// wherever they are in the object.
func (r *EnforcedRule) SameVerdicts(o *EnforcedRule) bool {
	return r.RuleID == o.RuleID && r.Subject == o.Subject && r.DefaultDeny == o.DefaultDeny && r.Deny == o.Deny &&
		r.AnyPeer == o.AnyPeer && slices.Equal(r.Peers, o.Peers) && slices.Equal(r.Ports, o.Ports)
}

// SameButPeers reports whether two versions of a rule about some peers say the same,
// though perhaps of others.
func (r *EnforcedRule) SameButPeers(o *EnforcedRule) bool {
	same := *r
	same.Peers = o.Peers
	return !r.DefaultDeny && !r.AnyPeer && same.SameVerdicts(o)
}

// Without returns the rule for those of its peers that another one does not name.
func (r *EnforcedRule) Without(o *EnforcedRule) *EnforcedRule {
	rest := *r
	rest.Peers = slices.DeleteFunc(slices.Clone(r.Peers), o.NamesPeer)
	return &rest
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

// text is as in "spec.ingress[0]: allow pods(app=web) +2 at 80/tcp", of three peers,
// with the selectors by the names that they are given.
func (r *EnforcedRule) text(name func(SelectorID) string) string {
	text := r.Field + ": " + r.Verdict()
	switch {
	case r.DefaultDeny:
	case r.AnyPeer:
		text += " any"
	case len(r.Peers) == 0:
		text += " none"
	default:
		text += " " + name(r.Peers[0])
	}
	if more := len(r.Peers) - 1; more > 0 {
		text += " +" + strconv.Itoa(more)
	}
	if len(r.Ports) > 0 {
		text += " at " + strings.Join(stringsOf(r.Ports), ",")
	}
	return text
}

// Selectors returns all selectors that the rule names, each once and in order.
func (r *EnforcedRule) Selectors() []SelectorID {
	ids := r.appendSelectors(make([]SelectorID, 0, 1+len(r.Peers)+len(r.Ports)))
	slices.Sort(ids)
	return slices.Compact(ids)
}

func (r *EnforcedRule) appendSelectors(ids []SelectorID) []SelectorID {
	ids = append(append(ids, r.Subject), r.Peers...)
	for _, p := range r.Ports {
		if p.Name != "" {
			ids = append(ids, PortSelectorID(NamedPortRole(r.Direction), p.Name, p.Protocol))
		}
	}
	return ids
}

// Names reports whether the rule names a selector, whatever for.
func (r *EnforcedRule) Names(id SelectorID) bool {
	return r.Subject == id || r.NamesPeer(id) || slices.ContainsFunc(r.Ports, func(p PolicyPort) bool {
		return p.Name != "" && PortSelectorID(NamedPortRole(r.Direction), p.Name, p.Protocol) == id
	})
}

// NamesPeer reports whether a selector is among the peers of the rule.
func (r *EnforcedRule) NamesPeer(id SelectorID) bool {
	_, found := slices.BinarySearch(r.Peers, id)
	return found
}

// NamesPort reports whether the rule is about a port of a name.
func (r *EnforcedRule) NamesPort(name string, protocol uint8) bool {
	return slices.ContainsFunc(r.Ports, func(p PolicyPort) bool { return p.Name == name && p.Protocol == protocol })
}

// NamedPortRole returns on which side the name of a port is resolved: on the
// subject's own for what comes in, on the peer for what goes out.
func NamedPortRole(d bpf.Direction) bpf.Role {
	if d == bpf.DirectionIngress {
		return bpf.RoleSubject
	}
	return bpf.RolePeer
}
