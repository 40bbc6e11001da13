// SPDX-License-Identifier: Apache-2.0

package egressip

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
)

// An address stays at its device, and its lease with the node, until its route is withdrawn.
func TestRouteIsWithdrawnFirst(t *testing.T) {
	bound := withdrawalWait
	withdrawalWait = time.Hour
	defer func() { withdrawalWait = bound }()
	w := newWorld(t)
	routes := tablestest.Open(t, w.db, tables.NewEgressBGPRouteTable)
	w.BGP, w.BGPRoutes = tables.EgressBGP{Enabled: true}, routes
	w.start()
	defer func() { w.stop() }()
	w.wants(v4, "node-1")
	w.eventually("it comes", func() bool { return w.row(v4) != nil && w.row(v4).Assigned })
	routes.Put(&tables.EgressBGPRoute{Addr: v4, Announce: true, Reconciled: tables.Done()})

	w.wants(v4, "node-2")
	w.eventually("it is told", func() bool { return !w.row(v4).Assigned })
	require.True(t, w.has(v4))
	require.Equal(t, "node-1", w.holder(v4))
	routes.Put(&tables.EgressBGPRoute{Addr: v4, Reconciled: tables.Pending()})
	require.NotZero(t, w.row(v4).Deadline)
	require.True(t, w.has(v4))

	routes.Put(&tables.EgressBGPRoute{Addr: v4, Reconciled: tables.Done()})
	w.eventually("it goes", func() bool { return w.row(v4) == nil && !w.has(v4) })
	w.eventually("and the lease", func() bool { return w.holder(v4) == "" })
}

// A router that does not take the withdrawal does not keep the address here.
func TestWithdrawalHasABound(t *testing.T) {
	w := newWorld(t)
	routes := tablestest.Open(t, w.db, tables.NewEgressBGPRouteTable)
	w.BGP, w.BGPRoutes = tables.EgressBGP{Enabled: true}, routes
	w.start()
	defer func() { w.stop() }()
	w.wants(v4, "node-1")
	w.eventually("it comes", func() bool { return w.row(v4) != nil && w.row(v4).Assigned })
	routes.Put(&tables.EgressBGPRoute{Addr: v4, Announce: true, Reconciled: tables.Done()})
	w.wants(v4, "")
	w.eventually("it goes", func() bool { return w.row(v4) == nil && !w.has(v4) })
}
