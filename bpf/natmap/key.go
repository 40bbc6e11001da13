// SPDX-License-Identifier: Apache-2.0

package natmap

import (
	"net/netip"

	"github.com/sluice-net/sluice/bpf/ctmap"
)

// Key4 is the key of sluice_nat4: a packet's plain tuple.
type Key4 struct {
	DestAddr   [4]byte
	SourceAddr [4]byte
	DestPort   ctmap.Port
	SourcePort ctmap.Port
	Protocol   uint8
	Flags      ctmap.TupleFlags
}

// NewKey4 returns the key of an IPv4 packet.
func NewKey4(t ctmap.Tuple) Key4 {
	return Key4{
		DestAddr: t.Destination.Addr().Unmap().As4(), SourceAddr: t.Source.Addr().Unmap().As4(),
		DestPort: ctmap.PortFrom(t.Destination.Port()), SourcePort: ctmap.PortFrom(t.Source.Port()),
		Protocol: t.Protocol, Flags: t.Flags,
	}
}

// Tuple returns the packet's tuple.
func (k Key4) Tuple() ctmap.Tuple {
	return ctmap.Tuple{
		Source:      netip.AddrPortFrom(netip.AddrFrom4(k.SourceAddr), k.SourcePort.Number()),
		Destination: netip.AddrPortFrom(netip.AddrFrom4(k.DestAddr), k.DestPort.Number()),
		Protocol:    k.Protocol, Flags: k.Flags,
	}
}

func (k Key4) String() string { return k.Tuple().String() }

// Key6 is the key of sluice_nat6: a packet's plain tuple.
type Key6 struct {
	DestAddr   [16]byte
	SourceAddr [16]byte
	DestPort   ctmap.Port
	SourcePort ctmap.Port
	Protocol   uint8
	Flags      ctmap.TupleFlags
}

// NewKey6 returns the key of an IPv6 packet.
func NewKey6(t ctmap.Tuple) Key6 {
	return Key6{
		DestAddr: t.Destination.Addr().As16(), SourceAddr: t.Source.Addr().As16(),
		DestPort: ctmap.PortFrom(t.Destination.Port()), SourcePort: ctmap.PortFrom(t.Source.Port()),
		Protocol: t.Protocol, Flags: t.Flags,
	}
}

// Tuple returns the packet's tuple.
func (k Key6) Tuple() ctmap.Tuple {
	return ctmap.Tuple{
		Source:      netip.AddrPortFrom(netip.AddrFrom16(k.SourceAddr), k.SourcePort.Number()),
		Destination: netip.AddrPortFrom(netip.AddrFrom16(k.DestAddr), k.DestPort.Number()),
		Protocol:    k.Protocol, Flags: k.Flags,
	}
}

func (k Key6) String() string { return k.Tuple().String() }
