// SPDX-License-Identifier: Apache-2.0

package ctmap

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Protocol is the number of an IP protocol. Its text is the name, or
// "protocol-N" for those that have none here.
type Protocol uint8

// unnamed precedes the number of a protocol that has no name.
const unnamed = "protocol-"

var protocolNames = []struct {
	number Protocol
	name   string
}{
	{unix.IPPROTO_TCP, "tcp"}, {unix.IPPROTO_UDP, "udp"}, {unix.IPPROTO_SCTP, "sctp"},
	{unix.IPPROTO_ICMP, "icmp"}, {unix.IPPROTO_ICMPV6, "icmpv6"},
}

func (p Protocol) String() string {
	for _, known := range protocolNames {
		if known.number == p {
			return known.name
		}
	}
	return unnamed + strconv.Itoa(int(p))
}

// MarshalText implements [encoding.TextMarshaler], for dumps.
func (p Protocol) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (p *Protocol) UnmarshalText(text []byte) (err error) {
	*p, err = ParseProtocol(string(text))
	return err
}

// ParseProtocol returns a protocol by its name, in any case, or number.
func ParseProtocol(s string) (Protocol, error) {
	lower := strings.ToLower(s)
	var names []string
	for _, known := range protocolNames {
		if known.name == lower {
			return known.number, nil
		}
		names = append(names, known.name)
	}
	n, err := strconv.ParseUint(strings.TrimPrefix(lower, unnamed), 10, 8)
	if err != nil {
		return 0, fmt.Errorf("protocol %q: want %s or a number from 0 to 255", s, strings.Join(names, ", "))
	}
	return Protocol(n), nil
}

// ParseState returns a state by its name, in any case.
func ParseState(s string) (State, error) { return parseOneOf("state", s, States()) }

// UnmarshalText implements [encoding.TextUnmarshaler]: only states are taken.
func (s *State) UnmarshalText(text []byte) (err error) {
	*s, err = ParseState(string(text))
	return err
}

// ParseDirection returns a direction by its name, in any case.
func ParseDirection(s string) (Direction, error) {
	return parseOneOf("direction", s, []Direction{DirectionOut, DirectionIn})
}

// UnmarshalText implements [encoding.TextUnmarshaler]: only directions are taken.
func (d *Direction) UnmarshalText(text []byte) (err error) {
	*d, err = ParseDirection(string(text))
	return err
}

func parseOneOf[T ~string](field, s string, known []T) (T, error) {
	lower := T(strings.ToLower(s))
	if slices.Contains(known, lower) {
		return lower, nil
	}
	names := make([]string, len(known))
	for i, k := range known {
		names[i] = string(k)
	}
	return "", fmt.Errorf("%s %q: want %s", field, s, strings.Join(names, ", "))
}

// ParsePort returns a port, or identifier of an ICMP echo.
func ParsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("port %q: want a number from 0 to 65535", s)
	}
	return uint16(n), nil
}

// ParsePrefix returns a prefix, or that of an address alone. IPv4-mapped ones are
// IPv4, as addresses in maps are.
func ParsePrefix(s string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(s); err == nil && addr.Zone() == "" {
		addr = addr.Unmap()
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	switch {
	case err != nil:
		return netip.Prefix{}, fmt.Errorf("address %q: want an IPv4 or IPv6 address or prefix", s)
	case p != p.Masked():
		return netip.Prefix{}, fmt.Errorf("address %q: has bits behind its prefix: want %s", s, p.Masked())
	case p.Addr().Is4In6() && p.Bits() >= 96:
		return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96), nil
	}
	return p, nil
}
