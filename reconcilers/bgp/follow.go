// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/hive/cell"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/pause"
)

// How often sessions are looked at, at most, and if nothing is heard of them.
const (
	atMostEach = 20 * time.Millisecond
	lookAgain  = 5 * time.Second
)

// followSessions writes the states of sessions to their rows and to health.
func (a *announcer) followSessions(ctx context.Context, health cell.Health) error {
	select {
	case <-a.begun:
	case <-ctx.Done():
		return nil
	}
	for ctx.Err() == nil {
		events := a.speaker.changed()
		txn := a.DB.ReadTxn()
		_, sessions := a.Sessions.AllWatch(txn)
		_, routes := a.Routes.AllWatch(txn)
		if err := a.writeStates(ctx); a.speaker.stopped.Load() {
			return nil
		} else if err != nil {
			return err
		}
		a.report(health)
		select {
		case <-ctx.Done():
		case <-events:
		case <-sessions:
		case <-routes:
		case <-time.After(lookAgain):
		}
		pause.For(ctx, atMostEach)
	}
	return nil
}

// writeStates reads the states of all sessions.
func (a *announcer) writeStates(ctx context.Context) error {
	states, err := a.speaker.states(ctx)
	if err != nil {
		return err
	}
	wtxn := a.DB.WriteTxn(a.Sessions.RWTable)
	defer wtxn.Abort()
	writes := 0
	for peer, state := range states {
		before, _, _ := a.Sessions.Get(wtxn, tables.EgressBGPSessionByPeer(peer))
		wrote, err := a.setState(wtxn, peer, state)
		if err != nil {
			return fmt.Errorf("write the state of the session with %s: %w", peer, err)
		}
		if wrote {
			writes++
			if before.State != state.state {
				a.Log.Info("BGP session", "peer", peer, "address", before.Addr,
					"state", state.state, "reason", state.lastError)
			}
		}
	}
	if writes > 0 {
		wtxn.Commit()
	}
	return nil
}

// report says in health which routers do not have the routes of this node.
func (a *announcer) report(health cell.Health) {
	var errs []error
	sessions := 0
	for row := range a.Sessions.All(a.DB.ReadTxn()) {
		sessions++
		switch err := row.Status.GetError(); {
		case row.Refused != "":
			errs = append(errs, fmt.Errorf("%s: %s", row.Peer, row.Refused))
		case err != "":
			errs = append(errs, fmt.Errorf("%s: %s", row.Peer, err))
		case row.State != tables.BGPEstablished:
			text := fmt.Sprintf("%s: session with %s is %s", row.Peer, row.Addr, row.State)
			if row.LastError != "" {
				text += ": " + row.LastError
			}
			errs = append(errs, errors.New(text))
		}
	}
	if len(errs) > 0 {
		health.Degraded("Routers have no session with this node", errors.Join(errs...))
		return
	}
	health.OK(fmt.Sprintf("%d sessions are established", sessions))
}
