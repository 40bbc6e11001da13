// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"log/slog"
	"runtime/metrics"
	"slices"
	"testing"
	"time"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
	"github.com/sluice-net/sluice/testdata/await"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// agent has the cell, with its inputs to be filled by hand.
type agent struct {
	agentTables
	t testing.TB
}

type agentTables struct {
	cell.In

	DB           *statedb.DB
	Metrics      *derive.Metrics
	Policies     statedb.RWTable[*tables.NetworkPolicy]
	Selectors    statedb.RWTable[*tables.Selector]
	Members      statedb.RWTable[*tables.ClassMember]
	Kernel       statedb.RWTable[*tables.PolicyMapEntry]
	ClassEntries statedb.RWTable[*tables.ClassEntry]
	Pods         statedb.RWTable[*tables.LocalEndpoint]

	Rules     statedb.Table[*tables.EnforcedPolicy]
	Entries   tables.Desired[*tables.PolicyEntry]
	Cookies   statedb.Table[*tables.RuleCookie]
	Readiness statedb.Table[*tables.PolicyReadiness]
	Status    statedb.Table[*tables.NetworkPolicyStatus]
}

// newAgent starts with some network policies and members of classes.
func newAgent(t testing.TB, before func(*agent)) *agent {
	a := &agent{t: t}
	h := hive.New(statedb.Cell, job.Cell, cell.SimpleHealthCell, cell.Module("test", "Test",
		cell.Provide(
			job.Registry.NewGroup, derive.NewMetrics,
			func() tables.Enforcement { return tables.EnforcementDefault },
			tables.NewNetworkPolicyTable, statedb.RWTable[*tables.NetworkPolicy].ToTable,
			tables.NewSelectorTable, statedb.RWTable[*tables.Selector].ToTable,
			tables.NewClassMemberTable, statedb.RWTable[*tables.ClassMember].ToTable,
			tables.NewPolicyMapEntryTable, statedb.RWTable[*tables.PolicyMapEntry].ToTable,
			tables.NewClassEntryTable, statedb.RWTable[*tables.ClassEntry].ToTable,
			tables.NewLocalEndpointTable, statedb.RWTable[*tables.LocalEndpoint].ToTable,
		),
		Cell,
		cell.Invoke(func(tables agentTables) {
			a.agentTables = tables
			if before != nil {
				before(a)
			}
		})))
	log := hivetest.Logger(t, hivetest.LogLevel(slog.LevelError))
	require.NoError(t, h.Start(log, t.Context()))
	t.Cleanup(func() { require.NoError(t, h.Stop(log, context.Background())) })
	a.quiet()
	return a
}

// quiet waits until nothing is derived any more: no goroutine has anything to do,
// and what there is does not change.
func (a *agent) quiet() {
	deadline, last, same := time.Now().Add(await.Bound), uint64(0), 0
	sample := []metrics.Sample{{Name: "/sched/goroutines/runnable:goroutines"}, {Name: "/sched/goroutines/running:goroutines"}}
	for same < 4 {
		require.True(a.t, time.Now().Before(deadline), "not quiet")
		time.Sleep(500 * time.Microsecond)
		metrics.Read(sample)
		txn, now := a.DB.ReadTxn(), uint64(0)
		for _, table := range a.DB.GetTables(txn) {
			if table.Name() != "health" {
				now += table.Revision(txn)
			}
		}
		for _, s := range a.Metrics.All() {
			now += uint64(s.Counts().Rounds)
		}
		if same++; now != last || sample[0].Value.Uint64() > 0 || sample[1].Value.Uint64() > 1 {
			last, same = now, 0
		}
	}
}

// change changes inputs in one transaction, and waits for what comes of it.
func (a *agent) change(f func(wtxn statedb.WriteTxn)) {
	wtxn := a.DB.WriteTxn(a.Policies, a.Selectors, a.Members, a.Kernel, a.ClassEntries, a.Pods)
	f(wtxn)
	wtxn.Commit()
	a.quiet()
}

func put[Row any](a *agent, wtxn statedb.WriteTxn, table statedb.RWTable[Row], rows ...Row) {
	for _, row := range rows {
		_, _, err := table.Insert(wtxn, row)
		require.NoError(a.t, err)
	}
}

func remove[Row any](a *agent, wtxn statedb.WriteTxn, table statedb.RWTable[Row], rows ...Row) {
	for _, row := range rows {
		_, _, err := table.Delete(wtxn, row)
		require.NoError(a.t, err)
	}
}

func (a *agent) put(rows ...any) {
	a.change(func(wtxn statedb.WriteTxn) {
		for _, row := range rows {
			switch row := row.(type) {
			case *tables.NetworkPolicy:
				put(a, wtxn, a.Policies, row)
			case *tables.LocalEndpoint:
				put(a, wtxn, a.Pods, row)
			case *tables.ClassMember:
				put(a, wtxn, a.Members, row)
				if row.Evaluated != 0 {
					put(a, wtxn, a.Selectors, &tables.Selector{ID: row.Evaluated, Version: row.Version})
				}
			}
		}
	})
}

func (a *agent) remove(rows ...any) {
	a.change(func(wtxn statedb.WriteTxn) {
		for _, row := range rows {
			switch row := row.(type) {
			case *tables.NetworkPolicy:
				remove(a, wtxn, a.Policies, row)
			case *tables.ClassMember:
				remove(a, wtxn, a.Members, row)
			}
		}
	})
}

// program has the kernel take all that is wanted, as the reconcilers do.
func (a *agent) program() {
	wtxn := a.DB.WriteTxn(a.Kernel, a.Entries.RWTable, a.ClassEntries)
	wanted := map[bpf.PolicyKey]struct{}{}
	for e := range a.Entries.All(wtxn) {
		wanted[e.Key] = struct{}{}
		put(a, wtxn, a.Kernel, &tables.PolicyMapEntry{Key: e.Key, Value: e.Value, Wanted: tables.WantedSame})
		if e.Status.Kind != reconciler.StatusKindDone {
			put(a, wtxn, a.Entries.RWTable, tables.WithStatus(e, reconciler.StatusDone()))
		}
	}
	for e := range a.Kernel.All(wtxn) {
		if _, ok := wanted[e.Key]; !ok {
			remove(a, wtxn, a.Kernel, e)
		}
	}
	wtxn.Commit()
	a.register()
}

// register has the kernel know what all numbers stand for.
func (a *agent) register() {
	wtxn := a.DB.WriteTxn(a.ClassEntries)
	for m := range a.Members.All(wtxn) {
		if m.OfClass {
			key := bpf.ClassKey{Role: m.Role, Number: m.Class}
			put(a, wtxn, a.ClassEntries, &tables.ClassEntry{Key: key, Value: bpf.ClassValue{Digest: m.Digest}})
		}
	}
	wtxn.Commit()
	a.quiet()
}

func (a *agent) counts(table string) derive.Counts {
	for _, s := range a.Metrics.All() {
		if s.Table() == table {
			return s.Counts()
		}
	}
	a.t.Fatalf("no table %s", table)
	return derive.Counts{}
}

// rules returns policy-rules as text.
func (a *agent) rules() (lines []string) {
	for p := range a.Rules.All(a.DB.ReadTxn()) {
		for _, r := range slices.Concat(p.Rules, p.Retired) {
			line := r.Policy.Name.Name + " " + r.Field + " " + r.Verdict()
			if r.Version != 0 {
				line += " retired"
			}
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return lines
}

// entries returns policy-entries as text.
func (a *agent) entries() []string {
	state := map[bpf.PolicyKey]*tables.PolicyEntry{}
	for e := range a.Entries.All(a.DB.ReadTxn()) {
		state[e.Key] = e
	}
	return describe(state)
}

func (a *agent) status(name string) *tables.NetworkPolicyStatus {
	s, _, found := a.Status.Get(a.DB.ReadTxn(), tables.NetworkPolicyStatusByPolicy(policyID(name)))
	require.True(a.t, found, name)
	return s
}

// Selectors of the tests, by the label that they ask for.
func podSelector(label string) tables.EgressSelector { return tables.EgressSelector{Pods: label} }

func podPeer(label string) tables.PolicyPeer {
	return tables.PolicyPeer{Kind: tables.PeerPods, Pods: podSelector(label)}
}

func subjectOf(label string) tables.SelectorID { return tables.SubjectSelectorID(podSelector(label)) }
func peerOf(label string) tables.SelectorID    { return tables.PeerSelectorID(podPeer(label)) }

func policyID(name string) tables.PolicyID {
	return tables.PolicyID{Kind: tables.PolicyCilium, Name: tables.Name{Namespace: "default", Name: name}}
}

// ingressPolicy is about what comes in to the pods with a label.
func ingressPolicy(name, subject string, traffic ...tables.PolicyTraffic) *tables.NetworkPolicy {
	for i := range traffic {
		traffic[i].Field = "spec.ingress[" + string(rune('0'+i)) + "]"
	}
	id := policyID(name)
	return &tables.NetworkPolicy{Kind: id.Kind, Name: id.Name, Rules: []tables.PolicyRule{{
		Field: "spec", Subject: podSelector(subject), Ingress: tables.PolicyDirection{DefaultDeny: true, Traffic: traffic},
	}}}
}

func allow(labels ...string) tables.PolicyTraffic {
	var t tables.PolicyTraffic
	for _, label := range labels {
		t.Peers = append(t.Peers, podPeer(label))
	}
	return t
}

func evaluated(role bpf.Role, ids ...tables.SelectorID) (rows []any) {
	for _, id := range ids {
		rows = append(rows, &tables.ClassMember{Role: role, Evaluated: id})
	}
	return rows
}

// evaluateAll has all selectors of policies evaluated but some.
func evaluateAll(a *agent, wtxn statedb.WriteTxn, but ...tables.SelectorID) {
	for p := range a.Policies.All(wtxn) {
		for _, rule := range RulesOf(p) {
			for role, id := range selectorsOf(rule) {
				if !slices.Contains(but, id) {
					put(a, wtxn, a.Selectors, &tables.Selector{ID: id})
					put(a, wtxn, a.Members, &tables.ClassMember{Role: role, Evaluated: id})
				}
			}
		}
	}
}

func subjectRow(class uint32, labels ...string) *tables.ClassMember {
	var ids []tables.SelectorID
	for _, label := range labels {
		ids = append(ids, subjectOf(label))
	}
	return classRow(bpf.RoleSubject, class, ids)
}

func peerRow(class uint32, labels ...string) *tables.ClassMember {
	var ids []tables.SelectorID
	for _, label := range labels {
		ids = append(ids, peerOf(label))
	}
	return classRow(bpf.RolePeer, class, ids)
}
