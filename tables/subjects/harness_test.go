// SPDX-License-Identifier: Apache-2.0

package subjects

import (
	"testing"

	"github.com/sluice-net/sluice/bpf"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/transform"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const here = "here"

// harness has all tables that the rule reads and writes, filled by hand, and the rule.
type harness struct {
	testing.TB
	db *statedb.DB
	*rule
	step *transform.Stepper[key]

	Locals          statedb.RWTable[*tables.LocalEndpoint]
	Endpoints       statedb.RWTable[*tables.Endpoint]
	Namespaces      statedb.RWTable[*tables.Namespace]
	Nodes           statedb.RWTable[*tables.Node]
	NetworkPolicies statedb.RWTable[*tables.NetworkPolicy]
	EgressPolicies  statedb.RWTable[*tables.EgressPolicy]
	CIDRGroups      statedb.RWTable[*tables.CIDRGroup]
	Services        statedb.RWTable[*tables.Service]
	Backends        statedb.RWTable[*tables.BackendSlice]

	PodMirrors     statedb.RWTable[*tables.PodMirror]
	SubjectMirrors statedb.RWTable[*tables.SubjectMirror]
	RouteMirrors   statedb.RWTable[*tables.RouteMirror]
	EgressMirrors  statedb.RWTable[*tables.EgressMirror]
}

func newHarness(t testing.TB, enforcement tables.Enforcement, match CIDRMatch) *harness {
	h := &harness{TB: t, db: statedb.New()}
	fill(h, &h.Locals, tables.NewLocalEndpointTable)
	fill(h, &h.Endpoints, func(db *statedb.DB) (statedb.RWTable[*tables.Endpoint], error) {
		return tables.NewEndpointTable(db, tables.LocalNode{Name: here})
	})
	fill(h, &h.Namespaces, tables.NewNamespaceTable)
	fill(h, &h.Nodes, tables.NewNodeTable)
	fill(h, &h.NetworkPolicies, tables.NewNetworkPolicyTable)
	fill(h, &h.EgressPolicies, tables.NewEgressPolicyTable)
	fill(h, &h.CIDRGroups, tables.NewCIDRGroupTable)
	fill(h, &h.Services, tables.NewServiceTable)
	fill(h, &h.Backends, tables.NewBackendSliceTable)
	fill(h, &h.PodMirrors, tables.NewPodMirrorTable)
	fill(h, &h.SubjectMirrors, tables.NewSubjectMirrorTable)
	fill(h, &h.RouteMirrors, tables.NewRouteMirrorTable)
	fill(h, &h.EgressMirrors, tables.NewEgressMirrorTable)
	p := params{
		Locals: h.Locals, Endpoints: h.Endpoints, Namespaces: h.Namespaces, Nodes: h.Nodes,
		NetworkPolicies: h.NetworkPolicies, EgressPolicies: h.EgressPolicies,
		CIDRGroups: h.CIDRGroups, Services: h.Services, Backends: h.Backends,
		PodMirrors: h.PodMirrors, SubjectMirrors: h.SubjectMirrors,
		RouteMirrors: h.RouteMirrors, EgressMirrors: h.EgressMirrors,
		LocalNode: tables.LocalNode{Name: here}, Enforcement: enforcement, CIDRMatch: match,
		MaxEntries: MaxEntries(DefaultConfig.MaxRulesetEntries),
	}
	fill(h, &p.Pods, tables.NewPodTable)
	fill(h, &p.Subjects, tables.NewSubjectTable)
	fill(h, &p.Routes, tables.NewSubjectRouteTable)
	fill(h, &p.Rulesets, tables.NewRulesetTable)
	fill(h, &p.Selectors, tables.NewSelectorTable)
	fill(h, &p.EgressRulesets, tables.NewEgressRulesetTable)
	fill(h, &p.EgressRules, tables.NewEgressRuleTable)
	fill(h, &p.Groups, tables.NewEgressGroupTable)
	fill(h, &p.Compiled, tables.NewCompiledPolicyTable)
	h.rule = &rule{params: p, next: bpf.EmptyRuleset + 1}
	var err error
	h.step, err = transform.NewStepper(h.db, h.declare())
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

func all[Row any](txn statedb.ReadTxn, table statedb.Table[Row]) []Row {
	return statedb.Collect(table.All(txn))
}

func (h *harness) work() { require.NoError(h, h.step.Work(h.Context())) }

// copyFrom inserts the inputs of another harness, in some order of the tables, and works
// after each with a chance.
func (h *harness) copyFrom(o *harness, reversed bool, pause func() bool) {
	txn := o.db.ReadTxn()
	inputs := []func(){
		func() { put(h, h.Locals, all(txn, o.Locals)...) },
		func() { put(h, h.Endpoints, all(txn, o.Endpoints)...) },
		func() { put(h, h.Namespaces, all(txn, o.Namespaces)...) },
		func() { put(h, h.Nodes, all(txn, o.Nodes)...) },
		func() { put(h, h.NetworkPolicies, all(txn, o.NetworkPolicies)...) },
		func() { put(h, h.EgressPolicies, all(txn, o.EgressPolicies)...) },
		func() { put(h, h.CIDRGroups, all(txn, o.CIDRGroups)...) },
		func() { put(h, h.Services, all(txn, o.Services)...) },
		func() { put(h, h.Backends, all(txn, o.Backends)...) },
	}
	for i := range inputs {
		if reversed {
			i = len(inputs) - 1 - i
		}
		inputs[i]()
		if pause() {
			h.work()
		}
	}
	h.work()
}
