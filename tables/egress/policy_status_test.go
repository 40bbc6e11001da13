// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/policy"
	"github.com/sluice-net/sluice/tables/tablestest"
)

type statusWorld struct {
	testing.TB
	db         *statedb.DB
	step       *tablestest.Rule[string]
	rule       policyStatusParams
	policies   tablestest.Table[*tables.EgressPolicy]
	compiled   tablestest.Table[*tables.CompiledPolicy]
	groups     tablestest.Table[*tables.EgressGroup]
	gateways   tablestest.Table[*tables.EgressGateway]
	rulesets   tablestest.Table[*tables.EgressRuleset]
	rules      tablestest.Table[*tables.EgressRule]
	routes     tablestest.Table[*tables.SubjectRoute]
	subjects   tablestest.Table[*tables.Subject]
	mirrors    tablestest.Table[*tables.RouteMirror]
	pods       tablestest.Table[*tables.Pod]
	podMirrors tablestest.Table[*tables.PodMirror]
}

const (
	theGroup = 5
	toWorld  = "0.0.0.0/0"
)

// newStatusWorld has a policy p that selects the label set of subject 2 of this node, compiled
// to egress ruleset 12 with a rule to group 5, of which the kernel has the buckets.
func newStatusWorld(t *testing.T) *statusWorld {
	w := &statusWorld{TB: t, db: statedb.New()}
	w.policies = tablestest.Open(t, w.db, tables.NewEgressPolicyTable)
	w.compiled = tablestest.Open(t, w.db, tables.NewCompiledPolicyTable)
	w.groups = tablestest.Open(t, w.db, tables.NewEgressGroupTable)
	w.gateways = tablestest.Open(t, w.db, tables.NewEgressGatewayTable)
	w.rulesets = tablestest.Open(t, w.db, tables.NewEgressRulesetTable)
	w.rules = tablestest.Open(t, w.db, tables.NewEgressRuleTable)
	w.routes = tablestest.Open(t, w.db, tables.NewSubjectRouteTable)
	w.subjects = tablestest.Open(t, w.db, tables.NewSubjectTable)
	w.mirrors = tablestest.Open(t, w.db, tables.NewRouteMirrorTable)
	w.pods = tablestest.Open(t, w.db, tables.NewPodTable)
	w.podMirrors = tablestest.Open(t, w.db, tables.NewPodMirrorTable)
	w.rule = policyStatusParams{
		Policies: w.policies, Compiled: w.compiled, Groups: w.groups, Gateways: w.gateways,
		Rulesets: w.rulesets, Rules: w.rules, Routes: w.routes, Subjects: w.subjects,
		Mirrors: w.mirrors, Placement: policy.Placement{Pods: w.pods, PodMirrors: w.podMirrors},
	}
	w.rule.Output = tablestest.Open(t, w.db, tables.NewEgressPolicyStatusTable)
	w.step = tablestest.NewRule(t, w.db, w.rule.declare())

	w.edit(1)
	w.compile()
	g := group(theGroup, choice("there", tables.GatewaySpec{}))
	g.Digest, g.Policies = tables.GroupDigest(nil), []string{"p"}
	w.groups.Put(g)
	for bucket := range uint32(bpf.GatewayBuckets) {
		w.bucket(bucket, reconciler.StatusDone())
	}
	w.ruleset(12, "p")
	w.rules.Put(rule(12, toWorld, reconciler.StatusPending()))
	w.subjects.Put(subject(2, true))
	w.routes.Put(route(2, 12, reconciler.StatusPending()))
	return w
}

func (w *statusWorld) edit(generation int64) {
	w.policies.Put(&tables.EgressPolicy{Name: "p", UID: "uid", Generation: generation})
}

func (w *statusWorld) compile() {
	_, revision, found := w.policies.Get(w.db.ReadTxn(), tables.EgressPolicyByName("p"))
	require.True(w, found)
	w.compiled.Put(&tables.CompiledPolicy{
		Policy: tables.EgressPolicyID("p"), Revision: revision,
	})
}

func (w *statusWorld) bucket(bucket uint32, status reconciler.Status) {
	w.gateways.Put(&tables.EgressGateway{
		GatewayKey: bpf.GatewayKey{Group: theGroup, Bucket: bucket}, Node: "there",
		Reconciled: tables.Reconciled{Status: status},
	})
}

func (w *statusWorld) ruleset(number uint32, policies ...string) {
	w.rulesets.Put(&tables.EgressRuleset{
		Life: tables.Life{Number: number}, Digest: bpf.Digest{byte(number)}, Policies: policies,
	})
}

func rule(ruleset uint32, destination string, status reconciler.Status) *tables.EgressRule {
	return &tables.EgressRule{
		Ruleset: ruleset, Destination: netip.MustParsePrefix(destination), Group: theGroup,
		Policy: "p", Reconciled: tables.Reconciled{Status: status},
	}
}

func subject(number uint32, local bool) *tables.Subject {
	return &tables.Subject{
		Life:       tables.Life{Number: number},
		SubjectDef: tables.SubjectDef{LabelSet: tables.LabelSetID{1}, Local: local},
	}
}

func (w *statusWorld) release(number uint32) {
	s := subject(number, true)
	s.Undesired = true
	w.subjects.Put(s)
}

func route(subject, ruleset uint32, status reconciler.Status) *tables.SubjectRoute {
	return &tables.SubjectRoute{
		Subject: subject, EgressRuleset: ruleset, Reconciled: tables.Reconciled{Status: status},
	}
}

// program has the kernel have a subject with its ruleset, and the rule of that.
func (w *statusWorld) program(subject, ruleset uint32) {
	w.rules.Put(rule(ruleset, toWorld, reconciler.StatusDone()))
	w.programRoute(subject, ruleset)
	w.routes.Put(route(subject, ruleset, reconciler.StatusDone()))
}

func (w *statusWorld) programRoute(subject, ruleset uint32) {
	r := route(subject, ruleset, reconciler.StatusDone())
	w.mirrors.Put(&tables.RouteMirror{
		Key: r.MapKey(), Value: r.MapValue(), Present: true, Desired: true,
	})
}

func pod(subject uint32, local bool) *tables.Pod {
	return &tables.Pod{
		Addr: netip.MustParseAddr("10.0.0.1"), Subject: subject, Local: local,
		Reconciled: tables.Pending(),
	}
}

func (w *statusWorld) programPod(subject uint32, local bool) {
	p := pod(subject, local)
	w.podMirrors.Put(&tables.PodMirror{
		Key: p.MapKey(), Value: p.MapValue(), Present: true, Desired: true,
	})
}

// status returns the status of the policy, and checks it against a computation from nothing.
func (w *statusWorld) status() *tables.EgressPolicyStatus {
	w.step.Work()
	txn := w.db.ReadTxn()
	row, _, found := w.rule.Output.Get(txn, tables.EgressPolicyStatusByPolicy("p"))
	if !found {
		return nil
	}
	require.True(w, row.Equal(w.rule.newRound(txn).row("p")), "%+v is not marked", row)
	return row
}

// A policy is in force when the kernel has what it says now for all pods that it selects,
// never before.
func TestEgressStates(t *testing.T) {
	refused := reconciler.StatusError(errors.New("map full"))
	type step struct {
		what                string
		do                  func(*statusWorld)
		state               tables.EgressState
		programmed, ofRules int
	}
	nothing := func(*statusWorld) {}
	enforce := step{"enforced", func(w *statusWorld) {
		w.program(2, 12)
		w.pods.Put(pod(2, true))
		w.programPod(2, true)
	}, tables.EgressInForce, 1, 1}
	const pending, inForce, failed = tables.EgressPending, tables.EgressInForce, tables.EgressFailed
	for name, steps := range map[string][]step{
		"comes into force": {
			{"wanted", nothing, pending, 0, 1},
			{"the rule", func(w *statusWorld) {
				w.rules.Put(rule(12, toWorld, reconciler.StatusDone()))
			}, pending, 0, 1},
			{"the mirror has the route, the row is not done", func(w *statusWorld) {
				w.programRoute(2, 12)
			}, pending, 0, 1},
			{"both", func(w *statusWorld) { w.program(2, 12) }, inForce, 1, 1},
			{"another label set", func(w *statusWorld) {
				w.subjects.Put(subject(3, false))
				w.routes.Put(route(3, 12, reconciler.StatusPending()))
			}, pending, 0, 1},
			{"which the kernel has", func(w *statusWorld) { w.program(3, 12) }, inForce, 1, 1},
			{"a bucket changes", func(w *statusWorld) { w.bucket(7, reconciler.StatusPending()) }, pending, 0, 1},
			{"and is there", func(w *statusWorld) { w.bucket(7, reconciler.StatusDone()) }, inForce, 1, 1},
		},
		"selects nothing here": {
			{"not compiled", func(w *statusWorld) {
				w.routes.Remove(route(2, 12, reconciler.StatusPending()))
				w.edit(2)
			}, pending, 0, 0},
			{"compiled", func(w *statusWorld) { w.compile() }, inForce, 0, 0},
		},
		"edited": {
			enforce,
			{"an object", func(w *statusWorld) { w.edit(2) }, pending, 1, 1},
			{"another ruleset", func(w *statusWorld) {
				w.ruleset(13, "p")
				w.rules.Put(rule(13, toWorld, reconciler.StatusPending()))
				w.routes.Put(route(2, 13, reconciler.StatusPending()))
				w.compile()
			}, pending, 0, 1},
			{"the kernel has it", func(w *statusWorld) { w.program(2, 13) }, inForce, 1, 1},
		},
		"edited, to select nothing": {
			enforce,
			{"no route", func(w *statusWorld) {
				w.edit(2)
				w.routes.Remove(route(2, 12, reconciler.StatusPending()))
				w.compile()
			}, pending, 0, 0},
			{"the kernel has none", func(w *statusWorld) {
				w.mirrors.Remove(&tables.RouteMirror{Key: bpf.SubjectKey{Subject: 2}})
			}, inForce, 0, 0},
		},
		"edited while a pod leaves": {
			enforce,
			{"another subject", func(w *statusWorld) {
				w.edit(2)
				w.ruleset(13, "p")
				w.release(2)
				w.subjects.Put(subject(3, true))
				w.program(3, 13)
				w.pods.Put(pod(3, true))
				w.compile()
			}, pending, 1, 1},
			{"the kernel has the pod", func(w *statusWorld) { w.programPod(3, true) }, inForce, 1, 1},
		},
		"its last pod goes": {
			enforce,
			{"desired no more", func(w *statusWorld) {
				w.pods.Remove(pod(2, true))
				w.release(2)
			}, inForce, 0, 0},
		},
		"a pod of another node moves": {
			enforce,
			{"in another subject", func(w *statusWorld) {
				w.release(7)
				w.subjects.Put(subject(3, false))
				w.program(3, 12)
				w.pods.Put(pod(3, false))
				w.programPod(7, false)
			}, pending, 1, 1},
			{"it has moved", func(w *statusWorld) { w.programPod(3, false) }, inForce, 1, 1},
		},
		"a pod of this node moves": {
			enforce,
			{"in another subject", func(w *statusWorld) { w.programPod(9, true) }, pending, 1, 1},
			{"it has moved", func(w *statusWorld) { w.programPod(2, true) }, inForce, 1, 1},
		},
		"the kernel refuses a rule": {
			{"refused", func(w *statusWorld) { w.rules.Put(rule(12, toWorld, refused)) }, failed, 0, 1},
			enforce,
		},
		"the kernel refuses a route": {
			{"refused", func(w *statusWorld) { w.routes.Put(route(2, 12, refused)) }, failed, 0, 1},
			enforce,
		},
		"the kernel refuses a bucket": {
			{"refused", func(w *statusWorld) { w.bucket(7, refused) }, failed, 0, 1},
			{"not any more", func(w *statusWorld) { w.bucket(7, reconciler.StatusDone()) }, pending, 0, 1},
		},
		"the kernel refuses a pod of this node": {
			enforce,
			{"refused", func(w *statusWorld) {
				w.pods.Put(tables.WithStatus(pod(2, true), refused))
			}, failed, 1, 1},
			{"not any more", func(w *statusWorld) {
				w.pods.Put(tables.WithStatus(pod(2, true), reconciler.StatusDone()))
			}, inForce, 1, 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newStatusWorld(t)
			for _, s := range steps {
				t.Log(s.what)
				s.do(w)
				got := w.status()
				require.Equal(t, s.state, got.State(), "%+v", got)
				require.Equal(t, [2]int{s.programmed, s.ofRules}, [2]int{got.Programmed, got.Rules})
				require.Equal(t, s.state == failed, got.Refused != "")
			}
			w.policies.Remove(&tables.EgressPolicy{Name: "p"})
			require.Nil(t, w.status(), "it is deleted")
		})
	}
}

// Conflicts are reported for rulesets that some subject is desired to have, each once.
func TestConflicts(t *testing.T) {
	w := newStatusWorld(t)
	w.program(2, 12)
	wins := rule(12, "192.0.2.0/24", reconciler.StatusDone())
	wins.Overrides = []string{"q"}
	loses := rule(12, "198.51.100.0/24", reconciler.StatusDone())
	loses.Policy, loses.Overrides = "o", []string{"p"}
	again := rule(13, "198.51.100.0/24", reconciler.StatusDone())
	again.Policy, again.Overrides = "o", []string{"p"}
	former := rule(14, "203.0.113.0/24", reconciler.StatusDone())
	former.Policy, former.Overrides = "o", []string{"p"}
	w.ruleset(13, "o", "p")
	w.subjects.Put(subject(3, true))
	w.programRoute(3, 13)
	w.routes.Put(route(3, 13, reconciler.StatusDone()))
	w.rules.Put(wins, loses, again, former)
	s := w.status()
	require.Equal(t, []string{"198.51.100.0/24 goes to policy o"}, s.LosesTo)
	require.Equal(
		t, []string{"192.0.2.0/24 is also wanted by [q]", "198.51.100.0/24 goes to policy o"},
		s.Conflicts,
	)
	require.Equal(t, 2, s.Rules)
	require.Equal(t, tables.EgressConflicted, s.State())
	require.Equal(t, []string{"there (invalid IP)"}, s.Gateways)
}

func TestStatusWithoutGateway(t *testing.T) {
	w := newStatusWorld(t)
	w.program(2, 12)
	g := group(theGroup, tables.GatewayChoice{Reason: "no node matches"})
	g.Digest = tables.GroupDigest(nil)
	w.groups.Put(g)
	require.Equal(t, tables.EgressNoGateway, w.status().State())
	require.Equal(t, []string{"none: no node matches"}, w.status().Gateways)
}
