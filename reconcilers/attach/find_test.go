// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
	vn "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/tables"
)

// The kernel finds a neighbour that has said nothing, when it is asked to.
func TestAskFor(t *testing.T) {
	node, pod := newNetwork(t), newNetwork(t)
	node.addVeth("pod0", "eth0", 0)
	require.NoError(t, node.LinkSetNsFd(node.link("eth0"), int(pod.ns)))
	for _, addrs := range [][3]string{
		{"10.9.0.1/24", "10.9.0.2/24", "10.9.0.2"}, {"fd00:9::1/64", "fd00:9::2/64", "fd00:9::2"},
	} {
		for i, end := range []struct {
			*network
			device string
		}{{node, "pod0"}, {pod, "eth0"}} {
			parsed, err := vn.ParseAddr(addrs[i])
			require.NoError(t, err)
			parsed.Flags = unix.IFA_F_NODAD
			require.NoError(t, end.AddrAdd(end.link(end.device), parsed))
			require.NoError(t, end.LinkSetUp(end.link(end.device)))
		}
		found := func() bool {
			list, err := node.NeighList(node.link("pod0").Attrs().Index, vn.FAMILY_ALL)
			require.NoError(t, err)
			for _, n := range list {
				if n.IP.Equal(net.ParseIP(addrs[2])) && n.State&unix.NUD_REACHABLE != 0 {
					return true
				}
			}
			return false
		}
		require.False(t, found())
		require.Eventually(t, func() bool {
			require.NoError(t, namespace(node.ns).askFor(netip.MustParseAddr(addrs[2])))
			return found()
		}, 30*time.Second, 100*time.Millisecond)
	}

	// What is behind no link is not asked for.
	_ = namespace(node.ns).askFor(netip.MustParseAddr("203.0.113.9"))
	require.NoError(t, namespace(node.ns).askFor(netip.MustParseAddr("10.9.0.1")), "the node's own")
	list, err := node.NeighList(0, vn.FAMILY_V4)
	require.NoError(t, err)
	require.Len(t, list, 1)
}

// Pods without device are asked for until they have one.
func TestFinder(t *testing.T) {
	requirePrivileges(t)
	db := statedb.New()
	locals, err := tables.NewLocalEndpointTable(db)
	require.NoError(t, err)
	lost, found := netip.MustParseAddr("10.9.0.2"), netip.MustParseAddr("10.9.0.3")
	write := func(addr netip.Addr, ifIndex uint32) {
		wtxn := db.WriteTxn(locals)
		_, _, err := locals.Insert(wtxn, &tables.LocalEndpoint{Addr: addr, IfIndex: ifIndex})
		require.NoError(t, err)
		wtxn.Commit()
	}
	write(lost, 0)
	write(found, 3)
	asked := make(chan netip.Addr)
	f := &finder{db: db, locals: locals, datapath: loadPrograms(t),
		ask: func(a netip.Addr) error { asked <- a; return nil }}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- f.run(ctx, nil) }()
	for range 3 {
		require.Equal(t, lost, <-asked)
	}
	write(lost, 2)
	write(found, 0)
	require.Eventually(t, func() bool { return <-asked == found }, 30*time.Second, time.Millisecond)
	for range 3 {
		require.Equal(t, found, <-asked)
	}
	cancel()
	for {
		select {
		case <-asked:
		case err := <-done:
			require.NoError(t, err)
			return
		}
	}
}
