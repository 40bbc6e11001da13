// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

// icmpErrors are errors of a family: type, code, and what they say.
func icmpErrors(f *fixture) map[string]packettest.ICMP {
	if f.Pod.Is4() {
		return map[string]packettest.ICMP{
			"unreachable":   {Version: 4, Type: 3, Code: 3},
			"frag needed":   {Version: 4, Type: 3, Code: 4, Rest: 1400},
			"time exceeded": {Version: 4, Type: 11},
			"bad parameter": {Version: 4, Type: 12},
		}
	}
	return map[string]packettest.ICMP{
		"unreachable":   {Version: 6, Type: 1, Code: 4},
		"too big":       {Version: 6, Type: 2, Rest: 1400},
		"time exceeded": {Version: 6, Type: 3},
		"bad parameter": {Version: 6, Type: 4},
	}
}

// about returns the bytes of a packet that an error carries: whole, or the least
// there can be.
func about(size int, layers ...packettest.Layer) packettest.Payload {
	b := packettest.Build(layers...)
	if size > 0 && size < len(b) {
		b = b[:size]
	}
	return b
}

// least is how much of a packet an error carries at least: eight bytes behind IP.
func least(f *fixture) int {
	if f.Pod.Is4() {
		return 28
	}
	return 48
}

// TestICMPErrorToPod: a router's error about what the pod sent reaches the pod, and
// is about what the pod knows.
func TestICMPErrorToPod(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		f.selected(f.Here(f.Egress))
		require.NoError(f, f.SetRemotePod(f.RemotePod))
		// Another pod has the port, so that this one is given another.
		f.translated(f.fromOverlay(second(), request(transport, f.RemotePod, f.Server)...), f.Egress)
		sent := f.translated(f.fromPod(request(transport, f.Pod, f.Server)...), f.Egress)
		own := connectionOf(transport, f.Pod, f.Server).Sport
		require.NotEqual(f, own, portOf(sent, transport))
		outside := []packettest.Layer{packettest.IP(f.Egress, f.Server), nil, packettest.Pattern(40)}
		elsewhere := append([]packettest.Layer(nil), outside...)
		switch transport {
		case "TCP":
			outside[1], elsewhere[1] = packettest.TCP{Src: sent.SrcPort, Dst: serverPort, Seq: 1000}, packettest.TCP{Src: own, Dst: serverPort, Seq: 7}
		case "UDP":
			outside[1], elsewhere[1] = packettest.UDP{Src: sent.SrcPort, Dst: serverPort}, packettest.UDP{Src: own, Dst: serverPort}
		default:
			outside[1], elsewhere[1] = packettest.Echo(f.Pod, false, sent.EchoID(), 1), packettest.Echo(f.Pod, false, own, 1)
		}
		for name, message := range icmpErrors(f) {
			for _, size := range []int{0, least(f)} {
				res := f.fromNetdev(packettest.IP(f.Router, f.Egress), message, about(size, outside...))
				p := f.delivered(res)
				require.Equal(f, f.Router, p.Src, name)
				require.Equal(f, f.Pod, p.Dst, name)
				require.Equal(f, message.Type, p.ICMPType)
				require.Equal(f, message.Rest, p.ICMPRest)
				require.Equal(f, f.Pod, p.Inner.Src, name)
				require.Equal(f, f.Server, p.Inner.Dst, name)
				require.Equal(f, own, portOf(p.Inner, transport), name)

				res = f.fromNetdev(packettest.IP(f.Router, f.Egress), message, about(size, elsewhere...))
				p = f.toGateway(res, second())
				require.Equal(f, f.RemotePod, p.Dst, name)
				require.Equal(f, f.RemotePod, p.Inner.Src, name)
				require.Equal(f, own, portOf(p.Inner, transport), name)
			}
		}
		// It keeps nothing alive and begins nothing.
		all, err := f.Connections()
		require.NoError(f, err)
		require.Len(f, all, 2)
	})
}

// TestICMPErrorFromPod: a pod's error about what it received leaves with the
// address that the sender knows, or by the gateway.
func TestICMPErrorFromPod(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		f.selected(f.Here(f.Egress))
		require.NoError(f, f.SetRemotePod(f.RemotePod))
		f.translated(f.fromOverlay(second(), request(transport, f.RemotePod, f.Server)...), f.Egress)
		given := portOf(f.translated(f.fromPod(request(transport, f.Pod, f.Server)...), f.Egress), transport)
		own := connectionOf(transport, f.Pod, f.Server).Sport
		for name, message := range icmpErrors(f) {
			for _, size := range []int{0, least(f)} {
				res := f.fromPod(packettest.IP(f.Pod, f.Server), message, about(size, response(transport, f.Server, f.Pod, own)...))
				p := f.translated(res, f.Egress)
				require.Equal(f, f.Server, p.Inner.Src, name)
				require.Equal(f, f.Egress, p.Inner.Dst, name)
				require.Equal(f, given, destinationPortOf(p.Inner, transport), name)

				res = f.fromOverlay(second(), packettest.IP(f.RemotePod, f.Server), message,
					about(size, response(transport, f.Server, f.RemotePod, own)...))
				p = f.translated(res, f.Egress)
				require.Equal(f, f.Egress, p.Inner.Dst, name)
				require.Equal(f, own, destinationPortOf(p.Inner, transport), name)
			}
		}
	})
}

// TestICMPErrorByGateway: at the pod's node such errors go the way of the connection.
func TestICMPErrorByGateway(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		f.selected(f.remote(second()))
		f.toGateway(f.fromPod(request(transport, f.Pod, f.Server)...), second())
		own := connectionOf(transport, f.Pod, f.Server).Sport
		for _, message := range icmpErrors(f) {
			p := f.toGateway(f.fromPod(packettest.IP(f.Pod, f.Server), message, about(0, response(transport, f.Server, f.Pod, own)...)), second())
			require.Equal(f, f.Pod, p.Inner.Dst)
			p = f.delivered(f.fromOverlay(second(), packettest.IP(f.Router, f.Pod), message, about(0, request(transport, f.Pod, f.Server)...)))
			require.Equal(f, f.Pod, p.Inner.Src)
		}
	})
}

// TestICMPErrorAboutNothing: an error about no connection does not leave past the
// policy, and one that arrives is the host's.
func TestICMPErrorAboutNothing(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		f.selected(f.Here(f.Egress))
		for name, message := range icmpErrors(f) {
			res := f.fromPod(packettest.IP(f.Pod, f.Server), message, about(0, response(transport, f.Server, f.Pod, 7)...))
			require.Equal(f, packettest.Drop, res.Verdict, "%s: %v", name, res.Reasons)
			packet := f.wireFrame(packettest.IP(f.Router, f.Egress), message, about(0, request(transport, f.Egress, f.Server)...))
			res = f.run(packettest.Input{Program: "from_netdev", Device: packettest.EgressDevice, Packet: packet})
			require.Equal(f, packettest.Next, res.Verdict)
			require.Equal(f, packet, res.Out)
		}
		all, err := f.Connections()
		require.NoError(f, err)
		require.Empty(f, all)
	})
}

// TestICMPErrorAboutOthers: a pod tells of what it received itself, whether sources
// are checked or not. What was sent to another pod, which no policy selects or which
// has a connection, is no way for it past its own policy.
func TestICMPErrorAboutOthers(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		f.selected(f.Here(f.Egress))
		require.NoError(f, f.SetRemotePod(f.RemotePod))
		f.translated(f.fromOverlay(second(), request(transport, f.RemotePod, f.Server)...), f.Egress)
		port := connectionOf(transport, f.RemotePod, f.Server).Sport
		forge := func(to, other netip.Addr) {
			t.Helper()
			for name, message := range icmpErrors(f) {
				for _, size := range []int{0, least(f)} {
					res := f.fromPod(packettest.IP(f.Pod, to), message, about(size, response(transport, to, other, port)...))
					require.Equal(f, packettest.Drop, res.Verdict, "%s about %s to %s: %v", name, other, to, res.Reasons)
					f.dropped(res, bpf.ReasonUnknownSource)
				}
			}
		}
		for _, flags := range []bpf.ConfigFlags{f.Config.Flags, f.Config.Flags &^ bpf.ConfigStrictSource} {
			config := f.Config
			config.Flags = flags
			require.NoError(f, f.SetConfig(config))
			for _, to := range []netip.Addr{f.Server, f.Uncovered, f.RemotePod} {
				for _, other := range []netip.Addr{f.OtherPod, f.RemotePod, f.UnassignedPod, f.Egress, f.Server2} {
					forge(to, other)
				}
			}
		}
	})
}

// answered asserts that a packet was answered with an ICMP error to its sender.
func (f *fixture) answered(res *packettest.Result, device string, reason bpf.Reason, to netip.Addr) *packettest.Packet {
	f.Helper()
	require.Equal(f, packettest.Redirect, res.Verdict, "%v", res.Reasons)
	require.Equal(f, f.Index(device), res.IfIndex, "device")
	require.Equal(f, 1, res.Reasons[reason], "%v", res.Reasons)
	require.Len(f, res.Reasons, 1, "%v", res.Reasons)
	p := f.parse(res)
	require.Equal(f, to, p.Dst)
	require.NotNil(f, p.Inner, "no ICMP error")
	return p
}

// TestTimeExceeded: a packet without hops left is answered.
func TestTimeExceeded(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		f.selected(f.Here(f.Egress))
		require.NoError(f, f.SetRemotePod(f.RemotePod))
		expected := uint8(11)
		if f.Pod.Is6() {
			expected = 3
		}
		for _, transport := range []string{"TCP", "UDP", "ICMP"} {
			layers := request(transport, f.Pod, f.Server)
			layers[0] = packettest.TTL(f.Pod, f.Server, 1)
			p := f.answered(f.fromPod(layers...), packettest.PodDevice, bpf.ReasonTTLExceeded, f.Pod)
			require.Equal(f, expected, p.ICMPType)
			require.Equal(f, packettest.PodMAC, p.EthernetDst)
			require.Equal(f, f.Pod, p.Inner.Src)
			require.Equal(f, f.Server, p.Inner.Dst)
			require.Equal(f, connectionOf(transport, f.Pod, f.Server).Sport, portOf(p.Inner, transport))

			layers = request(transport, f.RemotePod, f.Server)
			layers[0] = packettest.TTL(f.RemotePod, f.Server, 1)
			res := f.fromOverlay(second(), layers...)
			p = f.answered(res, packettest.OverlayDevice, bpf.ReasonTTLExceeded, f.RemotePod)
			require.Equal(f, expected, p.ICMPType)
			require.Equal(f, second(), res.Tunnel.Remote)
			require.Equal(f, f.RemotePod, p.Inner.Src)

			f.translated(f.fromPod(request(transport, f.Pod, f.Server)...), f.Egress)
			layers = response(transport, f.Server, f.Egress, connectionOf(transport, f.Pod, f.Server).Sport)
			layers[0] = packettest.TTL(f.Server, f.Egress, 1)
			p = f.answered(f.fromNetdev(layers...), packettest.EgressDevice, bpf.ReasonTTLExceeded, f.Server)
			require.Equal(f, expected, p.ICMPType)
			require.Equal(f, f.Egress, p.Inner.Dst, "of what the server knows")
		}
		// An error is not answered with one.
		for _, message := range icmpErrors(f) {
			res := f.fromPod(packettest.TTL(f.Pod, f.Server, 1), message, about(0, response("UDP", f.Server, f.Pod, podPort)...))
			f.dropped(res, bpf.ReasonTTLExceeded)
		}
	})
}

// TestTooBig: what does not fit the overlay is answered with what fits. Packets
// that are to be cut into segments have no transport header in a test run, by
// which the kernel measures them: those are for tests with real ones.
func TestTooBig(t *testing.T) {
	const overlayMTU = 1450
	eachFamily(t, func(f *fixture) {
		f.selected(f.remote(second()))
		headers := 20 + 20
		if f.Pod.Is6() {
			headers = 40 + 20
		}
		segment := func(from, to netip.Addr, sport, dport uint16, size int) []packettest.Layer {
			ip := packettest.IP(from, to)
			if from.Is4() {
				ip = packettest.IPv4{Src: from, Dst: to, DontFragment: true}
			}
			return []packettest.Layer{ip, packettest.TCP{Src: sport, Dst: dport, Flags: packettest.ACK}, packettest.Pattern(size)}
		}
		tooBig := func(p *packettest.Packet) {
			f.Helper()
			if f.Pod.Is4() {
				require.EqualValues(f, 3, p.ICMPType)
				require.EqualValues(f, 4, p.ICMPCode)
			} else {
				require.EqualValues(f, 2, p.ICMPType)
			}
			require.EqualValues(f, overlayMTU, p.ICMPRest)
		}
		f.toGateway(f.fromPod(tcp(f.Pod, f.Server, podPort, serverPort, packettest.SYN)...), second())
		f.toGateway(f.fromPod(segment(f.Pod, f.Server, podPort, serverPort, overlayMTU-headers)...), second())
		p := f.answered(f.fromPod(segment(f.Pod, f.Server, podPort, serverPort, overlayMTU-headers+1)...), packettest.PodDevice, bpf.ReasonTooBig, f.Pod)
		tooBig(p)
		require.EqualValues(f, podPort, p.Inner.SrcPort)
		require.Equal(f, f.Server, p.Inner.Dst)

		// The gateway tells the server.
		f.selected(f.Here(f.Egress))
		require.NoError(f, f.SetRemotePod(f.RemotePod))
		port := f.translated(f.fromOverlay(second(), request("TCP", f.RemotePod, f.Server)...), f.Egress).SrcPort
		f.toGateway(f.fromNetdev(segment(f.Server, f.Egress, serverPort, port, overlayMTU-headers)...), second())
		p = f.answered(f.fromNetdev(segment(f.Server, f.Egress, serverPort, port, overlayMTU-headers+1)...), packettest.EgressDevice, bpf.ReasonTooBig, f.Server)
		tooBig(p)
		require.Equal(f, f.Egress, p.Inner.Dst, "of what the server knows")
		require.Equal(f, packettest.RouterMAC, p.EthernetDst)
	})
}

// TestSegmentSizeOfReplies: on the gateway the server's MSS is lowered too.
func TestSegmentSizeOfReplies(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		f.selected(f.Here(f.Egress))
		require.NoError(f, f.SetRemotePod(f.RemotePod))
		port := f.translated(f.fromOverlay(second(), request("TCP", f.RemotePod, f.Server)...), f.Egress).SrcPort
		most := uint16(1450 - 20 - 20)
		if f.Pod.Is6() {
			most = 1450 - 40 - 20
		}
		answer := func(to netip.Addr, port, size uint16) []packettest.Layer {
			return []packettest.Layer{packettest.IP(f.Server, to), packettest.TCP{Src: serverPort, Dst: port, Flags: packettest.SYN | packettest.ACK, MSS: size}}
		}
		require.Equal(f, most, f.toGateway(f.fromNetdev(answer(f.Egress, port, 1460)...), second()).MSS)
		// What does not go by the overlay keeps its own.
		port = f.translated(f.fromPod(request("TCP", f.Pod, f.Server)...), f.Egress).SrcPort
		require.EqualValues(f, 1460, f.delivered(f.fromNetdev(answer(f.Egress, port, 1460)...)).MSS)
	})
}
