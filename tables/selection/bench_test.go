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
func created[Row any](b *testing.B, db *statedb.DB, create func(*statedb.DB) (statedb.RWTable[Row], error), rows ...Row) statedb.RWTable[Row] {
	table, err := create(db)
	require.NoError(b, err)
	wtxn := db.WriteTxn(table)
	for _, row := range rows {
		_, _, err := table.Insert(wtxn, row)
		require.NoError(b, err)
	}
	wtxn.Commit()
	return table
}

// manySelectors are those of as many apps, under both roles of network policies.
func manySelectors(b *testing.B, apps int) (selectors []*tables.Selector) {
	add := func(spec tables.SelectorSpec, resolution tables.Resolution) {
		s, err := tables.NewSelector(spec, resolution)
		require.NoError(b, err)
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
	nodes := created(b, db, tables.NewNodeTable)
	prefixes := created(b, db, tables.NewPeerPrefixTable, &tables.PeerPrefix{Prefix: world[0]}, &tables.PeerPrefix{Prefix: world[1]})
	output := created(b, db, tables.NewClassMemberTable)
	params := memberParams{
		Namespaces: created(b, db, tables.NewNamespaceTable), Selectors: created(b, db, tables.NewSelectorTable, manySelectors(b, apps)...),
		Output: output, Classes: created(b, db, tables.NewClassTable),
		Rules: created(b, db, tables.NewEnforcedPolicyTable), Readiness: created(b, db, tables.NewPolicyReadinessTable), IPCache: created(b, db, tables.NewIPCacheTable), Locals: created(b, db, tables.NewLocalEndpointTable),
		ClassEntries: created(b, db, tables.NewClassEntryTable), SourceEntries: created(b, db, tables.NewSourceEntryTable),
		EgressEntries: created(b, db, tables.NewEgressEntryTable), IPCacheEntries: created(b, db, tables.NewIPCacheEntryTable),
		PodEntries: created(b, db, tables.NewPodEntryTable), PolicyEntries: created(b, db, tables.NewPolicyMapEntryTable),
		Places: tables.PeerPlaces{
			Members: output, PeerPrefixes: prefixes, Endpoints: created(b, db, newEndpoints, endpoints...), Nodes: nodes,
			CiliumNodes: created(b, db, tables.NewCiliumNodeTable), Addresses: created(b, db, tables.NewNodeAddressTable),
			Routes: created(b, db, tables.NewRouteTable), LocalNode: tables.LocalNode{Name: here},
		},
	}
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
