// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

// outTuple is the NAT key of what request sends.
func outTuple(transport string, from, to netip.Addr) packettest.Tuple {
	t := connectionOf(transport, from, to)
	t.Daddr, t.Saddr = to, from
	return t
}

// inTuple is the NAT key of what answers it, to an address and port.
func inTuple(transport string, from, to netip.Addr, port uint16) packettest.Tuple {
	t := outTuple(transport, from, to)
	return packettest.Tuple{Daddr: to, Saddr: from, Dport: port, Sport: t.Dport, Protocol: t.Protocol, Flags: packettest.In}
}

// portOf is what a translation changes beside the source: port or identifier.
func portOf(p *packettest.Packet, transport string) uint16 {
	if transport == "ICMP" {
		return p.EchoID()
	}
	return p.SrcPort
}

func destinationPortOf(p *packettest.Packet, transport string) uint16 {
	if transport == "ICMP" {
		return p.EchoID()
	}
	return p.DstPort
}

// TestGatewayHere: the pod's node is its gateway.
func TestGatewayHere(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		f.selected(f.Here(f.Egress))
		key := connectionOf(transport, f.Pod, f.Server)
		res := f.fromPod(request(transport, f.Pod, f.Server)...)
		p := f.translated(res, f.Egress)
		require.Equal(f, f.Server, p.Dst)
		require.Equal(f, key.Sport, portOf(p, transport), "a free port is kept")
		require.Equal(f, key.Dport, p.DstPort)
		require.EqualValues(f, 63, p.TTL)
		require.EqualValues(f, packettest.MarkTranslated, res.Mark&packettest.MarkMask)
		f.flowReported(res, f.Config.Underlay.Addr(), f.Egress)

		out := f.translation(outTuple(transport, f.Pod, f.Server))
		require.NotNil(f, out)
		require.Equal(f, f.Egress, out.Addr)
		require.Equal(f, key.Sport, out.Port)
		require.NotZero(f, out.Created)
		require.EqualValues(f, 1, out.NeedsCT)
		require.False(f, out.Tunnel.IsValid())
		in := f.translation(inTuple(transport, f.Server, f.Egress, key.Sport))
		require.NotNil(f, in)
		require.Equal(f, f.Pod, in.Addr)
		require.Equal(f, key.Sport, in.Port)
		c := f.connection(key)
		require.NotNil(f, c)
		require.Equal(f, f.Config.Underlay, c.Gateway)

		res = f.fromNetdev(response(transport, f.Server, f.Egress, key.Sport)...)
		p = f.delivered(res)
		require.Equal(f, 1, res.Reasons[bpf.ReasonReplyLocal])
		require.Equal(f, f.Server, p.Src)
		require.Equal(f, f.Pod, p.Dst)
		require.Equal(f, key.Sport, destinationPortOf(p, transport))

		p = f.translated(f.fromPod(request(transport, f.Pod, f.Server)...), f.Egress)
		require.Equal(f, key.Sport, portOf(p, transport), "the next packet has the same port")
	})
}

// TestGatewayForAnother: the node is gateway for a pod of another one.
func TestGatewayForAnother(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		f.selected(f.Here(f.Egress))
		require.NoError(f, f.SetRemotePod(f.RemotePod))
		key := connectionOf(transport, f.RemotePod, f.Server)
		for range 2 {
			p := f.translated(f.fromOverlay(second(), request(transport, f.RemotePod, f.Server)...), f.Egress)
			require.Equal(f, key.Sport, portOf(p, transport))
			require.EqualValues(f, 63, p.TTL)
		}
		out := f.translation(outTuple(transport, f.RemotePod, f.Server))
		require.NotNil(f, out)
		require.Equal(f, second(), out.Tunnel)
		require.NotNil(f, f.connection(key))

		res := f.fromNetdev(response(transport, f.Server, f.Egress, key.Sport)...)
		p := f.toGateway(res, second())
		require.Equal(f, 1, res.Reasons[bpf.ReasonReplyOverlay])
		require.Equal(f, f.Server, p.Src)
		require.Equal(f, f.RemotePod, p.Dst)
		require.Equal(f, key.Sport, destinationPortOf(p, transport))
		require.EqualValues(f, 63, p.TTL)

		// Without the policy, and with another gateway, it goes on.
		require.NoError(f, f.SetGateway(packettest.Group, f.remote(third())))
		f.translated(f.fromOverlay(second(), request(transport, f.RemotePod, f.Server)...), f.Egress)
		require.NoError(f, f.RemovePod(f.RemotePod))
		f.translated(f.fromOverlay(second(), request(transport, f.RemotePod, f.Server)...), f.Egress)
		f.toGateway(f.fromNetdev(response(transport, f.Server, f.Egress, key.Sport)...), second())
	})
}

// TestGatewayNotChosen: a gateway with an address of its own serves what reaches
// it, whatever its table says, and sends nothing on to another one.
func TestGatewayNotChosen(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		row := f.Here(f.Egress)
		row.Gateway = bpf.AddressFrom(third())
		f.selected(row)
		require.NoError(f, f.SetRemotePod(f.RemotePod))
		f.translated(f.fromOverlay(second(), request("TCP", f.RemotePod, f.Server)...), f.Egress)
	})
}

// TestReplyByOverlay: at the pod's node, replies come from the gateway.
func TestReplyByOverlay(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		f.selected(f.remote(second()))
		key := connectionOf(transport, f.Pod, f.Server)
		f.toGateway(f.fromPod(request(transport, f.Pod, f.Server)...), second())
		answer := response(transport, f.Server, f.Pod, key.Sport)
		res := f.fromOverlay(second(), answer...)
		p := f.delivered(res)
		require.Equal(f, 1, res.Reasons[bpf.ReasonReplyLocal])
		require.Equal(f, f.Pod, p.Dst)
		require.Equal(f, f.Server, p.Src)
		f.passed(f.toPod(answer...))
		require.NotZero(f, f.connection(key).RxSeen|f.connection(key).TxSeen|1)
		f.toGateway(f.fromPod(request(transport, f.Pod, f.Server)...), second())
	})
}

// TestFromOverlayRefused: what no node or pod sends, or no rule covers.
func TestFromOverlayRefused(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		f.selected(f.Here(f.Egress))
		require.NoError(f, f.SetRemotePod(f.RemotePod))
		f.dropped(f.fromOverlay(netip.MustParseAddr("172.16.0.77"), request(transport, f.RemotePod, f.Server)...), bpf.ReasonUnknownNode)
		f.dropped(f.fromOverlay(second(), request(transport, f.RemotePod, f.Uncovered)...), bpf.ReasonNoRule)
		f.dropped(f.fromOverlay(second(), request(transport, f.RemotePod, f.Excluded)...), bpf.ReasonNoRule)
		f.dropped(f.fromOverlay(second(), request(transport, f.UnassignedPod, f.Server)...), bpf.ReasonNoRule)
		f.dropped(f.fromOverlay(second(), request(transport, f.RemotePod, f.NodeIP)...), bpf.ReasonNoRule)
		f.dropped(f.fromOverlay(second(), request(transport, f.RemotePod, f.Service)...), bpf.ReasonNoRule)
		all, err := f.Translations()
		require.NoError(f, err)
		require.Empty(f, all)
		// A node that is not ready is one of the cluster still.
		require.NoError(f, f.SetNode(second(), 0))
		f.translated(f.fromOverlay(second(), request(transport, f.RemotePod, f.Server)...), f.Egress)
	})
}

// TestGatewayBecomesNone: a group's own node without an address drops.
func TestGatewayBecomesNone(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		f.selected(f.Here())
		f.dropped(f.fromPod(request("TCP", f.Pod, f.Server)...), bpf.ReasonNoEgressIP)
		// It gets one: the flow that was refused is served at once.
		require.NoError(f, f.SetGateway(packettest.Group, f.Here(f.Egress)))
		f.translated(f.fromPod(request("TCP", f.Pod, f.Server)...), f.Egress)
	})
}

// TestEgressAddressMoved: a connection whose egress address left the node gets the
// one that the rules give now.
func TestEgressAddressMoved(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		f.selected(f.Here(f.Egress))
		f.translated(f.fromPod(request(transport, f.Pod, f.Server)...), f.Egress)
		require.NoError(f, f.Map("sluice_exits").Delete(&bpf.ExitKey{Addr: bpf.AddressFrom(f.Egress)}))
		require.NoError(f, f.SetGateway(packettest.Group, f.Here(f.SharedEgress)))
		f.translated(f.fromPod(request(transport, f.Pod, f.Server)...), f.SharedEgress)
	})
}

// TestFromNetdevUnconcerned: what is no reply to a pod is the host's, as it is.
func TestFromNetdevUnconcerned(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		f.selected(f.Here(f.Egress))
		port := portOf(f.translated(f.fromPod(request(transport, f.Pod, f.Server)...), f.Egress), transport)
		for name, layers := range map[string][]packettest.Layer{
			"another remote":              response(transport, f.Server2, f.Egress, port),
			"another port":                response(transport, f.Server, f.Egress, port+1),
			"another address of the host": response(transport, f.Server, f.SharedEgress, port),
			"a request":                   request(transport, f.Server, f.Egress),
			"not to the host":             response(transport, f.Server, f.UnassignedPod, port),
		} {
			packet := f.wireFrame(layers...)
			res := f.run(packettest.Input{Program: "from_netdev", Device: packettest.EgressDevice, Packet: packet})
			require.Equal(f, packettest.Next, res.Verdict, "%s: %v", name, res.Reasons)
			require.Equal(f, packet, res.Out, name)
			require.Zero(f, res.Mark, name)
		}
	})
}

// TestSYNFromOutside: who opens a connection to a port that is a pod's means the host.
func TestSYNFromOutside(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		f.selected(f.Here(f.SharedEgress))
		port := f.translated(f.fromPod(request("TCP", f.Pod, f.Server)...), f.SharedEgress).SrcPort
		packet := f.wireFrame(tcp(f.Server, f.SharedEgress, serverPort, port, packettest.SYN)...)
		res := f.run(packettest.Input{Program: "from_netdev", Device: packettest.EgressDevice, Packet: packet})
		require.Equal(f, packettest.Next, res.Verdict)
		require.Equal(f, packet, res.Out)
		f.delivered(f.fromNetdev(tcp(f.Server, f.SharedEgress, serverPort, port, packettest.SYN|packettest.ACK)...))
	})
}

// TestHostCollides: a connection of the host from the address and port that a pod
// has to the same server gets another port, and its replies come back to the host.
func TestHostCollides(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		f.selected(f.Here(f.SharedEgress))
		taken := portOf(f.translated(f.fromPod(request(transport, f.Pod, f.Server)...), f.SharedEgress), transport)
		host := func() []packettest.Layer {
			switch transport {
			case "TCP":
				return tcp(f.SharedEgress, f.Server, taken, serverPort, packettest.SYN)
			case "UDP":
				return udp(f.SharedEgress, f.Server, taken, serverPort)
			}
			return []packettest.Layer{packettest.IP(f.SharedEgress, f.Server), packettest.Echo(f.Pod, false, taken, 1), packettest.Pattern(40)}
		}
		res := f.toNetdev(0, host()...)
		require.Equal(f, packettest.Next, res.Verdict)
		require.Equal(f, 1, res.Reasons[bpf.ReasonHostTranslated], "%v", res.Reasons)
		p := f.parse(res)
		require.Equal(f, f.SharedEgress, p.Src)
		require.Equal(f, f.Server, p.Dst)
		other := portOf(p, transport)
		require.NotEqual(f, taken, other)
		require.Equal(f, other, portOf(f.parse(f.toNetdev(0, host()...)), transport), "the same one again")

		res = f.fromNetdev(response(transport, f.Server, f.SharedEgress, other)...)
		require.Equal(f, packettest.Next, res.Verdict)
		p = f.parse(res)
		require.Equal(f, f.SharedEgress, p.Dst)
		require.Equal(f, taken, destinationPortOf(p, transport))
		require.Equal(f, f.Pod, f.delivered(f.fromNetdev(response(transport, f.Server, f.SharedEgress, taken)...)).Dst)
	})
}

// TestHostFirst: a port that the host's connection has is not given to a pod.
func TestHostFirst(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		f.selected(f.Here(f.SharedEgress))
		config := f.Config
		config.SharedPorts = [4]bpf.PortRange{{First: 1024, Last: 65535}}
		require.NoError(f, f.SetConfig(config))
		packet := packettest.Build(append([]packettest.Layer{packettest.Ethernet{Src: f.MAC(packettest.EgressDevice), Dst: packettest.RouterMAC}},
			request(transport, f.SharedEgress, f.Server)...)...)
		res := f.run(packettest.Input{Program: "to_netdev", Device: packettest.EgressDevice, Packet: packet})
		require.Equal(f, packettest.Next, res.Verdict)
		require.Equal(f, packet, res.Out, "no connection has the port")
		p := f.translated(f.fromPod(request(transport, f.Pod, f.Server)...), f.SharedEgress)
		require.NotEqual(f, connectionOf(transport, f.Pod, f.Server).Sport, portOf(p, transport))

		answer := f.wireFrame(response(transport, f.Server, f.SharedEgress, connectionOf(transport, f.Pod, f.Server).Sport)...)
		res = f.run(packettest.Input{Program: "from_netdev", Device: packettest.EgressDevice, Packet: answer})
		require.Equal(f, packettest.Next, res.Verdict)
		require.Equal(f, answer, res.Out)
	})
}

// TestToNetdevUnconcerned: what does not use an egress address is left alone, and
// what a program has translated too.
func TestToNetdevUnconcerned(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		f.selected(f.Here(f.Egress))
		for name, in := range map[string]struct {
			from netip.Addr
			mark uint32
		}{"another address": {from: f.NodeIP}, "a pod's": {from: f.Pod, mark: packettest.MarkChecked}, "translated": {from: f.Egress, mark: packettest.MarkTranslated}} {
			packet := packettest.Build(append([]packettest.Layer{packettest.Ethernet{Src: f.MAC(packettest.EgressDevice), Dst: packettest.RouterMAC}},
				request(transport, in.from, f.Server)...)...)
			res := f.run(packettest.Input{Program: "to_netdev", Device: packettest.EgressDevice, Packet: packet, Mark: in.mark})
			require.Equal(f, packettest.Next, res.Verdict, name)
			require.Equal(f, packet, res.Out, name)
			require.Equal(f, in.mark, res.Mark, name)
		}
		all, err := f.Translations()
		require.NoError(f, err)
		require.Empty(f, all)
	})
}

// TestHostAnswers: what the host answers to who connected to it keeps its port,
// even one that a pod has towards the same remote.
func TestHostAnswers(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		f.selected(f.Here(f.SharedEgress))
		port := f.translated(f.fromPod(request("TCP", f.Pod, f.Server)...), f.SharedEgress).SrcPort
		for _, flags := range []uint8{packettest.SYN | packettest.ACK} {
			layers := tcp(f.SharedEgress, f.Server, port, serverPort, flags)
			res := f.toNetdev(0, layers...)
			require.Equal(f, packettest.Next, res.Verdict)
			require.Equal(f, port, f.parse(res).SrcPort)
		}
	})
}

// TestOverlayPort: a pod that sends from the port of the overlay gets its replies.
func TestOverlayPort(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		f.selected(f.Here(f.Egress))
		port := f.translated(f.fromPod(udp(f.Pod, f.Server, f.Config.OverlayPort, 53)...), f.Egress).SrcPort
		p := f.delivered(f.fromNetdev(udp(f.Server, f.Egress, 53, port)...))
		require.Equal(f, f.Config.OverlayPort, p.DstPort)
	})
}
