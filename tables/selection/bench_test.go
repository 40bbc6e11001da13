// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// created has a table that some rows are in already.
func created[Row any](t testing.TB, db *statedb.DB, create func(*statedb.DB) (statedb.RWTable[Row], error), rows ...Row) statedb.RWTable[Row] {
	table, err := create(db)
	require.NoError(t, err)
	wtxn := db.WriteTxn(table)
	for _, row := range rows {
		_, _, err := table.Insert(wtxn, row)
		require.NoError(t, err)
	}
	wtxn.Commit()
	return table
}

// manySelectors are those of as many apps, under both roles of network policies.
func manySelectors(t testing.TB, apps int) (selectors []*tables.Selector) {
	add := func(spec tables.SelectorSpec, resolution tables.Resolution) {
		s, err := tables.NewSelector(spec, resolution)
		require.NoError(t, err)
		selectors = append(selectors, s)
	}
	for _, e := range entities {
		add(tables.EntitySelector(e), tables.Resolution{})
	}
	for i := range apps {
		pods := tables.EgressSelector{Pods: fmt.Sprint("app=", i)}
		for _, role := range []bpf.Role{bpf.RolePeer, bpf.RoleSubject} {
			add(tables.PodSelector(role, pods), tables.Resolution{Pods: []tables.EgressSelector{pods}})
		}
	}
	return selectors
}

func newEndpoints(db *statedb.DB) (statedb.RWTable[*tables.Endpoint], error) {
	return tables.NewEndpointTable(db, tables.LocalNode{Name: here})
}

// BenchmarkFirstRound is the classes of 10,000 pods, each with labels of its own.
func BenchmarkFirstRound(b *testing.B) {
	const count, apps = 10_000, 200
	db := statedb.New()
	var endpoints []*tables.Endpoint
	var sets []*tables.LabelSet
	for i := range count {
		node := here
		if i >= 100 {
			node = fmt.Sprint("node-", i%100)
		}
		set := labels.Set{"app": fmt.Sprint(i % apps), "name": fmt.Sprint(i), "tier": "web"}
		e := pod(fmt.Sprint("a/p", i), node, netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}).String(), set)
		endpoints = append(endpoints, e)
		sets = append(sets, e.LabelSet)
	}
	params := newMemberParams(b, db, manySelectors(b, apps), endpoints)
	b.ReportAllocs()
	for b.Loop() {
		var keys []memberKey
		for _, s := range sets {
			affectSet(s.ID, func(key memberKey) { keys = append(keys, key) })
		}
		m := newMembers(params)
		planned, rows := m.plan(db.ReadTxn(), keys)
		n := 0
		for _, key := range planned {
			n += len(rows(key))
		}
		require.Greater(b, n, count)
	}
}

// newMemberParams creates the tables that class-members are of, with some rows.
func newMemberParams(t testing.TB, db *statedb.DB, selectors []*tables.Selector, endpoints []*tables.Endpoint) memberParams {
	nodes := created(t, db, tables.NewNodeTable)
	prefixes := created(t, db, tables.NewPeerPrefixTable, &tables.PeerPrefix{Prefix: world[0]}, &tables.PeerPrefix{Prefix: world[1]})
	output := created(t, db, tables.NewClassMemberTable)
	return memberParams{
		Namespaces: created(t, db, tables.NewNamespaceTable), Selectors: created(t, db, tables.NewSelectorTable, selectors...),
		Output: output, Classes: created(t, db, tables.NewClassTable), Rules: created(t, db, tables.NewEnforcedPolicyTable),
		Readiness: created(t, db, tables.NewPolicyReadinessTable), IPCache: created(t, db, tables.NewIPCacheTable), Locals: created(t, db, tables.NewLocalEndpointTable),
		ClassEntries: created(t, db, tables.NewClassEntryTable), SourceEntries: created(t, db, tables.NewSourceEntryTable),
		EgressEntries: created(t, db, tables.NewEgressEntryTable), IPCacheEntries: created(t, db, tables.NewIPCacheEntryTable),
		PodEntries: created(t, db, tables.NewPodEntryTable), PolicyEntries: created(t, db, tables.NewPolicyMapEntryTable),
		Places: tables.PeerPlaces{
			Members: output, PeerPrefixes: prefixes, Endpoints: created(t, db, newEndpoints, endpoints...), Nodes: nodes,
			CiliumNodes: created(t, db, tables.NewCiliumNodeTable), Addresses: created(t, db, tables.NewNodeAddressTable),
			Routes: created(t, db, tables.NewRouteTable), LocalNode: tables.LocalNode{Name: here},
		},
	}
}
