// SPDX-License-Identifier: Apache-2.0

package subjects

import (
	"crypto/sha256"
	"fmt"
	"slices"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

// said is a rule of a policy that selects a label set, with the selectors of its peers.
type said struct {
	*tables.Rule
	*peersOf
}

// peersOf are the selectors of the peers of an item. They are the same for all label sets that its
// policy selects, and there may be as many as an object has room for.
type peersOf struct {
	selectors []tables.SelectorSpec
	digest    bpf.Digest // of their texts
	entries   int        // of the peers and their exceptions
}

func newPeersOf(
	peers []tables.PolicyPeer, isForeign func(tables.SelectorSpec) bool,
) *peersOf {
	of := &peersOf{selectors: tables.SelectorSpecs(peers)}
	h := sha256.New()
	for i, s := range of.selectors {
		of.selectors[i].Foreign = isForeign(s)
		fmt.Fprintf(h, "%d %s\n", len(s.Text), s.Text)
		for _, peer := range s.Peers {
			of.entries++
			if peer.PeerPrefixes != nil {
				of.entries += len(peer.Except)
			}
		}
	}
	of.digest = bpf.Digest(h.Sum(nil)[:16])
	return of
}

var noPeers = newPeersOf(nil, nil)

// peers returns the selectors of an item of a policy, which are made once.
func (c *round) peers(id tables.PolicyID, t *tables.PolicyTraffic) *peersOf {
	of := c.peersOf[t]
	if of == nil {
		of = newPeersOf(t.Peers, func(s tables.SelectorSpec) bool {
			return s.IsForeign(id.Name.Namespace, c.CIDRMatch.Pods, c.matcher)
		})
		c.peersOf[t] = of
	}
	return of
}

// ruleset returns the number of the ruleset of a label set: the rules of all its network policies.
func (c *round) ruleset(set *tables.LabelSet) (uint32, error) {
	if c.Enforcement == tables.EnforcementNever {
		return bpf.EmptyRuleset, nil
	}
	var all []said
	room := int(c.MaxEntries)
	policies, _ := c.networkPolicies(set)
	for _, p := range policies {
		all = append(all, c.rulesOf(p, set, &room)...)
	}
	for _, s := range all {
		c.work += len(s.selectors)
	}
	alwaysDeny := c.Enforcement == tables.EnforcementAlways
	if len(all) == 0 && !alwaysDeny {
		return bpf.EmptyRuleset, nil
	}
	r := &tables.Ruleset{
		Digest: digestOf(all, alwaysDeny), AlwaysDeny: alwaysDeny,
		Policies: tables.PoliciesOf(idsOf(all)),
	}
	existing, _, found := c.Rulesets.Get(c.out, tables.RulesetByDigest(r.Digest))
	if found {
		refusal, _, refused := c.Refusals.Get(c.in, tables.RefusalOfRuleset(existing.Number))
		noRoom, err := c.noRoom(r.Namespace(), all)
		switch {
		case err != nil:
			return 0, err
		case refused:
			return c.isolate(existing, "", refusal.Needs)
		case noRoom != "":
			return c.isolate(existing, noRoom, tables.RulesetSize{})
		}
		return existing.Number, c.desire(existing)
	}
	for _, s := range all {
		r.Rules = append(r.Rules, s.Rule)
	}
	if r.Needs = c.neededBefore(r); r.Needs != (tables.RulesetSize{}) && !c.hasRoom(r) {
		return c.isolate(r, "", r.Needs)
	}
	tooLarge := c.tooLarge(all)
	if tooLarge == "" {
		var err error
		if tooLarge, err = c.noRoom(r.Namespace(), all); err != nil {
			return 0, err
		}
	}
	if tooLarge != "" {
		return c.isolate(r, tooLarge, tables.RulesetSize{})
	}
	r.Number = c.number()
	for _, s := range all {
		for _, spec := range s.selectors {
			number, err := c.selector(spec, r.Namespace())
			if err != nil {
				return 0, err
			}
			s.Peers = append(s.Peers, number)
		}
		slices.Sort(s.Peers)
	}
	c.share(r)
	if c.sizes != nil {
		c.sizes.add(r.Namespace(), r.Needs.Entries, r.Needs.Verdicts)
	}
	return r.Number, derive.Insert(c.out, c.Rulesets, r)
}

// desire has a ruleset desired from now on.
func (c *round) desire(r *tables.Ruleset) error {
	if !r.Undesired {
		return nil
	}
	desired := *r
	desired.Undesired = false
	return derive.Insert(c.out, c.Rulesets, &desired)
}

func idsOf(rules []said) []tables.RuleID {
	ids := make([]tables.RuleID, len(rules))
	for i, r := range rules {
		ids[i] = r.RuleID
	}
	return ids
}

// networkPolicies returns the policies with a rule about a label set of this node, in order.
// unknown says that others may have one, by labels of a namespace without an object.
func (c *round) networkPolicies(
	set *tables.LabelSet,
) (policies []*tables.NetworkPolicy, unknown bool) {
	namespace, _, _ := c.Namespaces.Get(c.in, tables.NamespaceByName(set.Namespace))
	seen := map[*tables.NetworkPolicy]bool{}
	for anchor := range set.Anchors {
		for p := range tables.ListIfAny(c.in, c.NetworkPolicies, tables.NetworkPoliciesBySubject(anchor)) {
			if seen[p] {
				continue
			}
			seen[p] = true
			c.work += len(p.Rules)
			selected := false
			for _, r := range p.Rules {
				m := c.matcher(r.Subject)
				selected = selected || m.Matches(set, namespace)
				unknown = unknown || namespace == nil && m.MayMatch(set)
			}
			if selected {
				policies = append(policies, p)
			}
		}
	}
	slices.SortFunc(policies, func(a, b *tables.NetworkPolicy) int { return a.ID().Compare(b.ID()) })
	return policies, unknown
}

// compiled notes that the rulesets of all label sets that a policy selects have its present rules:
// its key is computed after those of their pods.
func (c *round) compiled(id tables.PolicyID) error {
	row := &tables.CompiledPolicy{Policy: id}
	if id.Kind == tables.PolicyEgress {
		p, revision, found := c.EgressPolicies.Get(c.in, tables.EgressPolicyByName(id.Name.Name))
		if !found {
			return derive.Delete(c.out, c.Compiled, row)
		}
		row.Generation, row.Revision = p.Generation, revision
		return derive.Insert(c.out, c.Compiled, row)
	}
	p, revision, found := c.NetworkPolicies.Get(c.in, tables.NetworkPolicyByID(id))
	if !found {
		return derive.Delete(c.out, c.Compiled, row)
	}
	row.Generation, row.Revision = p.Generation, revision
	return derive.Insert(c.out, c.Compiled, row)
}

var directions = [...]bpf.Direction{bpf.DirectionEgress, bpf.DirectionIngress} // in order

// rulesOf returns the rules of a policy for a label set, in order: for each direction a default
// deny if there is one, and the items that can have an effect. It takes from room what they need at
// least. When there is less than none, they are too large, and one for each direction is enough.
func (c *round) rulesOf(
	p *tables.NetworkPolicy, set *tables.LabelSet, room *int,
) (rules []said) {
	namespace, _, _ := c.Namespaces.Get(c.in, tables.NamespaceByName(set.Namespace))
	for i, rule := range p.Rules {
		if !c.matcher(rule.Subject).Matches(set, namespace) {
			continue
		}
		for _, d := range directions {
			direction := rule.Ingress
			if d == bpf.DirectionEgress {
				direction = rule.Egress
			}
			id := tables.RuleID{Policy: p.ID(), Rule: int32(i), Direction: d, Item: -1}
			if direction.DefaultDeny {
				id.Field = rule.Field + "." + d.String()
				rule := &tables.Rule{RuleID: id, DefaultDeny: true}
				rules = append(rules, said{rule, noPeers})
			}
			has := direction.DefaultDeny
			for j := range direction.Traffic {
				if has && *room < 0 {
					break
				}
				c.work++
				traffic := &direction.Traffic[j]
				id.Item, id.Field = int32(j), traffic.Field
				s, hasEffect := c.itemOf(id, traffic, set)
				if !hasEffect || s.NoPorts && has {
					continue // one without ports says at most that the policy is about the pod
				}
				rules, has = append(rules, s), true
				if !s.NoPorts { // else it takes no entry
					*room--
				}
			}
		}
	}
	return rules
}

// itemOf returns the rule of an item of a policy for a label set. It has no effect without peers.
func (c *round) itemOf(
	id tables.RuleID, t *tables.PolicyTraffic, set *tables.LabelSet,
) (s said, hasEffect bool) {
	r := &tables.Rule{RuleID: id, Deny: t.Deny, Ports: t.Ports}
	r.AnyPeer = t.AnyPeer || slices.ContainsFunc(t.Peers, tables.PolicyPeer.MatchesEverything)
	s = said{r, noPeers}
	if !r.AnyPeer {
		s.peersOf = c.peers(id.Policy, t)
		r.DeniesCoarse = t.Deny && slices.ContainsFunc(s.selectors,
			func(spec tables.SelectorSpec) bool { return spec.Foreign })
	}
	if id.Direction == bpf.DirectionIngress {
		r.Ports = resolved(t.Ports, set.NamedPorts)
		r.NoPorts = len(t.Ports) > 0 && len(r.Ports) == 0
	}
	return s, r.AnyPeer || len(s.selectors) > 0
}

// resolved returns ports with the numbers of a label set for their names.
func resolved(ports []tables.PolicyPort, named []tables.NamedPort) []tables.PolicyPort {
	if !slices.ContainsFunc(ports, func(p tables.PolicyPort) bool { return p.Name != "" }) {
		return ports
	}
	var numbers []tables.PolicyPort
	for _, p := range ports {
		if p.Name == "" {
			numbers = append(numbers, p)
			continue
		}
		for _, n := range named {
			if n.Name == p.Name && n.Protocol == p.Protocol {
				numbers = append(numbers,
					tables.PolicyPort{Protocol: p.Protocol, First: n.Port, Last: n.Port})
			}
		}
	}
	return numbers
}

// digestOf identifies the content of a ruleset.
func digestOf(rules []said, alwaysDeny bool) bpf.Digest {
	h := sha256.New()
	fmt.Fprintln(h, alwaysDeny)
	for _, r := range rules {
		fmt.Fprintf(h, "%s %d %d %d %t %t %t %t\n",
			r.RuleID, r.Rule.Rule, r.Direction, r.Item, r.DefaultDeny, r.Deny, r.AnyPeer, r.NoPorts)
		for _, p := range r.Ports { // the text of a port does not distinguish the name all
			fmt.Fprintf(h, "%d %d %d %q\n", p.Protocol, p.First, p.Last, p.Name)
		}
		h.Write(r.digest[:])
	}
	return bpf.Digest(h.Sum(nil)[:16])
}
