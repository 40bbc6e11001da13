// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	vn "github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/tables"
)

// The listing that follows the announcement of a device that goes down or up is
// of after what the kernel does to its routes, however many there are.
func TestKernelListingWaitsForRoutes(t *testing.T) {
	t.Parallel()
	const hops = 3000
	n := newNamespace(t)
	n.addVeth("eth0", "peer0")
	n.addVeth("eth1", "peer1")
	n.addAddr("eth0", "10.0.0.1/16")
	n.addAddr("eth1", "10.1.0.1/16")
	eth0, eth1 := n.index("eth0"), n.link("eth1")
	for i := range hops {
		x, y := byte(i/200), byte(2+i%200)
		require.NoError(t, n.RouteAdd(&vn.Route{Dst: ipNet("192.168.0.0/16"), Priority: 1 + i, Table: 100, MultiPath: []*vn.NexthopInfo{
			{LinkIndex: eth0, Gw: net.IPv4(10, 0, x, y)}, {LinkIndex: eth1.Attrs().Index, Gw: net.IPv4(10, 1, x, y)},
		}}))
	}
	k := &socketKernel{namespace: n.ns}
	sub, err := k.subscribe()
	require.NoError(t, err)
	defer sub.close()
	for i := range 20 {
		up, change := i%2 == 1, n.LinkSetDown
		if up {
			change = n.LinkSetUp
		}
		done := make(chan error)
		go func() { done <- change(eth1) }()
		for announced := false; !announced; {
			events, err := sub.receive(t.Context(), time.Now().Add(timeout))
			require.NoError(t, err)
			announced = slices.ContainsFunc(events, func(ev event) bool {
				d, ok := ev.row.(*tables.Device)
				return ok && d.Name == "eth1" && d.Up == up
			})
		}
		l, err := k.list(t.Context(), routes)
		require.NoError(t, err)
		require.NoError(t, <-done)
		alive := 0
		for _, r := range l.Routes {
			if r.Table == 100 && r.DeviceIndex == eth1.Attrs().Index {
				alive++
			}
		}
		require.Equal(t, map[bool]int{true: hops, false: 0}[up], alive)
		require.Equal(t, !up, l.deadHops)
	}
}

// The socket's queue overflows while nothing reads it; what it lost is found.
func TestKernelOverflow(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	n.addVeth("eth0", "peer0")
	k := &socketKernel{namespace: n.ns}
	sub, err := k.subscribe()
	require.NoError(t, err)
	defer sub.close()
	f := sub.(*socketFeed)
	raw, err := f.file.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		require.NoError(t, unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4096))
	}))
	for i := range 200 {
		require.NoError(t, n.RouteReplace(&vn.Route{Dst: ipNet("10." + strconv.Itoa(i) + ".0.0/16"), Type: unix.RTN_BLACKHOLE}))
	}
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	_, err = sub.receive(ctx, time.Now().Add(timeout))
	require.ErrorIs(t, err, unix.ENOBUFS)

	l, err := k.list(t.Context(), routes)
	require.NoError(t, err)
	require.NoError(t, l.problems)
	require.True(t, hasRow(l.Routes, "254", "10.199.0.0/16", "0", "-", "-", "-", "blackhole", "global"), dump(l.State))
}

func TestFeedEndsWithContext(t *testing.T) {
	t.Parallel()
	sub, err := (&socketKernel{namespace: netns.None()}).subscribe()
	require.NoError(t, err)
	defer sub.close()
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	for err == nil {
		_, err = sub.receive(ctx, time.Now().Add(timeout))
	}
	require.ErrorIs(t, err, context.Canceled)

	events, err := sub.receive(t.Context(), time.Now().Add(-time.Second))
	require.NoError(t, err)
	require.Empty(t, events)
}

// The namespace of the process is the default, and needs no privileges.
func TestKernelOfProcess(t *testing.T) {
	t.Parallel()
	v := start(t, Cell)
	v.await(t, "the loopback device", func(s State) bool {
		return v.initialized() && v.healthy() &&
			hasRow(s.Devices, "1", "lo", "*", "loopback", "*", "*", "*", "*", "*", "*", "*", "*")
	})
}

// The listing agrees with what another reader of netlink makes of it.
func TestListOfHost(t *testing.T) {
	t.Parallel()
	l, err := (&socketKernel{namespace: netns.None()}).list(t.Context(), allKinds)
	require.NoError(t, err)
	require.NoError(t, l.problems)
	links, err := vn.LinkList()
	require.NoError(t, err)
	for _, link := range links {
		i := slices.IndexFunc(l.Devices, func(d *tables.Device) bool { return d.Index == link.Attrs().Index })
		require.GreaterOrEqual(t, i, 0, link.Attrs().Name)
		require.Equal(t, link.Attrs().Name, l.Devices[i].Name)
		require.Equal(t, link.Attrs().MTU, l.Devices[i].MTU)
		require.Equal(t, link.Attrs().AltNames, l.Devices[i].AltNames)
	}
	addrs, err := vn.AddrList(nil, vn.FAMILY_ALL)
	require.NoError(t, err)
	for _, a := range addrs {
		addr, _ := netip.AddrFromSlice(a.IP)
		addr = addr.Unmap()
		require.True(t, slices.ContainsFunc(l.Addresses, func(n *tables.NodeAddress) bool {
			return n.Addr == addr && n.DeviceIndex == a.LinkIndex
		}), a.String())
	}
}
