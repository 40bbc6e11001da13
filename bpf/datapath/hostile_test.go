// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

// notLeaked asserts that a packet of the selected pod to a covered destination did
// not leave by the ordinary way, nor with another source than the egress address.
func (f *fixture) notLeaked(res *packettest.Result, what ...any) {
	f.Helper()
	switch res.Verdict {
	case packettest.Next:
		require.Fail(f, "let through", what...)
	case packettest.Redirect:
		switch res.IfIndex {
		case f.Index(packettest.EgressDevice):
			p, err := packettest.Parse(res.Out)
			require.NoError(f, err, what...)
			require.Equal(f, f.Egress, p.Src, what...)
		case f.Index(packettest.PodDevice): // answered
		default:
			require.Fail(f, "to an unexpected device", what...)
		}
	}
}

// TestFragments: all fragments of a datagram leave with the address and port of
// the first, and its checksum is right once they are put together.
func TestFragments(t *testing.T) {
	for _, transport := range []string{"UDP", "ICMP"} {
		t.Run(transport, func(t *testing.T) {
			eachFamily(t, func(f *fixture) {
				f.selected(f.Here(f.Egress))
				require.NoError(f, f.SetRemotePod(f.RemotePod))
				f.translated(f.fromOverlay(second(), request(transport, f.RemotePod, f.Server)...), f.Egress)
				layers := request(transport, f.Pod, f.Server)
				whole := f.podFrame(layers[0], layers[1], packettest.Pattern(2999))
				var sent [][]byte
				for i, fragment := range packettest.Fragments(whole, 1000, 0xabcd) {
					res := f.run(packettest.Input{Program: "from_pod", Device: packettest.PodDevice, Packet: fragment})
					p := f.translated(res, f.Egress)
					require.Equal(f, 1000*i, p.Offset)
					sent = append(sent, res.Out)
				}
				require.Len(f, sent, 4)
				together, err := packettest.Reassemble(sent)
				require.NoError(f, err)
				require.NoError(f, packettest.Verify(together))
				p, err := packettest.Parse(together)
				require.NoError(f, err)
				require.Equal(f, packettest.Pattern(2999), packettest.Payload(p.Payload))
				port := portOf(p, transport)
				require.NotEqual(f, connectionOf(transport, f.Pod, f.Server).Sport, port)

				// The answer comes in fragments too.
				layers = response(transport, f.Server, f.Egress, port)
				whole = f.wireFrame(layers[0], layers[1], packettest.Pattern(2999))
				sent = nil
				for _, fragment := range packettest.Fragments(whole, 1000, 0x1234) {
					res := f.run(packettest.Input{Program: "from_netdev", Device: packettest.EgressDevice, Packet: fragment})
					require.Equal(f, f.Pod, f.delivered(res).Dst)
					sent = append(sent, res.Out)
				}
				together, err = packettest.Reassemble(sent)
				require.NoError(f, err)
				require.NoError(f, packettest.Verify(together))
				p, err = packettest.Parse(together)
				require.NoError(f, err)
				require.Equal(f, connectionOf(transport, f.Pod, f.Server).Sport, destinationPortOf(p, transport))
			})
		})
	}
}

// TestUnknownFragment: a fragment whose first one was not seen is dropped under a
// rule, and nowhere else.
func TestUnknownFragment(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		later := func(to netip.Addr) []byte {
			return packettest.Fragments(f.podFrame(packettest.IP(f.Pod, to), packettest.UDP{Src: podPort, Dst: 53}, packettest.Pattern(2000)), 1000, 77)[1]
		}
		in := packettest.Input{Program: "from_pod", Device: packettest.PodDevice, Packet: later(f.Server)}
		f.checked(f.run(in))
		for _, row := range []bpf.GatewayValue{f.Here(f.Egress), f.remote(second())} {
			f.selected(row)
			f.dropped(f.run(in), bpf.ReasonUnknownFragment)
			for _, to := range []netip.Addr{f.Uncovered, f.Excluded, f.RemotePod} {
				f.checked(f.run(packettest.Input{Program: "from_pod", Device: packettest.PodDevice, Packet: later(to)}))
			}
		}
		connections, err := f.Connections()
		require.NoError(f, err)
		require.Empty(f, connections)
	})
}

// TestHostileFragments: fragments that are tiny, overlap, or hide the transport
// header do not leave past the policy.
func TestHostileFragments(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		f.selected(f.Here(f.Egress))
		fragment := func(protocol uint8, offset int, more bool, data packettest.Payload) []byte {
			if f.Pod.Is4() {
				return f.podFrame(packettest.IPv4{Src: f.Pod, Dst: f.Server, ID: 5, Protocol: protocol, Offset: offset, More: more}, data)
			}
			return f.podFrame(packettest.IPv6{Src: f.Pod, Dst: f.Server}, packettest.Fragment{ID: 5, Offset: offset, More: more, Next: protocol}, data)
		}
		header := packettest.Payload(packettest.Build(packettest.IPv4{Src: packettest.World4.Pod, Dst: packettest.World4.Server},
			packettest.TCP{Src: podPort, Dst: serverPort, Flags: packettest.SYN})[20:])
		for name, packets := range map[string][][]byte{
			"eight bytes of TCP":          {fragment(6, 0, true, header[:8]), fragment(6, 8, true, header[8:16]), fragment(6, 16, false, header[16:])},
			"no bytes":                    {fragment(17, 0, true, nil)},
			"four bytes of UDP":           {fragment(17, 0, true, header[:4])},
			"a first one twice":           {fragment(6, 0, true, header), fragment(6, 0, true, header)},
			"one over the ports":          {fragment(6, 0, true, header), fragment(6, 8, false, header)},
			"the last one first":          {fragment(17, 64, false, header), fragment(17, 0, true, header)},
			"beyond 64 KiB":               {fragment(17, 65528, false, packettest.Pattern(100))},
			"of an unknown protocol":      {fragment(132, 0, true, header)},
			"a whole one in one fragment": {fragment(6, 0, false, header)},
		} {
			for i, packet := range packets {
				res, err := f.Run(packettest.Input{Program: "from_pod", Device: packettest.PodDevice, Packet: packet})
				require.NoError(f, err)
				f.notLeaked(res, fmt.Sprintf("%s, fragment %d: %v", name, i, res.Reasons))
			}
		}
	})
}

// TestTruncated: of every packet every beginning is handled, and none leaves with a
// wrong source.
func TestTruncated(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		f.selected(f.Here(f.Egress))
		samples := [][]packettest.Layer{
			request("TCP", f.Pod, f.Server), request("UDP", f.Pod, f.Server), request("ICMP", f.Pod, f.Server),
			{packettest.IP(f.Pod, f.Server), packettest.TCP{Src: 1, Dst: 2, Flags: packettest.SYN, MSS: 1460, Options: []byte{1, 3, 3, 7, 4, 2}}},
		}
		for _, message := range icmpErrors(f) {
			samples = append(samples, []packettest.Layer{packettest.IP(f.Pod, f.Server), message, about(0, response("UDP", f.Server, f.Pod, podPort)...)})
		}
		if f.Pod.Is6() {
			samples = append(samples, []packettest.Layer{packettest.IP(f.Pod, f.Server), packettest.Options{Kind: packettest.HopByHop},
				packettest.Options{Kind: packettest.Routing, Words: 2}, packettest.Options{Kind: packettest.Destination}, packettest.UDP{Src: 1, Dst: 2}, packettest.Pattern(9)})
		} else {
			samples = append(samples, []packettest.Layer{packettest.IPv4{Src: f.Pod, Dst: f.Server, Options: []byte{7, 7, 4, 0, 0, 0, 0, 1}}, packettest.UDP{Src: 1, Dst: 2}, packettest.Pattern(9)})
		}
		for i, layers := range samples {
			whole := f.podFrame(layers...)
			for length := f.shortest(); length < len(whole); length++ {
				res, err := f.Run(packettest.Input{Program: "from_pod", Device: packettest.PodDevice, Packet: whole[:length]})
				require.NoError(f, err)
				require.Equal(f, packettest.Drop, res.Verdict, "sample %d, %d of %d bytes: %v", i, length, len(whole), res.Reasons)
				for _, program := range []string{"to_pod", "from_netdev", "to_netdev", "from_overlay"} {
					in := packettest.Input{Program: program, Device: packettest.EgressDevice, Packet: whole[:length]}
					if program == "from_overlay" {
						in.Overlay, in.Device = second(), packettest.OverlayDevice
					}
					res, err := f.Run(in)
					require.NoError(f, err)
					require.NotEqual(f, packettest.Redirect, res.Verdict, "%s: sample %d, %d of %d bytes: %v", program, i, length, len(whole), res.Reasons)
				}
			}
		}
	})
}

// shortest is the shortest frame that the kernel runs programs on in a test: one
// with an IP header.
func (f *fixture) shortest() int {
	if f.Pod.Is4() {
		return 14 + 20
	}
	return 14 + 40
}

// TestContradictions: lengths that contradict each other are malformed.
func TestContradictions(t *testing.T) {
	f := newFixture(t, packettest.World4)
	f.selected(f.Here(f.Egress))
	ip := packettest.IPv4{Src: f.Pod, Dst: f.Server}
	for name, layers := range map[string][]packettest.Layer{
		"header of 0 words":         {func() packettest.Layer { h := ip; h.HeaderWords = 16; return h }(), packettest.UDP{Src: 1, Dst: 2}},
		"header of 1 word":          {func() packettest.Layer { h := ip; h.HeaderWords = 1; return h }(), packettest.UDP{Src: 1, Dst: 2}},
		"header of 4 words":         {func() packettest.Layer { h := ip; h.HeaderWords = 4; return h }(), packettest.UDP{Src: 1, Dst: 2}},
		"header beyond the packet":  {func() packettest.Layer { h := ip; h.HeaderWords = 15; return h }(), packettest.UDP{Src: 1, Dst: 2}},
		"total beyond the packet":   {func() packettest.Layer { h := ip; h.TotalLength = 1000; return h }(), packettest.UDP{Src: 1, Dst: 2}},
		"total less than header":    {func() packettest.Layer { h := ip; h.TotalLength = 19; return h }(), packettest.UDP{Src: 1, Dst: 2}},
		"total without transport":   {func() packettest.Layer { h := ip; h.TotalLength = 24; return h }(), packettest.UDP{Src: 1, Dst: 2}},
		"UDP beyond the packet":     {ip, packettest.UDP{Src: 1, Dst: 2, Length: 100}},
		"UDP shorter than a header": {ip, packettest.UDP{Src: 1, Dst: 2, Length: 7}},
		"TCP header of 4 words":     {ip, packettest.TCP{Src: 1, Dst: 2, Flags: packettest.SYN, Words: 4}},
		"TCP header beyond":         {ip, packettest.TCP{Src: 1, Dst: 2, Flags: packettest.SYN, Words: 15}},
	} {
		res := f.fromPod(layers...)
		require.Equal(t, 1, res.Reasons[bpf.ReasonMalformed], "%s: %v", name, res.Reasons)
		f.dropped(res, bpf.ReasonMalformed)
	}
	f = newFixture(t, packettest.World6)
	f.selected(f.Here(f.Egress))
	for name, layers := range map[string][]packettest.Layer{
		"payload beyond the packet": {packettest.IPv6{Src: f.Pod, Dst: f.Server, PayloadLength: 1000}, packettest.UDP{Src: 1, Dst: 2}},
		"payload without transport": {packettest.IPv6{Src: f.Pod, Dst: f.Server, PayloadLength: 4}, packettest.UDP{Src: 1, Dst: 2}},
		"UDP beyond the packet":     {packettest.IPv6{Src: f.Pod, Dst: f.Server}, packettest.UDP{Src: 1, Dst: 2, Length: 100}},
		"TCP header beyond":         {packettest.IPv6{Src: f.Pod, Dst: f.Server}, packettest.TCP{Src: 1, Dst: 2, Flags: packettest.SYN, Words: 15}},
	} {
		res := f.fromPod(layers...)
		require.Equal(t, 1, res.Reasons[bpf.ReasonMalformed], "%s: %v", name, res.Reasons)
		f.dropped(res, bpf.ReasonMalformed)
	}
	// The version is that of the frame's type.
	swapped := packettest.Build(packettest.Ethernet{Dst: f.MAC(packettest.PodDevice), Src: packettest.PodMAC, Type: packettest.EtherTypeIPv4},
		packettest.IPv6{Src: f.Pod, Dst: f.Server}, packettest.UDP{Src: 1, Dst: 2})
	f.dropped(f.run(packettest.Input{Program: "from_pod", Device: packettest.PodDevice, Packet: swapped}), bpf.ReasonMalformed)
}

// TestPadded: what is behind the packet in its frame is no part of it.
func TestPadded(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		f.selected(f.Here(f.Egress))
		packet := append(f.podFrame(request(transport, f.Pod, f.Server)...), make([]byte, 11)...)
		f.translated(f.run(packettest.Input{Program: "from_pod", Device: packettest.PodDevice, Packet: packet}), f.Egress)
	})
}

// TestIPv4Options: options are kept, and the transport header behind them found.
func TestIPv4Options(t *testing.T) {
	f := newFixture(t, packettest.World4)
	f.selected(f.Here(f.Egress))
	for _, size := range []int{1, 4, 7, 20, 40} {
		for _, l4 := range []packettest.Layer{packettest.UDP{Src: podPort, Dst: 53}, packettest.TCP{Src: podPort, Dst: 53, Flags: packettest.SYN, MSS: 1460}} {
			options := make([]byte, size)
			for i := range options {
				options[i] = 1 // no operation
			}
			p := f.translated(f.fromPod(packettest.IPv4{Src: f.Pod, Dst: f.Server, Options: options}, l4, packettest.Pattern(5)), f.Egress)
			require.EqualValues(t, podPort, p.SrcPort)
			require.EqualValues(t, 53, p.DstPort)
		}
	}
}

// TestExtensionHeaders: the transport header behind them is found; where it cannot
// be, the packet does not leave past the policy.
func TestExtensionHeaders(t *testing.T) {
	f := newFixture(t, packettest.World6)
	f.selected(f.Here(f.Egress))
	ip, l4 := packettest.IP(f.Pod, f.Server), packettest.UDP{Src: podPort, Dst: 53}
	hop, routing, destination := packettest.Options{Kind: packettest.HopByHop}, packettest.Options{Kind: packettest.Routing, Words: 2}, packettest.Options{Kind: packettest.Destination, Words: 1}
	for name, layers := range map[string][]packettest.Layer{
		"hop-by-hop":      {ip, hop, l4, packettest.Pattern(9)},
		"routing":         {ip, routing, l4, packettest.Pattern(9)},
		"destination":     {ip, destination, l4, packettest.Pattern(9)},
		"all three":       {ip, hop, destination, routing, l4, packettest.Pattern(9)},
		"large":           {ip, packettest.Options{Kind: packettest.Destination, Words: 30}, l4, packettest.Pattern(9)},
		"atomic fragment": {ip, packettest.Fragment{ID: 9}, l4, packettest.Pattern(9)},
	} {
		res := f.fromPod(layers...)
		require.Equal(t, packettest.Redirect, res.Verdict, "%s: %v", name, res.Reasons)
		p := f.translated(res, f.Egress)
		require.EqualValues(t, podPort, p.SrcPort, name)
	}
	many := []packettest.Layer{ip}
	for range 20 {
		many = append(many, packettest.Options{Kind: packettest.Destination})
	}
	for name, layers := range map[string][]packettest.Layer{
		"twenty":             append(many, l4),
		"authentication":     {ip, packettest.AH{SPI: 1}, l4},
		"without an end":     {ip, hop},
		"behind fragment":    {ip, packettest.Fragment{ID: 10, More: true}, destination, l4, packettest.Pattern(8)},
		"hop-by-hop, second": {ip, destination, hop, l4},
	} {
		res, err := f.Run(packettest.Input{Program: "from_pod", Device: packettest.PodDevice, Packet: f.podFrame(layers...)})
		require.NoError(t, err)
		f.notLeaked(res, fmt.Sprintf("%s: %v", name, res.Reasons))
	}
}

// TestNotIP: other protocols are untouched at every device of pods and the host, but ARP that
// a pod sends has to be about itself.
func TestNotIP(t *testing.T) {
	f := newFixture(t, packettest.World4)
	f.selected(f.Here(f.Egress))
	arp := append(packettest.Build(packettest.Ethernet{Dst: packettest.MAC{255, 255, 255, 255, 255, 255}, Src: packettest.PodMAC, Type: packettest.EtherTypeARP}), packettest.Pattern(28)...)
	lldp := append(packettest.Build(packettest.Ethernet{Dst: packettest.MAC{1, 0x80, 0xc2, 0, 0, 14}, Src: packettest.PodMAC, Type: packettest.EtherTypeLLDP}), packettest.Pattern(60)...)
	for _, program := range []string{"from_pod", "to_pod", "from_netdev", "to_netdev"} {
		for _, packet := range [][]byte{arp, lldp, arp[:20]} {
			res := f.run(packettest.Input{Program: program, Device: packettest.PodDevice, Packet: packet})
			if program == "from_pod" && packet[12] == 0x08 {
				f.dropped(res, bpf.ReasonMalformed)
				continue
			}
			require.Equal(t, packettest.Next, res.Verdict, program)
			require.Equal(t, packet, res.Out, program)
			require.Empty(t, res.Events)
		}
	}
}

// tagged returns a frame with VLAN tags before what it carries.
func tagged(frame []byte, tags ...uint16) []byte {
	const addresses = 12 // bytes
	b := append([]byte(nil), frame[:addresses]...)
	for _, tag := range tags {
		b = binary.BigEndian.AppendUint16(b, tag)
		b = append(b, 0, 0) // VLAN 0, which is none: the kernel goes on with what is inside
	}
	return append(b, frame[addresses:]...)
}

// TestTagged: a pod's frames have no VLAN tags that the program would have to look
// behind: the kernel takes them off only later, whatever is inside.
func TestTagged(t *testing.T) {
	const customer, service = 0x8100, 0x88a8
	eachTransport(t, func(f *fixture, transport string) {
		f.selected(f.Here(f.Egress))
		for _, from := range []netip.Addr{f.Pod, f.OtherPod, f.Server2} {
			for _, to := range []netip.Addr{f.Server, f.Uncovered} {
				for _, tags := range [][]uint16{{customer}, {service}, {customer, customer}, {service, customer}, {customer, customer, customer}} {
					f.dropped(f.run(packettest.Input{Program: "from_pod", Device: packettest.PodDevice,
						Packet: tagged(f.podFrame(request(transport, from, to)...), tags...)}), bpf.ReasonMalformed)
				}
			}
		}
		all, err := f.Connections()
		require.NoError(f, err)
		require.Empty(f, all)
	})
}

// TestUDPWithoutChecksum: none is made up where IPv4 allows to have none.
func TestUDPWithoutChecksum(t *testing.T) {
	f := newFixture(t, packettest.World4)
	f.selected(f.Here(f.Egress))
	res := f.fromPod(packettest.IP(f.Pod, f.Server), packettest.UDP{Src: podPort, Dst: 53, NoChecksum: true}, packettest.Pattern(9))
	f.translated(res, f.Egress)
	require.Equal(t, []byte{0, 0}, res.Out[14+20+6:14+20+8])
	// One that comes out as zero is written as all ones.
	for port := uint16(1024); port < 1024+500; port++ {
		f.fromPod(packettest.IP(f.Pod, f.Server), packettest.UDP{Src: port, Dst: 53}, packettest.Pattern(int(port%7)))
	}
}

// TestMappedAddresses: an IPv6 packet with IPv4-mapped addresses passes for no IPv4
// connection, and for none of a pod.
func TestMappedAddresses(t *testing.T) {
	f := newFixture(t, packettest.World4)
	f.selected(f.Here(f.Egress))
	require.NoError(t, f.SetRemotePod(f.RemotePod))
	mapped := func(a netip.Addr) netip.Addr { return netip.AddrFrom16(a.As16()) }
	for _, transport := range []string{"TCP", "UDP"} {
		port := f.translated(f.fromPod(request(transport, f.Pod, f.Server)...), f.Egress).SrcPort
		f.dropped(f.fromPod(request(transport, mapped(f.Pod), mapped(f.Server))...), bpf.ReasonMalformed)
		f.dropped(f.fromOverlay(second(), request(transport, mapped(f.RemotePod), mapped(f.Server))...), bpf.ReasonMalformed)
		f.dropped(f.toPod(response(transport, mapped(f.Server), mapped(f.Pod), port)...), bpf.ReasonMalformed)
		packet := f.wireFrame(response(transport, mapped(f.Server), mapped(f.Egress), port)...)
		res := f.run(packettest.Input{Program: "from_netdev", Device: packettest.EgressDevice, Packet: packet})
		require.Equal(t, packettest.Next, res.Verdict, "%s: %v", transport, res.Reasons)
		require.Equal(t, packet, res.Out, transport)
	}
	for _, name := range []string{"sluice_ct6_tcp", "sluice_ct6_any", "sluice_nat6"} {
		key, err := f.Map(name).NextKeyBytes(nil)
		require.NoError(t, err)
		require.Nil(t, key, name)
	}
}
