// SPDX-License-Identifier: Apache-2.0

package packettest

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// Packet is what a packet says.
type Packet struct {
	EthernetDst, EthernetSrc MAC
	EtherType                uint16
	Version                  uint8 // of IP; 0: another protocol
	Src, Dst                 netip.Addr
	TTL                      uint8 // or hop limit
	ID                       uint32
	Offset                   int // bytes
	More, DontFragment       bool
	Protocol                 uint8 // behind extension headers
	SrcPort, DstPort         uint16
	Seq, Ack                 uint32
	TCPFlags                 uint8
	MSS                      uint16 // 0: no such option
	ICMPType, ICMPCode       uint8
	ICMPRest                 uint32
	Inner                    *Packet // that an ICMP error is about
	Payload                  []byte  // behind the transport header

	header    []byte // of IPv4
	transport []byte // what is there behind the IP headers
	declared  int    // how long that is by the IP header
}

// EchoID returns the identifier of an ICMP echo.
func (p *Packet) EchoID() uint16 { return uint16(p.ICMPRest >> 16) }

// Parse reads a packet with its Ethernet header.
func Parse(b []byte) (*Packet, error) {
	if len(b) < ethernetHeader {
		return nil, fmt.Errorf("parse packet: %d bytes", len(b))
	}
	p := &Packet{
		EthernetDst: MAC(b[:6]), EthernetSrc: MAC(b[6:12]), EtherType: binary.BigEndian.Uint16(b[12:]),
	}
	switch p.EtherType {
	case EtherTypeIPv4, EtherTypeIPv6:
		return p, p.parseIP(b[ethernetHeader:])
	}
	return p, nil
}

func (p *Packet) parseIP(b []byte) error {
	if len(b) == 0 {
		return fmt.Errorf("parse packet: no IP header")
	}
	switch p.Version = b[0] >> 4; p.Version {
	case 4:
		return p.parseIPv4(b)
	case 6:
		return p.parseIPv6(b)
	}
	return fmt.Errorf("parse packet: IP version %d", p.Version)
}

func (p *Packet) parseIPv4(b []byte) error {
	length := int(b[0]&15) * 4
	if length < minimalIPv4Header || len(b) < length {
		return fmt.Errorf("parse packet: IPv4 header of %d in %d bytes", length, len(b))
	}
	p.header = b[:length]
	total := int(binary.BigEndian.Uint16(b[2:]))
	if total < length {
		return fmt.Errorf("parse packet: IPv4 total length %d", total)
	}
	p.ID = uint32(binary.BigEndian.Uint16(b[4:]))
	fragment := binary.BigEndian.Uint16(b[6:])
	p.DontFragment, p.More, p.Offset = fragment&0x4000 != 0, fragment&0x2000 != 0, int(fragment&0x1fff)*8
	p.TTL, p.Protocol = b[8], b[9]
	p.Src, p.Dst = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
	p.transport, p.declared = b[length:], total-length
	return p.parseTransport()
}

func (p *Packet) parseIPv6(b []byte) error {
	if len(b) < ipv6Header {
		return fmt.Errorf("parse packet: IPv6 header in %d bytes", len(b))
	}
	p.Protocol, p.TTL = b[6], b[7]
	p.Src, p.Dst = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
	p.transport, p.declared = b[ipv6Header:], int(binary.BigEndian.Uint16(b[4:]))
	for {
		var length int
		switch p.Protocol {
		case HopByHop, Routing, Destination:
			length = 8
			if len(p.transport) >= 2 {
				length += 8 * int(p.transport[1])
			}
		case ahProtocol:
			length = 8
			if len(p.transport) >= 2 {
				length += 4 * int(p.transport[1])
			}
		case fragmentProtocol:
			length = 8
			if len(p.transport) >= length {
				offset := binary.BigEndian.Uint16(p.transport[2:])
				p.Offset, p.More, p.ID = int(offset&^7), offset&1 != 0, binary.BigEndian.Uint32(p.transport[4:])
			}
		default:
			return p.parseTransport()
		}
		if there := min(len(p.transport), p.declared); there < length {
			return fmt.Errorf("parse packet: extension header %d in %d bytes", p.Protocol, there)
		}
		p.Protocol = p.transport[0]
		p.transport, p.declared = p.transport[length:], p.declared-length
		if p.Offset != 0 {
			return nil
		}
	}
}

// parseTransport reads what there is of the transport header: an ICMP error may
// have eight bytes of it.
func (p *Packet) parseTransport() error {
	t := p.transport
	if p.Offset != 0 || len(t) < 8 {
		p.Payload = t
		return nil
	}
	switch p.Protocol {
	case TCPProtocol:
		return p.parseTCP(t)
	case UDPProtocol:
		p.SrcPort, p.DstPort, p.Payload = binary.BigEndian.Uint16(t), binary.BigEndian.Uint16(t[2:]), t[8:]
	case ICMPv4Protocol, ICMPv6Protocol:
		p.ICMPType, p.ICMPCode, p.ICMPRest, p.Payload = t[0], t[1], binary.BigEndian.Uint32(t[4:]), t[8:]
		if p.icmpError() {
			p.Inner = &Packet{}
			return p.Inner.parseIP(p.Payload)
		}
	default:
		p.Payload = t
	}
	return nil
}

func (p *Packet) icmpError() bool {
	if p.Protocol == ICMPv6Protocol {
		return p.ICMPType < 128
	}
	switch p.ICMPType {
	case 3, 4, 5, 11, 12:
		return true
	}
	return false
}

func (p *Packet) parseTCP(t []byte) error {
	p.SrcPort, p.DstPort = binary.BigEndian.Uint16(t), binary.BigEndian.Uint16(t[2:])
	p.Seq = binary.BigEndian.Uint32(t[4:])
	if len(t) < 20 {
		return nil
	}
	p.Ack, p.TCPFlags = binary.BigEndian.Uint32(t[8:]), t[13]
	length := int(t[12]>>4) * 4
	if length < 20 || len(t) < length {
		return nil
	}
	p.Payload = t[length:]
	for options := t[20:length]; len(options) >= 2; {
		switch kind, size := options[0], int(options[1]); {
		case kind == 0:
			return nil
		case kind == 1:
			options = options[1:]
		case size < 2 || size > len(options):
			return nil
		default:
			if kind == 2 && size == 4 {
				p.MSS = binary.BigEndian.Uint16(options[2:])
			}
			options = options[size:]
		}
	}
	return nil
}

// Fragments cuts a packet with its Ethernet header into fragments with at most
// so many bytes of the datagram, a multiple of eight, each.
func Fragments(packet []byte, size int, id uint32) [][]byte {
	ip := packet[ethernetHeader:]
	header := ethernetHeader + ipv6Header
	if ip[0]>>4 == 4 {
		header = ethernetHeader + int(ip[0]&15)*4
	}
	var fragments [][]byte
	for offset := 0; offset < len(packet)-header; offset += size {
		end := min(header+offset+size, len(packet))
		fragments = append(
			fragments, fragment(packet[:header], packet[header+offset:end], offset, end < len(packet), id),
		)
	}
	return fragments
}

func fragment(headers, data []byte, offset int, more bool, id uint32) []byte {
	b := append([]byte(nil), headers...)
	ip := b[ethernetHeader:]
	if ip[0]>>4 == 4 {
		bits := uint16(offset / 8)
		if more {
			bits |= 0x2000
		}
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+len(data)))
		binary.BigEndian.PutUint16(ip[4:], uint16(id))
		binary.BigEndian.PutUint16(ip[6:], bits)
		binary.BigEndian.PutUint16(ip[10:], 0)
		binary.BigEndian.PutUint16(ip[10:], Checksum(ip))
		return append(b, data...)
	}
	f := Fragment{ID: id, Offset: offset, More: more, Next: ip[6]}.encode(network{}, data, 0)
	ip[6] = fragmentProtocol
	binary.BigEndian.PutUint16(ip[4:], uint16(len(f)))
	return append(b, f...)
}

// Reassemble puts the fragments of a datagram together that are in order.
func Reassemble(fragments [][]byte) ([]byte, error) {
	var data []byte
	for _, b := range fragments {
		p, err := Parse(b)
		if err != nil {
			return nil, err
		}
		if p.Offset != len(data) {
			return nil, fmt.Errorf(
				"reassemble packet: a fragment at %d behind %d bytes", p.Offset, len(data),
			)
		}
		data = append(data, p.transport[:min(p.declared, len(p.transport))]...)
	}
	p, err := Parse(fragments[0])
	if err != nil {
		return nil, err
	}
	var ip Layer = IPv4{Src: p.Src, Dst: p.Dst, TTL: p.TTL, Protocol: p.Protocol}
	if p.Version == 6 {
		ip = IPv6{Src: p.Src, Dst: p.Dst, HopLimit: p.TTL, NextHeader: p.Protocol}
	}
	return Build(Ethernet{Dst: p.EthernetDst, Src: p.EthernetSrc}, ip, Payload(data)), nil
}
