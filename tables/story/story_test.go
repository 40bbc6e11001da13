// SPDX-License-Identifier: Apache-2.0

package story

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
)

func table[Row any](t testing.TB, db *statedb.DB, construct func(*statedb.DB) (statedb.RWTable[Row], error)) statedb.Table[Row] {
	rw, err := construct(db)
	require.NoError(t, err)
	return rw
}

func newTables(t testing.TB) Tables {
	db := statedb.New()
	return Tables{
		DB: db, Selectors: table(t, db, tables.NewSelectorTable), Classes: table(t, db, tables.NewClassTable),
		EgressPolicies: table(t, db, tables.NewEgressPolicyTable), EgressStatus: table(t, db, tables.NewEgressPolicyStatusTable),
		EgressClasses: table(t, db, tables.NewEgressClassTable), EgressGroups: table(t, db, tables.NewEgressGroupTable),
		EgressGateways: table(t, db, tables.NewEgressGatewayTable), EgressRules: table(t, db, tables.NewEgressRuleTable),
		GatewayEntries: table(t, db, tables.NewGatewayEntryTable), EgressEntries: table(t, db, tables.NewEgressEntryTable),
		SourceEntries: table(t, db, tables.NewSourceEntryTable), NetworkPolicies: table(t, db, tables.NewNetworkPolicyTable),
		NetworkStatus: table(t, db, tables.NewNetworkPolicyStatusTable), Rules: table(t, db, tables.NewEnforcedPolicyTable),
		Entries: table(t, db, tables.NewPolicyEntryTable), Locals: table(t, db, tables.NewLocalEndpointTable),
		PolicyEntries: table(t, db, tables.NewPolicyMapEntryTable),
	}
}

func insert[Row any](t testing.TB, db *statedb.DB, table statedb.Table[Row], rows ...Row) {
	wtxn := db.WriteTxn(table)
	defer wtxn.Abort()
	for _, row := range rows {
		_, _, err := table.(statedb.RWTable[Row]).Insert(wtxn, row)
		require.NoError(t, err)
	}
	wtxn.Commit()
}

// addEgress adds an egress policy with rules of a class of its own, of which the kernel
// refuses some.
func addEgress(t testing.TB, in Tables, number, rules, refused int) string {
	name := fmt.Sprint("policy-", number)
	insert(t, in.DB, in.EgressPolicies, &tables.EgressPolicy{Name: name})
	insert(t, in.DB, in.EgressStatus, &tables.EgressPolicyStatus{Policy: name, Rules: rules, Programmed: rules - refused, Failed: refused})
	insert(t, in.DB, in.EgressClasses, &tables.EgressClass{Number: uint32(number), Policies: []tables.PolicyChoice{{Policy: name}}})
	for i := range rules {
		rule := &tables.EgressRule{
			Class: uint32(number), Destination: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 32),
			Policy: name, Reconciled: tables.Reconciled{Status: reconciler.StatusDone()},
		}
		if i >= rules-refused {
			rule.Status = reconciler.StatusError(errors.New("map full"))
		} else {
			insert(t, in.DB, in.EgressEntries, &tables.EgressEntry{Key: rule.MapKey(), Value: rule.MapValue(), Wanted: tables.WantedSame})
		}
		insert(t, in.DB, in.EgressRules, rule)
	}
	return "CiliumEgressGatewayPolicy/" + name
}

func (s *Story) step(t testing.TB, table string) Step {
	for _, step := range s.Steps {
		if step.Table == table {
			return step
		}
	}
	require.Fail(t, "no step", table)
	return Step{}
}

// Of many rows those that are not fine are told first, and none is lost from the counts.
func TestProblemsFirst(t *testing.T) {
	in := newTables(t)
	policy := addEgress(t, in, 1, 250, 3)
	s, err := New(in).Tell(policy)
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

	// Of as many problems as are told, no row that is fine is.
	s, err = New(in).Tell(addEgress(t, in, 2, 200, 150))
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
		teller := New(in)
		return testing.AllocsPerRun(20, func() {
			_, err := teller.Tell(policy)
			require.NoError(t, err)
		})
	}
	require.InEpsilon(t, cost(1), cost(1000), 0.1)
}

// The buckets of a group are summed up by what they are.
func TestShares(t *testing.T) {
	in := newTables(t)
	gateways := []tables.GatewaySpec{{Nodes: "egress=yes"}}
	insert(t, in.DB, in.EgressPolicies, &tables.EgressPolicy{Name: "a", Gateways: gateways})
	insert(t, in.DB, in.EgressGroups, &tables.EgressGroup{Digest: tables.GroupDigest(gateways), Number: 7})
	for bucket := range uint32(256) {
		g := &tables.EgressGateway{GatewayKey: bpf.GatewayKey{Group: 7, Bucket: bucket}, Node: "node-1", Reconciled: tables.Reconciled{Status: reconciler.StatusDone()}}
		if bucket%4 == 3 {
			g.Node = "node-2"
		}
		if bucket == 255 {
			g.Status = reconciler.StatusPending()
		}
		insert(t, in.DB, in.EgressGateways, g)
	}
	insert(t, in.DB, in.EgressGateways, &tables.EgressGateway{GatewayKey: bpf.GatewayKey{Group: 8}, Node: "node-3"})
	s, err := New(in).Tell("CiliumEgressGatewayPolicy/a")
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

func TestNoSuchPolicy(t *testing.T) {
	teller := New(newTables(t))
	for policy, want := range map[string]Error{
		"":                            {Reason: `parse policy "": want kind/namespace/name`},
		"web":                         {Reason: `parse policy "web": want kind/namespace/name`},
		"CiliumEgressGatewayPolicy/a": {Reason: "there is no policy CiliumEgressGatewayPolicy/a", Absent: true},
		"NetworkPolicy/a/b":           {Reason: "there is no policy NetworkPolicy/a/b", Absent: true},
		"Pod/a/b": {Reason: `unknown kind "Pod": want CiliumClusterwideNetworkPolicy, CiliumEgressGatewayPolicy, ` +
			"CiliumNetworkPolicy, NetworkPolicy"},
	} {
		_, err := teller.Tell(policy)
		require.Equal(t, want, err, policy)
	}
}
