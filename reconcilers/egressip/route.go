// SPDX-License-Identifier: Apache-2.0

package egressip

import (
	"context"
	"net/netip"
	"time"

	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/tables"
)

// withdrawalWait bounds how long an address stays for its route to be withdrawn: the metric of
// the next owner's route is better. A variable for tests.
var withdrawalWait = time.Second

// withdrawRoute has the route of an address withdrawn from the routers, and waits for it: until
// then they send packets to this node.
func (k *keeper) withdrawRoute(ctx context.Context, addr netip.Addr) error {
	if !k.BGP.Enabled {
		return nil
	}
	if _, _, found := k.Rows.Get(k.DB.ReadTxn(), tables.EgressIPLeaseByAddr(addr)); !found {
		return nil
	}
	err := k.set(addr, func(row *tables.EgressIPLease) { row.Assigned = false })
	if err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, withdrawalWait)
	defer cancel()
	_ = k.await(waiting, func() bool { // it has a bound
		row, _, found := k.BGPRoutes.Get(k.DB.ReadTxn(), tables.EgressBGPRouteByAddr(addr))
		return !found || !row.Announce && row.Status.Kind == reconciler.StatusKindDone
	})
	return ctx.Err()
}
