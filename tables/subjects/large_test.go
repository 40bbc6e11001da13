// SPDX-License-Identifier: Apache-2.0

package subjects

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

// What a large policy comes to is made once for all label sets, and not at all beyond what is too
// large: with it for each of 50 label sets an edit held up all other policies for seconds.
func TestLargePolicyIsReadOnce(t *testing.T) {
	h := newHarness(t, tables.EnforcementDefault, CIDRMatch{})
	h.Namespaces.Put(&tables.Namespace{Name: "n1"})
	c := &round{
		rule: &rule{params: h.params}, in: h.db.ReadTxn(),
		matchers: map[tables.EgressSelector]*tables.PodMatcher{},
		peersOf:  map[*tables.PolicyTraffic]*peersOf{},
	}
	p := allow("p", "", 80, tables.PolicyPeer{Kind: tables.PeerPods, Pods: inN1("app=peer")})
	rulesOf := func(app string, room int) []said { return c.rulesOf(p, setOf(app), &room) }
	a, b := rulesOf("a", 100), rulesOf("b", 100)
	require.Len(t, a, 2)
	require.Same(t, a[1].peersOf, b[1].peersOf)

	egress := &p.Rules[0].Egress
	for i := range 1000 {
		egress.Traffic = append(egress.Traffic, tables.PolicyTraffic{
			Field: fmt.Sprintf("spec.egress[%d]", i), AnyPeer: true,
		})
	}
	few := rulesOf("a", 10)
	require.Len(t, few, 12, "more than there is room for, and a rule of the other direction")
	require.True(t, few[len(few)-1].DefaultDeny)
	require.Len(t, isolation([]*tables.Rule{few[0].Rule, few[11].Rule}), 2)
	require.Len(t, rulesOf("a", -1), 2)
	require.Len(t, rulesOf("a", 2000), 1002)

	// What takes no entry does not make a policy too large, and takes no memory for each label set.
	for i := range 1000 {
		p.Rules[0].Ingress.Traffic = append(p.Rules[0].Ingress.Traffic, tables.PolicyTraffic{
			Field: fmt.Sprintf("spec.ingress[%d]", i+1), AnyPeer: true,
			Ports: []tables.PolicyPort{{Protocol: 6, Name: "none"}},
		})
	}
	require.Len(t, rulesOf("a", 1001), 1002)
	p.Rules[0].Ingress.DefaultDeny = false
	p.Rules[0].Ingress.Traffic = p.Rules[0].Ingress.Traffic[1:]
	require.Len(t, rulesOf("a", 1001), 1001, "one says that the policy is about the pod")
}

// A policy with many rules is read for some label sets at a time, so that it holds up no other. The
// policies are compiled after all of their pods.
func TestManyRulesOfManyLabelSets(t *testing.T) {
	const labelSets, rules = 20, 100
	h := newHarness(t, tables.EnforcementDefault, CIDRMatch{})
	h.rule.maxWork = 2 * rules
	h.Namespaces.Put(&tables.Namespace{Name: "n1"})
	h.Nodes.Put(node(here, nil))
	for i := range labelSets {
		h.Locals.Put(localPod(i, fmt.Sprint("app-", i)))
		h.NetworkPolicies.Put(allow(fmt.Sprint("own-", i), fmt.Sprint("app=app-", i), 80))
	}
	h.work()
	var items []tables.PolicyTraffic
	for i := range rules {
		items = append(items, tables.PolicyTraffic{
			Field: fmt.Sprintf("spec.ingress[%d]", i), AnyPeer: true,
			Ports: []tables.PolicyPort{{Protocol: 6, First: uint16(i + 1), Last: uint16(i + 1)}},
		})
	}
	large := allowing("large", items...)
	large.Rules[0].Subject = inN1("app!=other")
	with := func() (n int) {
		for s := range h.rule.Subjects.All(h.db.ReadTxn()) {
			r, _, _ := h.Rulesets.Get(h.db.ReadTxn(), tables.RulesetByNumber(s.Ruleset))
			if r != nil && len(r.Rules) > rules {
				n++
			}
		}
		return n
	}
	isCompiled := func() bool {
		row, _, found := h.rule.Compiled.Get(h.db.ReadTxn(), tables.CompiledPolicyByID(large.ID()))
		return found && row.Generation == large.Generation
	}
	h.NetworkPolicies.Put(large)
	h.step.Step()
	h.Locals.Put(localPod(labelSets, "other"))
	h.NetworkPolicies.Put(allow("small", "app=other", 80))
	h.step.Step()
	small := h.rulesetOf(localPod(labelSets, "other").Addr)
	require.NotNil(t, small, "others go first")
	for before := with(); h.step.Step(); before = with() {
		require.LessOrEqual(t, with()-before, 2)
		require.False(t, isCompiled() && with() < labelSets)
	}
	require.Equal(t, labelSets, with())
	require.True(t, isCompiled())

	// They share the rules, also those of the former version of the policy.
	shared := map[*tables.Rule]bool{}
	count := func() int {
		clear(shared)
		for s := range h.rule.Subjects.All(h.db.ReadTxn()) {
			r, _, _ := h.Rulesets.Get(h.db.ReadTxn(), tables.RulesetByNumber(s.Ruleset))
			for _, rule := range r.Rules {
				if rule.Policy == large.ID() {
					shared[rule] = true
				}
			}
		}
		return len(shared)
	}
	require.Equal(t, rules+1, count())
	former := maps.Clone(shared)
	edited := *large
	edited.Rules = slices.Clone(large.Rules)
	edited.Rules[0].Ingress.Traffic = append(items[:0:0], items...)
	edited.Rules[0].Ingress.Traffic[7].Deny = true
	h.NetworkPolicies.Put(&edited)
	h.work()
	require.Equal(t, rules+1, count())
	maps.DeleteFunc(shared, func(r *tables.Rule, _ bool) bool { return former[r] })
	require.Len(t, shared, 1)
}

// The same of egress policies with many prefixes.
func TestManyPrefixesOfManyLabelSets(t *testing.T) {
	const labelSets, prefixes = 20, 100
	h := newHarness(t, tables.EnforcementDefault, CIDRMatch{})
	h.rule.maxWork = 2 * prefixes
	h.Namespaces.Put(&tables.Namespace{Name: "n1"})
	h.Nodes.Put(node(here, nil))
	for i := range labelSets {
		h.Locals.Put(localPod(i, fmt.Sprint("app-", i)))
	}
	h.work()
	large := redirect("large", "app!=other", "1.0.0.0/32", "zone=a")
	for i := range prefixes - 1 {
		large.Destinations = append(large.Destinations,
			netip.PrefixFrom(netip.AddrFrom4([4]byte{1, 0, 0, byte(i + 1)}), 32))
	}
	routed := func() int { return h.Routes.NumObjects(h.db.ReadTxn()) }
	h.EgressPolicies.Put(large)
	for before := 0; h.step.Step(); before = routed() {
		require.LessOrEqual(t, routed()-before, 4, "two of each queue")
	}
	require.Equal(t, labelSets, routed())
}
