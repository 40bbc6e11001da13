// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
)

// TestMain runs the tests in a network namespace of their own, where two nodes have addresses
// by which a router tells them apart.
func TestMain(m *testing.M) {
	const inside = "SLUICE_TEST_BGP"
	if os.Geteuid() != 0 {
		os.Exit(m.Run())
	}
	if os.Getenv(inside) != "" {
		if err := addAddresses(); err != nil {
			panic(err)
		}
		os.Exit(m.Run())
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=yes")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	var exit *exec.ExitError
	if err := cmd.Run(); errors.As(err, &exit) {
		os.Exit(exit.ExitCode())
	} else if err != nil {
		panic(err)
	}
}

// Each node has an address of the router for itself, and connects from its own.
func routerAddr(node int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(node)}) }
func nodeAddr(node int) netip.Addr   { return netip.AddrFrom4([4]byte{192, 0, 2, byte(10 + node)}) }

var (
	routerAddr6 = netip.MustParseAddr("2001:db8::1")
	nodeAddr6   = netip.MustParseAddr("2001:db8::11")
)

func addAddresses() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	errs := []error{netlink.LinkSetUp(lo)}
	connect := func(router, node netip.Addr) {
		mask := net.CIDRMask(router.BitLen(), router.BitLen())
		errs = append(errs, netlink.AddrAdd(lo, &netlink.Addr{
			IPNet: &net.IPNet{IP: node.AsSlice(), Mask: mask}, Flags: unix.IFA_F_NODAD,
		}))
		errs = append(errs, netlink.RouteReplace(&netlink.Route{
			Dst:       &net.IPNet{IP: router.AsSlice(), Mask: mask},
			LinkIndex: lo.Attrs().Index, Src: node.AsSlice(), Priority: 0,
			Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST,
		}))
	}
	connect(routerAddr(1), nodeAddr(1))
	connect(routerAddr(2), nodeAddr(2))
	connect(routerAddr6, nodeAddr6)
	return errors.Join(errs...)
}

const (
	routerASN = 64513
	nodeASN   = 64512
)

var (
	v4 = netip.MustParseAddr("203.0.113.9")
	v6 = netip.MustParseAddr("2001:db8:1::9")
)

// raceDetector says that the tests run with it.
var raceDetector bool

// router is one, by GoBGP, which waits for sessions.
type router struct {
	testing.TB
	server *server.BgpServer
	port   uint16
}

// newRouter has sessions with the nodes of these addresses, and keeps their routes while they
// restart.
func newRouter(t testing.TB, nodes ...netip.Addr) *router {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if raceDetector {
		t.Skip("several servers of GoBGP in one process race for its variables")
	}
	l, err := net.Listen("tcp", ":0")
	require.NoError(t, err)
	r := &router{TB: t, port: uint16(l.Addr().(*net.TCPAddr).Port), server: server.NewBgpServer()}
	require.NoError(t, l.Close())
	go r.server.Serve()
	ctx := context.Background()
	require.NoError(t, r.server.StartBgp(ctx, &api.StartBgpRequest{Global: &api.Global{
		Asn: routerASN, RouterId: "192.0.2.1", ListenPort: int32(r.port),
	}}))
	t.Cleanup(r.server.Stop)
	for _, addr := range nodes {
		_, family := familyOf(addr)
		require.NoError(t, r.server.AddPeer(ctx, &api.AddPeerRequest{Peer: &api.Peer{
			Conf:      &api.PeerConf{NeighborAddress: addr.String(), PeerAsn: nodeASN},
			Transport: &api.Transport{PassiveMode: true},
			GracefulRestart: &api.GracefulRestart{
				Enabled: true, NotificationEnabled: true, RestartTime: 60,
			},
			AfiSafis: []*api.AfiSafi{{
				Config: &api.AfiSafiConfig{Family: family, Enabled: true},
				MpGracefulRestart: &api.MpGracefulRestart{
					Config: &api.MpGracefulRestartConfig{Enabled: true},
				},
			}},
		}}))
	}
	return r
}

// paths returns the routes to an address, the best first.
func (r *router) paths(addr netip.Addr) (found []*apiutil.Path) {
	family, _ := familyOf(addr)
	require.NoError(r, r.server.ListPath(
		apiutil.ListPathRequest{TableType: api.TableType_TABLE_TYPE_GLOBAL, Family: family},
		func(prefix bgp.NLRI, paths []*apiutil.Path) {
			if prefix.String() == netip.PrefixFrom(addr, addr.BitLen()).String() {
				found = paths
			}
		}))
	return found
}

// seen is what the router says of a route.
func seen(p *apiutil.Path) string {
	var nextHop, metric any
	for _, a := range p.Attrs {
		switch a := a.(type) {
		case *bgp.PathAttributeNextHop:
			nextHop = a.Value
		case *bgp.PathAttributeMpReachNLRI:
			nextHop = a.Nexthop
		case *bgp.PathAttributeMultiExitDisc:
			metric = a.Value
		}
	}
	return fmt.Sprintf("by %v metric %v stale %v", nextHop, metric, p.Stale)
}

// has waits until these are the routes to an address, the best first.
func (r *router) has(addr netip.Addr, want ...string) {
	r.Helper()
	var got []string
	r.eventually(func() bool {
		got = nil
		for _, p := range r.paths(addr) {
			got = append(got, seen(p))
		}
		return fmt.Sprint(got) == fmt.Sprint(want)
	}, func() string { return fmt.Sprintf("%s: got %v, want %v", addr, got, want) })
}

func (r *router) eventually(holds func() bool, text func() string) {
	r.Helper()
	for end := time.Now().Add(30 * time.Second); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			require.Fail(r, text())
		}
	}
}

// node is an agent's announcer, with tables that the test writes.
type node struct {
	*router
	announcer *announcer
	db        *statedb.DB
	leases    tablestest.Table[*tables.EgressIPLease]
	sessions  tablestest.Table[*tables.EgressBGPSession]
	routes    statedb.Table[*tables.EgressBGPRoute]
	stop      func()
}

// start runs the announcer of a node that has some leases when its agent starts.
func (r *router) start(number int, leases ...*tables.EgressIPLease) *node {
	r.Helper()
	n := &node{router: r}
	h := hive.New(statedb.Cell, job.Cell, cell.SimpleHealthCell, cell.Module("test", "Test",
		cell.Provide(
			job.Registry.NewGroup,
			func() tables.EgressBGP { return tables.EgressBGP{Enabled: true} },
			func() tables.LocalNode { return tables.LocalNode{Name: "node"} },
			tables.NewNodeTable, statedb.RWTable[*tables.Node].ToTable,
			tables.NewEgressIPLeaseTable, statedb.RWTable[*tables.EgressIPLease].ToTable,
			tables.NewEgressBGPSessionTable, tables.NewDesired[*tables.EgressBGPSession],
			tables.NewEgressBGPRouteTable,
		),
		cell.Invoke(func(p params) (err error) {
			n.announcer, err = newAnnouncer(p)
			n.db, n.routes = p.DB, p.Routes
			n.leases = tablestest.Of(r.TB, p.DB, p.Leases)
			n.sessions = tablestest.Of(r.TB, p.DB, p.Sessions.ToTable())
			return err
		})))
	log := hivetest.Logger(r.TB, hivetest.LogLevel(slog.LevelError))
	require.NoError(r, h.Populate(log))
	n.leases.Put(leases...)
	tablestest.Insert(r.TB, n.db, n.announcer.Nodes, &tables.Node{
		Name: "node", InternalIPs: []netip.Addr{nodeAddr(number)},
	})
	n.peer("router", routerAddr(number))
	require.NoError(r, h.Start(log, context.Background()))
	stopped := false
	n.stop = func() {
		if !stopped {
			stopped = true
			require.NoError(r, h.Stop(log, context.Background()))
		}
	}
	r.Cleanup(n.stop)
	return n
}

func (n *node) peer(name string, addr netip.Addr) {
	n.sessions.Put(&tables.EgressBGPSession{
		Peer: name, Reconciled: tables.Pending(), BGPSettings: tables.BGPSettings{
			LocalASN: nodeASN, PeerASN: routerASN, Addr: addr, Port: n.port,
			HoldTime: 9 * time.Second, Keepalive: 3 * time.Second, MultihopTTL: 1,
		}})
}

// lease is that of an address at the device.
func lease(addr netip.Addr, generation uint32) *tables.EgressIPLease {
	return &tables.EgressIPLease{Addr: addr, Held: true, Assigned: true, Generation: generation}
}

func (n *node) session(name string) *tables.EgressBGPSession {
	row, _, _ := n.sessions.Get(n.db.ReadTxn(), tables.EgressBGPSessionByPeer(name))
	return row
}

func (n *node) route(addr netip.Addr) *tables.EgressBGPRoute {
	row, _, _ := n.routes.Get(n.db.ReadTxn(), tables.EgressBGPRouteByAddr(addr))
	return row
}
