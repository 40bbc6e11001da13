// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"context"
	"fmt"
	"hash/fnv"
	"net/netip"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/tables"
)

// announcer says which routes there are, and tells in rows how sessions do.
type announcer struct {
	params
	speaker *speaker
	begun   chan struct{} // closed when the first routes have been given to the speaker
}

// run follows the leases until the context ends. Sessions begin after the routes of addresses
// that a former agent has left are there: routers delete what a speaker that has restarted does
// not announce again.
func (a *announcer) run(ctx context.Context, health cell.Health) error {
	if !tables.AwaitInitialized(ctx, a.DB, a.Leases) {
		return nil
	}
	id, found := a.routerID(ctx)
	if !found {
		return nil
	}
	if err := a.speaker.begin(id); err != nil {
		return err
	}
	begun := false
	for ctx.Err() == nil {
		changed, err := a.follow()
		if err != nil {
			return err
		}
		if !begun && a.await(ctx) {
			begun = true
			close(a.begun)
			health.OK("Following leases of egress addresses")
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	return nil
}

// routerID waits for the Node of this node. Its first IPv4 address is the identifier, and without
// one a hash of its name.
func (a *announcer) routerID(ctx context.Context) (netip.Addr, bool) {
	for {
		node, _, changed, found := a.Nodes.GetWatch(
			a.DB.ReadTxn(), tables.NodeByName(a.LocalNode.Name))
		if found {
			return routerIDOf(node), true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return netip.Addr{}, false
		}
	}
}

func routerIDOf(node *tables.Node) netip.Addr {
	for _, addr := range node.InternalIPs {
		if addr.Is4() {
			return addr
		}
	}
	hash := fnv.New32a()
	hash.Write([]byte(node.Name))
	return netip.AddrFrom4([4]byte(hash.Sum(nil)))
}

// follow makes the routes those of the leases. It returns a channel that is closed when a lease
// changes.
func (a *announcer) follow() (<-chan struct{}, error) {
	wtxn := a.DB.WriteTxn(a.Routes)
	defer wtxn.Abort()
	leases, changed := a.Leases.AllWatch(wtxn)
	writes := 0
	for lease := range leases {
		row := &tables.EgressBGPRoute{
			Addr: lease.Addr, Announce: lease.Assigned,
			Generation: lease.Generation, Reconciled: tables.Pending(),
		}
		old, _, found := a.Routes.Get(wtxn, tables.EgressBGPRouteByAddr(lease.Addr))
		if found && old.Equal(row) || !found && !row.Announce {
			continue
		}
		if _, _, err := a.Routes.Insert(wtxn, row); err != nil {
			return nil, fmt.Errorf("write the route of %s: %w", lease.Addr, err)
		}
		writes++
	}
	for row := range a.Routes.All(wtxn) {
		if _, _, found := a.Leases.Get(wtxn, tables.EgressIPLeaseByAddr(row.Addr)); found {
			continue
		}
		if _, _, err := a.Routes.Delete(wtxn, row); err != nil {
			return nil, fmt.Errorf("delete the route of %s: %w", row.Addr, err)
		}
		writes++
	}
	if writes > 0 {
		wtxn.Commit()
	}
	return changed, nil
}

// await waits until the speaker has all routes.
func (a *announcer) await(ctx context.Context) bool {
	for {
		rows, changed := a.Routes.AllWatch(a.DB.ReadTxn())
		pending := false
		for row := range rows {
			pending = pending || row.Status.Kind != reconciler.StatusKindDone
		}
		if !pending {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// setState changes the state in the row of a session.
func (a *announcer) setState(wtxn statedb.WriteTxn, peer string, to sessionState) (bool, error) {
	row, _, found := a.Sessions.Get(wtxn, tables.EgressBGPSessionByPeer(peer))
	if !found {
		return false, nil
	}
	if to.lastError == "" {
		to.lastError = row.LastError
	}
	if row.State == to.state && row.Announced == to.announced && row.LastError == to.lastError {
		return false, nil
	}
	row = tables.Clone(row)
	if row.State != to.state {
		row.State, row.Since = to.state, time.Now()
	}
	row.Announced, row.LastError = to.announced, to.lastError
	_, _, err := a.Sessions.Insert(wtxn, row)
	return true, err
}
