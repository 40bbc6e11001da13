// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

func TestRulesOf(t *testing.T) {
	p := ingressPolicy("p", "web",
		tables.PolicyTraffic{AnyPeer: true, Peers: []tables.PolicyPeer{podPeer("a")}},
		tables.PolicyTraffic{Peers: []tables.PolicyPeer{{Kind: tables.PeerEntity, Entity: tables.EntityAll}, podPeer("a")}},
		tables.PolicyTraffic{Peers: []tables.PolicyPeer{{Kind: tables.PeerEntity, Entity: tables.EntityNone}}},
		tables.PolicyTraffic{}, // nobody
		tables.PolicyTraffic{Deny: true, Peers: []tables.PolicyPeer{podPeer("a"), podPeer("b"), podPeer("a")}, Ports: []tables.PolicyPort{{Protocol: 6, Name: "web"}}},
	)
	p.Rules = append(p.Rules, tables.PolicyRule{Field: "specs[0]", Subject: podSelector("db"), Egress: tables.PolicyDirection{Traffic: []tables.PolicyTraffic{{Field: "specs[0].egress[0]", AnyPeer: true}}}})
	rules := RulesOf(p)
	require.True(t, slices.IsSortedFunc(rules, compareRules))
	var got []string
	for _, r := range rules {
		got = append(got, r.RuleID.String()+" "+r.Field+" "+r.Verdict())
	}
	const id = "CiliumNetworkPolicy/default/p "
	require.Equal(t, []string{
		id + "ingress[0] spec.ingress default deny",
		id + "ingress[0.0] spec.ingress[0] allow",
		id + "ingress[0.1] spec.ingress[1] allow",
		id + "ingress[0.4] spec.ingress[4] deny",
		id + "egress[1.0] specs[0].egress[0] allow",
	}, got)
	require.True(t, rules[1].AnyPeer && rules[2].AnyPeer && rules[2].Peers == nil)
	require.ElementsMatch(t, []tables.SelectorID{peerOf("a"), peerOf("b")}, rules[3].Peers)
	named := 0
	for role, id := range selectorsOf(rules[3]) {
		if id == tables.PortSelectorID(bpf.RoleSubject, "web", 6) {
			require.Equal(t, bpf.RoleSubject, role)
			named++
		}
	}
	require.Equal(t, 1, named)
}

// In the first round all is in force that is wanted, whoever has to leave a class for
// it. But that has to be known of all selectors, or nothing is in force at all: so what
// the kernel says from before stays as it is.
func TestFirstRound(t *testing.T) {
	begin := func(unknown ...tables.SelectorID) *agent {
		return newAgent(t, func(a *agent) {
			wtxn := a.DB.WriteTxn(a.Policies, a.Selectors, a.Members)
			defer wtxn.Commit()
			put(a, wtxn, a.Policies, ingressPolicy("p", "web", allow("a")))
			evaluateAll(a, wtxn, unknown...)
			put(a, wtxn, a.Members, left(peerRow(1, "b"), "a"))
		})
	}
	all := []string{"p spec.ingress default deny", "p spec.ingress[0] allow"}
	require.Equal(t, all, begin().rules())
	a := begin(peerOf("a"))
	require.Empty(t, a.rules())
	for name, table := range map[string]statedb.TableMeta{"policy-rules": a.Rules, "policy-readiness": a.Readiness} {
		begun, _ := table.Initialized(a.DB.ReadTxn())
		require.False(t, begun, name)
	}
	a.put(evaluated(bpf.RolePeer, peerOf("a"))...)
	require.Equal(t, all, a.rules())
	// What comes later waits alone, also if there was nothing in the first round.
	a.put(ingressPolicy("q", "web", allow("c")))
	require.Equal(t, all, a.rules())
	a = newAgent(t, nil)
	a.put(ingressPolicy("p", "web", allow("a")))
	require.Empty(t, a.rules())
}

// While it is too early for the first round, what else comes does not have it computed.
func TestFirstRoundIsTriedRarely(t *testing.T) {
	const many = 40
	a := newAgent(t, func(a *agent) {
		wtxn := a.DB.WriteTxn(a.Policies, a.Selectors, a.Members)
		defer wtxn.Commit()
		for i := range many {
			put(a, wtxn, a.Policies, ingressPolicy(fmt.Sprint("p", i), "web", allow("a")))
		}
		put(a, wtxn, a.Policies, ingressPolicy("late", "web", allow("b")))
		evaluateAll(a, wtxn, peerOf("b"))
	})
	tried := a.counts("policy-rules").Keys
	for i := range uint32(many) {
		a.put(peerRow(i+1, fmt.Sprint("peer", i)))
	}
	require.Equal(t, tried, a.counts("policy-rules").Keys)
	a.put(evaluated(bpf.RolePeer, peerOf("b"))...)
	require.Len(t, a.rules(), 2*(many+1))
	require.LessOrEqual(t, a.counts("policy-rules").Keys, tried+many+1)
}

// A policy comes into force at once when all its selectors are settled, and what
// it said before stays until then.
func TestActivation(t *testing.T) {
	a := newAgent(t, nil)
	a.put(ingressPolicy("p", "web", allow("a"), allow("b")))
	require.Empty(t, a.rules())
	require.Zero(t, a.status("p").InForce)
	require.Equal(t, tables.PolicyPending, a.status("p").State)

	a.put(evaluated(bpf.RoleSubject, subjectOf("web"))...)
	a.put(evaluated(bpf.RolePeer, peerOf("b"))...)
	require.Empty(t, a.rules())

	// Evaluated, but two classes still have addresses that it tells apart.
	leaving, other := left(peerRow(1, "b"), "a"), left(peerRow(2, "b"), "a", "c")
	a.put(append(evaluated(bpf.RolePeer, peerOf("a")), leaving, other)...)
	require.Empty(t, a.rules())
	a.put(peerRow(1, "b"))
	require.Empty(t, a.rules())

	before := a.counts("policy-rules")
	other = left(peerRow(2, "b"), "c") // which concerns others
	a.put(other)
	require.Equal(t, []string{"p spec.ingress default deny", "p spec.ingress[0] allow", "p spec.ingress[1] allow"}, a.rules())
	after := a.counts("policy-rules")
	require.Equal(t, 1, after.Rounds-before.Rounds, "all in one transaction")
	require.Equal(t, 1, after.Inserted-before.Inserted)
	require.Equal(t, a.status("p").Wanted, a.status("p").InForce)

	// It changes, to peers that are yet to be looked at.
	a.program()
	a.put(ingressPolicy("p", "web", allow("d")))
	require.Equal(t, []string{"p spec.ingress default deny", "p spec.ingress[0] allow", "p spec.ingress[1] allow"}, a.rules())
	require.Less(t, a.status("p").InForce, a.status("p").Wanted)
	require.Equal(t, tables.PolicyPending, a.status("p").State)
	a.put(evaluated(bpf.RolePeer, peerOf("d"))...)
	require.Equal(t, []string{"p spec.ingress default deny", "p spec.ingress[0] allow"}, a.rules())
	require.Equal(t, a.status("p").Wanted, a.status("p").InForce)

	// It changes back before that.
	a.put(ingressPolicy("p", "web", allow("unseen")))
	a.put(ingressPolicy("p", "web", allow("a")))
	require.Equal(t, a.status("p").Wanted, a.status("p").InForce)
	before = a.counts("policy-rules")
	a.put(evaluated(bpf.RolePeer, peerOf("unseen"))...)
	require.Equal(t, before, a.counts("policy-rules"), "nobody waits for it any more")
}

// left has an address leave a peer class that differs from it by some selectors.
func left(class *tables.ClassMember, labels ...string) *tables.ClassMember {
	for _, label := range labels {
		class.Leaving = append(class.Leaving, peerOf(label))
	}
	class.Leavers = []tables.Leaver{{Prefix: netip.MustParsePrefix("10.0.0.1/32"), To: 9}}
	return class
}

// settledWorld has a subject and peers, with all selectors looked at.
func settledWorld(t *testing.T) *agent {
	a := newAgent(t, nil)
	rows := evaluated(bpf.RoleSubject, subjectOf("web"), subjectOf("db"))
	rows = append(rows, evaluated(bpf.RolePeer, peerOf("a"), peerOf("b"))...)
	a.put(append(rows, subjectRow(1, "web"), subjectRow(2, "db"), peerRow(1, "a"), peerRow(2, "b"))...)
	return a
}

// What is no more in force is retired until the kernel has nothing of it.
func TestRetirement(t *testing.T) {
	a := settledWorld(t)
	p := ingressPolicy("p", "web", allow("a"))
	a.put(p)
	a.program()
	require.Equal(t, []string{"p spec.ingress default deny", "p spec.ingress[0] allow"}, a.rules())

	a.remove(p)
	require.Equal(t, []string{"p spec.ingress default deny retired", "p spec.ingress[0] allow retired"}, a.rules())
	for row := range a.Rules.All(a.DB.ReadTxn()) {
		require.Empty(t, row.Rules)
	}
	require.NotContains(t, a.entries(), "ingress 1 any: allow 1")
	a.program()
	require.Empty(t, a.rules())

	// With other peers the former ones are retired, and the rest is not.
	a.put(p)
	a.program()
	a.put(ingressPolicy("p", "web", allow("b")))
	require.Equal(t, []string{"p spec.ingress default deny", "p spec.ingress[0] allow", "p spec.ingress[0] allow retired"}, a.rules())
	a.program()
	require.Equal(t, []string{"p spec.ingress default deny", "p spec.ingress[0] allow"}, a.rules())

	// With more peers, or the same at another place, nothing is.
	a.put(ingressPolicy("p", "web", allow("a", "b")))
	require.Equal(t, []string{"p spec.ingress default deny", "p spec.ingress[0] allow"}, a.rules())
	a.put(ingressPolicy("p", "web", allow(), allow("a", "b")))
	require.Equal(t, []string{"p spec.ingress default deny", "p spec.ingress[1] allow"}, a.rules())
	a.program()

	// What comes back is in force again, and not retired too.
	a.put(ingressPolicy("p", "web"))
	require.Equal(t, []string{"p spec.ingress default deny", "p spec.ingress[1] allow retired"}, a.rules())
	a.put(ingressPolicy("p", "web", allow("a", "b")))
	require.Equal(t, []string{"p spec.ingress default deny", "p spec.ingress[0] allow"}, a.rules())
	a.program()

	// What shows nowhere need not be waited for.
	a.put(ingressPolicy("q", "web", tables.PolicyTraffic{AnyPeer: true, Deny: true}))
	a.program()
	a.put(ingressPolicy("shadowed", "nobody"))
	a.put(evaluated(bpf.RoleSubject, subjectOf("nobody"))...)
	require.Contains(t, a.rules(), "shadowed spec.ingress default deny")
	a.remove(ingressPolicy("shadowed", "nobody"))
	require.NotContains(t, a.rules(), "shadowed spec.ingress default deny retired")
}

// A rule goes also when another one in its place says the same to all whom it was
// about, so that nothing changes but the rules.
func TestRetirementWithoutEffect(t *testing.T) {
	a := settledWorld(t)
	a.remove(peerRow(1, "a"), peerRow(2, "b"))
	a.put(peerRow(3, "a", "b"), ingressPolicy("p", "web", allow("a")))
	a.program()
	before := a.counts("policy-entries")
	a.put(ingressPolicy("p", "web", allow("b")))
	require.Equal(t, before.Inserted, a.counts("policy-entries").Inserted)
	require.Equal(t, []string{"p spec.ingress default deny", "p spec.ingress[0] allow"}, a.rules())
	r := tables.EnforcedRuleByID(a.DB.ReadTxn(), a.Rules, ruleID("p", bpf.DirectionIngress, 0))
	require.Equal(t, []tables.SelectorID{peerOf("b")}, r.Peers)
	require.Equal(t, tables.PolicyInForce, a.status("p").State)
}

// A peer is allowed by a selector that goes, and by one that comes in its place. With
// the one that goes it is not told apart any more, and is to go where others are allowed
// by now: the selector stays until these are.
func TestRetiredRulesAwaitWhatComesInTheirPlace(t *testing.T) {
	a := newAgent(t, nil)
	a.put(evaluated(bpf.RoleSubject, subjectOf("web"))...)
	a.put(evaluated(bpf.RolePeer, peerOf("some"), peerOf("all"))...)
	a.put(subjectRow(1, "web"), peerRow(1, "all"), peerRow(2, "all", "some"), ingressPolicy("p", "web", allow("some")))
	a.program()
	retired := func() int {
		row, _, found := a.Rules.Get(a.DB.ReadTxn(), tables.EnforcedPolicyByID(policyID("p")))
		require.True(t, found)
		return len(row.Retired)
	}
	require.Zero(t, retired())
	a.put(ingressPolicy("p", "web", allow("all")))
	require.Equal(t, a.status("p").Wanted, a.status("p").InForce)
	require.Equal(t, 1, retired(), "the kernel does not allow the others yet")
	a.program()
	require.True(t, a.status("p").Settled)
	require.Zero(t, retired())
}
