// SPDX-License-Identifier: Apache-2.0

package subjects

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// What the outputs say, as the oracle renders what they must say.

func (o *oracle) actualPods() map[netip.Addr]string {
	pods := map[netip.Addr]string{}
	for _, p := range all(o.txn, o.Pods) {
		if !p.Local {
			s, _, _ := o.Subjects.Get(o.txn, tables.SubjectByNumber(p.Subject))
			pods[p.Addr] = fmt.Sprintf("%s elsewhere\n%s", p.Endpoint, o.actualEgress(s.Number))
			continue
		}
		said := "held"
		if s, _, found := o.Subjects.Get(o.txn, tables.SubjectByNumber(p.Subject)); found {
			said = o.actualRuleset(s.Ruleset) + o.actualEgress(s.Number)
		}
		pods[p.Addr] = fmt.Sprintf("%s local %d %s\n%s", p.Endpoint, p.IfIndex, p.MAC, said)
	}
	return pods
}

func (o *oracle) actualRuleset(number uint32) string {
	if number == bpf.EmptyRuleset {
		return "empty\n"
	}
	r, _, found := o.Rulesets.Get(o.txn, tables.RulesetByNumber(number))
	if !found {
		return fmt.Sprintf("there is no ruleset %d\n", number)
	}
	var b strings.Builder
	if r.AlwaysDeny {
		b.WriteString("always deny\n")
	}
	for _, rule := range r.Rules {
		if rule.DefaultDeny {
			fmt.Fprintf(&b, "%s default deny\n", rule.RuleID)
			continue
		}
		var peers, ports []string
		if rule.AnyPeer {
			peers = []string{"any"}
		}
		for _, number := range rule.Peers {
			s, _, found := o.Selectors.Get(o.txn, tables.SelectorByNumber(number))
			if !found {
				return fmt.Sprintf("there is no selector %d\n", number)
			}
			for _, p := range s.Peers {
				peers = append(peers, p.String())
			}
		}
		for _, p := range rule.Ports {
			ports = append(ports, portText(p))
		}
		fmt.Fprintf(&b, "%s deny=%t none=%t %v %v\n",
			rule.RuleID, rule.Deny, rule.NoPorts, sorted(peers), ports)
	}
	return b.String()
}

func (o *oracle) actualEgress(subject uint32) string {
	route, _, found := o.Routes.Get(o.txn, tables.RouteBySubject(subject))
	if !found {
		return ""
	}
	return o.actualEgressRuleset(route.EgressRuleset)
}

func (o *oracle) actualEgressRuleset(number uint32) string {
	r, _, found := o.EgressRulesets.Get(o.txn, tables.EgressRulesetByNumber(number))
	if !found {
		return fmt.Sprintf("there is no egress ruleset %d", number)
	}
	var lines []string
	for rule := range o.EgressRules.Prefix(o.txn, tables.EgressRulesOfRuleset(number)) {
		group := "excluded"
		if rule.Group != bpf.GroupExcluded {
			g, _, found := o.Groups.Get(o.txn, tables.EgressGroupByNumber(rule.Group))
			if !found {
				return fmt.Sprintf("there is no group %d", rule.Group)
			}
			group = fmt.Sprint(specsOf(g))
		}
		lines = append(lines, fmt.Sprintf("%s -> %s %s %s %v\n",
			rule.Destination, group, rule.Policy, rule.Selector, rule.Overrides))
	}
	return fmt.Sprintln("egress", r.Policies) + strings.Join(sorted(lines), "")
}

func specsOf(g *tables.EgressGroup) (specs []tables.GatewaySpec) {
	for _, c := range g.Gateways {
		specs = append(specs, c.Spec)
	}
	return specs
}

func actualElection(g *tables.EgressGroup) string {
	var choices []string
	for _, c := range g.Gateways {
		if c.Node == "" {
			choices = append(choices, "none")
		} else {
			choices = append(choices, c.Node+" "+c.Addr.String())
		}
	}
	return fmt.Sprint(choices, g.Local, g.Policies)
}

func (o *oracle) actualResolution(
	s *tables.Selector, sets []*tables.LabelSet, prefixes []netip.Prefix,
) string {
	var b strings.Builder
	for _, set := range sets {
		namespace, _, _ := o.Namespaces.Get(o.txn, tables.NamespaceByName(set.Namespace))
		fmt.Fprint(&b, s.MatchesLabels(set, namespace), " ")
	}
	for _, prefix := range prefixes {
		fmt.Fprint(&b, s.Contains(prefix), " ")
	}
	return b.String()
}
