// SPDX-License-Identifier: Apache-2.0

package packettest

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"
)

// Protocols, as in IP headers.
const (
	ICMPv4Protocol    uint8 = 1
	TCPProtocol       uint8 = 6
	UDPProtocol       uint8 = 17
	ICMPv6Protocol    uint8 = 58
	SCTPProtocol      uint8 = 132
	hopByHopProtocol  uint8 = 0
	routingProtocol   uint8 = 43
	fragmentProtocol  uint8 = 44
	ahProtocol        uint8 = 51
	noNextProtocol    uint8 = 59
	destOptsProtocol  uint8 = 60
	ipv4Protocol      uint8 = 4
	ipv6Protocol      uint8 = 41
	EtherTypeIPv4           = 0x0800
	EtherTypeARP            = 0x0806
	EtherTypeIPv6           = 0x86dd
	EtherTypeLLDP           = 0x88cc
	ethernetHeader          = 14
	ipv6Header              = 40
	minimalIPv4Header       = 20
)

// A Layer is a header, or what follows the last one.
type Layer interface {
	// encode returns the layer in front of what it carries.
	encode(under network, inner []byte, next uint8) []byte
	// protocol is the number by which the layer before it names it.
	protocol() uint8
}

// network is the innermost IP header that a layer is behind: checksums of
// transport protocols cover its addresses.
type network struct{ src, dst netip.Addr }

// Build returns the bytes of a packet. Lengths, checksums and protocol numbers
// follow from the layers, unless a layer gives its own.
func Build(layers ...Layer) []byte { return build(network{}, layers) }

func build(under network, layers []Layer) []byte {
	if len(layers) == 0 {
		return nil
	}
	inside := under
	switch ip := layers[0].(type) {
	case IPv4:
		inside = network{ip.Src, ip.Dst}
	case IPv6:
		inside = network{ip.Src, ip.Dst}
	}
	next := noNextProtocol
	if len(layers) > 1 {
		next = layers[1].protocol()
	}
	return layers[0].encode(under, build(inside, layers[1:]), next)
}

// MAC is an Ethernet address.
type MAC [6]byte

// Ethernet is an Ethernet header. The type is that of the IP version behind it
// unless it is given.
type Ethernet struct {
	Dst, Src MAC
	Type     uint16
}

func (Ethernet) protocol() uint8 { return noNextProtocol }

func (e Ethernet) encode(_ network, inner []byte, next uint8) []byte {
	if e.Type == 0 {
		e.Type = EtherTypeIPv4
		if next == ipv6Protocol {
			e.Type = EtherTypeIPv6
		}
	}
	b := append(e.Dst[:], e.Src[:]...)
	return append(binary.BigEndian.AppendUint16(b, e.Type), inner...)
}

// IPv4 is an IPv4 header. Options are padded to words.
type IPv4 struct {
	Src, Dst     netip.Addr
	TTL          uint8 // 64 unless given
	TOS          uint8
	ID           uint16
	DontFragment bool
	More         bool   // fragments
	Offset       int    // bytes, of a fragment
	Options      []byte // without padding
	Protocol     uint8  // of what follows, unless given
	HeaderWords  uint8  // wrong on purpose
	TotalLength  uint16 // wrong on purpose
}

func (IPv4) protocol() uint8 { return ipv4Protocol }

func (ip IPv4) encode(_ network, inner []byte, next uint8) []byte {
	options := ip.Options
	for len(options)%4 != 0 {
		options = append(options[:len(options):len(options)], 0)
	}
	b := make([]byte, minimalIPv4Header, minimalIPv4Header+len(options)+len(inner))
	b = append(b, options...)
	b[0] = 4<<4 | byte(or(uint16(ip.HeaderWords), uint16(len(b)/4)))
	b[1] = ip.TOS
	binary.BigEndian.PutUint16(b[2:], or(ip.TotalLength, uint16(len(b)+len(inner))))
	binary.BigEndian.PutUint16(b[4:], ip.ID)
	fragment := uint16(ip.Offset / 8)
	if ip.DontFragment {
		fragment |= 0x4000
	}
	if ip.More {
		fragment |= 0x2000
	}
	binary.BigEndian.PutUint16(b[6:], fragment)
	b[8] = byte(or(uint16(ip.TTL), 64))
	b[9] = byte(or(uint16(ip.Protocol), uint16(next)))
	copy(b[12:], ip.Src.AsSlice())
	copy(b[16:], ip.Dst.AsSlice())
	binary.BigEndian.PutUint16(b[10:], Checksum(b))
	return append(b, inner...)
}

// IPv6 is an IPv6 header. Extension headers are layers of their own.
type IPv6 struct {
	Src, Dst      netip.Addr
	HopLimit      uint8 // 64 unless given
	TrafficClass  uint8
	FlowLabel     uint32
	NextHeader    uint8  // of what follows, unless given
	PayloadLength uint16 // wrong on purpose
}

func (IPv6) protocol() uint8 { return ipv6Protocol }

func (ip IPv6) encode(_ network, inner []byte, next uint8) []byte {
	b := make([]byte, ipv6Header, ipv6Header+len(inner))
	binary.BigEndian.PutUint32(b, 6<<28|uint32(ip.TrafficClass)<<20|ip.FlowLabel&0xfffff)
	binary.BigEndian.PutUint16(b[4:], or(ip.PayloadLength, uint16(len(inner))))
	b[6] = byte(or(uint16(ip.NextHeader), uint16(next)))
	b[7] = byte(or(uint16(ip.HopLimit), 64))
	copy(b[8:], ip.Src.AsSlice())
	copy(b[24:], ip.Dst.AsSlice())
	return append(b, inner...)
}

// Options is an IPv6 extension header of the common form.
type Options struct {
	Kind  uint8 // HopByHop, Routing or Destination
	Words int   // of eight bytes, behind the first
}

// Kinds of [Options].
const (
	HopByHop    = hopByHopProtocol
	Routing     = routingProtocol
	Destination = destOptsProtocol
)

func (o Options) protocol() uint8 { return o.Kind }

func (o Options) encode(_ network, inner []byte, next uint8) []byte {
	b := make([]byte, 8+8*o.Words, 8+8*o.Words+len(inner))
	b[0], b[1] = next, byte(o.Words)
	if o.Kind != Routing { // a PadN option for all that is left; routing has segments left 0 instead
		b[2], b[3] = 1, byte(min(len(b)-4, 255))
	}
	return append(b, inner...)
}

// Fragment is the IPv6 fragment header.
type Fragment struct {
	ID     uint32
	Offset int // bytes
	More   bool
	Next   uint8 // of what follows, unless given
}

func (Fragment) protocol() uint8 { return fragmentProtocol }

func (f Fragment) encode(_ network, inner []byte, next uint8) []byte {
	b := make([]byte, 8, 8+len(inner))
	b[0] = byte(or(uint16(f.Next), uint16(next)))
	offset := uint16(f.Offset) &^ 7
	if f.More {
		offset |= 1
	}
	binary.BigEndian.PutUint16(b[2:], offset)
	binary.BigEndian.PutUint32(b[4:], f.ID)
	return append(b, inner...)
}

// AH is an authentication header with a check value of 12 bytes, all zero.
type AH struct{ SPI uint32 }

func (AH) protocol() uint8 { return ahProtocol }

func (a AH) encode(_ network, inner []byte, next uint8) []byte {
	b := make([]byte, 24, 24+len(inner))
	b[0], b[1] = next, 24/4-2
	binary.BigEndian.PutUint32(b[4:], a.SPI)
	return append(b, inner...)
}

// TCP flags.
const (
	FIN uint8 = 1 << iota
	SYN
	RST
	PSH
	ACK
)

// TCP is a TCP header, with a maximum segment size option if one is given.
type TCP struct {
	Src, Dst uint16
	Flags    uint8
	Seq, Ack uint32
	MSS      uint16
	Options  []byte // behind the MSS
	Words    uint8  // wrong on purpose
}

func (TCP) protocol() uint8 { return TCPProtocol }

func (t TCP) encode(under network, inner []byte, _ uint8) []byte {
	b := make([]byte, 20, 64+len(inner))
	if t.MSS != 0 {
		b = binary.BigEndian.AppendUint16(append(b, 2, 4), t.MSS)
	}
	b = append(b, t.Options...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	binary.BigEndian.PutUint16(b[0:], t.Src)
	binary.BigEndian.PutUint16(b[2:], t.Dst)
	binary.BigEndian.PutUint32(b[4:], t.Seq)
	binary.BigEndian.PutUint32(b[8:], t.Ack)
	b[12] = byte(or(uint16(t.Words), uint16(len(b)/4))) << 4
	b[13] = t.Flags
	binary.BigEndian.PutUint16(b[14:], 65535)
	b = append(b, inner...)
	binary.BigEndian.PutUint16(b[16:], transportChecksum(under, TCPProtocol, b))
	return b
}

// UDP is a UDP header.
type UDP struct {
	Src, Dst   uint16
	NoChecksum bool
	Length     uint16 // wrong on purpose
}

func (UDP) protocol() uint8 { return UDPProtocol }

func (u UDP) encode(under network, inner []byte, _ uint8) []byte {
	b := make([]byte, 8, 8+len(inner))
	binary.BigEndian.PutUint16(b[0:], u.Src)
	binary.BigEndian.PutUint16(b[2:], u.Dst)
	binary.BigEndian.PutUint16(b[4:], or(u.Length, uint16(len(b)+len(inner))))
	b = append(b, inner...)
	if !u.NoChecksum {
		binary.BigEndian.PutUint16(b[6:], or(transportChecksum(under, UDPProtocol, b), 0xffff))
	}
	return b
}

// SCTP is the common header of SCTP, with a checksum of its own kind.
type SCTP struct {
	Src, Dst uint16
	Tag      uint32 // of the association; 0 in what begins one
}

func (SCTP) protocol() uint8 { return SCTPProtocol }

func (s SCTP) encode(_ network, inner []byte, _ uint8) []byte {
	b := make([]byte, 12, 12+len(inner))
	binary.BigEndian.PutUint16(b[0:], s.Src)
	binary.BigEndian.PutUint16(b[2:], s.Dst)
	binary.BigEndian.PutUint32(b[4:], s.Tag)
	b = append(b, inner...)
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// Chunks of SCTP.
const (
	SCTPInit    uint8 = 1
	SCTPInitAck uint8 = 2
)

// SCTPBegin returns a chunk that begins an association, or the answer to it, without
// parameters.
func SCTPBegin(chunk uint8, tag uint32) Payload {
	b := []byte{chunk, 0, 0, 20}
	b = binary.BigEndian.AppendUint32(b, tag)
	b = binary.BigEndian.AppendUint32(b, 1<<16)   // window
	b = binary.BigEndian.AppendUint32(b, 1<<16|1) // streams out and in
	return binary.BigEndian.AppendUint32(b, 1)    // first number
}

// ICMP is an ICMP header of either version. Rest is the identifier and the
// sequence number of an echo, or what an error says beside its code.
type ICMP struct {
	Version    uint8 // 4 or 6
	Type, Code uint8
	Rest       uint32
}

// Echo returns an echo request or reply of the IP version of an address.
func Echo(of netip.Addr, reply bool, id, seq uint16) ICMP {
	m := ICMP{Version: 4, Type: 8, Rest: uint32(id)<<16 | uint32(seq)}
	if of.Is6() {
		m.Version, m.Type = 6, 128
	}
	switch {
	case reply && m.Version == 6:
		m.Type = 129
	case reply:
		m.Type = 0
	}
	return m
}

func (m ICMP) protocol() uint8 {
	if m.Version == 6 {
		return ICMPv6Protocol
	}
	return ICMPv4Protocol
}

func (m ICMP) encode(under network, inner []byte, _ uint8) []byte {
	b := make([]byte, 8, 8+len(inner))
	b[0], b[1] = m.Type, m.Code
	binary.BigEndian.PutUint32(b[4:], m.Rest)
	b = append(b, inner...)
	sum := Checksum(b)
	if m.Version == 6 {
		sum = transportChecksum(under, ICMPv6Protocol, b)
	}
	binary.BigEndian.PutUint16(b[2:], sum)
	return b
}

// Payload is bytes as they are.
type Payload []byte

func (Payload) protocol() uint8 { return noNextProtocol }

func (p Payload) encode(network, []byte, uint8) []byte { return p }

// Pattern returns a payload of a length, whose bytes differ from each other.
func Pattern(length int) Payload {
	p := make(Payload, length)
	for i := range p {
		p[i] = byte(i*7 + i>>8)
	}
	return p
}

func or(given, otherwise uint16) uint16 {
	if given != 0 {
		return given
	}
	return otherwise
}
