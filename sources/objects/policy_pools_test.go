// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"context"
	"net/netip"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

// When policies are known they have the addresses of pools, also if these are read later: with no
// moment in between an agent that starts would drop their traffic.
func TestPoliciesAwaitPools(t *testing.T) {
	db := statedb.New()
	tabs, err := NewTables(db, tables.LocalNode{Name: "node-1"})
	require.NoError(t, err)
	wtxn := db.WriteTxn(tabs.EgressIPPools)
	listed := tabs.EgressIPPools.RegisterInitializer(wtxn, "pools")
	wtxn.Commit()
	run := GivePoliciesAddrs(db, tabs)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- run(ctx, nil) }()

	o, err := egressPolicyKind().Decode([]byte(`{"metadata":{"name":"web",
		"annotations":{"sluice.net/egress-ip-pool":"p"}},"spec":{"selectors":[{"podSelector":{}}],
		"destinationCIDRs":["0.0.0.0/0"],"egressGateway":{"nodeSelector":{}}}}`))
	require.NoError(t, err)
	store := egressPolicyKind().Store(&tabs)
	put := func() {
		wtxn := db.WriteTxn(tabs.EgressPolicies)
		require.NoError(t, store.Put(wtxn, o))
		wtxn.Commit()
	}
	put()
	initialized, watch := tabs.EgressPolicies.Initialized(db.ReadTxn())
	require.False(t, initialized)

	pool := &tables.EgressIPPool{
		Name: "p", Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")},
		Allocations: []tables.PoolAllocation{
			{Addr: netip.MustParseAddr("192.0.2.1"), Policy: "web"},
		},
	}
	insert := func(pool *tables.EgressIPPool) {
		wtxn := db.WriteTxn(tabs.EgressIPPools)
		_, _, err := tabs.EgressIPPools.Insert(wtxn, pool)
		require.NoError(t, err)
		listed(wtxn)
		wtxn.Commit()
	}
	insert(pool)
	<-watch
	get := func() *tables.EgressPolicy {
		p, _, _ := tabs.EgressPolicies.Get(db.ReadTxn(), tables.EgressPolicyByName("web"))
		return p
	}
	require.Equal(t, pool.Allocations[0].Addr, get().Gateways[0].EgressIP)

	// The same object again is no change; an address that is not the pool's any more is none.
	before := get()
	put()
	require.Same(t, before, get())
	_, _, watch, _ = tabs.EgressPolicies.GetWatch(db.ReadTxn(), tables.EgressPolicyByName("web"))
	other := *pool
	other.Excluded = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/31")}
	insert(&other)
	<-watch
	require.False(t, get().Gateways[0].EgressIP.IsValid())
	require.True(t, get().WaitsForAddr())
	cancel()
	require.NoError(t, <-done)
}
