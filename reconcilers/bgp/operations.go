// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"context"
	"fmt"
	"iter"
	"net/netip"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/tables"
)

// routeOps announces and withdraws routes. The reconciler calls one operation at a time.
type routeOps struct {
	speaker   *speaker
	announced map[netip.Addr]bool
}

var _ reconciler.Operations[*tables.EgressBGPRoute] = &routeOps{}

// Update implements [reconciler.Operations].
func (o *routeOps) Update(
	ctx context.Context, _ statedb.ReadTxn, _ statedb.Revision, row *tables.EgressBGPRoute,
) error {
	if !row.Announce {
		return o.withdraw(ctx, row)
	}
	if err := o.speaker.announce(ctx, row); err != nil {
		return err
	}
	o.announced[row.Addr] = true
	return nil
}

// Delete implements [reconciler.Operations].
func (o *routeOps) Delete(
	ctx context.Context, _ statedb.ReadTxn, _ statedb.Revision, row *tables.EgressBGPRoute,
) error {
	return o.withdraw(ctx, row)
}

func (o *routeOps) withdraw(ctx context.Context, row *tables.EgressBGPRoute) error {
	if !o.announced[row.Addr] {
		return nil
	}
	if err := o.speaker.withdraw(ctx, row); err != nil {
		return err
	}
	delete(o.announced, row.Addr)
	return nil
}

// Prune implements [reconciler.Operations]. A speaker that begins has no routes.
func (o *routeOps) Prune(
	context.Context, statedb.ReadTxn, iter.Seq2[*tables.EgressBGPRoute, statedb.Revision],
) error {
	return nil
}

// sessionOps begins and ends sessions. The reconciler calls one operation at a time.
type sessionOps struct {
	speaker   *speaker
	begun     <-chan struct{} // closed when the speaker has the first routes
	installed map[string]tables.BGPSettings
}

var _ reconciler.Operations[*tables.EgressBGPSession] = &sessionOps{}

// Update implements [reconciler.Operations]. A session with other settings is a new one.
func (o *sessionOps) Update(
	ctx context.Context, _ statedb.ReadTxn, _ statedb.Revision, row *tables.EgressBGPSession,
) error {
	select {
	case <-o.begun:
	case <-ctx.Done():
		return ctx.Err()
	}
	settings, installed := o.installed[row.Peer]
	if row.Refused == "" && installed && settings == row.BGPSettings {
		return nil
	}
	if err := o.end(ctx, row.Peer); err != nil || row.Refused != "" {
		return err
	}
	if err := o.speaker.addPeer(ctx, row.Peer, row.BGPSettings); err != nil {
		return fmt.Errorf("begin the session with %s: %w", row.Addr, err)
	}
	o.installed[row.Peer] = row.BGPSettings
	o.speaker.notify()
	return nil
}

// Delete implements [reconciler.Operations].
func (o *sessionOps) Delete(
	ctx context.Context, _ statedb.ReadTxn, _ statedb.Revision, row *tables.EgressBGPSession,
) error {
	return o.end(ctx, row.Peer)
}

func (o *sessionOps) end(ctx context.Context, peer string) error {
	settings, installed := o.installed[peer]
	if !installed {
		return nil
	}
	if err := o.speaker.removePeer(ctx, settings.Addr); err != nil {
		return fmt.Errorf("end the session with %s: %w", settings.Addr, err)
	}
	delete(o.installed, peer)
	return nil
}

// Prune implements [reconciler.Operations]. A speaker that begins has no sessions.
func (o *sessionOps) Prune(
	context.Context, statedb.ReadTxn, iter.Seq2[*tables.EgressBGPSession, statedb.Revision],
) error {
	return nil
}
