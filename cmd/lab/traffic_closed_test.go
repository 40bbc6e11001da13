// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
)

const someProtocol = 253 // for experiments (RFC 3692)

// What cannot leave with its egress IP does not leave: each has its reason.
func TestTrafficFailClosed(t *testing.T) {
	t.Parallel()
	tr := newTraffic(t, Options{})
	n1, n2, n3 := tr.Nodes[0], tr.Nodes[1], tr.Nodes[2]
	good, free := tr.pod(n1, "good", "good"), tr.pod(n1, "free", "none")
	lost := []*Pod{tr.pod(n1, "lost", "lost"), tr.pod(n2, "lost-2", "lost")}
	noIP := []*Pod{tr.pod(n1, "no-ip", "no-ip"), tr.pod(n3, "no-ip-3", "no-ip")}
	both := []netip.Prefix{coveredIPv4, coveredIPv6}
	tr.policy(
		egress{name: "good", app: "good", to: []netip.Prefix{coveredIPv4}, exits: []exit{{node: n2.Name, ip: n2.EgressIPv4}}},
		egress{name: "lost", app: "lost", to: both, exits: []exit{{}}},
		// No node has this address.
		egress{name: "no-ip", app: "no-ip", to: both, exits: []exit{{node: n3.Name, ip: addrOf("203.0.113.250")}}},
	)
	chosen := append(append([]*Pod{good}, lost...), noIP...)
	tr.inForce([]string{"good", "lost", "no-ip"}, chosen...)
	tr.becomes(good.Namespace, ServerIPv4, n2.EgressIPv4)

	require.NoError(t, tr.AwaitSources(tr.ctx, true, []*Node{n3}, noIP...)) // else it has another reason

	var asked sync.WaitGroup
	for _, p := range append(append([]*Pod{}, lost...), noIP...) {
		for _, to := range []netip.Addr{ServerIPv4, ServerIPv6} {
			for _, network := range []string{"tcp", "udp", "icmp"} {
				asked.Go(func() {
					_, err := tr.askFor(p.Namespace, network, to, silence)
					assert.Error(t, err, "%s by %s to %s", p.Name, network, to)
				})
			}
		}
	}
	asked.Wait()
	for _, p := range lost {
		require.GreaterOrEqual(t, tr.count(p.Node, bpf.ReasonNoGateway), uint64(6), p.Node.Name)
		tr.reported(p.Node, p.Namespace.Name, bpf.ReasonNoGateway)
	}
	require.GreaterOrEqual(t, tr.count(n3, bpf.ReasonNoEgressIP), uint64(12))
	for _, p := range noIP {
		tr.reported(n3, p.Namespace.Name, bpf.ReasonNoEgressIP)
	}
	tr.noLeaks(n2.EgressIPv4)

	// A protocol that cannot be translated.
	require.NoError(t, sendRaw(good.Namespace, ServerIPv4, someProtocol))
	require.NoError(t, sendRaw(good.Namespace, ServerIPv4, unix.IPPROTO_SCTP))
	tr.eventually("unknown protocols are dropped", func() error {
		if n := tr.count(n1, bpf.ReasonUnsupportedProtocol); n != 2 {
			return fmt.Errorf("%d drops", n)
		}
		return nil
	})
	tr.reported(n1, good.Namespace.Name, bpf.ReasonUnsupportedProtocol)
	require.NoError(t, sendRaw(free.Namespace, ServerIPv4, someProtocol))
	require.NoError(t, sendRaw(good.Namespace, notCoveredIPv4, someProtocol))
	tr.eventually("unknown protocols without a rule pass", func() error {
		seen := tr.World.Seen()
		for _, to := range []netip.Addr{ServerIPv4, notCoveredIPv4} {
			if n := seen[Flow{someProtocol, 0, n1.OutsideIPv4, to}]; n != 1 {
				return fmt.Errorf("%d packets to %s", n, to)
			}
		}
		return nil
	})

	intrude(tr, good)
	tr.noLeaks(append(tr.allOutside(), n2.EgressIPv4)...)
}

// intrude sends what looks like packets of a pod to its gateway, from who is no node.
func intrude(tr *traffic, pod *Pod) {
	gateway := tr.Nodes[1]
	intruder, err := newNamespace("intruder")
	require.NoError(tr.t, err)
	tr.t.Cleanup(intruder.Close)
	require.NoError(tr.t, tr.connect(intruder, "eth0", switchBridge))
	require.NoError(tr.t, intruder.AddAddress("eth0", inNetwork(UnderlayIPv4, 99)))

	const port, vni = 8474, 7 // by default
	conn, err := intruder.Dial(tr.ctx, "udp", netip.AddrPortFrom(gateway.IPv4, port))
	require.NoError(tr.t, err)
	defer conn.Close()
	frame := append([]byte{8, 0, 0, 0, 0, 0, vni, 0}, ethernet(
		net.HardwareAddr{2, 0, 0, 0, 0, 1}, net.HardwareAddr{2, 0, 0, 0, 0xff, 1}, unix.ETH_P_IP,
	)...)
	frame = append(frame, ipv4UDP(pod.IPv4, ServerIPv4, 4000, Port, []byte("intruder"))...)
	before := tr.count(gateway, bpf.ReasonUnknownNode)
	const packets = 10
	for range packets {
		_, err := conn.Write(frame)
		require.NoError(tr.t, err)
	}
	tr.eventually("the intruder's packets are dropped", func() error {
		if n := tr.count(gateway, bpf.ReasonUnknownNode) - before; n != packets {
			return fmt.Errorf("%d drops", n)
		}
		return nil
	})
}

// sendRaw sends a packet of a protocol with arbitrary bytes in it.
func sendRaw(n *Namespace, to netip.Addr, protocol int) error {
	return n.Run(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, make([]byte, 32), 0, &unix.SockaddrInet4{Addr: to.As4()})
	})
}

// ethernet is a header with some source.
func ethernet(to, from net.HardwareAddr, protocol uint16) []byte {
	return binary.BigEndian.AppendUint16(slices.Concat(to, from), protocol)
}

// ipv4Header is an IPv4 header for a payload.
func ipv4Header(from, to netip.Addr, protocol uint8, payload int) []byte {
	h := make([]byte, 20)
	h[0], h[8], h[9] = 0x45, 64, protocol
	binary.BigEndian.PutUint16(h[2:], uint16(len(h)+payload))
	copy(h[12:], from.AsSlice())
	copy(h[16:], to.AsSlice())
	binary.BigEndian.PutUint16(h[10:], checksum(h))
	return h
}

func ipv4UDP(from, to netip.Addr, sport, dport uint16, payload []byte) []byte {
	h := make([]byte, 8, 8+len(payload)) // without a checksum, as IPv4 allows
	binary.BigEndian.PutUint16(h, sport)
	binary.BigEndian.PutUint16(h[2:], dport)
	binary.BigEndian.PutUint16(h[4:], uint16(8+len(payload)))
	h = append(h, payload...)
	return append(ipv4Header(from, to, unix.IPPROTO_UDP, len(h)), h...)
}

// ipv4SYN is a packet that opens a TCP connection.
func ipv4SYN(from, to netip.Addr, sport, dport uint16) []byte {
	const syn = 2
	h := make([]byte, 20)
	binary.BigEndian.PutUint16(h, sport)
	binary.BigEndian.PutUint16(h[2:], dport)
	h[12], h[13] = 5<<4, syn
	binary.BigEndian.PutUint16(h[14:], 1<<15)
	pseudo := append(append(append([]byte{}, from.AsSlice()...), to.AsSlice()...), 0, unix.IPPROTO_TCP, 0, byte(len(h)))
	binary.BigEndian.PutUint16(h[16:], checksum(append(pseudo, h...)))
	return append(ipv4Header(from, to, unix.IPPROTO_TCP, len(h)), h...)
}

func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// When the ports of an egress IP are used up, further connections to that server are
// dropped with a reason; those that there are, and others, go on.
func TestTrafficPortsUsedUp(t *testing.T) {
	t.Parallel()
	const ports = 10
	tr := newTraffic(t, Options{Nodes: 2, AgentFlags: []string{"--shared-ports=20000-20009", "--port-share=0"}})
	n1, n2 := tr.Nodes[0], tr.Nodes[1]
	p := tr.pod(n1, "a", "a")
	// The node's own address: only the ports of the flag are given out.
	tr.policy(egress{name: "bank", app: "a", to: []netip.Prefix{coveredIPv4}, exits: []exit{{node: n2.Name, ip: n2.OutsideIPv4}}})
	tr.inForce([]string{"bank"}, p)
	require.NoError(t, tr.AwaitSources(tr.ctx, true, []*Node{n2}, p))

	used := map[uint16]bool{}
	var conns []net.Conn
	for range ports {
		conn := tr.dial(p.Namespace, "tcp", ServerIPv4)
		source, err := askSoon(tr.ctx, conn)
		require.NoError(t, err)
		require.Equal(t, n2.OutsideIPv4, source.Addr())
		require.True(t, source.Port() >= 20000 && source.Port() <= 20009, "port %d", source.Port())
		used[source.Port()] = true
		conns = append(conns, conn)
	}
	require.Len(t, used, ports)
	for range 3 {
		_, err := tr.askFor(p.Namespace, "tcp", ServerIPv4, 2*time.Second)
		require.True(t, isTimeout(err), "%v", err)
	}
	require.NotZero(t, tr.count(n2, bpf.ReasonNoSNATPort))
	tr.reported(n2, p.Namespace.Name, bpf.ReasonNoSNATPort)
	for _, conn := range conns {
		_, err := askSoon(tr.ctx, conn)
		require.NoError(t, err)
	}
	other, err := tr.ask(p.Namespace, "tcp", ServerIPv4.Next())
	require.NoError(t, err, "another server has ports of its own")
	require.Equal(t, n2.OutsideIPv4, other)
	tr.noLeaks(n2.OutsideIPv4)
}
