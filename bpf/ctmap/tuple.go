// SPDX-License-Identifier: Apache-2.0

package ctmap

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// TupleFlags say what a key is about.
type TupleFlags uint8

// The flags of tuples. A connection from the pod has none: it is compared with 0.
const (
	Out     TupleFlags = 0 // begun by the pod; of translations: its packets
	In      TupleFlags = 1 // begun towards the pod; of translations: the replies
	Related TupleFlags = 2 // ICMP errors about the connection
	Service TupleFlags = 4
)

var tupleFlagNames = map[uint16]string{uint16(Related): "related", uint16(Service): "service"}

// Others returns the names of the flags beside the direction that are set.
func (f TupleFlags) Others() []string { return flagNames(uint16(f&^In), tupleFlagNames) }

// ParseTupleFlags returns the flags of a direction and the names of others. Names
// that are not known are ignored.
func ParseTupleFlags(d Direction, others []string) (f TupleFlags) {
	if d == DirectionIn {
		f = In
	}
	for _, name := range others {
		for bit := TupleFlags(1); bit != 0; bit <<= 1 {
			if bit != In && slices.Contains(bit.Others(), name) {
				f |= bit
			}
		}
	}
	return f
}

func (f TupleFlags) String() string {
	return strings.Join(append([]string{string(f.Direction())}, f.Others()...), ",")
}

// Tuple is a connection or packet: its source and its destination. The identifier of an ICMP
// echo is the port on the side of the one who asks, and the other port is 0.
type Tuple struct {
	Source      netip.AddrPort // of a connection: who began it
	Destination netip.AddrPort
	Protocol    uint8 // as in the IP header
	Flags       TupleFlags
}

// Is6 reports whether the tuple's addresses are IPv6. IPv4-mapped ones are: a key of
// a map of IPv6 may have them, that of a map of IPv4 has none.
func (t Tuple) Is6() bool { return !t.Source.Addr().Is4() }

// Reverse returns the tuple of the packets in the other direction.
func (t Tuple) Reverse() Tuple {
	t.Source, t.Destination = t.Destination, t.Source
	t.Flags ^= In
	return t
}

func (t Tuple) String() string {
	return fmt.Sprintf("%s %s -> %s %s", Protocol(t.Protocol), t.Source, t.Destination, t.Flags)
}

// Compare orders tuples by source, destination, protocol and flags.
func (t Tuple) Compare(u Tuple) int {
	return cmp.Or(t.Source.Compare(u.Source), t.Destination.Compare(u.Destination),
		cmp.Compare(t.Protocol, u.Protocol), cmp.Compare(t.Flags, u.Flags))
}

// Key4 is the key of sluice_ct4_tcp and sluice_ct4_any: a connection. Its
// addresses are named for the reply direction, its ports for the original one.
type Key4 struct {
	DestAddr   [4]byte // of replies: who began the connection
	SourceAddr [4]byte
	DestPort   Port // of the side that accepted it
	SourcePort Port
	Protocol   uint8
	Flags      TupleFlags
}

// NewKey4 returns the key of an IPv4 connection.
func NewKey4(t Tuple) Key4 {
	return Key4{
		DestAddr: t.Source.Addr().Unmap().As4(), SourceAddr: t.Destination.Addr().Unmap().As4(),
		DestPort: PortFrom(t.Destination.Port()), SourcePort: PortFrom(t.Source.Port()),
		Protocol: t.Protocol, Flags: t.Flags,
	}
}

// Tuple returns the connection that the key stands for.
func (k Key4) Tuple() Tuple {
	return Tuple{
		Source:      netip.AddrPortFrom(addr4(k.DestAddr), k.SourcePort.Number()),
		Destination: netip.AddrPortFrom(addr4(k.SourceAddr), k.DestPort.Number()),
		Protocol:    k.Protocol, Flags: k.Flags,
	}
}

func (k Key4) String() string { return k.Tuple().String() }

// Key6 is the key of sluice_ct6_tcp and sluice_ct6_any. It is named as [Key4] is.
type Key6 struct {
	DestAddr   [16]byte
	SourceAddr [16]byte
	DestPort   Port
	SourcePort Port
	Protocol   uint8
	Flags      TupleFlags
}

// NewKey6 returns the key of an IPv6 connection.
func NewKey6(t Tuple) Key6 {
	return Key6{
		DestAddr: t.Source.Addr().As16(), SourceAddr: t.Destination.Addr().As16(),
		DestPort: PortFrom(t.Destination.Port()), SourcePort: PortFrom(t.Source.Port()),
		Protocol: t.Protocol, Flags: t.Flags,
	}
}

// Tuple returns the connection that the key stands for.
func (k Key6) Tuple() Tuple {
	return Tuple{
		Source:      netip.AddrPortFrom(netip.AddrFrom16(k.DestAddr), k.SourcePort.Number()),
		Destination: netip.AddrPortFrom(netip.AddrFrom16(k.SourceAddr), k.DestPort.Number()),
		Protocol:    k.Protocol, Flags: k.Flags,
	}
}

func (k Key6) String() string { return k.Tuple().String() }
