// SPDX-License-Identifier: Apache-2.0

package packettest

import (
	"encoding/binary"
	"net/netip"

	"github.com/dchest/siphash"

	"github.com/sluice-net/sluice/bpf"
)

// Flow is what the proof of an overlay packet is of.
type Flow struct {
	Src, Dst         netip.Addr
	SrcPort, DstPort uint16 // 0 of a fragment but the first
	Protocol         uint8
	LaterFragment    bool
}

// Proof returns the inner Ethernet header of an overlay packet from one node to another one, as
// docs/datapath.md describes it.
func Proof(key bpf.OverlayKey, from, to netip.Addr, direction bpf.Direction, f Flow) Ethernet {
	var message []byte
	for _, a := range []netip.Addr{f.Src, f.Dst, from, to} {
		message = append(message, a.AsSlice()...)
	}
	message = binary.BigEndian.AppendUint16(message, f.SrcPort)
	message = binary.BigEndian.AppendUint16(message, f.DstPort)
	last := outerIPv4(to)
	if f.LaterFragment {
		last |= 2
	}
	message = append(message, f.Protocol, ipVersion(f.Src), byte(direction), last)
	mac := binary.LittleEndian.AppendUint64(nil, siphash.Hash(key.Halves[0], key.Halves[1], message))
	return Ethernet{
		Dst: MAC(append([]byte{2, key.Number}, mac[:4]...)),
		Src: MAC(append([]byte{2, byte(direction)}, mac[4:]...)),
	}
}

func ipVersion(a netip.Addr) byte {
	if a.Is4() {
		return 4
	}
	return 6
}

func outerIPv4(node netip.Addr) byte {
	if node.Is4() {
		return 1
	}
	return 0
}
