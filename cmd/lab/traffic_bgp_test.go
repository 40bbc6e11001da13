// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/server"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

const (
	bgpNodeASN   = 64512
	bgpRouterASN = 64513
)

// bgpRouter is the world's router, by GoBGP. It notes by which node it would send to each address.
type bgpRouter struct {
	nodes map[netip.Addr]*Node // by the address of the session

	mu  sync.Mutex
	log map[netip.Addr][]string // names of nodes, "" for no route
}

// startRouter has sessions of each family with the gateways of a cluster.
func startRouter(m *moving) *bgpRouter {
	m.t.Helper()
	r := &bgpRouter{nodes: map[netip.Addr]*Node{}, log: map[netip.Addr][]string{}}
	s := gobgp.NewBgpServer()
	go func() { // its socket is in the world's namespace
		_ = m.World.Run(func() error { s.Serve(); return nil })
	}()
	require.NoError(m.t, s.StartBgp(m.ctx, &api.StartBgpRequest{Global: &api.Global{
		Asn: bgpRouterASN, RouterId: hostOf(OutsideIPv4, routerHost).String(), ListenPort: 179,
	}}))
	m.t.Cleanup(s.Stop)
	require.NoError(m.t, s.WatchEvent(m.ctx, gobgp.WatchEventMessageCallbacks{
		OnBestPath: func(paths []*apiutil.Path, _ time.Time) { r.note(paths) },
	}, gobgp.WatchBestPath(true)))
	for _, n := range m.gateways() {
		// The addresses that the node's kernel prefers towards the router.
		for _, addr := range []netip.Addr{n.OutsideIPv4, n.EgressIPv6} {
			r.nodes[addr] = n
			family := &api.Family{Afi: api.Family_AFI_IP, Safi: api.Family_SAFI_UNICAST}
			if addr.Is6() {
				family.Afi = api.Family_AFI_IP6
			}
			require.NoError(m.t, s.AddPeer(m.ctx, &api.AddPeerRequest{Peer: &api.Peer{
				Conf:            &api.PeerConf{NeighborAddress: addr.String(), PeerAsn: bgpNodeASN},
				Transport:       &api.Transport{PassiveMode: true},
				GracefulRestart: &api.GracefulRestart{Enabled: true, RestartTime: 60},
				AfiSafis: []*api.AfiSafi{{
					Config: &api.AfiSafiConfig{Family: family, Enabled: true},
					MpGracefulRestart: &api.MpGracefulRestart{
						Config: &api.MpGracefulRestartConfig{Enabled: true},
					},
				}},
			}}))
		}
	}
	for name, addr := range map[string]netip.Addr{
		"router-4": hostOf(OutsideIPv4, routerHost), "router-6": hostOf(OutsideIPv6, routerHost),
	} {
		require.NoError(m.t, m.ApplyYAML(fmt.Sprintf(`
apiVersion: sluice.io/v1alpha1
kind: EgressBGPPeer
metadata: {name: %s}
spec:
  nodeSelector: {matchLabels: {egress: "yes"}}
  localASN: %d
  peerASN: %d
  peerAddress: "%s"
`, name, bgpNodeASN, bgpRouterASN, addr)))
	}
	return r
}

func (r *bgpRouter) note(paths []*apiutil.Path) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range paths {
		prefix, err := netip.ParsePrefix(p.Nlri.String())
		if err != nil || !prefix.IsSingleIP() {
			continue
		}
		node := ""
		if n := r.nodes[p.PeerAddress]; n != nil && !p.Withdrawal {
			node = n.Name
		}
		if log := r.log[prefix.Addr()]; len(log) == 0 || log[len(log)-1] != node {
			r.log[prefix.Addr()] = append(log, node)
		}
	}
}

// ways returns by which nodes the router would have sent to an address, one after the other.
func (r *bgpRouter) ways(addr netip.Addr) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.log[addr])
}

// sendsBy waits until the router would send to an address by a node.
func (m *moving) sendsBy(r *bgpRouter, addr netip.Addr, n *Node) {
	m.t.Helper()
	m.eventually(fmt.Sprintf("the router has a route to %s by %s", addr, n.Name), func() error {
		if ways := r.ways(addr); len(ways) == 0 || ways[len(ways)-1] != n.Name {
			return fmt.Errorf("it had %q", ways)
		}
		return nil
	})
}

// established waits until the sessions of a node are.
func (m *moving) established(n *Node) {
	m.t.Helper()
	require.NoError(m.t, AwaitRows(m.ctx, n.Agent, "egress-bgp-sessions",
		func(rows []tables.EgressBGPSession) error {
			for _, row := range rows {
				if row.State != tables.BGPEstablished {
					return fmt.Errorf("%s is %s", row.Peer, row.State)
				}
			}
			if len(rows) != 2 {
				return errors.New("a session of each family is to be there")
			}
			return nil
		}))
}

// TestTrafficEgressIPByBGP: the world's router has a route to an egress address by the node that
// has it. It takes that of the next owner at once, keeps that of an agent that starts again or
// is gone, as others vote for the node, and takes another one when the node is not ready.
func TestTrafficEgressIPByBGP(t *testing.T) {
	t.Parallel()
	m := newMoving(t, time.Second, "--egress-bgp")
	r := startRouter(m)
	owners := map[netip.Addr]*Node{}
	for _, addr := range movings {
		owners[addr] = m.owner(addr)
		m.sendsBy(r, addr, owners[addr])
	}
	for _, n := range m.gateways() {
		m.established(n)
	}
	for _, from := range m.gateways() {
		for _, cordoned := range []bool{true, false} {
			m.change(from, func(s *nodeState) { s.cordoned = cordoned })
			for addr, n := range owners {
				if n == from && cordoned {
					n = m.other(n)
				}
				m.sendsBy(r, addr, n)
				m.carries(addr, n)
			}
		}
	}
	for addr, n := range owners {
		require.Equal(t, []string{n.Name, m.other(n).Name, n.Name}, r.ways(addr))
	}

	before := map[netip.Addr]int{}
	for addr := range owners {
		before[addr] = len(r.ways(addr))
	}
	for _, n := range m.gateways() {
		require.NoError(t, n.Agent.Restart())
		m.established(n)
	}
	for addr, n := range owners {
		m.carries(addr, n)
		require.Len(t, r.ways(addr), before[addr], "agents that start again keep their routes")
	}

	gone := owners[moving4]
	gone.Agent.Kill()
	m.change(gone, func(s *nodeState) { s.notReady = true })
	m.sendsBy(r, moving4, m.other(gone))
	m.carries(moving4, m.other(gone))
}
