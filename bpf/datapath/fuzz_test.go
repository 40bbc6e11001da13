// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

// longestFuzzed is what the kernel takes in a test, with room to spare.
const longestFuzzed = 3000

// fuzzed are the programs that see packets from outside, and where.
var fuzzed = []packettest.Input{
	{Program: "from_pod", Device: packettest.PodDevice},
	{Program: "to_pod", Device: packettest.PodDevice},
	{Program: "from_netdev", Device: packettest.EgressDevice},
	{Program: "to_netdev", Device: packettest.EgressDevice},
	{Program: "from_overlay", Device: packettest.OverlayDevice},
}

// FuzzPackets: whatever bytes come to a device, the program ends with a verdict; a
// drop is counted once, with its event; what was a sound packet is one
// afterwards; and none of a pod that a policy selects leaves past the gateway.
func FuzzPackets(f *testing.F) {
	for _, w := range both {
		frame := func(layers ...packettest.Layer) []byte {
			kind := uint16(packettest.EtherTypeIPv4)
			if w.Pod.Is6() {
				kind = packettest.EtherTypeIPv6
			}
			return packettest.Build(append([]packettest.Layer{packettest.Ethernet{Src: packettest.PodMAC, Type: kind}}, layers...)...)
		}
		for program := range fuzzed {
			for _, transport := range []string{"TCP", "UDP", "ICMP"} {
				f.Add(uint8(program), frame(request(transport, w.Pod, w.Server)...))
				f.Add(uint8(program), frame(response(transport, w.Server, w.Pod, podPort)...))
			}
			f.Add(uint8(program), packettest.Fragments(frame(packettest.IP(w.Pod, w.Server), packettest.UDP{Src: 1, Dst: 2}, packettest.Pattern(900)), 400, 7)[1])
		}
	}
	f.Fuzz(func(t *testing.T, program uint8, packet []byte) {
		w := packettest.World4
		if len(packet) > 13 && packet[12] == 0x86 && packet[13] == 0xdd {
			w = packettest.World6
		}
		fixture := newFixture(t, w)
		if len(packet) < fixture.shortest() || len(packet) > longestFuzzed {
			return // the kernel takes no such packet in a test
		}
		fixture.selected(fixture.Here(fixture.Egress))
		in := fuzzed[int(program)%len(fuzzed)]
		in.Packet = packet
		if in.Device == packettest.OverlayDevice {
			in.Overlay = second()
		}
		given, err := packettest.Parse(append([]byte(nil), packet...))
		res := fixture.run(in)
		if err == nil && in.Program == "from_pod" && given.Src == fixture.Pod && given.Dst == fixture.Server {
			fixture.notLeaked(res, res.Reasons)
		}
		require.NotZero(t, len(res.Out))
	})
}
