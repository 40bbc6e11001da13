// SPDX-License-Identifier: Apache-2.0

package subjects

import (
	"testing"

	"github.com/cilium/statedb"
	"go.uber.org/goleak"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
	"github.com/sluice-net/sluice/tables/verdicts"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const here = "here"

// harness has all tables that the rule reads and writes, filled by hand, and the rule.
type harness struct {
	testing.TB
	db *statedb.DB
	*rule
	step *tablestest.Rule[key]

	Locals          tablestest.Table[*tables.LocalEndpoint]
	Endpoints       tablestest.Table[*tables.Endpoint]
	Namespaces      tablestest.Table[*tables.Namespace]
	Nodes           tablestest.Table[*tables.Node]
	Health          tablestest.Table[*tables.GatewayHealth]
	NetworkPolicies tablestest.Table[*tables.NetworkPolicy]
	EgressPolicies  tablestest.Table[*tables.EgressPolicy]
	EgressIPs       tablestest.Table[*tables.EgressIP]
	CIDRGroups      tablestest.Table[*tables.CIDRGroup]
	Services        tablestest.Table[*tables.Service]
	Backends        tablestest.Table[*tables.BackendSlice]

	PodMirrors     tablestest.Table[*tables.PodMirror]
	SubjectMirrors tablestest.Table[*tables.SubjectMirror]
	RouteMirrors   tablestest.Table[*tables.RouteMirror]
	EgressMirrors  tablestest.Table[*tables.EgressMirror]
	Refusals       tablestest.Table[*tables.RulesetRefusal]
	Usage          tablestest.Table[*tables.PolicyUsage]
}

func newHarness(t testing.TB, enforcement tables.Enforcement, match CIDRMatch) *harness {
	h := &harness{TB: t, db: statedb.New()}
	h.Locals = tablestest.Open(t, h.db, tables.NewLocalEndpointTable)
	h.Endpoints = tablestest.OpenEndpoints(t, h.db, here)
	h.Namespaces = tablestest.Open(t, h.db, tables.NewNamespaceTable)
	h.Nodes = tablestest.Open(t, h.db, tables.NewNodeTable)
	h.Health = tablestest.Open(t, h.db, tables.NewGatewayHealthTable)
	h.NetworkPolicies = tablestest.Open(t, h.db, tables.NewNetworkPolicyTable)
	h.EgressPolicies = tablestest.Open(t, h.db, tables.NewEgressPolicyTable)
	h.EgressIPs = tablestest.Open(t, h.db, tables.NewEgressIPTable)
	h.CIDRGroups = tablestest.Open(t, h.db, tables.NewCIDRGroupTable)
	h.Services = tablestest.Open(t, h.db, tables.NewServiceTable)
	h.Backends = tablestest.Open(t, h.db, tables.NewBackendSliceTable)
	h.PodMirrors = tablestest.Open(t, h.db, tables.NewPodMirrorTable)
	h.SubjectMirrors = tablestest.Open(t, h.db, tables.NewSubjectMirrorTable)
	h.RouteMirrors = tablestest.Open(t, h.db, tables.NewRouteMirrorTable)
	h.EgressMirrors = tablestest.Open(t, h.db, tables.NewEgressMirrorTable)
	h.Refusals = tablestest.Open(t, h.db, tables.NewRulesetRefusalTable)
	h.Usage = tablestest.Open(t, h.db, tables.NewPolicyUsageTable)
	p := params{
		Locals: h.Locals, Endpoints: h.Endpoints, Namespaces: h.Namespaces,
		Nodes: h.Nodes, Health: h.Health,
		NetworkPolicies: h.NetworkPolicies, EgressPolicies: h.EgressPolicies,
		EgressIPs:  h.EgressIPs,
		CIDRGroups: h.CIDRGroups, Services: h.Services, Backends: h.Backends,
		PodMirrors: h.PodMirrors, SubjectMirrors: h.SubjectMirrors,
		RouteMirrors: h.RouteMirrors, EgressMirrors: h.EgressMirrors,
		LocalNode: tables.LocalNode{Name: here}, Enforcement: enforcement, CIDRMatch: match,
		MaxEntries: MaxEntries(DefaultConfig.MaxRulesetEntries), Room: roomOf(bpf.DefaultConfig),
		Refusals: h.Refusals, Usage: h.Usage, Maps: verdicts.RoomOf(bpf.DefaultConfig),
	}
	p.Pods = tablestest.Open(t, h.db, tables.NewPodTable)
	p.Subjects = tablestest.Open(t, h.db, tables.NewSubjectTable)
	p.Routes = tablestest.Open(t, h.db, tables.NewSubjectRouteTable)
	p.Rulesets = tablestest.Open(t, h.db, tables.NewRulesetTable)
	p.Selectors = tablestest.Open(t, h.db, tables.NewSelectorTable)
	p.EgressRulesets = tablestest.Open(t, h.db, tables.NewEgressRulesetTable)
	p.EgressRules = tablestest.Open(t, h.db, tables.NewEgressRuleTable)
	p.Groups = tablestest.Open(t, h.db, tables.NewEgressGroupTable)
	p.Compiled = tablestest.Open(t, h.db, tables.NewCompiledPolicyTable)
	h.rule = &rule{params: p, next: bpf.EmptyRuleset + 1, maxWork: maxWork}
	h.step = tablestest.NewRule(t, h.db, h.declare())
	return h
}

func all[Row any](txn statedb.ReadTxn, table statedb.Table[Row]) []Row {
	return statedb.Collect(table.All(txn))
}

func (h *harness) work() { h.step.Work() }

// copyFrom inserts the inputs of another harness, in some order of the tables, and works
// after each with a chance.
func (h *harness) copyFrom(o *harness, reversed bool, pause func() bool) {
	txn := o.db.ReadTxn()
	inputs := []func(){
		func() { h.Locals.Put(all(txn, o.Locals)...) },
		func() { h.Endpoints.Put(all(txn, o.Endpoints)...) },
		func() { h.Namespaces.Put(all(txn, o.Namespaces)...) },
		func() { h.Nodes.Put(all(txn, o.Nodes)...) },
		func() { h.NetworkPolicies.Put(all(txn, o.NetworkPolicies)...) },
		func() { h.EgressPolicies.Put(all(txn, o.EgressPolicies)...) },
		func() { h.CIDRGroups.Put(all(txn, o.CIDRGroups)...) },
		func() { h.Services.Put(all(txn, o.Services)...) },
		func() { h.Backends.Put(all(txn, o.Backends)...) },
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
