// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
)

// newFarWorld makes a router of the world.
func newFarWorld(tr *traffic) *farWorld {
	tr.t.Helper()
	f := &farWorld{}
	v4, v6 := f.networks()
	f.ipv4, f.ipv6 = f.fresh()
	var err error
	f.Namespace, err = newNamespace("far")
	require.NoError(tr.t, err)
	tr.t.Cleanup(f.Close)
	w := tr.World.Namespace
	require.NoError(tr.t, w.Sysctl("net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1",
		"net.ipv4.icmp_ratelimit=0", "net.ipv6.icmp.ratelimit=0"))
	require.NoError(tr.t, w.addVeth(farDevice, f.Namespace, PodDevice, farMTU))
	require.NoError(tr.t, w.AddAddress(farDevice, inNetwork(v4, routerHost), inNetwork(v6, routerHost)))
	for number := range farHosts {
		require.NoError(tr.t, f.AddAddress(PodDevice, inNetwork(v4, 10+number), inNetwork(v6, 10+number)))
	}
	for _, router := range []netip.Addr{hostOf(v4, routerHost), hostOf(v6, routerHost)} {
		require.NoError(tr.t, f.addRoute(anywhere(router.Is6()), router, PodDevice))
	}
	s, err := startServer(f.Namespace)
	require.NoError(tr.t, err)
	tr.t.Cleanup(s.close)
	return f
}

const closedPort = 9

// The server's ICMP error for a closed port reaches the pod's socket.
func (e *egressTest) portUnreachable(tr *traffic) {
	for _, p := range []*Pod{e.remote, e.local} {
		for _, to := range []netip.Addr{ServerIPv4, ServerIPv6} {
			conn, err := p.Dial(tr.ctx, "udp", netip.AddrPortFrom(to, closedPort))
			require.NoError(tr.t, err)
			defer conn.Close()
			require.NoError(tr.t, conn.SetDeadline(time.Now().Add(patience)))
			_, err = conn.Write([]byte("x"))
			require.NoError(tr.t, err)
			_, err = conn.Read(make([]byte, 1))
			require.ErrorIs(tr.t, err, syscall.ECONNREFUSED, "%s to %s", p.Name, to)
		}
	}
}

// A pod's own ICMP error comes from the egress IP, and what it repeats is what the
// server sent.
func (e *egressTest) podUnreachable(tr *traffic) {
	for _, p := range []*Pod{e.remote, e.local} {
		for _, to := range []netip.Addr{ServerIPv4, ServerIPv6} {
			require.ErrorIs(tr.t, e.answerTooLate(tr, p, to), syscall.ECONNREFUSED, "%s to %s", p.Name, to)
		}
	}
	tr.eventually("the errors are captured", func() error {
		seen := tr.World.Seen()
		for _, f := range []Flow{
			{unix.IPPROTO_ICMP, 3, e.gateway.EgressIPv4, ServerIPv4}, {unix.IPPROTO_ICMPV6, 1, e.gateway.EgressIPv6, ServerIPv6},
		} {
			if seen[f] == 0 {
				return fmt.Errorf("there is no %s", f)
			}
		}
		return nil
	})
}

// answerTooLate answers a pod whose socket is closed already, and returns what the
// server's socket is told of that.
func (e *egressTest) answerTooLate(tr *traffic, p *Pod, server netip.Addr) error {
	var listener *net.UDPConn
	err := tr.World.Run(func() (err error) {
		listener, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(server, 0)))
		return err
	})
	require.NoError(tr.t, err)
	defer listener.Close()
	here := listener.LocalAddr().(*net.UDPAddr)

	conn, err := p.Dial(tr.ctx, "udp", here.AddrPort())
	require.NoError(tr.t, err)
	_, err = conn.Write([]byte("x"))
	require.NoError(tr.t, err)
	require.NoError(tr.t, listener.SetDeadline(time.Now().Add(patience)))
	_, from, err := listener.ReadFromUDPAddrPort(make([]byte, 8))
	require.NoError(tr.t, err)
	want := e.gateway.EgressIPv4
	if server.Is6() {
		want = e.gateway.EgressIPv6
	}
	require.Equal(tr.t, want, from.Addr().Unmap())
	require.NoError(tr.t, conn.Close())

	// A connected socket in the listener's place hears of errors.
	require.NoError(tr.t, listener.Close())
	var connected *net.UDPConn
	require.NoError(tr.t, tr.World.Run(func() (err error) {
		connected, err = net.DialUDP("udp", here, net.UDPAddrFromAddrPort(from))
		return err
	}))
	defer connected.Close()
	require.NoError(tr.t, connected.SetDeadline(time.Now().Add(patience)))
	_, err = connected.Write([]byte("late"))
	require.NoError(tr.t, err)
	_, err = connected.Read(make([]byte, 8))
	return err
}

// What traceroute shows: the gateway, the router outside, the server.
func (e *egressTest) hops(tr *traffic) {
	net4, net6 := tr.worldNetworks()
	type hop struct {
		kind4, kind6 uint8
		from4, from6 netip.Addr // of the gateway's own answer nothing is asked
	}
	way := []hop{
		{kind4: 11, kind6: 3},
		{11, 3, hostOf(net4, routerHost), hostOf(net6, routerHost)},
		{3, 1, e.far.ipv4, e.far.ipv6},
	}
	for _, pod := range []*Pod{e.remote, e.local} {
		for _, to := range []netip.Addr{e.far.ipv4, e.far.ipv6} {
			for i, want := range way {
				kind, from := want.kind4, want.from4
				if to.Is6() {
					kind, from = want.kind6, want.from6
				}
				p, err := newProbe(pod.Namespace, netip.AddrPortFrom(to, 33434))
				require.NoError(tr.t, err)
				defer p.close()
				require.NoError(tr.t, p.hops(i+1))
				require.NoError(tr.t, p.send(32))
				got, err := p.complaint(patience)
				require.NoError(tr.t, err, "%s to %s with %d hops", pod.Name, to, i+1)
				require.Equal(tr.t, kind, got.kind, "%s to %s with %d hops: %v", pod.Name, to, i+1, got)
				if from.IsValid() {
					require.Equal(tr.t, from, got.offender, "%s to %s with %d hops: %v", pod.Name, to, i+1, got)
				}
			}
		}
	}
}

// echoes sends datagrams until one of them is answered, as the first may be lost to
// what finds out how large packets may be; after that all must be answered.
func echoes(tr *traffic, pod *Pod, to netip.Addr, size int) {
	tr.t.Helper()
	p, err := newProbe(pod.Namespace, netip.AddrPortFrom(to, Port))
	require.NoError(tr.t, err)
	defer p.close()
	require.NoError(tr.t, p.fragment(true))
	const tries, all = 6, 10
	tried := 0
	for ; tried < tries; tried++ {
		require.NoError(tr.t, p.send(size))
		if _, err = p.answer(500 * time.Millisecond); err == nil {
			break
		}
	}
	require.NoError(tr.t, err, "%s: none of %d datagrams of %d bytes to %s is answered", pod.Name, tries, size, to)
	for i := range all {
		require.NoError(tr.t, p.send(size))
		n, err := p.answer(patience)
		require.NoError(tr.t, err, "%s: datagram %d of %d bytes to %s", pod.Name, i, size, to)
		require.Equal(tr.t, size+sourceLength, n)
	}
}

// Datagrams in fragments are answered in fragments.
func (e *egressTest) fragments(tr *traffic) {
	for _, pod := range []*Pod{e.remote, e.local} {
		for _, to := range []netip.Addr{ServerIPv4, ServerIPv6, e.far.ipv4, e.far.ipv6} {
			echoes(tr, pod, to, 4000)
		}
		tr.becomes(pod.Namespace, ServerIPv4, e.gateway.EgressIPv4)
	}
}

// Who sends what is too big for a link on the way is told so, by the pod's node for
// the overlay and by the router outside; a TCP connection copes with both.
func (e *egressTest) pathMTU(tr *traffic) {
	overlay := tr.options.MTU - 50
	if tr.options.IPv6Underlay {
		overlay = tr.options.MTU - 70
	}
	for _, pod := range []*Pod{e.remote, e.local} {
		far4, far6 := e.far.fresh()
		for _, c := range []struct {
			to      netip.Addr
			headers int
			mtu     int
		}{
			{far4, 28, farMTU}, {far6, 48, farMTU},
			{addrOf("198.51.100.33"), 28, overlay}, {addrOf("2001:db8:51::33"), 48, overlay},
		} {
			if c.mtu == overlay && pod == e.local {
				continue // it goes by no overlay
			}
			p, err := newProbe(pod.Namespace, netip.AddrPortFrom(c.to, Port))
			require.NoError(tr.t, err)
			defer p.close()
			require.NoError(tr.t, p.fragment(false))
			require.NoError(tr.t, p.send(c.mtu-c.headers+1))
			got, err := p.complaint(patience)
			require.NoError(tr.t, err, "%s to %s", pod.Name, c.to)
			require.Equal(tr.t, unix.EMSGSIZE, got.errno, "%s to %s: %v", pod.Name, c.to, got)
			require.EqualValues(tr.t, c.mtu, got.info, "%s to %s: %v", pod.Name, c.to, got)
			require.NoError(tr.t, p.send(c.mtu-c.headers-sourceLength))
			_, err = p.answer(patience)
			require.NoError(tr.t, err, "%s to %s: what just fits", pod.Name, c.to)
		}
		far4, far6 = e.far.fresh()
		echoes(tr, pod, far4, 1400)
		echoes(tr, pod, far6, 1400)
		far4, far6 = e.far.fresh()
		for _, to := range []netip.Addr{far4, far6} {
			conn := tr.dial(pod.Namespace, "tcp", to)
			require.NoError(tr.t, conn.SetDeadline(time.Now().Add(patience)))
			require.NoError(tr.t, Upload(conn, 2<<20), "%s to %s", pod.Name, to)
			require.NoError(tr.t, Download(conn, 2<<20), "%s to %s", pod.Name, to)
		}
	}
	require.NotZero(tr.t, tr.count(e.remote.Node, bpf.ReasonTooBig))
}
