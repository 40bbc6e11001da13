// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

var (
	firstKey  = bpf.NewOverlayKey([16]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16})
	secondKey = bpf.NewOverlayKey([16]byte{0xff, 0xfe, 0xfd, 15: 0x80})
)

// flowOf is the flow of a packet, as its proof names it.
func flowOf(p *packettest.Packet, transport string) packettest.Flow {
	flow := packettest.Flow{Src: p.Src, Dst: p.Dst, SrcPort: p.SrcPort, DstPort: p.DstPort, Protocol: p.Protocol}
	if transport == "ICMP" {
		switch p.ICMPType {
		case 8, 128:
			flow.SrcPort = p.EchoID()
		default:
			flow.DstPort = p.EchoID()
		}
	}
	return flow
}

// proven has a packet arrive from a node, with a proof by a key.
func (f *fixture) proven(key bpf.OverlayKey, node netip.Addr, direction bpf.Direction, transport string,
	layers ...packettest.Layer) *packettest.Result {
	f.Helper()
	p, err := packettest.Parse(packettest.Build(append([]packettest.Layer{packettest.Ethernet{}}, layers...)...))
	require.NoError(f, err)
	proof := packettest.Proof(key, node, f.Config.Underlay.Addr(), direction, flowOf(p, transport))
	return f.arrives(node, proof, layers...)
}

// arrives has a packet arrive from a node, with an inner Ethernet header.
func (f *fixture) arrives(node netip.Addr, ethernet packettest.Ethernet, layers ...packettest.Layer) *packettest.Result {
	f.Helper()
	return f.run(packettest.Input{Program: "from_overlay", Device: packettest.OverlayDevice, Overlay: node,
		Packet: packettest.Build(append([]packettest.Layer{ethernet}, layers...)...)})
}

// proves asserts that a packet that is sent over the overlay has a proof by a key.
func (f *fixture) proves(res *packettest.Result, key bpf.OverlayKey, to netip.Addr, direction bpf.Direction, flow packettest.Flow) {
	f.Helper()
	p := f.toGateway(res, to)
	want := packettest.Proof(key, f.Config.Underlay.Addr(), to, direction, flow)
	require.Equal(f, want.Dst, p.EthernetDst)
	require.Equal(f, want.Src, p.EthernetSrc)
}

// TestOverlayProof: what is sent over the overlay has the MAC of its flow that SipHash of
// another author makes, in both directions.
func TestOverlayProof(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		require.NoError(f, f.SetOverlayKeys(false, firstKey, secondKey))
		f.selected(f.remote(second()))
		res := f.fromPod(request(transport, f.Pod, f.Server)...)
		f.proves(res, firstKey, second(), bpf.DirectionEgress, flowOf(f.parse(res), transport))

		require.NoError(f, f.SetGateway(packettest.Group, f.Here(f.Egress)))
		require.NoError(f, f.SetRemotePod(f.RemotePod))
		for i, key := range []bpf.OverlayKey{secondKey, firstKey} { // both are accepted
			res = f.proven(key, second(), bpf.DirectionEgress, transport, request(transport, f.RemotePod, f.Server)...)
			f.translated(res, f.Egress)
			require.Zero(f, res.Reasons[bpf.ReasonOverlayUnsigned], i)
		}
		res = f.fromNetdev(response(transport, f.Server, f.Egress, connectionOf(transport, f.RemotePod, f.Server).Sport)...)
		f.proves(res, firstKey, second(), bpf.DirectionIngress, flowOf(f.parse(res), transport))
	})
}

// TestOverlayProofOfReply: a reply is delivered with a proof, and the pod does not see that.
func TestOverlayProofOfReply(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		require.NoError(f, f.SetOverlayKeys(false, firstKey))
		f.selected(f.remote(second()))
		f.toGateway(f.fromPod(request(transport, f.Pod, f.Server)...), second())
		answer := response(transport, f.Server, f.Pod, connectionOf(transport, f.Pod, f.Server).Sport)
		p := f.delivered(f.proven(firstKey, second(), bpf.DirectionIngress, transport, answer...))
		require.Equal(f, packettest.MAC{2}, p.EthernetSrc)
	})
}

// TestOverlayProofBetweenIPv6Nodes: the same where nodes reach each other by IPv6.
func TestOverlayProofBetweenIPv6Nodes(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		config, second := f.Config, packettest.World6.SecondNode
		config.Underlay = bpf.AddressFrom(packettest.World6.NodeIP)
		require.NoError(f, f.SetConfig(config))
		require.NoError(f, f.SetOverlayKeys(false, firstKey))
		f.selected(f.remote(second))
		res := f.fromPod(request(transport, f.Pod, f.Server)...)
		f.proves(res, firstKey, second, bpf.DirectionEgress, flowOf(f.parse(res), transport))
		answer := response(transport, f.Server, f.Pod, connectionOf(transport, f.Pod, f.Server).Sport)
		f.delivered(f.proven(firstKey, second, bpf.DirectionIngress, transport, answer...))
		f.dropped(f.proven(secondKey, second, bpf.DirectionIngress, transport, answer...), bpf.ReasonOverlayKey)

		require.NoError(f, f.SetGateway(packettest.Group, f.Here(f.Egress)))
		require.NoError(f, f.SetRemotePod(f.RemotePod))
		f.livesOn(f.RemotePod, second)
		res = f.proven(firstKey, second, bpf.DirectionEgress, transport, request(transport, f.RemotePod, f.Server)...)
		f.translated(res, f.Egress)
	})
}

// TestOverlayProofRefused: no packet is taken with the proof of another one, by another key, or
// without.
func TestOverlayProofRefused(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		require.NoError(f, f.SetOverlayKeys(false, firstKey))
		f.selected(f.Here(f.Egress))
		require.NoError(f, f.SetRemotePod(f.RemotePod))
		layers := request(transport, f.RemotePod, f.Server)
		p, err := packettest.Parse(packettest.Build(append([]packettest.Layer{packettest.Ethernet{}}, layers...)...))
		require.NoError(f, err)
		here, flow := f.Config.Underlay.Addr(), flowOf(p, transport)
		proof := packettest.Proof(firstKey, second(), here, bpf.DirectionEgress, flow)
		forged := map[string]packettest.Ethernet{
			"none":           {Dst: f.MAC(packettest.OverlayDevice), Src: packettest.RouterMAC},
			"another key":    packettest.Proof(secondKey, second(), here, bpf.DirectionEgress, flow),
			"from elsewhere": packettest.Proof(firstKey, third(), here, bpf.DirectionEgress, flow),
			"to elsewhere":   packettest.Proof(firstKey, second(), third(), bpf.DirectionEgress, flow),
		}
		other := flow
		other.Dst = f.Server2
		forged["another destination"] = packettest.Proof(firstKey, second(), here, bpf.DirectionEgress, other)
		other = flow
		other.Src = f.OtherPod
		forged["another source"] = packettest.Proof(firstKey, second(), here, bpf.DirectionEgress, other)
		other = flow
		other.SrcPort++
		forged["another source port"] = packettest.Proof(firstKey, second(), here, bpf.DirectionEgress, other)
		other = flow
		other.DstPort++
		forged["another port"] = packettest.Proof(firstKey, second(), here, bpf.DirectionEgress, other)
		other = flow
		other.Protocol++
		forged["another protocol"] = packettest.Proof(firstKey, second(), here, bpf.DirectionEgress, other)
		turned := proof
		turned.Src[1] = byte(bpf.DirectionIngress)
		forged["the other direction"] = turned
		for i := range 12 { // each byte counts
			broken := proof
			if i < 6 {
				broken.Dst[i] ^= 1
			} else {
				broken.Src[i-6] ^= 1
			}
			forged[string(rune('a'+i))+" is broken"] = broken
		}
		for name, ethernet := range forged {
			res := f.arrives(second(), ethernet, layers...)
			require.Equal(f, 1, res.Reasons[bpf.ReasonOverlayKey], "%s: %v", name, res.Reasons)
			f.dropped(res, bpf.ReasonOverlayKey)
		}
		// For a pod of this node it is no reply.
		toPod := packettest.Proof(firstKey, second(), here, bpf.DirectionIngress, flow)
		f.dropped(f.arrives(second(), toPod, layers...), bpf.ReasonNoRule)
		all, err := f.Translations()
		require.NoError(f, err)
		require.Empty(f, all)

		// While the former version is served, packets without a proof are, and are counted.
		require.NoError(f, f.SetOverlayKeys(true, firstKey))
		res := f.arrives(second(), forged["none"], layers...)
		f.translated(res, f.Egress)
		require.Equal(f, 1, res.Reasons[bpf.ReasonOverlayUnsigned])
		// Without keys and without that nothing is.
		require.NoError(f, f.SetOverlayKeys(false))
		f.dropped(f.arrives(second(), proof, layers...), bpf.ReasonOverlayKey)
		require.NoError(f, f.Map("sluice_keys").Delete(bpf.OverlayKeysKey{}))
		f.dropped(f.arrives(second(), proof, layers...), bpf.ReasonOverlayKey)
	})
}

// TestOverlayProofOfFragments: the first fragment of a datagram has the proof of its flow, with its
// ports; the others one without ports, also where the first one has not been seen.
func TestOverlayProofOfFragments(t *testing.T) {
	f := newFixture(t, packettest.World4)
	require.NoError(f, f.SetOverlayKeys(false, firstKey))
	f.selected(f.remote(second()))
	flow := packettest.Flow{Src: f.Pod, Dst: f.Server, SrcPort: podPort, DstPort: serverPort,
		Protocol: packettest.UDPProtocol}
	first, later := f.fragments(f.Pod, podPort)
	f.proves(f.fromPod(first...), firstKey, second(), bpf.DirectionEgress, flow)
	flow.SrcPort, flow.DstPort, flow.LaterFragment = 0, 0, true
	f.proves(f.fromPod(later...), firstKey, second(), bpf.DirectionEgress, flow)
}

// fragments are the two of a datagram to the server.
func (f *fixture) fragments(from netip.Addr, port uint16) (first, later []packettest.Layer) {
	datagram := packettest.Build(packettest.IPv4{Src: from, Dst: f.Server},
		packettest.UDP{Src: port, Dst: serverPort}, packettest.Pattern(1200))[20:]
	header := packettest.IPv4{
		Src: from, Dst: f.Server, ID: 7, More: true, Protocol: packettest.UDPProtocol,
	}
	first = []packettest.Layer{header, packettest.Payload(datagram[:600])}
	header.More, header.Offset = false, 600
	return first, []packettest.Layer{header, packettest.Payload(datagram[600:])}
}

// TestOverlayProofOfFragmentMoved: the proof of a fragment does not do for a flow with other ports.
func TestOverlayProofOfFragmentMoved(t *testing.T) {
	f := newFixture(t, packettest.World4)
	require.NoError(f, f.SetOverlayKeys(false, firstKey))
	f.selected(f.Here(f.Egress))
	require.NoError(f, f.SetRemotePod(f.RemotePod))
	flow := packettest.Flow{Src: f.RemotePod, Dst: f.Server, SrcPort: podPort, DstPort: serverPort,
		Protocol: packettest.UDPProtocol}
	proof := func(f2 packettest.Flow) packettest.Ethernet {
		return packettest.Proof(firstKey, second(), f.Config.Underlay.Addr(), bpf.DirectionEgress, f2)
	}
	ofLater := proof(packettest.Flow{Src: f.RemotePod, Dst: f.Server, Protocol: packettest.UDPProtocol,
		LaterFragment: true})
	other, _ := f.fragments(f.RemotePod, podPort+1)
	none, _ := f.fragments(f.RemotePod, 0)
	for _, seen := range []packettest.Ethernet{proof(flow), ofLater} {
		f.dropped(f.arrives(second(), seen, other...), bpf.ReasonOverlayKey)
		f.dropped(f.arrives(second(), seen, none...), bpf.ReasonOverlayKey)
	}
	first, later := f.fragments(f.RemotePod, podPort)
	f.translated(f.arrives(second(), proof(flow), first...), f.Egress)
	f.translated(f.arrives(second(), ofLater, later...), f.Egress)
}

// TestOverlayAnswerProven: an ICMP error of the gateway itself has the proof of the flow that it
// is about.
func TestOverlayAnswerProven(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		require.NoError(f, f.SetOverlayKeys(false, firstKey))
		f.selected(f.Here(f.Egress))
		require.NoError(f, f.SetRemotePod(f.RemotePod))
		layers := request(transport, f.RemotePod, f.Server)
		layers[0] = packettest.TTL(f.RemotePod, f.Server, 1)
		res := f.proven(firstKey, second(), bpf.DirectionEgress, transport, layers...)
		p := f.answered(res, packettest.OverlayDevice, bpf.ReasonTTLExceeded, f.RemotePod)
		flow := flowOf(p.Inner, transport)
		flow = packettest.Flow{Src: flow.Dst, Dst: flow.Src, SrcPort: flow.DstPort, DstPort: flow.SrcPort, Protocol: flow.Protocol}
		f.proves(res, firstKey, second(), bpf.DirectionIngress, flow)
	})
}

// TestOverlayBeginsNothing: what comes from the overlay, even from a node, is delivered to a pod
// only as a reply to a flow that the pod has by that node, and makes no entry.
func TestOverlayBeginsNothing(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		f.selected(f.remote(second()))
		key := connectionOf(transport, f.Pod, f.Server)
		answer := response(transport, f.Server, f.Pod, key.Sport)
		f.dropped(f.fromOverlay(second(), answer...), bpf.ReasonNoRule)
		require.Nil(f, f.connection(key))

		// A flow of the pod that goes its ordinary way.
		f.checked(f.fromPod(request(transport, f.Pod, f.Uncovered)...))
		f.dropped(f.fromOverlay(second(), response(transport, f.Uncovered, f.Pod, key.Sport)...), bpf.ReasonNoRule)

		f.toGateway(f.fromPod(request(transport, f.Pod, f.Server)...), second())
		f.dropped(f.fromOverlay(third(), answer...), bpf.ReasonNoRule)
		f.dropped(f.fromOverlay(second(), response(transport, f.Server2, f.Pod, key.Sport)...), bpf.ReasonNoRule)
		f.dropped(f.fromOverlay(second(), request(transport, f.RemotePod, f.Pod)...), bpf.ReasonNoRule)
		f.delivered(f.fromOverlay(second(), answer...))
	})
}

// TestOverlayOfAnotherNode: a gateway begins a translation, and changes the node that its replies
// go to, only for the node that the pod is on.
func TestOverlayOfAnotherNode(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		f.selected(f.Here(f.Egress))
		require.NoError(f, f.SetRemotePod(f.RemotePod))
		f.dropped(f.fromOverlay(third(), request(transport, f.RemotePod, f.Server)...), bpf.ReasonUnknownNode)
		f.dropped(f.fromOverlay(second(), request(transport, f.OtherPod, f.Server)...), bpf.ReasonNoRule)
		f.translated(f.fromOverlay(second(), request(transport, f.RemotePod, f.Server)...), f.Egress)
		f.dropped(f.fromOverlay(third(), request(transport, f.RemotePod, f.Server)...), bpf.ReasonUnknownNode)
		require.Equal(f, second(), f.translation(outTuple(transport, f.RemotePod, f.Server)).Tunnel)

		f.livesOn(f.RemotePod, third()) // it has moved
		f.translated(f.fromOverlay(third(), request(transport, f.RemotePod, f.Server)...), f.Egress)
		require.Equal(f, third(), f.translation(outTuple(transport, f.RemotePod, f.Server)).Tunnel)
	})
}

// TestOverlayToAnotherAddress: the socket takes what comes to any address of the node, the overlay
// only what nodes send to.
func TestOverlayToAnotherAddress(t *testing.T) {
	f := newFixture(t, packettest.World4)
	f.selected(f.Here(f.Egress))
	require.NoError(f, f.SetRemotePod(f.RemotePod))
	ethernet := packettest.Ethernet{Dst: f.MAC(packettest.OverlayDevice), Src: packettest.RouterMAC}
	packet := packettest.Build(append([]packettest.Layer{ethernet}, request("TCP", f.RemotePod, f.Server)...)...)
	f.dropped(f.run(packettest.Input{Program: "from_overlay", Device: packettest.OverlayDevice, Overlay: second(),
		Node: f.SharedEgress, Packet: packet}), bpf.ReasonUnknownNode)
}

// TestPodToOverlay: a pod cannot send to the overlay's port of a node.
func TestPodToOverlay(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		port := f.Config.OverlayPort
		for _, node := range []netip.Addr{f.NodeIP, f.SecondNode} {
			f.dropped(f.fromPod(udp(f.Pod, node, podPort, port)...), bpf.ReasonOverlayPort)
			f.checked(f.fromPod(udp(f.Pod, node, podPort, port+1)...))
			f.checked(f.fromPod(tcp(f.Pod, node, podPort, port, packettest.SYN)...))
		}
		for _, other := range []netip.Addr{f.Uncovered, f.RemotePod, f.OtherPod} {
			f.checked(f.fromPod(udp(f.Pod, other, podPort, port)...))
		}
	})
}

// TestPodToOverlayInFragments: the first fragment goes nowhere, nor do those that follow it.
func TestPodToOverlayInFragments(t *testing.T) {
	f := newFixture(t, packettest.World4)
	datagram := packettest.Build(packettest.IPv4{Src: f.Pod, Dst: f.SecondNode},
		packettest.UDP{Src: podPort, Dst: f.Config.OverlayPort}, packettest.Pattern(1200))[20:]
	first := packettest.IPv4{Src: f.Pod, Dst: f.SecondNode, ID: 7, More: true, Protocol: packettest.UDPProtocol}
	later := packettest.IPv4{Src: f.Pod, Dst: f.SecondNode, ID: 7, Offset: 600, Protocol: packettest.UDPProtocol}
	f.dropped(f.fromPod(first, packettest.Payload(datagram[:600])), bpf.ReasonOverlayPort)
	f.dropped(f.fromPod(later, packettest.Payload(datagram[600:])), bpf.ReasonOverlayPort)
}
