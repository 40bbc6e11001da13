// SPDX-License-Identifier: Apache-2.0

package ctmap

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Names of the maps.
const (
	CT4TCP = "sluice_ct4_tcp"
	CT4Any = "sluice_ct4_any"
	CT6TCP = "sluice_ct6_tcp"
	CT6Any = "sluice_ct6_any"
	Frag4  = "sluice_frag4"
	Frag6  = "sluice_frag6"
)

// CTName returns the name of the map of connections of a family and protocol.
func CTName(ipv6 bool, protocol uint8) string {
	switch tcp := protocol == unix.IPPROTO_TCP; {
	case ipv6 && tcp:
		return CT6TCP
	case ipv6:
		return CT6Any
	case tcp:
		return CT4TCP
	default:
		return CT4Any
	}
}

// Now returns the seconds of the clock that lifetimes are of.
func Now() (uint32, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0, fmt.Errorf("read clock: %w", err)
	}
	return uint32(ts.Sec), nil
}

// Port is a port in network order.
type Port [2]byte

// PortFrom returns a port by its number.
func PortFrom(n uint16) (p Port) {
	binary.BigEndian.PutUint16(p[:], n)
	return p
}

// Number returns the number of the port.
func (p Port) Number() uint16 { return binary.BigEndian.Uint16(p[:]) }

// flagNames returns the names of the bits that are set.
func flagNames(flags uint16, names map[uint16]string) (set []string) {
	for bit := uint16(1); bit != 0; bit <<= 1 {
		if flags&bit == 0 {
			continue
		}
		name, ok := names[bit]
		if !ok {
			name = fmt.Sprintf("%#x", bit)
		}
		set = append(set, name)
	}
	return set
}

func addr4(b [4]byte) netip.Addr { return netip.AddrFrom4(b) }
