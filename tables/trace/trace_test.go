// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/condition"
	"github.com/sluice-net/sluice/tables/tablestest"
)

func newTables(t testing.TB) Tables {
	db := statedb.New()
	return Tables{
		DB: db, Pods: tablestest.Open(t, db, tables.NewPodTable),
		EgressPolicies:  tablestest.Open(t, db, tables.NewEgressPolicyTable),
		EgressStatus:    tablestest.Open(t, db, tables.NewEgressPolicyStatusTable),
		EgressRulesets:  tablestest.Open(t, db, tables.NewEgressRulesetTable),
		EgressRules:     tablestest.Open(t, db, tables.NewEgressRuleTable),
		EgressMirror:    tablestest.Open(t, db, tables.NewEgressMirrorTable),
		EgressGroups:    tablestest.Open(t, db, tables.NewEgressGroupTable),
		EgressGateways:  tablestest.Open(t, db, tables.NewEgressGatewayTable),
		GatewayMirror:   tablestest.Open(t, db, tables.NewGatewayMirrorTable),
		Routes:          tablestest.Open(t, db, tables.NewSubjectRouteTable),
		RouteMirror:     tablestest.Open(t, db, tables.NewRouteMirrorTable),
		NetworkPolicies: tablestest.Open(t, db, tables.NewNetworkPolicyTable),
		NetworkStatus:   tablestest.Open(t, db, tables.NewNetworkPolicyStatusTable),
		Compiled:        tablestest.Open(t, db, tables.NewCompiledPolicyTable),
		Rulesets:        tablestest.Open(t, db, tables.NewRulesetTable),
		Selectors:       tablestest.Open(t, db, tables.NewSelectorTable),
		Matches:         tablestest.Open(t, db, tables.NewSelectorMatchTable),
		Entries:         tablestest.Open(t, db, tables.NewPolicyEntryTable),
		PolicyMirror:    tablestest.Open(t, db, tables.NewPolicyMirrorTable),
		Verdicts:        tablestest.Open(t, db, tables.NewVerdictTable),
		VerdictMirror:   tablestest.Open(t, db, tables.NewVerdictMirrorTable),
		Subjects:        tablestest.Open(t, db, tables.NewSubjectTable),
		SubjectMirror:   tablestest.Open(t, db, tables.NewSubjectMirrorTable),
	}
}

// addEgress adds an egress policy with rules of a ruleset of its own, of which the kernel
// refuses some.
func addEgress(t testing.TB, in Tables, number, rules, refused int) string {
	name := fmt.Sprint("policy-", number)
	tablestest.Insert(t, in.DB, in.EgressPolicies, &tables.EgressPolicy{Name: name})
	tablestest.Insert(t, in.DB, in.EgressStatus, &tables.EgressPolicyStatus{
		Policy: name, Rules: rules, Programmed: rules - refused, Failed: refused,
	})
	tablestest.Insert(t, in.DB, in.EgressRulesets, &tables.EgressRuleset{
		Life: tables.Life{Number: uint32(number)}, Digest: bpf.Digest{byte(number >> 8), byte(number)}, Policies: []string{name},
	})
	for i := range rules {
		rule := &tables.EgressRule{
			Ruleset:     uint32(number),
			Destination: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 32),
			Policy:      name, Reconciled: tables.Done(),
		}
		if i >= rules-refused {
			rule.Status = reconciler.StatusError(errors.New("map full"))
		} else {
			tablestest.Insert(t, in.DB, in.EgressMirror, &tables.EgressMirror{
				Key: rule.MapKey(), Value: rule.MapValue(), Present: true, Desired: true,
			})
		}
		tablestest.Insert(t, in.DB, in.EgressRules, rule)
	}
	return "CiliumEgressGatewayPolicy/" + name
}

func (s *Trace) step(t testing.TB, table string) Step {
	for _, step := range s.Steps {
		if step.Table == table {
			return step
		}
	}
	require.Fail(t, "no step", table)
	return Step{}
}

// Of many rows those with problems are shown first, and the counts include all.
func TestProblemsFirst(t *testing.T) {
	in := newTables(t)
	policy := addEgress(t, in, 1, 250, 3)
	s, err := New(in).Build(policy)
	require.NoError(t, err)
	require.Equal(t, condition.Error, s.Condition)
	rules := s.step(t, "egress-rules")
	require.Equal(t, 250, rules.Total)
	require.Equal(t, condition.Counts{Errors: 3}, rules.Counts)
	require.Len(t, rules.Rows, MaxRows)
	require.Len(t, rules.Conditions, MaxRows)
	require.Equal(t, []condition.Condition{condition.Error, condition.Error, condition.Error, condition.Fine}, rules.Conditions[:4])
	require.Equal(t, "map full", rules.Rows[0][len(rules.Columns)-1])
	require.Equal(t, 247, s.step(t, "map-egress").Total)

	// With MaxRows problems, no healthy row is shown.
	s, err = New(in).Build(addEgress(t, in, 2, 200, 150))
	require.NoError(t, err)
	rules = s.step(t, "egress-rules")
	require.Equal(t, 150, rules.Errors)
	require.NotContains(t, rules.Conditions, condition.Fine)
}

// What others there are costs nothing.
func TestCost(t *testing.T) {
	cost := func(others int) float64 {
		in := newTables(t)
		policy := addEgress(t, in, 1, 5, 0)
		for i := range others {
			addEgress(t, in, 2+i, 5, 0)
		}
		builder := New(in)
		return testing.AllocsPerRun(20, func() {
			_, err := builder.Build(policy)
			require.NoError(t, err)
		})
	}
	require.InEpsilon(t, cost(1), cost(1000), 0.1)
}

// The buckets of a group are summed up by what they are.
func TestShares(t *testing.T) {
	in := newTables(t)
	gateways := []tables.GatewaySpec{{Nodes: "egress=yes"}}
	tablestest.Insert(t, in.DB, in.EgressPolicies, &tables.EgressPolicy{
		Name: "a", Gateways: gateways,
	})
	tablestest.Insert(t, in.DB, in.EgressGroups, &tables.EgressGroup{
		Life: tables.Life{Number: 7}, Digest: tables.GroupDigest(gateways),
	})
	for bucket := range uint32(256) {
		g := &tables.EgressGateway{
			GatewayKey: bpf.GatewayKey{Group: 7, Bucket: bucket}, Node: "node-1",
			Reconciled: tables.Done(),
		}
		if bucket%4 == 3 {
			g.Node = "node-2"
		}
		if bucket == 255 {
			g.Status = reconciler.StatusPending()
		}
		tablestest.Insert(t, in.DB, in.EgressGateways, g)
	}
	tablestest.Insert(t, in.DB, in.EgressGateways, &tables.EgressGateway{
		GatewayKey: bpf.GatewayKey{Group: 8}, Node: "node-3",
	})
	s, err := New(in).Build("CiliumEgressGatewayPolicy/a")
	require.NoError(t, err)
	require.Equal(t, condition.Pending, s.Condition)
	step := s.step(t, "egress-gateways")
	require.Equal(t, "Buckets", step.Columns[1])
	var got [][]string
	for _, row := range step.Rows {
		got = append(got, []string{row[0], row[1], row[2], row[8]})
	}
	require.Equal(t, [][]string{{"7", "1", "node-2", "Pending"}, {"7", "192", "node-1", "Done"}, {"7", "63", "node-2", "Done"}}, got)
}

// What comes of a network policy is followed to the pods, with what the kernel has of it.
func TestNetwork(t *testing.T) {
	in := newTables(t)
	id := tables.PolicyID{Kind: tables.PolicyKubernetes, Name: tables.Name{Namespace: "shop", Name: "web"}}
	other := tables.PolicyID{Kind: tables.PolicyKubernetes, Name: tables.Name{Namespace: "shop", Name: "x"}}
	rule := &tables.Rule{RuleID: tables.RuleID{Policy: id, Direction: bpf.DirectionIngress}, Peers: []uint32{4}}
	tablestest.Insert(t, in.DB, in.NetworkPolicies,
		&tables.NetworkPolicy{Kind: id.Kind, Name: id.Name},
		&tables.NetworkPolicy{Kind: other.Kind, Name: other.Name})
	tablestest.Insert(t, in.DB, in.NetworkStatus, &tables.NetworkPolicyStatus{
		Policy: id, State: tables.PolicyInForce,
	})
	tablestest.Insert(t, in.DB, in.Compiled, &tables.CompiledPolicy{Policy: id})
	tablestest.Insert(t, in.DB, in.Rulesets,
		&tables.Ruleset{
			Life: tables.Life{Number: 2}, Digest: bpf.Digest{2},
			Policies: []tables.PolicyID{id, other},
			Rules:    []*tables.Rule{rule, {RuleID: tables.RuleID{Policy: other}, Peers: []uint32{5}}},
		},
		&tables.Ruleset{
			Life: tables.Life{Number: 3}, Digest: bpf.Digest{3},
			Policies: []tables.PolicyID{other},
			Rules:    []*tables.Rule{{RuleID: tables.RuleID{Policy: other}}},
		})
	peer := func(labels string) tables.SelectorSpec {
		return tables.SelectorSpecs([]tables.PolicyPeer{{Kind: tables.PeerPods, Pods: tables.EgressSelector{Pods: labels}}})[0]
	}
	tablestest.Insert(t, in.DB, in.Selectors,
		&tables.Selector{Life: tables.Life{Number: 4}, SelectorSpec: peer("app=client")},
		&tables.Selector{Life: tables.Life{Number: 5}, SelectorSpec: peer("app=other")})
	tablestest.Insert(t, in.DB, in.Matches,
		&tables.SelectorMatch{Selector: 4}, &tables.SelectorMatch{Selector: 5})
	verdict := &tables.Verdict{
		Key: bpf.VerdictKeyOf(6, 0, 0, 0), Value: bpf.VerdictValue{Cookie: 9},
		Rules: []tables.RuleID{rule.RuleID}, Reconciled: tables.Done(),
	}
	tablestest.Insert(t, in.DB, in.Verdicts, verdict)
	tablestest.Insert(t, in.DB, in.VerdictMirror, &tables.VerdictMirror{
		Key: verdict.Key, Value: verdict.Value, Present: true, Desired: true,
	})
	for _, ruleset := range []uint32{2, 3} {
		entry := &tables.PolicyEntry{Ruleset: ruleset, Direction: bpf.DirectionIngress, Set: 6, Reconciled: tables.Reconciled{Status: reconciler.StatusDone()}}
		tablestest.Insert(t, in.DB, in.Entries, entry)
		tablestest.Insert(t, in.DB, in.PolicyMirror, &tables.PolicyMirror{
			Key: entry.MapKey(), Value: entry.MapValue(), Present: true, Desired: true,
		})
		subject := &tables.Subject{Life: tables.Life{Number: 10 + ruleset}, Ruleset: ruleset, Reconciled: tables.Pending()}
		tablestest.Insert(t, in.DB, in.Subjects, subject)
		tablestest.Insert(t, in.DB, in.Pods, &tables.Pod{
			Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(ruleset)}), Subject: subject.Number, Local: true, Reconciled: tables.Reconciled{Status: reconciler.StatusDone()},
		})
	}

	// The subject has yet to be switched.
	builder := New(in)
	counts := func() (string, condition.Condition) {
		s, err := builder.Build("NetworkPolicy/shop/web")
		require.NoError(t, err)
		var text string
		for _, step := range s.Steps {
			text += fmt.Sprintf("%s %d\n", step.Table, step.Total)
		}
		return text, s.Condition
	}
	steps := "network-policies 1\nnetwork-policy-status 1\ncompiled-policies 1\nrulesets 1\nselectors 1\nselector-matches 1\n" +
		"policy-entries 1\nmap-policy 1\nverdicts 1\nmap-verdicts 1\nsubjects 1\nmap-subjects %d\npods 1\n"
	text, c := counts()
	require.Equal(t, fmt.Sprintf(steps, 0), text)
	require.Equal(t, condition.Pending, c)

	tablestest.Insert(t, in.DB, in.Subjects, &tables.Subject{
		Life: tables.Life{Number: 12}, Ruleset: 2,
		Reconciled: tables.Reconciled{Status: reconciler.StatusDone()},
	})
	tablestest.Insert(t, in.DB, in.SubjectMirror, &tables.SubjectMirror{
		Key: bpf.SubjectKey{Subject: 12}, Value: bpf.SubjectValue{Ruleset: 2}, Present: true, Desired: true,
	})
	text, c = counts()
	require.Equal(t, fmt.Sprintf(steps, 1), text)
	require.Equal(t, condition.Fine, c)
}

// What comes of an egress policy is followed to the routes of the pods.
func TestRoutes(t *testing.T) {
	in := newTables(t)
	policy := addEgress(t, in, 1, 2, 0)
	addEgress(t, in, 2, 1, 0)
	for _, number := range []uint32{1, 2} {
		route := &tables.SubjectRoute{Subject: 10 + number, EgressRuleset: number, Reconciled: tables.Reconciled{Status: reconciler.StatusDone()}}
		tablestest.Insert(t, in.DB, in.Routes, route)
		tablestest.Insert(t, in.DB, in.RouteMirror, &tables.RouteMirror{
			Key: route.MapKey(), Value: route.MapValue(), Present: true, Desired: true,
		})
		tablestest.Insert(t, in.DB, in.Pods, &tables.Pod{
			Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(number)}), Subject: route.Subject, Reconciled: tables.Reconciled{Status: reconciler.StatusDone()},
		})
	}
	s, err := New(in).Build(policy)
	require.NoError(t, err)
	require.Equal(t, condition.Fine, s.Condition)
	for table, want := range map[string][]string{
		"egress-rulesets": {"1"}, "subject-routes": {"11"}, "map-routes": {"subject=11"}, "pods": {"10.0.0.1"},
	} {
		var got []string
		for _, row := range s.step(t, table).Rows {
			got = append(got, row[0])
		}
		require.Equal(t, want, got, table)
	}
	require.Equal(t, 2, s.step(t, "map-egress").Total)
}

func TestNoSuchPolicy(t *testing.T) {
	builder := New(newTables(t))
	for policy, want := range map[string]Error{
		"":                            {Reason: `parse policy "": want kind/namespace/name`},
		"web":                         {Reason: `parse policy "web": want kind/namespace/name`},
		"CiliumEgressGatewayPolicy/a": {Reason: "there is no policy CiliumEgressGatewayPolicy/a", Absent: true},
		"NetworkPolicy/a/b":           {Reason: "there is no policy NetworkPolicy/a/b", Absent: true},
		"Pod/a/b": {Reason: `unknown kind "Pod": want CiliumClusterwideNetworkPolicy, CiliumEgressGatewayPolicy, ` +
			"CiliumNetworkPolicy, NetworkPolicy"},
	} {
		_, err := builder.Build(policy)
		require.Equal(t, want, err, policy)
	}
}
