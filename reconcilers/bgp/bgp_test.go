// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb/reconciler"
	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

// What the router has of a node.
const (
	byNode1 = "by 192.0.2.11 metric 4294967292 stale false" // generation 3
	byNode2 = "by 192.0.2.12 metric 4294967291 stale false" // generation 4
)

// A route is announced while the address is at the device, to routers of its family.
func TestRoutesFollowLeases(t *testing.T) {
	r := newRouter(t, nodeAddr(1), nodeAddr6)
	n := r.start(1)
	n.peer("router-6", routerAddr6)
	for _, peer := range []string{"router", "router-6"} {
		n.eventually(func() bool { return n.session(peer).State == tables.BGPEstablished },
			func() string { return fmt.Sprint(n.session(peer)) })
	}
	unassigned := lease(v4, 3)
	unassigned.Assigned = false
	n.leases.Put(unassigned, lease(v6, 0))
	r.has(v6, "by 2001:db8::11 metric 4294967295 stale false")
	require.Empty(t, r.paths(v4), "not before it is at the device")
	require.Nil(t, n.route(v4))

	n.leases.Put(lease(v4, 3))
	r.has(v4, byNode1)
	for _, peer := range []string{"router", "router-6"} {
		n.eventually(func() bool { return n.session(peer).Announced == 1 },
			func() string { return fmt.Sprint(n.session(peer)) })
		require.False(t, n.session(peer).Since.IsZero())
	}

	// Another generation is another metric.
	n.leases.Put(lease(v4, 4))
	r.has(v4, "by 192.0.2.11 metric 4294967291 stale false")

	// When the row says that it is withdrawn, the message has been sent.
	before := n.sent()
	unassigned = lease(v4, 4)
	unassigned.Assigned = false
	n.leases.Put(unassigned)
	n.eventually(func() bool { return !n.route(v4).Announce && done(n.route(v4)) },
		func() string { return fmt.Sprint(n.route(v4)) })
	require.Equal(t, before+1, n.sent())
	r.has(v4)
	n.leases.Remove(unassigned)
	n.eventually(func() bool { return n.route(v4) == nil }, func() string { return "the row stays" })
}

func done(row *tables.EgressBGPRoute) bool { return row.Status.Kind == reconciler.StatusKindDone }

// sent returns how many messages with routes the router has got from the first node's speaker,
// as its kernel has taken them.
func (n *node) sent() (updates uint64) {
	states, err := n.announcer.speaker.states(n.Context())
	require.NoError(n, err)
	return states["router"].updates
}

// The routes of an agent that stops stay at the router until it has started again. Then those
// that it does not announce any more go.
func TestRestart(t *testing.T) {
	r := newRouter(t, nodeAddr(1))
	other := netip.MustParseAddr("203.0.113.10")
	n := r.start(1, lease(v4, 3), lease(other, 3))
	r.has(v4, byNode1)
	r.has(other, byNode1)
	withdrawn := r.withdrawals()
	n.stop()
	r.has(v4, "by 192.0.2.11 metric 4294967292 stale true")

	n = r.start(1, lease(v4, 3))
	r.has(v4, byNode1)
	r.has(other)
	require.Equal(t, []string{other.String() + "/32"}, withdrawn())

	// A router that loses its peer for good deletes the routes at once.
	n.sessions.Remove(n.session("router"))
	r.has(v4)
	n.stop()
}

// withdrawals returns what the router has no route to any more.
func (r *router) withdrawals() func() []string {
	withdrawn := make(chan string, 100)
	require.NoError(r, r.server.WatchEvent(r.Context(), server.WatchEventMessageCallbacks{
		OnBestPath: func(paths []*apiutil.Path, _ time.Time) {
			for _, p := range paths {
				if p.Withdrawal {
					withdrawn <- p.Nlri.String()
				}
			}
		},
	}, server.WatchBestPath(false)))
	return func() (all []string) {
		for len(withdrawn) > 0 {
			all = append(all, <-withdrawn)
		}
		return all
	}
}

// The next owner's route wins over that of a former one whose agent is gone, which the router
// still keeps.
func TestNextOwnerWins(t *testing.T) {
	r := newRouter(t, nodeAddr(1), nodeAddr(2))
	first := r.start(1, lease(v4, 3))
	r.has(v4, byNode1)
	first.stop()
	second := r.start(2, lease(v4, 4))
	r.has(v4, byNode2, "by 192.0.2.11 metric 4294967292 stale true")
	second.stop()
}

// Health names each router without a session. A router that announces too much loses its session.
func TestSessions(t *testing.T) {
	r := newRouter(t, nodeAddr(1))
	var paths []*apiutil.Path
	for i := range maxReceived + 1 {
		addr := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
		path, err := pathOf(&tables.EgressBGPRoute{Addr: addr})
		require.NoError(t, err)
		path.Attrs = append(path.Attrs, bgp.NewPathAttributeCommunities([]uint32{1}))
		paths = append(paths, path)
	}
	_, err := r.server.AddPath(apiutil.AddPathRequest{Paths: paths[:10]})
	require.NoError(t, err)
	n := r.start(1)
	n.eventually(func() bool { return n.level() == cell.StatusOK }, n.message)
	n.sessions.Put(&tables.EgressBGPSession{
		Peer: "refused", Refused: "it has mistakes", Reconciled: tables.Pending(),
	})
	n.peer("absent", routerAddr(2))
	n.eventually(func() bool {
		return n.session("absent").State != "" && n.level() == cell.StatusDegraded &&
			n.session("refused").Status.Kind == reconciler.StatusKindDone
	}, n.message)
	require.Contains(t, n.message(), "refused: it has mistakes")
	require.Contains(t, n.message(), "absent: session with 192.0.2.2 is ")
	n.sessions.Remove(n.session("absent"))
	n.sessions.Remove(n.session("refused"))
	n.eventually(func() bool { return n.level() == cell.StatusOK }, n.message)

	n.leases.Put(lease(v4, 3))
	r.has(v4, byNode1)
	require.Zero(t, n.learned(), "routes of routers are not used")
	_, err = r.server.AddPath(apiutil.AddPathRequest{Paths: paths})
	require.NoError(t, err)
	n.eventually(func() bool { return n.session("router").LastError != "" }, n.message)
	require.Equal(t, "the router has announced more than 10000 routes", n.session("router").LastError)
}

// learned counts the routes of the node's speaker that are not its own.
func (n *node) learned() (count int) {
	require.NoError(n, n.announcer.speaker.server.ListPath(apiutil.ListPathRequest{
		TableType: api.TableType_TABLE_TYPE_GLOBAL, Family: bgp.RF_IPv4_UC,
	}, func(prefix bgp.NLRI, _ []*apiutil.Path) {
		if prefix.String() != v4.String()+"/32" {
			count++
		}
	}))
	return count
}

// level and message are what the node says of its health.
func (n *node) level() cell.Level { return n.reported().Level }
func (n *node) message() string   { return fmt.Sprint(n.reported().Status, n.reported().Error) }

func (n *node) reported() *cell.SimpleHealth {
	health, simple := cell.NewSimpleHealth()
	n.announcer.report(health)
	return simple
}

func TestRouterID(t *testing.T) {
	addr := netip.MustParseAddr
	require.Equal(t, addr("192.0.2.7"), routerIDOf(&tables.Node{
		InternalIPs: []netip.Addr{addr("2001:db8::7"), addr("192.0.2.7")},
	}))
	a, b := routerIDOf(&tables.Node{Name: "a"}), routerIDOf(&tables.Node{Name: "b"})
	require.True(t, a.Is4() && b.Is4() && a != b)
}

// BenchmarkAnnounce is from when the row of a lease says that the address is at the device, until
// the router has the route.
func BenchmarkAnnounce(b *testing.B) {
	r := newRouter(b, nodeAddr(1))
	n := r.start(1, lease(v4, 0))
	r.has(v4, "by 192.0.2.11 metric 4294967295 stale false")
	learned := make(chan struct{}, 1)
	require.NoError(b, r.server.WatchEvent(b.Context(), server.WatchEventMessageCallbacks{
		OnBestPath: func([]*apiutil.Path, time.Time) { learned <- struct{}{} },
	}, server.WatchBestPath(false)))
	generation := uint32(0)
	for b.Loop() {
		generation++
		n.leases.Put(lease(v4, generation))
		<-learned
	}
}
