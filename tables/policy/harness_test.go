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
	"github.com/sluice-net/sluice/tables/transform"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// harness has all tables that the rule reads and writes, filled by hand, and the rule.
type harness struct {
	testing.TB
	db   *statedb.DB
	rule params
	step *transform.Stepper[tables.PolicyID]

	policies   statedb.RWTable[*tables.NetworkPolicy]
	compiled   statedb.RWTable[*tables.CompiledPolicy]
	rulesets   statedb.RWTable[*tables.Ruleset]
	subjects   statedb.RWTable[*tables.Subject]
	entries    statedb.RWTable[*tables.PolicyEntry]
	verdicts   statedb.RWTable[*tables.Verdict]
	complete   statedb.RWTable[*tables.Compiled]
	mirrors    statedb.RWTable[*tables.SubjectMirror]
	pods       statedb.RWTable[*tables.Pod]
	podMirrors statedb.RWTable[*tables.PodMirror]
}

func newHarness(t testing.TB) *harness {
	h := &harness{TB: t, db: statedb.New()}
	fill(h, &h.policies, tables.NewNetworkPolicyTable)
	fill(h, &h.compiled, tables.NewCompiledPolicyTable)
	fill(h, &h.rulesets, tables.NewRulesetTable)
	fill(h, &h.subjects, tables.NewSubjectTable)
	fill(h, &h.entries, tables.NewPolicyEntryTable)
	fill(h, &h.verdicts, tables.NewVerdictTable)
	fill(h, &h.complete, tables.NewCompiledTable)
	fill(h, &h.mirrors, tables.NewSubjectMirrorTable)
	fill(h, &h.pods, tables.NewPodTable)
	fill(h, &h.podMirrors, tables.NewPodMirrorTable)
	h.rule = params{
		Policies: h.policies, Compiled: h.compiled, Rulesets: h.rulesets, Subjects: h.subjects,
		Entries: h.entries, Verdicts: h.verdicts, Complete: h.complete, Mirrors: h.mirrors,
		Placement: Placement{Pods: h.pods, PodMirrors: h.podMirrors},
	}
	fill(h, &h.rule.Output, tables.NewNetworkPolicyStatusTable)
	var err error
	h.step, err = transform.NewStepper(h.db, h.rule.declare())
	require.NoError(t, err)
	return h
}

func fill[Row any](
	h *harness, table *statedb.RWTable[Row], create func(*statedb.DB) (statedb.RWTable[Row], error),
) {
	var err error
	*table, err = create(h.db)
	require.NoError(h, err)
}

func put[Row any](h *harness, table statedb.RWTable[Row], rows ...Row) {
	wtxn := h.db.WriteTxn(table)
	for _, row := range rows {
		_, _, err := table.Insert(wtxn, row)
		require.NoError(h, err)
	}
	wtxn.Commit()
}

func remove[Row any](h *harness, table statedb.RWTable[Row], rows ...Row) {
	wtxn := h.db.WriteTxn(table)
	for _, row := range rows {
		_, _, err := table.Delete(wtxn, row)
		require.NoError(h, err)
	}
	wtxn.Commit()
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
	put(h, h.compiled, &tables.CompiledPolicy{
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
	put(h, h.mirrors, &tables.SubjectMirror{
		Key: s.MapKey(), Value: s.MapValue(), Present: true, Desired: !s.Undesired,
	})
	put(h, h.subjects, tables.WithStatus(s, reconciler.StatusDone()))
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
	put(h, h.podMirrors, &tables.PodMirror{
		Key: p.MapKey(), Value: p.MapValue(), Present: true, Desired: true,
	})
}

// status returns the status of a policy, nil if there is no row. All rows are those that a
// computation from nothing has, but for what was settled before.
func (h *harness) status(name string) *tables.NetworkPolicyStatus {
	h.Helper()
	require.NoError(h, h.step.Work(h.Context()))
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
		require.True(h, s.Settled)
		require.Equal(h, s.Wanted, s.InForce)
		require.True(h, s.WasSettled)
	}
	if state == tables.PolicyPending || state == tables.PolicyTooLarge {
		require.False(h, s.Settled)
	}
}
