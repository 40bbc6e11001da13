// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/tables"
)

// decodeRoute reads an rtmsg. It returns the next hops in use, and those that
// are dead. There are none of routes that the table leaves out.
func decodeRoute(data []byte) (live, dead []*tables.Route, err error) {
	if len(data) < unix.SizeofRtMsg {
		return nil, nil, fmt.Errorf("decode route: %w", errTruncated)
	}
	var (
		v         values
		family    = data[0]
		bits      = data[1]
		srcBits   = data[2]
		tos       = data[3]
		flags     = v.uint32(data[8:])
		multipath []byte
		dst       = defaultRoute(family == unix.AF_INET).Addr()
		common    = tables.Route{Table: int(data[4]), Scope: scopeName(data[6]), Type: routeTypeName(data[7])}
		single    = hop{flags: uint8(flags)}
	)
	if family != unix.AF_INET && family != unix.AF_INET6 || flags&unix.RTM_F_CLONED != 0 || tos != 0 || srcBits != 0 {
		return nil, nil, nil
	}
	v.attributes(data[unix.SizeofRtMsg:], func(typ uint16, value []byte) {
		switch typ {
		case unix.RTA_TABLE:
			common.Table = int(v.uint32(value))
		case unix.RTA_DST:
			dst = v.addr(value)
		case unix.RTA_PREFSRC:
			common.Source = v.addr(value)
		case unix.RTA_PRIORITY:
			common.Priority = int(v.uint32(value))
		case unix.RTA_OIF:
			single.device = v.int(value)
		case unix.RTA_GATEWAY, unix.RTA_VIA:
			single.gateway = v.gateway(typ, value)
		case unix.RTA_MULTIPATH:
			multipath = value
		}
	})
	common.Destination = v.prefix(dst, bits)
	hops := []hop{single}
	if multipath != nil {
		hops = v.hops(multipath)
	}
	if v.err != nil {
		return nil, nil, fmt.Errorf("decode route to %s: %w", dst, v.err)
	}
	for _, h := range hops {
		r := common
		r.DeviceIndex, r.Gateway = h.device, h.gateway
		if h.flags&unix.RTNH_F_DEAD != 0 {
			dead = append(dead, &r)
		} else {
			live = append(live, &r)
		}
	}
	return live, dead, nil
}

type hop struct {
	device  int
	gateway netip.Addr
	flags   uint8
}

// hops reads a list of rtnexthop.
func (v *values) hops(b []byte) []hop {
	var hops []hop
	for len(b) >= unix.SizeofRtNexthop {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofRtNexthop || size > len(b) {
			v.err = errTruncated
			return nil
		}
		h := hop{flags: b[2], device: v.int(b[4:])}
		v.attributes(b[unix.SizeofRtNexthop:size], func(typ uint16, value []byte) {
			if typ == unix.RTA_GATEWAY || typ == unix.RTA_VIA {
				h.gateway = v.gateway(typ, value)
			}
		})
		hops = append(hops, h)
		b = b[min(align(size), len(b)):]
	}
	return hops
}

// gateway reads an address of the family of the route, or with RTA_VIA of the
// family that it says in its first two bytes.
func (v *values) gateway(typ uint16, value []byte) netip.Addr {
	if typ == unix.RTA_VIA {
		if len(value) < 2 {
			v.err = errTruncated
			return netip.Addr{}
		}
		value = value[2:]
	}
	return v.addr(value)
}

// routeTypeName names the type of a route as iproute2 does.
func routeTypeName(typ uint8) string {
	names := [...]string{
		unix.RTN_UNSPEC:      "none",
		unix.RTN_UNICAST:     "unicast",
		unix.RTN_LOCAL:       "local",
		unix.RTN_BROADCAST:   "broadcast",
		unix.RTN_ANYCAST:     "anycast",
		unix.RTN_MULTICAST:   "multicast",
		unix.RTN_BLACKHOLE:   "blackhole",
		unix.RTN_UNREACHABLE: "unreachable",
		unix.RTN_PROHIBIT:    "prohibit",
		unix.RTN_THROW:       "throw",
		unix.RTN_NAT:         "nat",
		unix.RTN_XRESOLVE:    "xresolve",
	}
	if int(typ) < len(names) {
		return names[typ]
	}
	return strconv.Itoa(int(typ))
}
