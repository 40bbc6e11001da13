// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

const (
	podPort    = 40000
	serverPort = 443
	echoID     = 0x1234
)

// transports are the protocols that connections are tracked of.
var transports = []string{"TCP", "UDP", "ICMP"}

// request returns a packet that begins a connection of the pod.
func request(transport string, from, to netip.Addr) []packettest.Layer {
	switch transport {
	case "TCP":
		return tcp(from, to, podPort, serverPort, packettest.SYN)
	case "UDP":
		return udp(from, to, podPort, serverPort)
	case "SCTP":
		return []packettest.Layer{packettest.IP(from, to), packettest.SCTP{Src: podPort, Dst: serverPort}, packettest.SCTPBegin(packettest.SCTPInit, 7)}
	}
	return []packettest.Layer{packettest.IP(from, to), packettest.Echo(from, false, echoID, 1), packettest.Pattern(40)}
}

// response returns a packet that answers one, to an address and port.
func response(transport string, from, to netip.Addr, port uint16) []packettest.Layer {
	switch transport {
	case "TCP":
		return tcp(from, to, serverPort, port, packettest.SYN|packettest.ACK)
	case "UDP":
		return udp(from, to, serverPort, port)
	case "SCTP":
		return []packettest.Layer{packettest.IP(from, to), packettest.SCTP{Src: serverPort, Dst: port, Tag: 7}, packettest.SCTPBegin(packettest.SCTPInitAck, 8)}
	}
	return []packettest.Layer{packettest.IP(from, to), packettest.Echo(from, true, port, 1), packettest.Pattern(40)}
}

func tcp(from, to netip.Addr, sport, dport uint16, flags uint8) []packettest.Layer {
	return []packettest.Layer{packettest.IP(from, to), packettest.TCP{Src: sport, Dst: dport, Flags: flags, Seq: 1000}, packettest.Pattern(33)}
}

func udp(from, to netip.Addr, sport, dport uint16) []packettest.Layer {
	return []packettest.Layer{packettest.IP(from, to), packettest.UDP{Src: sport, Dst: dport}, packettest.Pattern(33)}
}

// connectionOf is the key of the connection that request begins.
func connectionOf(transport string, from, to netip.Addr) packettest.Tuple {
	t := packettest.Tuple{Daddr: from, Saddr: to, Sport: podPort, Dport: serverPort, Protocol: packettest.TCPProtocol}
	switch transport {
	case "UDP":
		t.Protocol = packettest.UDPProtocol
	case "SCTP":
		t.Protocol = packettest.SCTPProtocol
	case "ICMP":
		t.Sport, t.Dport, t.Protocol = echoID, 0, packettest.ICMPv4Protocol
		if from.Is6() {
			t.Protocol = packettest.ICMPv6Protocol
		}
	}
	return t
}

// uptime returns the seconds of the clock that lifetimes are in.
func uptime(t testing.TB) uint32 {
	var now unix.Timespec
	require.NoError(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &now))
	return uint32(now.Sec)
}

// requireLifetime asserts that a connection expires so many seconds after the last packet.
// The clock of packets is behind by a tick, and a lifetime by a second.
func (f *fixture) requireLifetime(c *packettest.Connection, seconds uint32) {
	f.Helper()
	require.NotNil(f, c, "no connection")
	require.LessOrEqual(f, c.Lifetime, uptime(f)+seconds, "lifetime")
	require.GreaterOrEqual(f, c.Lifetime, f.since+seconds-2, "lifetime")
}

// eachTransport runs a test for each protocol in both families.
func eachTransport(t *testing.T, test func(f *fixture, transport string)) {
	for _, w := range both {
		for _, transport := range transports {
			t.Run(w.Family+" "+transport, func(t *testing.T) { test(newFixture(t, w), transport) })
		}
	}
}

// TestPodWithoutPolicy: what no policy selects passes as it is, and is tracked.
func TestPodWithoutPolicy(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		packet := f.podFrame(request(transport, f.Pod, f.Server)...)
		for range 3 {
			res := f.run(packettest.Input{Program: "from_pod", Device: packettest.PodDevice, Packet: packet})
			f.checked(res)
			require.Equal(f, packet, res.Out)
		}
		c := f.connection(connectionOf(transport, f.Pod, f.Server))
		if transport == "TCP" {
			f.requireLifetime(c, packettest.LifetimeSYN)
			require.EqualValues(f, packettest.SYN, c.TxSeen)
		} else {
			f.requireLifetime(c, packettest.LifetimeAny)
		}
		require.EqualValues(f, 3, c.Packets)
		require.EqualValues(f, packettest.Generation, c.Generation)
		require.Equal(f, bpf.Address{}, c.Gateway)
		require.Zero(f, c.Flags&(packettest.RxClosing|packettest.TxClosing|packettest.SeenNonSYN))
	})
}

// TestLifetimesOfTCP follows a connection from its SYN to both FINs.
func TestLifetimesOfTCP(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		key := connectionOf("TCP", f.Pod, f.Server)
		out := func(flags uint8) { f.checked(f.fromPod(tcp(f.Pod, f.Server, podPort, serverPort, flags)...)) }
		in := func(flags uint8) { f.passed(f.toPod(tcp(f.Server, f.Pod, serverPort, podPort, flags)...)) }

		out(packettest.SYN)
		f.requireLifetime(f.connection(key), packettest.LifetimeSYN)
		in(packettest.SYN | packettest.ACK)
		out(packettest.ACK)
		c := f.connection(key)
		f.requireLifetime(c, packettest.LifetimeTCP)
		require.NotZero(f, c.Flags&packettest.SeenNonSYN)
		require.NotZero(f, c.RxSeen&packettest.SYN)
		require.EqualValues(f, 3, c.Packets, "both directions are counted")

		out(packettest.FIN | packettest.ACK)
		c = f.connection(key)
		require.NotZero(f, c.Flags&packettest.TxClosing)
		require.Zero(f, c.Flags&packettest.RxClosing)
		f.requireLifetime(c, packettest.LifetimeTCP)
		in(packettest.FIN | packettest.ACK)
		c = f.connection(key)
		require.NotZero(f, c.Flags&packettest.RxClosing)
		f.requireLifetime(c, packettest.LifetimeStop)
		out(packettest.ACK)
		f.requireLifetime(f.connection(key), packettest.LifetimeStop)

		out(packettest.SYN)
		c = f.connection(key)
		f.requireLifetime(c, packettest.LifetimeSYN)
		require.Zero(f, c.Flags&(packettest.RxClosing|packettest.TxClosing|packettest.SeenNonSYN), "a SYN begins anew")
	})
}

// TestIncomingConnection: a connection to the pod is tracked, and what the pod
// answers is never redirected, whatever a policy says of the destination.
func TestIncomingConnection(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		f.selected(f.Here(f.Egress))
		var in, out []packettest.Layer
		switch transport {
		case "TCP":
			in, out = tcp(f.Server, f.Pod, 1234, 80, packettest.SYN), tcp(f.Pod, f.Server, 80, 1234, packettest.SYN|packettest.ACK)
		case "UDP":
			in, out = udp(f.Server, f.Pod, 1234, 53), udp(f.Pod, f.Server, 53, 1234)
		default:
			in = []packettest.Layer{packettest.IP(f.Server, f.Pod), packettest.Echo(f.Pod, false, echoID, 1), packettest.Pattern(8)}
			out = []packettest.Layer{packettest.IP(f.Pod, f.Server), packettest.Echo(f.Pod, true, echoID, 1), packettest.Pattern(8)}
		}
		f.passed(f.toPod(in...))
		packet := f.podFrame(out...)
		res := f.run(packettest.Input{Program: "from_pod", Device: packettest.PodDevice, Packet: packet})
		f.checked(res)
		require.Equal(f, packet, res.Out)

		// The same when the policy first selects the pod only then.
		f.selected(f.Here(f.Egress))
		require.NoError(f, f.SetGeneration(packettest.Generation+9))
		f.checked(f.run(packettest.Input{Program: "from_pod", Device: packettest.PodDevice, Packet: packet}))
	})
}

// TestNeverRedirected: destinations in the cluster, of the node and of local scope
// pass, whatever policy covers them.
func TestNeverRedirected(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		f.selected(f.Here(f.Egress))
		everything := netip.PrefixFrom(f.Pod, 0).Masked()
		require.NoError(f, f.Cover(everything))
		require.NoError(f, f.SetEgress(packettest.EgressRuleset, everything, packettest.Group))
		for name, to := range map[string]netip.Addr{
			"pod here": f.OtherPod, "pod elsewhere": f.RemotePod,
			"unassigned address in the cluster": f.UnassignedPod,
			"this node":                         f.NodeIP, "another node": f.SecondNode,
			"service": f.Service, "address of the host": f.SharedEgress,
			"link-local": f.LinkLocal, "multicast": f.Multicast, "itself": f.Pod, "excluded": f.Excluded,
		} {
			for _, transport := range transports {
				packet := f.podFrame(request(transport, f.Pod, to)...)
				res := f.run(packettest.Input{Program: "from_pod", Device: packettest.PodDevice, Packet: packet})
				require.Equal(f, packettest.Next, res.Verdict, "%s %s: %v", name, transport, res.Reasons)
				mark := packettest.MarkChecked
				if to == f.Service { // where that ends, the backstop is to look
					mark = packettest.MarkService
				}
				require.EqualValues(f, mark, res.Mark&packettest.MarkMask, name)
				require.Equal(f, packet, res.Out, name)
			}
		}
		all, err := f.Translations()
		require.NoError(f, err)
		require.Empty(f, all)
		f.translated(f.fromPod(request("TCP", f.Pod, f.Uncovered)...), f.Egress)
	})
}

// TestNotCovered: what the policy excludes or does not cover passes.
func TestNotCovered(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		f.selected(f.remote(second()))
		f.checked(f.fromPod(request(transport, f.Pod, f.Excluded)...))
		f.checked(f.fromPod(request(transport, f.Pod, f.Uncovered)...))
		// Nor is a pod concerned that the policy does not select.
		packet := packettest.Build(append([]packettest.Layer{packettest.Ethernet{Dst: f.MAC(packettest.OtherPodDevice), Src: packettest.OtherPodMAC}},
			request(transport, f.OtherPod, f.Server)...)...)
		f.checked(f.run(packettest.Input{Program: "from_pod", Device: packettest.OtherPodDevice, Packet: packet}))
	})
}

// TestToGateway: what the policy covers is sent to the gateway as it is, and the
// connection is pinned to it.
func TestToGateway(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		f.selected(f.remote(second()))
		packet := f.podFrame(request(transport, f.Pod, f.Server)...)
		res := f.run(packettest.Input{Program: "from_pod", Device: packettest.PodDevice, Packet: packet})
		p := f.toGateway(res, second())
		require.Equal(f, 1, res.Reasons[bpf.ReasonToGateway])
		require.Equal(f, f.Pod, p.Src)
		require.Equal(f, f.Server, p.Dst)
		require.True(f, bytes.HasSuffix(res.Out, packet[len(packet)-33:]))
		c := f.connection(connectionOf(transport, f.Pod, f.Server))
		require.NotNil(f, c)
		require.Equal(f, bpf.AddressFrom(second()), c.Gateway)
		require.EqualValues(f, packettest.Generation+1, c.Generation)
		f.flowReported(res, second(), netip.Addr{})

		// The next packet is of the same connection, and no flow anew.
		res = f.run(packettest.Input{Program: "from_pod", Device: packettest.PodDevice, Packet: packet})
		f.toGateway(res, second())
		require.Empty(f, res.Events)
	})
}

// flowReported asserts that a new flow was reported, with what it is pinned to.
func (f *fixture) flowReported(res *packettest.Result, gateway, egress netip.Addr) {
	f.Helper()
	for _, e := range res.Events {
		if e.Kind != bpf.EventFlow {
			continue
		}
		require.Equal(f, gateway, e.Gateway.Addr(), "gateway of the event")
		require.Equal(f, egress, e.Egress.Addr(), "egress address of the event")
		require.EqualValues(f, packettest.EgressRuleset, e.EgressRuleset)
		require.EqualValues(f, packettest.Group, e.Group)
		require.Equal(f, f.Pod, e.Source.Addr())
		require.Equal(f, f.Server, e.Destination.Addr())
		return
	}
	f.Fatalf("no event of the flow: %v", res.Events)
}

// TestSegmentSize: the MSS is lowered to what the overlay carries, and never raised.
func TestSegmentSize(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		f.selected(f.remote(second()))
		most := uint16(1450 - 20 - 20)
		if f.Pod.Is6() {
			most = 1450 - 40 - 20
		}
		for i, given := range []uint16{1460, most + 1, most, most - 1, 536} {
			p := f.toGateway(f.fromPod(packettest.IP(f.Pod, f.Server),
				packettest.TCP{Src: podPort + uint16(i), Dst: serverPort, Flags: packettest.SYN, MSS: given, Options: []byte{1, 1, 4, 2}}), second())
			require.Equal(f, min(given, most), p.MSS, "given %d", given)
		}
		// The option is found behind others, at an odd offset too.
		for i, options := range [][]byte{{1, 2, 4, 5, 0xb4}, {3, 3, 7, 2, 4, 5, 0xb4}, {4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 2, 4, 5, 0xb4}} {
			p := f.toGateway(f.fromPod(packettest.IP(f.Pod, f.Server),
				packettest.TCP{Src: podPort + 100 + uint16(i), Dst: serverPort, Flags: packettest.SYN, Options: options}), second())
			require.Equal(f, most, p.MSS, "options % x", options)
		}
		// It is no option of other segments.
		p := f.toGateway(f.fromPod(packettest.IP(f.Pod, f.Server),
			packettest.TCP{Src: podPort, Dst: serverPort, Flags: packettest.ACK, MSS: 1460}), second())
		require.EqualValues(f, 1460, p.MSS)
	})
}

// TestNoGateway: a policy that covers the destination, but has no gateway or no
// address for it, drops.
func TestNoGateway(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		f.selected(bpf.GatewayValue{})
		f.dropped(f.fromPod(request(transport, f.Pod, f.Server)...), bpf.ReasonNoGateway)
		require.NoError(f, f.SetEgress(packettest.EgressRuleset, f.Covered, packettest.Group+1))
		f.dropped(f.fromPod(request(transport, f.Pod, f.Server)...), bpf.ReasonNoGateway)
		f.checked(f.fromPod(request(transport, f.Pod, f.Excluded)...))
	})
}

// TestNoEgressAddress: this node is the gateway, but has no address of the family.
func TestNoEgressAddress(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		other := packettest.World4
		if f.Pod.Is4() {
			other = packettest.World6
		}
		f.selected(f.Here(other.Egress))
		f.dropped(f.fromPod(request(transport, f.Pod, f.Server)...), bpf.ReasonNoEgressIP)
		require.NoError(f, f.SetRemotePod(f.RemotePod))
		f.dropped(f.fromOverlay(second(), request(transport, f.RemotePod, f.Server)...), bpf.ReasonNoEgressIP)
	})
}

// TestBuckets: the source decides which gateway of a group it is.
func TestBuckets(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		f.selected(bpf.GatewayValue{})
		require.NoError(f, f.SetBucket(packettest.Group, packettest.Bucket(f.Pod), f.remote(third())))
		f.toGateway(f.fromPod(request("TCP", f.Pod, f.Server)...), third())
	})
}
