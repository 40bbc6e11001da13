// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"iter"
	"slices"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// RulesOf returns the rules that a policy asks for, in order: for each direction a
// default if that is to deny, and the items that can have an effect.
func RulesOf(p *tables.NetworkPolicy) []*tables.EnforcedRule {
	var rules []*tables.EnforcedRule
	for i, rule := range p.Rules {
		subject := tables.SubjectSelectorID(rule.Subject)
		for _, d := range directions {
			said := rule.Ingress
			if d == bpf.DirectionEgress {
				said = rule.Egress
			}
			template := tables.EnforcedRule{
				RuleID:  tables.RuleID{Policy: p.ID(), Rule: int32(i), Direction: d, Item: -1},
				Subject: subject,
			}
			if said.DefaultDeny {
				r := template
				r.Field, r.DefaultDeny = defaultField(rule.Field, d), true
				rules = append(rules, &r)
			}
			for j, traffic := range said.Traffic {
				r := template
				r.Item, r.Field, r.Deny, r.Ports = int32(j), traffic.Field, traffic.Deny, traffic.Ports
				if r.AnyPeer, r.Peers = peersOf(traffic); r.AnyPeer || len(r.Peers) > 0 {
					rules = append(rules, &r)
				}
			}
		}
	}
	return rules
}

// specDefaults are texts that the policies share which have but one rule: most do.
var specDefaults = [...]string{bpf.DirectionIngress: "spec.ingress", bpf.DirectionEgress: "spec.egress"}

// defaultField is where in the object the default of a direction is.
func defaultField(rule string, d bpf.Direction) string {
	if rule == "spec" {
		return specDefaults[d]
	}
	return rule + "." + d.String()
}

// saysNothing reports whether a policy asks for no rules.
func saysNothing(p *tables.NetworkPolicy) bool {
	hasEffect := func(t tables.PolicyTraffic) bool {
		return t.AnyPeer || slices.ContainsFunc(t.Peers, func(p tables.PolicyPeer) bool { return !p.Nobody() })
	}
	return !slices.ContainsFunc(p.Rules, func(r tables.PolicyRule) bool {
		return r.Ingress.DefaultDeny || r.Egress.DefaultDeny ||
			slices.ContainsFunc(r.Ingress.Traffic, hasEffect) || slices.ContainsFunc(r.Egress.Traffic, hasEffect)
	})
}

// peersOf returns the selectors of the peers of an item, each once and in order,
// or that it is about any.
func peersOf(t tables.PolicyTraffic) (anyone bool, ids []tables.SelectorID) {
	if t.AnyPeer || slices.ContainsFunc(t.Peers, tables.PolicyPeer.Anyone) {
		return true, nil
	}
	for _, p := range t.Peers {
		if !p.Nobody() {
			ids = append(ids, tables.PeerSelectorID(p))
		}
	}
	slices.Sort(ids)
	return false, slices.Compact(ids)
}

// selectorsOf yields the selectors that a rule names, with their roles.
func selectorsOf(r *tables.EnforcedRule) iter.Seq2[bpf.Role, tables.SelectorID] {
	return func(yield func(bpf.Role, tables.SelectorID) bool) {
		if !yield(bpf.RoleSubject, r.Subject) {
			return
		}
		for _, id := range r.Peers {
			if !yield(bpf.RolePeer, id) {
				return
			}
		}
		role := tables.NamedPortRole(r.Direction)
		for _, p := range r.Ports {
			if p.Name != "" && !yield(role, tables.PortSelectorID(role, p.Name, p.Protocol)) {
				return
			}
		}
	}
}
