// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

// TestUnknownSource: a pod sends from its own addresses only, if sources are checked.
func TestUnknownSource(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		strangers := map[string]netip.Addr{
			"unassigned": f.UnassignedPod, "another pod's": f.OtherPod,
			"outside": f.Server2, "the node's": f.SharedEgress,
		}
		for name, from := range strangers {
			res := f.fromPod(request(transport, from, f.Uncovered)...)
			require.Equal(f, 1, res.Reasons[bpf.ReasonUnknownSource], name)
			f.dropped(res, bpf.ReasonUnknownSource)
		}
		config := f.Config
		config.Flags &^= bpf.ConfigStrictSource
		require.NoError(f, f.SetConfig(config))
		for _, name := range []string{"unassigned", "outside"} {
			f.passed(f.fromPod(request(transport, strangers[name], f.Uncovered)...))
		}
	})
}

// TestWithoutAddress: what machines send before they have an address passes.
func TestWithoutAddress(t *testing.T) {
	f := newFixture(t, packettest.World4)
	f.selected(f.Here(f.Egress))
	none := netip.IPv4Unspecified()
	f.passed(f.fromPod(packettest.IP(none, netip.MustParseAddr("255.255.255.255")), packettest.UDP{Src: 68, Dst: 67}, packettest.Pattern(300)))

	f = newFixture(t, packettest.World6)
	f.selected(f.Here(f.Egress))
	none = netip.IPv6Unspecified()
	local := netip.MustParseAddr("fe80::10")
	solicited := netip.MustParseAddr("ff02::1:ff00:10")
	routers := netip.MustParseAddr("ff02::2")
	for name, layers := range map[string][]packettest.Layer{
		"duplicate address detection": {packettest.TTL(none, solicited, 255), packettest.ICMP{Version: 6, Type: 135}, packettest.Payload(f.Pod.AsSlice())},
		"router solicitation":         {packettest.TTL(local, routers, 255), packettest.ICMP{Version: 6, Type: 133}},
		"neighbour solicitation":      {packettest.TTL(f.Pod, soliciting(f.OtherPod), 255), packettest.ICMP{Version: 6, Type: 135}, packettest.Payload(f.OtherPod.AsSlice())},
		"neighbour advertisement":     {packettest.TTL(local, local, 255), packettest.ICMP{Version: 6, Type: 136}, packettest.Payload(f.Pod.AsSlice())},
		"multicast listener report": {packettest.TTL(none, netip.MustParseAddr("ff02::16"), 1), packettest.Options{Kind: packettest.HopByHop},
			packettest.ICMP{Version: 6, Type: 143}, packettest.Pattern(20)},
		"DHCPv6": {packettest.IP(local, netip.MustParseAddr("ff02::1:2")), packettest.UDP{Src: 546, Dst: 547}, packettest.Pattern(60)},
	} {
		packet := f.podFrame(layers...)
		res := f.run(packettest.Input{Program: "from_pod", Device: packettest.PodDevice, Packet: packet})
		require.Equal(t, packettest.Next, res.Verdict, "%s: %v", name, res.Reasons)
		require.Equal(t, packet, res.Out, name)
	}
}

// TestNotReady: a pod that may be under a policy is held, but only where some
// policy covers the destination.
func TestNotReady(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		f.selected(f.Here(f.Egress))
		require.NoError(f, f.SetPod(f.Pod, f.LocalPod(0)))
		f.dropped(f.fromPod(request(transport, f.Pod, f.Server)...), bpf.ReasonPodNotReady)
		f.dropped(f.fromPod(request(transport, f.Pod, f.Server)...), bpf.ReasonPodNotReady)
		f.checked(f.fromPod(request(transport, f.Pod, f.Uncovered)...))
		f.checked(f.fromPod(request(transport, f.Pod, f.RemotePod)...))

		// Once it is ready, the same flow is served.
		f.selected(f.Here(f.Egress))
		f.translated(f.fromPod(request(transport, f.Pod, f.Server)...), f.Egress)
	})
}

// TestPredatesPolicy: a connection that was alive without an egress address is cut
// when a policy selects its pod, and begins anew with one.
func TestPredatesPolicy(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		next := func() *packettest.Result {
			if transport == "TCP" {
				return f.fromPod(tcp(f.Pod, f.Server, podPort, serverPort, packettest.ACK)...)
			}
			return f.fromPod(request(transport, f.Pod, f.Server)...)
		}
		f.checked(f.fromPod(request(transport, f.Pod, f.Server)...))
		f.passed(f.toPod(response(transport, f.Server, f.Pod, connectionOf(transport, f.Pod, f.Server).Sport)...))
		f.checked(next())
		f.checked(f.fromPod(request(transport, f.Pod, f.Uncovered)...))

		f.selected(f.Here(f.Egress))
		f.dropped(next(), bpf.ReasonPredatesPolicy)
		for range 3 { // the far end may be left to say that it knows no such connection
			require.NotEqual(f, packettest.Next, next().Verdict)
		}
		f.checked(f.fromPod(request(transport, f.Pod, f.Uncovered)...))
		f.translated(f.fromPod(request(transport, f.Pod, f.Server)...), f.Egress)
	})
}

// TestPinned: a connection stays with its gateway when the rules change, as long
// as the gateway serves.
func TestPinned(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		next := func() *packettest.Result {
			if transport == "TCP" {
				return f.fromPod(tcp(f.Pod, f.Server, podPort, serverPort, packettest.ACK)...)
			}
			return f.fromPod(request(transport, f.Pod, f.Server)...)
		}
		generation := uint32(packettest.Generation + 1)
		raise := func(subject uint32) {
			generation++
			require.NoError(f, f.SetPod(f.Pod, f.LocalPod(subject)))
			require.NoError(f, f.SetGeneration(generation))
		}
		f.selected(f.remote(second()))
		f.toGateway(f.fromPod(request(transport, f.Pod, f.Server)...), second())

		require.NoError(f, f.SetGateway(packettest.Group, f.remote(third())))
		f.toGateway(next(), second())
		raise(packettest.Routed)
		f.toGateway(next(), second())
		require.Equal(
			f, generation, f.connection(connectionOf(transport, f.Pod, f.Server)).Generation,
		)

		// The policy goes: live connections end by themselves.
		require.NoError(f, f.RemoveRoute(packettest.Routed))
		raise(packettest.Plain)
		f.toGateway(next(), second())
		require.NoError(f, f.SetRoute(packettest.Routed, packettest.EgressRuleset))
		raise(packettest.Routed)
		f.toGateway(next(), second())

		require.NoError(f, f.SetNode(second(), 0))
		f.toGateway(next(), third())
		f.toGateway(next(), third())
		require.Equal(f, bpf.AddressFrom(third()), f.connection(connectionOf(transport, f.Pod, f.Server)).Gateway)
	})
}

// A connection without an answer may never have been served: sent again,
// its first packet goes where the policy says now. Once answered, it stays.
func TestUnanswered(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		syn := func() *packettest.Result {
			return f.fromPod(tcp(f.Pod, f.Server, podPort, serverPort, packettest.SYN)...)
		}
		f.selected(f.remote(second()))
		f.toGateway(syn(), second())
		require.NoError(f, f.SetGateway(packettest.Group, f.remote(third())))
		f.toGateway(syn(), third())

		f.passed(f.toPod(tcp(f.Server, f.Pod, serverPort, podPort, packettest.SYN|packettest.ACK)...))
		require.NoError(f, f.SetGateway(packettest.Group, f.remote(second())))
		f.toGateway(syn(), third())
		f.toGateway(f.fromPod(tcp(f.Pod, f.Server, podPort, serverPort, packettest.ACK)...), third())
	})
}

// TestPolicyRemoved: without the policy new connections go their ordinary way.
func TestPolicyRemoved(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		f.selected(f.Here(f.Egress))
		port := f.translated(f.fromPod(request("TCP", f.Pod, f.Server)...), f.Egress).SrcPort
		require.NoError(f, f.RemoveRoute(packettest.Routed))
		require.NoError(f, f.RemoveEgress(packettest.EgressRuleset, f.Covered))
		f.subject(packettest.Plain, packettest.Generation+2)
		f.delivered(f.fromNetdev(response("TCP", f.Server, f.Egress, port)...))
		p := f.translated(f.fromPod(tcp(f.Pod, f.Server, podPort, serverPort, packettest.ACK)...), f.Egress)
		require.Equal(f, port, p.SrcPort)
		f.checked(f.fromPod(tcp(f.Pod, f.Server, podPort+1, serverPort, packettest.SYN)...))
	})
}

// TestUnsupportedProtocol: what cannot be translated is dropped under a rule only.
func TestUnsupportedProtocol(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		packet := func(to netip.Addr, protocol uint8) []packettest.Layer {
			if f.Pod.Is4() {
				return []packettest.Layer{packettest.IPv4{Src: f.Pod, Dst: to, Protocol: protocol}, packettest.Pattern(32)}
			}
			return []packettest.Layer{packettest.IPv6{Src: f.Pod, Dst: to, NextHeader: protocol}, packettest.Pattern(32)}
		}
		for _, protocol := range []uint8{2, 4, 41, 47, 50, 132, 136, 255} {
			require.NoError(f, f.Reset())
			f.checked(f.fromPod(packet(f.Server, protocol)...))
			for _, gateway := range []bpf.GatewayValue{f.Here(f.Egress), f.remote(second())} {
				require.NoError(f, f.Reset())
				f.selected(gateway)
				f.dropped(f.fromPod(packet(f.Server, protocol)...), bpf.ReasonUnsupportedProtocol)
				f.checked(f.fromPod(packet(f.Uncovered, protocol)...))
				f.checked(f.fromPod(packet(f.RemotePod, protocol)...))
			}
		}
	})
}

// TestNotConfigured: without a configuration what a policy covers is held, and
// nothing else.
func TestNotConfigured(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		f.selected(f.remote(second()))
		require.NoError(f, f.SetConfig(bpf.ConfigValue{}))
		f.dropped(f.fromPod(request("TCP", f.Pod, f.Server)...), bpf.ReasonNotConfigured)
		f.passed(f.fromPod(request("TCP", f.Pod, f.Uncovered)...))
		f.passed(f.fromPod(request("TCP", f.Pod, f.RemotePod)...))
		for _, program := range []string{"to_pod", "from_netdev", "to_netdev"} {
			packet := f.podFrame(request("TCP", f.Pod, f.Server)...)
			res := f.run(packettest.Input{Program: program, Device: packettest.PodDevice, Packet: packet})
			require.Equal(f, packettest.Next, res.Verdict)
			require.Equal(f, packet, res.Out)
		}
	})
}

// requireOnly asserts that there is one connection tracked, and that it is live.
func (f *fixture) requireOnly(key packettest.Tuple) {
	f.Helper()
	all, err := f.Connections()
	require.NoError(f, err)
	require.Len(f, all, 1)
	require.Contains(f, all, key)
	require.Greater(f, all[key].Lifetime, uptime(f))
}

// TestLateReply: a reply that comes after the connection's entry expired is one
// still. The connection remains the pod's own, and a policy that selects the pod later
// applies to it.
func TestLateReply(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		next := func() *packettest.Result {
			if transport == "TCP" {
				return f.fromPod(tcp(f.Pod, f.Server, podPort, serverPort, packettest.ACK)...)
			}
			return f.fromPod(request(transport, f.Pod, f.Server)...)
		}
		key := connectionOf(transport, f.Pod, f.Server)
		f.checked(f.fromPod(request(transport, f.Pod, f.Server)...))
		f.passed(f.toPod(response(transport, f.Server, f.Pod, key.Sport)...))
		f.checked(next())
		f.expire()
		f.passed(f.toPod(response(transport, f.Server, f.Pod, key.Sport)...))
		f.requireOnly(key)
		f.checked(next())

		f.expire()
		f.passed(f.toPod(response(transport, f.Server, f.Pod, key.Sport)...))
		f.selected(f.Here(f.Egress))
		for range 3 {
			f.notLeaked(next())
		}
	})
}

// TestPortsOfExpired: who connects to the pod, with the ports that an expired
// connection of the pod had, begins one of its own.
func TestPortsOfExpired(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		f.checked(f.fromPod(tcp(f.Pod, f.Server, podPort, serverPort, packettest.SYN)...))
		f.expire()
		f.selected(f.Here(f.Egress))
		f.passed(f.toPod(tcp(f.Server, f.Pod, serverPort, podPort, packettest.SYN)...))
		f.checked(f.fromPod(tcp(f.Pod, f.Server, podPort, serverPort, packettest.SYN|packettest.ACK)...))
	})
}

// TestMiddleOfConnection: what is not the beginning of a TCP connection from outside
// may be of one that the pod began, whose entry was lost. It reaches the pod, but
// does not make what the pod sends an answer.
func TestMiddleOfConnection(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		ack := func(to netip.Addr) *packettest.Result {
			return f.fromPod(tcp(f.Pod, to, podPort, serverPort, packettest.ACK)...)
		}
		for _, flags := range []uint8{packettest.ACK, packettest.SYN | packettest.ACK, packettest.FIN | packettest.ACK, packettest.RST, packettest.RST | packettest.ACK, 0} {
			require.NoError(f, f.Reset())
			f.passed(f.toPod(tcp(f.Server, f.Pod, serverPort, podPort, flags)...))
			all, err := f.Connections()
			require.NoError(f, err)
			require.Empty(f, all, "flags %x", flags)
			f.selected(f.Here(f.Egress))
			f.passed(f.toPod(tcp(f.Server, f.Pod, serverPort, podPort, flags)...))
			f.notLeaked(ack(f.Server), "flags %x", flags)
		}
		// In the cluster there is no policy to get past: it is tracked.
		require.NoError(f, f.Reset())
		f.passed(f.toPod(tcp(f.RemotePod, f.Pod, serverPort, podPort, packettest.ACK)...))
		all, err := f.Connections()
		require.NoError(f, err)
		require.Len(f, all, 1)
		for key := range all {
			require.Equal(f, packettest.In, key.Flags)
		}
		f.checked(ack(f.RemotePod))
	})
}

// TestEchoReplyAlone: an answer to an echo that was not seen makes the pod's next echo
// no reply.
func TestEchoReplyAlone(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		f.passed(f.toPod(response("ICMP", f.Server, f.Pod, echoID)...))
		all, err := f.Connections()
		require.NoError(f, err)
		require.Empty(f, all)
		f.selected(f.Here(f.Egress))
		f.translated(f.fromPod(request("ICMP", f.Pod, f.Server)...), f.Egress)
	})
}

// TestAddressOfAnotherPod: a pod that got the address of one that was killed has
// nothing of its connections: with the same ports it begins one of its own, for
// which the gateway of the old one has no meaning.
func TestAddressOfAnotherPod(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		f.selected(f.remote(second()))
		f.toGateway(f.fromPod(tcp(f.Pod, f.Server, podPort, serverPort, packettest.SYN)...), second())
		answer := tcp(f.Server, f.Pod, serverPort, podPort, packettest.SYN|packettest.ACK)
		f.delivered(f.fromOverlay(second(), answer...))
		f.passed(f.toPod(answer...))
		f.toGateway(f.fromPod(tcp(f.Pod, f.Server, podPort, serverPort, packettest.ACK)...), second())

		require.NoError(f, f.RemoveRoute(packettest.Routed))
		f.subject(packettest.Plain, packettest.Generation+50)
		f.checked(f.fromPod(tcp(f.Pod, f.Server, podPort, serverPort, packettest.SYN)...))
		f.checked(f.fromPod(tcp(f.Pod, f.Server, podPort, serverPort, packettest.ACK)...))
		c := f.connection(connectionOf("TCP", f.Pod, f.Server))
		require.Equal(f, bpf.Address{}, c.Gateway)
	})
}
