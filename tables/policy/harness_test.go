// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// harness has all tables that the rule reads and writes, filled by hand, and the rule.
type harness struct {
	testing.TB
	db   *statedb.DB
	rule params
	step *tablestest.Rule[tables.PolicyID]

	policies   tablestest.Table[*tables.NetworkPolicy]
	compiled   tablestest.Table[*tables.CompiledPolicy]
	rulesets   tablestest.Table[*tables.Ruleset]
	subjects   tablestest.Table[*tables.Subject]
	entries    tablestest.Table[*tables.PolicyEntry]
	verdicts   tablestest.Table[*tables.Verdict]
	complete   tablestest.Table[*tables.Compiled]
	mirrors    tablestest.Table[*tables.SubjectMirror]
	pods       tablestest.Table[*tables.Pod]
	podMirrors tablestest.Table[*tables.PodMirror]
	locals     tablestest.Table[*tables.LocalEndpoint]
	namespaces tablestest.Table[*tables.Namespace]
}

func newHarness(t testing.TB) *harness {
	h := &harness{TB: t, db: statedb.New()}
	h.policies = tablestest.Open(t, h.db, tables.NewNetworkPolicyTable)
	h.compiled = tablestest.Open(t, h.db, tables.NewCompiledPolicyTable)
	h.rulesets = tablestest.Open(t, h.db, tables.NewRulesetTable)
	h.subjects = tablestest.Open(t, h.db, tables.NewSubjectTable)
	h.entries = tablestest.Open(t, h.db, tables.NewPolicyEntryTable)
	h.verdicts = tablestest.Open(t, h.db, tables.NewVerdictTable)
	h.complete = tablestest.Open(t, h.db, tables.NewCompiledTable)
	h.mirrors = tablestest.Open(t, h.db, tables.NewSubjectMirrorTable)
	h.pods = tablestest.Open(t, h.db, tables.NewPodTable)
	h.podMirrors = tablestest.Open(t, h.db, tables.NewPodMirrorTable)
	h.locals = tablestest.Open(t, h.db, tables.NewLocalEndpointTable)
	h.namespaces = tablestest.Open(t, h.db, tables.NewNamespaceTable)
	h.rule = params{
		Policies: h.policies, Compiled: h.compiled, Rulesets: h.rulesets, Subjects: h.subjects,
		Entries: h.entries, Verdicts: h.verdicts, Complete: h.complete, Mirrors: h.mirrors,
		Placement: Placement{Pods: h.pods, PodMirrors: h.podMirrors},
	}
	h.rule.Output = tablestest.Open(t, h.db, tables.NewNetworkPolicyStatusTable)
	h.step = tablestest.NewRule(t, h.db, h.rule.declare())
	return h
}

func policyID(name string) tables.PolicyID {
	return tables.PolicyID{Kind: tables.PolicyKubernetes, Name: tables.Name{Namespace: "n1", Name: name}}
}

// policy is one that selects pods of n1 with a label.
func policy(name, pods string) *tables.NetworkPolicy {
	id := policyID(name)
	return &tables.NetworkPolicy{
		Kind: id.Kind, Name: id.Name, Generation: 1,
		Rules: []tables.PolicyRule{{
			Field: "spec",
			Subject: tables.EgressSelector{
				Namespaces: "kubernetes.io/metadata.name=n1", Pods: pods,
			},
			Ingress: tables.PolicyDirection{DefaultDeny: true},
		}},
	}
}

// compile says that the rulesets are of the policy as it is now.
func (h *harness) compile(name string) {
	p, revision, found := h.policies.Get(h.db.ReadTxn(), tables.NetworkPolicyByID(policyID(name)))
	require.True(h, found)
	h.compiled.Put(&tables.CompiledPolicy{
		Policy: p.ID(), Generation: p.Generation, Revision: revision,
	})
}

// ruleset is one with a rule of each of some policies, whose content is told by its number.
func ruleset(number uint32, policies ...string) *tables.Ruleset {
	r := &tables.Ruleset{Life: tables.Life{Number: number}, Digest: bpf.Digest{byte(number)}}
	for _, name := range policies {
		r.Policies = append(r.Policies, policyID(name))
		r.Rules = append(r.Rules, &tables.Rule{
			RuleID: tables.RuleID{Policy: policyID(name), Item: -1}, DefaultDeny: true,
		})
	}
	return r
}

func labelSet(app string) *tables.LabelSet {
	return tables.NewLabelSet("n1", "", labels.Set{"app": app}, nil)
}

func subject(number, ruleset uint32, app string) *tables.Subject {
	return &tables.Subject{
		Life:       tables.Life{Number: number},
		SubjectDef: tables.SubjectDef{LabelSet: labelSet(app).ID, Local: true},
		Ruleset:    ruleset, Reconciled: tables.Pending(),
	}
}

func undesired(s *tables.Subject) *tables.Subject {
	c := tables.Clone(s)
	c.Undesired = true
	return c
}

// program has the kernel have a subject in its ruleset.
func (h *harness) program(s *tables.Subject) {
	h.mirrors.Put(&tables.SubjectMirror{
		Key: s.MapKey(), Value: s.MapValue(), Present: true, Desired: !s.Undesired,
	})
	h.subjects.Put(tables.WithStatus(s, reconciler.StatusDone()))
}

var errRefused = errors.New("map full")

func pod(last byte, subject uint32) *tables.Pod {
	return &tables.Pod{
		Addr: netip.AddrFrom4([4]byte{10, 0, 0, last}), Subject: subject, Local: true,
		Reconciled: tables.Pending(),
	}
}

// programPod has the kernel have a pod in a subject, which need not be the one it is to be in.
func (h *harness) programPod(last byte, subject uint32) {
	p := pod(last, subject)
	h.podMirrors.Put(&tables.PodMirror{
		Key: p.MapKey(), Value: p.MapValue(), Present: true, Desired: true,
	})
}

// status returns the status of a policy, nil if there is no row. All rows are those that a
// computation from nothing has, but for what was applied before.
func (h *harness) status(name string) *tables.NetworkPolicyStatus {
	h.Helper()
	h.step.Work()
	txn := h.db.ReadTxn()
	row, _, _ := h.rule.Output.Get(txn, tables.NetworkPolicyStatusByPolicy(policyID(name)))
	for former := range h.rule.Output.All(txn) {
		c := &round{params: &h.rule, in: txn, refusals: map[uint32]string{}}
		require.True(h, former.Equal(c.row(former.Policy)), "%+v is not marked", former)
	}
	return row
}

func (h *harness) requireState(name string, state tables.PolicyState, programmed, wanted int) {
	h.Helper()
	s := h.status(name)
	require.NotNil(h, s)
	require.Equal(h, state, s.State)
	require.Equal(h, [2]int{programmed, wanted}, [2]int{s.Programmed, s.EntriesWanted})
	if state == tables.PolicyInForce || state == tables.PolicyNotHere {
		require.True(h, s.Applied)
		require.Equal(h, s.Wanted, s.Compiled)
		require.True(h, s.WasApplied)
	}
	if state == tables.PolicyPending || state == tables.PolicyTooLarge {
		require.False(h, s.Applied)
	}
}
