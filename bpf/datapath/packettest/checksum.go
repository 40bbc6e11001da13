// SPDX-License-Identifier: Apache-2.0

package packettest

import (
	"encoding/binary"
	"fmt"
)

// Checksum returns the Internet checksum of bytes: 0 if they contain a right one.
func Checksum(b []byte) uint16 { return ^fold(sum(0, b)) }

func sum(s uint32, b []byte) uint32 {
	for ; len(b) >= 2; b = b[2:] {
		s += uint32(binary.BigEndian.Uint16(b))
		s = s>>16 + s&0xffff
	}
	if len(b) == 1 {
		s += uint32(b[0]) << 8
	}
	return s
}

func fold(s uint32) uint16 {
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

// transportChecksum returns the checksum of a segment with its pseudo header.
func transportChecksum(under network, protocol uint8, segment []byte) uint16 {
	s := sum(0, under.src.AsSlice())
	s = sum(s, under.dst.AsSlice())
	return ^fold(sum(s+uint32(protocol)+uint32(len(segment)), segment))
}

// Verify checks all checksums and lengths of a packet with its Ethernet header,
// and those of what an ICMP error carries as far as that is whole.
func Verify(packet []byte) error {
	p, err := Parse(packet)
	if err != nil {
		return err
	}
	if p.Version == 0 {
		return nil
	}
	return p.verify(true)
}

func (p *Packet) verify(whole bool) error {
	if p.Version == 4 && Checksum(p.header) != 0 {
		return fmt.Errorf("verify packet: IPv4 header checksum of %s -> %s", p.Src, p.Dst)
	}
	if p.declared > len(p.transport) {
		if whole {
			return fmt.Errorf("verify packet: %d bytes behind the IP header, %d declared", len(p.transport), p.declared)
		}
		return nil // of an ICMP error: its checksum covers more than is there
	}
	if p.More || p.Offset != 0 {
		return nil
	}
	segment := p.transport[:p.declared]
	if err := p.verifySegment(segment); err != nil {
		return err
	}
	if p.Inner != nil {
		return p.Inner.verify(false)
	}
	return nil
}

func (p *Packet) verifySegment(segment []byte) error {
	under := network{p.Src, p.Dst}
	switch p.Protocol {
	case TCPProtocol, ICMPv6Protocol:
	case UDPProtocol:
		if len(segment) >= 8 && binary.BigEndian.Uint16(segment[6:]) == 0 {
			if p.Version == 6 {
				return fmt.Errorf("verify packet: UDP over IPv6 without checksum")
			}
			return nil
		}
	case ICMPv4Protocol:
		if Checksum(segment) != 0 {
			return fmt.Errorf("verify packet: ICMP checksum of %s -> %s", p.Src, p.Dst)
		}
		return nil
	default:
		return nil
	}
	if transportChecksum(under, p.Protocol, segment) != 0 {
		return fmt.Errorf("verify packet: checksum of protocol %d, %s -> %s", p.Protocol, p.Src, p.Dst)
	}
	return nil
}
