// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	vn "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

// envLong has the tests run that mostly wait.
const envLong = "SLUICE_TEST_LONG"

// fromPort connects to the server from a port.
func (tr *traffic) fromPort(from *Namespace, port uint16, to netip.Addr) net.Conn {
	tr.t.Helper()
	any4 := netip.AddrPortFrom(netip.IPv4Unspecified(), port)
	conn, err := from.dialFrom(tr.ctx, "tcp", any4, netip.AddrPortFrom(to, Port))
	require.NoError(tr.t, err, "%s from port %d", from.Name, port)
	tr.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// abort ends a connection, with an RST, at once. Close alone does neither while a process that
// another test starts has a copy of the socket, between its fork and its exec.
func abort(conn net.Conn) error {
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return err
	}
	var errno unix.Errno
	err = raw.Control(func(fd uintptr) {
		none := unix.RawSockaddr{Family: unix.AF_UNSPEC} // see connect(2)
		_, _, errno = unix.Syscall(unix.SYS_CONNECT, fd,
			uintptr(unsafe.Pointer(&none)), unsafe.Sizeof(none))
	})
	if errno != 0 {
		err = os.NewSyscallError("connect", errno)
	}
	return errors.Join(err, conn.Close())
}

// withoutWord runs a function while nothing that the pod sends to an address leaves it.
func (p *Pod) withoutWord(to netip.Addr, f func() error) error {
	if err := p.addSpecialRoute(host(to), unix.RTN_BLACKHOLE); err != nil {
		return err
	}
	return errors.Join(f(), p.handle.RouteDel(&vn.Route{Dst: ipNet(host(to)), Type: unix.RTN_BLACKHOLE}))
}

// sendTagged sends a packet in a frame with tags of VLAN 0, which the kernel takes off.
func (p *Pod) sendTagged(tags int, layers ...packettest.Layer) error {
	own, err := p.link(PodDevice)
	if err != nil {
		return err
	}
	other, err := p.Node.link(p.HostDevice)
	if err != nil {
		return err
	}
	const addresses = 12 // bytes
	frame := packettest.Build(append([]packettest.Layer{packettest.Ethernet{
		Dst: packettest.MAC(other.Attrs().HardwareAddr), Src: packettest.MAC(own.Attrs().HardwareAddr),
	}}, layers...)...)
	for range tags {
		frame = slices.Insert(frame, addresses, 0x81, 0, 0, 0)
	}
	return p.Run(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: own.Attrs().Index})
	})
}

// A connection from a port that an ended one had gets the egress IP of now, and not
// the one that the other had.
func TestTrafficPortReused(t *testing.T) {
	t.Parallel()
	tr := newTraffic(t, Options{})
	n1, n2 := tr.Nodes[0], tr.Nodes[1]
	pods := []*Pod{tr.pod(n1, "remote", "a"), tr.pod(n2, "local", "a")}
	bank := func(ip netip.Addr) {
		tr.policy(egress{name: "bank", app: "a", to: []netip.Prefix{coveredIPv4}, exits: []exit{{node: n2.Name, ip: ip}}})
		tr.inForce([]string{"bank"}, pods...)
		for _, p := range pods {
			tr.becomes(p.Namespace, ServerIPv4, ip)
		}
	}
	const port = 45000
	source := func(p *Pod) netip.Addr {
		t.Helper()
		conn := tr.fromPort(p.Namespace, port, ServerIPv4)
		source, err := tr.askOn(conn)
		require.NoError(t, err)
		require.NoError(t, abort(conn))
		return source
	}
	bank(n2.EgressIPv4)
	for _, p := range pods {
		require.Equal(t, n2.EgressIPv4, source(p), p.Name)
	}
	ended := time.Now()
	bank(n2.OutsideIPv4)
	// A record of the last 2 s may be that of a connection whose entry is still to be made.
	time.Sleep(time.Until(ended.Add(3 * time.Second)))
	for _, p := range pods {
		require.Equal(t, n2.OutsideIPv4, source(p), p.Name)
	}
	tr.noLeaks(n2.EgressIPv4, n2.OutsideIPv4)
}

// A connection that was lost silently, as the pod was killed, does not matter for a pod that
// connects from its port later, and that no policy selects any more.
func TestTrafficPortOfLost(t *testing.T) {
	t.Parallel()
	tr := newTraffic(t, Options{Nodes: 2})
	n1, n2 := tr.Nodes[0], tr.Nodes[1]
	p := tr.pod(n1, "a", "a")
	tr.policy(egress{name: "bank", app: "a", to: []netip.Prefix{coveredIPv4}, exits: []exit{{node: n2.Name, ip: n2.EgressIPv4}}})
	tr.inForce([]string{"bank"}, p)
	tr.becomes(p.Namespace, ServerIPv4, n2.EgressIPv4)
	const port = 45000
	conn := tr.fromPort(p.Namespace, port, ServerIPv4)
	source, err := tr.askOn(conn)
	require.NoError(t, err)
	require.Equal(t, n2.EgressIPv4, source)

	require.NoError(t, tr.Delete(Policy("bank")))
	require.NoError(t, tr.AwaitSources(tr.ctx, false, tr.Nodes, p))
	require.NoError(t, p.withoutWord(ServerIPv4, func() error { return abort(conn) }))
	tr.becomes(p.Namespace, ServerIPv4, n1.OutsideIPv4)
	// A SYN to the old connection would be answered with an ACK of that, an RST would
	// end it, and the next SYN be the first of another: a second is lost in the end.
	var byGateway atomic.Int32
	stop, err := Capture(tr.World.Namespace, worldDevice, func(k Packet) {
		if from, _ := k.Ports(); k.Source == n2.EgressIPv4 && from == port {
			byGateway.Add(1)
		}
	})
	require.NoError(t, err)
	defer stop()
	source, err = tr.askOn(tr.fromPort(p.Namespace, port, ServerIPv4))
	require.NoError(t, err)
	require.Equal(t, n1.OutsideIPv4, source)
	require.Zero(t, byGateway.Load(), "packets by the gateway of the lost one")
}

// A connection of the gateway itself, which is older than the agent and of which no
// program knows, keeps what comes back to it: its port is not given to a pod.
func TestTrafficHostBeforeAgent(t *testing.T) {
	for name, c := range map[string]struct {
		localPorts string // of the node, if not the kernel's
		port       uint16
	}{"outside the kernel's range": {port: 25000}, "all in the kernel's range": {"1024 65535", 45000}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tr := newTraffic(t, Options{Nodes: 2, NoAgents: true})
			n1, n2 := tr.Nodes[0], tr.Nodes[1]
			if c.localPorts != "" {
				require.NoError(t, n2.Sysctl("net.ipv4.ip_local_port_range="+c.localPorts))
			}
			host, err := n2.dialFrom(tr.ctx, "tcp", netip.AddrPortFrom(n2.OutsideIPv4, c.port), netip.AddrPortFrom(ServerIPv4, Port))
			require.NoError(t, err)
			defer host.Close()
			own, err := askSoon(tr.ctx, host)
			require.NoError(t, err)
			require.Equal(t, netip.AddrPortFrom(n2.OutsideIPv4, c.port), own)
			require.NoError(t, tr.StartAgents())

			p := tr.pod(n1, "a", "a")
			tr.policy(egress{name: "bank", app: "a", to: []netip.Prefix{coveredIPv4}, exits: []exit{{node: n2.Name, ip: n2.OutsideIPv4}}})
			tr.inForce([]string{"bank"}, p)
			tr.becomes(p.Namespace, ServerIPv4, n2.OutsideIPv4)
			conn := tr.fromPort(p.Namespace, c.port, ServerIPv4)
			for range 2 {
				source, err := askSoon(tr.ctx, conn)
				require.NoError(t, err)
				require.Equal(t, n2.OutsideIPv4, source.Addr())
				require.NotEqual(t, own, source)
				source, err = askSoon(tr.ctx, host)
				require.NoError(t, err, "the host's own")
				require.Equal(t, own, source)
			}
		})
	}
}

// A frame with more than one VLAN tag of no VLAN is read by the kernel behind the
// programs; it gets past neither the policy nor the check of sources.
func TestTrafficTagged(t *testing.T) {
	t.Parallel()
	tr := newTraffic(t, Options{})
	n1, n2 := tr.Nodes[0], tr.Nodes[1]
	p := tr.pod(n1, "a", "a")
	tr.policy(egress{name: "bank", app: "a", to: []netip.Prefix{coveredIPv4}, exits: []exit{{node: n2.Name, ip: n2.EgressIPv4}}})
	tr.inForce([]string{"bank"}, p)
	tr.becomes(p.Namespace, ServerIPv4, n2.EgressIPv4)

	const first = 7770
	frames := []struct {
		what   string
		tags   int
		from   netip.Addr
		to     netip.Addr
		source netip.Addr // that the world sees; none if it is dropped
	}{
		{"of another, to what is not covered", 2, addrOf("192.0.2.77"), notCoveredIPv4, netip.Addr{}},
		{"of another, to what is covered", 2, addrOf("192.0.2.77"), ServerIPv4, netip.Addr{}},
		{"its own, to what is covered", 2, p.IPv4, ServerIPv4, netip.Addr{}},
		{"its own, with a tag more", 3, p.IPv4, ServerIPv4, netip.Addr{}},
		{"of another, untagged", 0, addrOf("192.0.2.77"), notCoveredIPv4, netip.Addr{}},
		{"its own, untagged", 0, p.IPv4, ServerIPv4, n2.EgressIPv4},
	}
	seen := make([]atomic.Pointer[netip.Addr], len(frames))
	stop, err := Capture(tr.World.Namespace, worldDevice, func(k Packet) {
		if _, to := k.Ports(); k.Protocol == unix.IPPROTO_UDP && to >= first && int(to) < first+len(frames) {
			source := k.Source
			seen[to-first].Store(&source)
		}
	})
	require.NoError(t, err)
	defer stop()
	// The kernel's own check of sources is not what the test is about.
	require.NoError(t, n1.Sysctl("net.ipv4.conf."+p.HostDevice+".rp_filter=0"))
	before := tr.count(n1, bpf.ReasonMalformed)
	for i, frame := range frames { // the untagged one last: what came before it has arrived, if it does
		require.NoError(t, p.sendTagged(frame.tags, packettest.IP(frame.from, frame.to),
			packettest.UDP{Src: 5555, Dst: uint16(first + i)}, packettest.Pattern(4)))
	}
	tr.eventually("the last one arrives", func() error {
		if seen[len(frames)-1].Load() == nil {
			return errors.New("not yet")
		}
		return nil
	})
	for i, frame := range frames {
		source := seen[i].Load()
		if !frame.source.IsValid() {
			require.Nil(t, source, "%s: the world sees %v", frame.what, source)
			continue
		}
		require.NotNil(t, source, frame.what)
		require.Equal(t, frame.source, *source, frame.what)
	}
	tr.eventually("the tagged ones are counted", func() error { // on another CPU, maybe
		if n := tr.count(n1, bpf.ReasonMalformed) - before; n != 4 {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
}

// A flow that was alive before the policy, paused for longer than it is tracked, and
// went on with a datagram of the server, is the pod's still.
func TestTrafficLateReply(t *testing.T) {
	if os.Getenv(envLong) == "" {
		t.Skipf("waits for more than a minute: set %s", envLong)
	}
	t.Parallel()
	tr := newTraffic(t, Options{})
	n1, n2 := tr.Nodes[0], tr.Nodes[1]
	p := tr.pod(n1, "a", "a")
	tr.inForce(nil)
	var server net.PacketConn
	require.NoError(t, tr.World.Namespace.Run(func() (err error) {
		server, err = net.ListenPacket("udp4", netip.AddrPortFrom(ServerIPv4, 0).String())
		return err
	}))
	defer server.Close()
	conn, err := p.Namespace.Dial(tr.ctx, "udp", netip.MustParseAddrPort(server.LocalAddr().String()))
	require.NoError(t, err)
	defer conn.Close()
	var peer net.Addr
	buffer := make([]byte, 16)
	hear := func(within time.Duration) (err error) {
		_, err = conn.Write([]byte("x"))
		require.NoError(t, err)
		require.NoError(t, server.SetReadDeadline(time.Now().Add(within)))
		_, peer, err = server.ReadFrom(buffer)
		return err
	}
	answer := func() {
		t.Helper()
		_, err := server.WriteTo([]byte("y"), peer)
		require.NoError(t, err)
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(patience)))
		_, err = conn.Read(buffer)
		require.NoError(t, err)
	}
	for range 5 { // the masquerade of the node keeps a flow of both sides for long
		require.NoError(t, hear(patience))
		answer()
		time.Sleep(time.Second)
	}
	require.Equal(t, n1.OutsideIPv4, peer.(*net.UDPAddr).AddrPort().Addr())
	const tracked = 60 * time.Second
	time.Sleep(tracked + 5*time.Second)
	answer()
	tr.policy(egress{name: "bank", app: "a", to: []netip.Prefix{coveredIPv4}, exits: []exit{{node: n2.Name, ip: n2.EgressIPv4}}})
	tr.inForce([]string{"bank"}, p)
	tr.becomes(p.Namespace, ServerIPv4, n2.EgressIPv4)
	arrived := 0
	for range 5 {
		if err := hear(silence); err != nil {
			require.True(t, isTimeout(err), "%v", err) // the first is to say that it began before
			continue
		}
		arrived++
		require.Equal(t, n2.EgressIPv4, peer.(*net.UDPAddr).AddrPort().Addr())
	}
	require.Positive(t, arrived)
}
