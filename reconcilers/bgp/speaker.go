// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/pause"
)

const (
	// Each session has an AS number of its own; the server needs one, which no message has. It
	// is the last one for private use, see RFC 6996.
	serverASN = 4294967294

	// How long it takes to try again to connect, at least.
	connectRetry = 5 // s

	// A restarted speaker announces its routes when the router has sent its own, which are not
	// used, and at the latest after this time.
	deferral = 1 // s

	// A router that announces more routes loses the session: they take memory, and are not used.
	maxReceived = 10000

	// How long a message is waited for to be given to the kernel, and how often that is looked at.
	sendWait  = 500 * time.Millisecond
	lookAtOut = 500 * time.Microsecond
)

// speaker is the BGP server of this node.
type speaker struct {
	server      *server.BgpServer
	restartTime time.Duration

	stopped atomic.Bool // it has no sessions any more

	mu     sync.Mutex
	signal chan struct{} // closed when something is heard of a session
}

var _ cell.HookInterface = &speaker{}

func newSpeaker(restartTime time.Duration) *speaker {
	return &speaker{
		server: server.NewBgpServer(), restartTime: restartTime, signal: make(chan struct{}),
	}
}

// Start implements [cell.HookInterface].
func (s *speaker) Start(cell.HookContext) error {
	go s.server.Serve()
	return nil
}

// Stop implements [cell.HookInterface]: routers keep the routes for the restart time.
func (s *speaker) Stop(ctx cell.HookContext) error {
	s.stopped.Store(true)
	return s.server.StopBgp(ctx, &api.StopBgpRequest{AllowGracefulRestart: true})
}

// begin makes the speaker ready for routes and sessions. It does not listen, and uses none of
// the routes that routers announce.
func (s *speaker) begin(routerID netip.Addr) error {
	ctx := context.Background()
	err := s.server.StartBgp(ctx, &api.StartBgpRequest{Global: &api.Global{
		Asn: serverASN, RouterId: routerID.String(), ListenPort: -1,
	}})
	if err != nil {
		return fmt.Errorf("start BGP as %s: %w", routerID, err)
	}
	if err := s.refuseRoutes(ctx); err != nil {
		return fmt.Errorf("refuse the routes of routers: %w", err)
	}
	err = s.server.WatchEvent(ctx, server.WatchEventMessageCallbacks{
		OnPeerUpdate: func(*apiutil.WatchEventMessage_PeerEvent, time.Time) { s.notify() },
	}, server.WatchPeer())
	if err != nil {
		return fmt.Errorf("watch sessions: %w", err)
	}
	return nil
}

// refuseRoutes has only routes of this node used.
func (s *speaker) refuseRoutes(ctx context.Context) error {
	own := &api.Policy{Name: "own", Statements: []*api.Statement{{
		Name: "own", Conditions: &api.Conditions{RouteType: api.Conditions_ROUTE_TYPE_LOCAL},
		Actions: &api.Actions{RouteAction: api.RouteAction_ROUTE_ACTION_ACCEPT},
	}}}
	if err := s.server.AddPolicy(ctx, &api.AddPolicyRequest{Policy: own}); err != nil {
		return err
	}
	return s.server.SetPolicyAssignment(ctx, &api.SetPolicyAssignmentRequest{
		Assignment: &api.PolicyAssignment{
			Name: "global", Policies: []*api.Policy{own},
			Direction:     api.PolicyDirection_POLICY_DIRECTION_IMPORT,
			DefaultAction: api.RouteAction_ROUTE_ACTION_REJECT,
		},
	})
}

// changed returns a channel that is closed when something is heard of a session.
func (s *speaker) changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.signal
}

func (s *speaker) notify() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.signal)
	s.signal = make(chan struct{})
}

func familyOf(addr netip.Addr) (bgp.Family, *api.Family) {
	if addr.Is4() {
		return bgp.RF_IPv4_UC, &api.Family{Afi: api.Family_AFI_IP, Safi: api.Family_SAFI_UNICAST}
	}
	return bgp.RF_IPv6_UC, &api.Family{Afi: api.Family_AFI_IP6, Safi: api.Family_SAFI_UNICAST}
}

// addPeer begins a session. Routes of the family of the router's address go over it.
func (s *speaker) addPeer(ctx context.Context, name string, c tables.BGPSettings) error {
	_, family := familyOf(c.Addr)
	return s.server.AddPeer(ctx, &api.AddPeerRequest{Peer: &api.Peer{
		Conf: &api.PeerConf{
			Description: name, NeighborAddress: c.Addr.String(),
			LocalAsn: c.LocalASN, PeerAsn: c.PeerASN,
		},
		Transport:    &api.Transport{RemotePort: uint32(c.Port)},
		EbgpMultihop: &api.EbgpMultihop{Enabled: c.MultihopTTL > 1, MultihopTtl: uint32(c.MultihopTTL)},
		Timers: &api.Timers{Config: &api.TimersConfig{
			ConnectRetry: connectRetry, HoldTime: uint64(c.HoldTime / time.Second),
			KeepaliveInterval: uint64(c.Keepalive / time.Second),
		}},
		GracefulRestart: &api.GracefulRestart{
			Enabled: true, NotificationEnabled: true, LocalRestarting: true,
			RestartTime: uint32(s.restartTime / time.Second), DeferralTime: deferral,
		},
		AfiSafis: []*api.AfiSafi{{
			Config: &api.AfiSafiConfig{Family: family, Enabled: true},
			MpGracefulRestart: &api.MpGracefulRestart{
				Config: &api.MpGracefulRestartConfig{Enabled: true},
			},
			PrefixLimits: &api.PrefixLimit{Family: family, MaxPrefixes: maxReceived},
		}},
	}})
}

// removePeer ends a session for good: the router deletes the routes.
func (s *speaker) removePeer(ctx context.Context, addr netip.Addr) error {
	return s.server.DeletePeer(ctx, &api.DeletePeerRequest{Address: addr.String()})
}

// pathOf is a route with this node as the next hop: with the address that each session has here.
func pathOf(row *tables.EgressBGPRoute) (*apiutil.Path, error) {
	family, _ := familyOf(row.Addr)
	nlri, err := bgp.NewIPAddrPrefix(row.Prefix())
	if err != nil {
		return nil, err
	}
	nextHop := netip.IPv4Unspecified()
	if row.Addr.Is6() {
		nextHop = netip.IPv6Unspecified()
	}
	reach, err := bgp.NewPathAttributeMpReachNLRI(family, []bgp.PathNLRI{{NLRI: nlri}}, nextHop)
	if err != nil {
		return nil, err
	}
	return &apiutil.Path{Family: family, Nlri: nlri, Attrs: []bgp.PathAttributeInterface{
		bgp.NewPathAttributeOrigin(0), reach, bgp.NewPathAttributeMultiExitDisc(row.Metric()),
	}}, nil
}

func (s *speaker) announce(ctx context.Context, row *tables.EgressBGPRoute) error {
	return s.send(ctx, row, func(path *apiutil.Path) error {
		_, err := s.server.AddPath(apiutil.AddPathRequest{Paths: []*apiutil.Path{path}})
		return err
	})
}

func (s *speaker) withdraw(ctx context.Context, row *tables.EgressBGPRoute) error {
	return s.send(ctx, row, func(path *apiutil.Path) error {
		return s.server.DeletePath(apiutil.DeletePathRequest{Paths: []*apiutil.Path{path}})
	})
}

// send changes a route, and waits until all routers that have routes of its family have been
// sent the change, but not for long: one that does not take it loses the session.
func (s *speaker) send(
	ctx context.Context, row *tables.EgressBGPRoute, change func(*apiutil.Path) error,
) error {
	path, err := pathOf(row)
	if err != nil {
		return fmt.Errorf("route to %s: %w", row.Addr, err)
	}
	before, err := s.states(ctx)
	if err != nil {
		return err
	}
	if err := change(path); err != nil {
		return fmt.Errorf("route to %s: %w", row.Addr, err)
	}
	waiting, cancel := context.WithTimeout(ctx, sendWait)
	defer cancel()
	for {
		after, err := s.states(waiting)
		if waiting.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return err
		}
		sent := true
		for name, b := range before {
			a, found := after[name]
			if b.sends && found && a.sends && b.addr.Is4() == row.Addr.Is4() && a.updates == b.updates {
				sent = false
			}
		}
		if sent {
			return nil
		}
		pause.For(waiting, lookAtOut)
	}
}

// sessionState is the state of a session.
type sessionState struct {
	addr      netip.Addr
	state     string
	announced int    // routes that the router has
	lastError string // why the last session ended
	sends     bool   // routes are sent at once
	updates   uint64 // messages with routes that have been sent
}

// states returns the states of all sessions by their names.
func (s *speaker) states(ctx context.Context) (map[string]sessionState, error) {
	states := map[string]sessionState{}
	var errs []error
	request := &api.ListPeerRequest{EnableAdvertised: true}
	err := s.server.ListPeer(ctx, request, func(p *api.Peer) {
		addr, err := netip.ParseAddr(p.GetConf().GetNeighborAddress())
		errs = append(errs, err)
		state := sessionState{addr: addr, updates: p.GetState().GetMessages().GetSent().GetUpdate()}
		name := p.GetState().GetSessionState().String()
		state.state = strings.ToLower(strings.TrimPrefix(name, "SESSION_STATE_"))
		state.sends = state.state == tables.BGPEstablished &&
			!p.GetGracefulRestart().GetLocalRestarting()
		if state.sends {
			for _, family := range p.GetAfiSafis() {
				state.announced += int(family.GetState().GetAdvertised())
			}
		}
		state.lastError = p.GetState().GetDisconnectMessage()
		if p.GetState().GetAdminState() == api.PeerState_ADMIN_STATE_PFX_CT {
			state.lastError = fmt.Sprintf("the router has announced more than %d routes", maxReceived)
		}
		states[p.GetConf().GetDescription()] = state
	})
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, fmt.Errorf("list sessions: %w", err)
	}
	return states, nil
}
