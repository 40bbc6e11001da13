// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/tables"
)

// Errors of messages that are not as the kernel writes them.
var (
	errTruncated = errors.New("message is truncated")
	errAddress   = errors.New("address does not fit its family")
)

// decodeEvent turns a message of a subscription to an event.
func decodeEvent(m syscall.NetlinkMessage) (event, error) {
	flags := m.Header.Flags
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		d, err := decodeLink(m.Data)
		if err != nil || d == nil {
			return event{}, err
		}
		return event{row: d, deleted: m.Header.Type == unix.RTM_DELLINK}, nil
	case unix.RTM_NEWADDR:
		return event{stale: addresses}, nil
	case unix.RTM_DELADDR:
		// Routes that prefer the address as their source go silently, and with
		// the last address of a device all routes over it.
		return event{stale: addresses | routes}, nil
	case unix.RTM_NEWROUTE:
		live, dead, err := decodeRoute(m.Data)
		ev := event{row: live, replaces: flags&unix.NLM_F_REPLACE != 0}
		if len(dead) > 0 {
			ev.stale = routes
		}
		return ev, err
	case unix.RTM_DELROUTE:
		live, dead, err := decodeRoute(m.Data)
		return event{row: append(live, dead...), deleted: true}, err
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		return decodeNeigh(m.Data, m.Header.Type == unix.RTM_DELNEIGH)
	case unix.RTM_NEWNEXTHOP:
		if flags&unix.NLM_F_REPLACE != 0 {
			return event{stale: routes}, nil
		}
	case unix.RTM_DELNEXTHOP:
		return event{stale: routes}, nil
	case unix.RTM_NEWQDISC, unix.RTM_DELQDISC:
		return decodeQdiscEvent(m.Data)
	}
	return event{}, nil
}

// values reads numbers of messages and remembers if one was not there.
type values struct{ err error }

func (v *values) uint32(b []byte) uint32 {
	if len(b) < 4 {
		v.err = errTruncated
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}

func (v *values) int(b []byte) int { return int(int32(v.uint32(b))) }

func (v *values) addr(b []byte) netip.Addr {
	addr, ok := netip.AddrFromSlice(b)
	if !ok {
		v.err = errAddress
	}
	return addr
}

func (v *values) prefix(addr netip.Addr, bits uint8) netip.Prefix {
	p := netip.PrefixFrom(addr, int(bits)).Masked()
	if !p.IsValid() {
		v.err = errAddress
	}
	return p
}

// attributes calls f with the type and value of each attribute in b.
func (v *values) attributes(b []byte, f func(typ uint16, value []byte)) {
	for len(b) >= unix.SizeofNlAttr {
		size := int(binary.NativeEndian.Uint16(b))
		typ := binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
		if size < unix.SizeofNlAttr || size > len(b) {
			v.err = errTruncated
			return
		}
		f(typ, b[unix.SizeofNlAttr:size])
		b = b[min(align(size), len(b)):]
	}
}

func align(size int) int { return (size + unix.NLA_ALIGNTO - 1) &^ (unix.NLA_ALIGNTO - 1) }

// text returns the string in b without what follows a zero byte.
func text(b []byte) string {
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(s)
}

// mac returns the text of a link-layer address, empty if it is none.
func mac(b []byte) string {
	if len(bytes.Trim(b, "\x00")) == 0 {
		return ""
	}
	return net.HardwareAddr(b).String()
}

// decodeLink reads an ifinfomsg. It returns nil for messages about a device in
// its role as a port, which resemble those about the device: the end of the
// role is announced as a deletion.
func decodeLink(data []byte) (*tables.Device, error) {
	if len(data) < unix.SizeofIfInfomsg {
		return nil, fmt.Errorf("decode device: %w", errTruncated)
	}
	if data[0] != unix.AF_UNSPEC {
		return nil, nil
	}
	var v values
	flags := v.uint32(data[8:])
	d := &tables.Device{
		Index:       v.int(data[4:]),
		Type:        "device",
		Up:          flags&unix.IFF_UP != 0,
		OperUp:      flags&unix.IFF_UP != 0 && flags&unix.IFF_RUNNING != 0,
		PeerNetNSID: -1,
	}
	if flags&unix.IFF_LOOPBACK != 0 {
		d.Type = "loopback"
	}
	v.attributes(data[unix.SizeofIfInfomsg:], func(typ uint16, value []byte) {
		switch typ {
		case unix.IFLA_IFNAME:
			d.Name = text(value)
		case unix.IFLA_MTU:
			d.MTU = v.int(value)
		case unix.IFLA_ADDRESS:
			d.MAC = mac(value)
		case unix.IFLA_MASTER:
			d.MasterIndex = v.int(value)
		case unix.IFLA_LINK:
			d.ParentIndex = v.int(value)
		case unix.IFLA_LINK_NETNSID:
			d.PeerNetNSID = v.int(value)
		case unix.IFLA_QDISC:
			d.Qdiscs = []string{text(value)}
		case unix.IFLA_LINKINFO:
			v.attributes(value, func(typ uint16, value []byte) {
				if typ == unix.IFLA_INFO_KIND {
					d.Type = text(value)
				}
			})
		case unix.IFLA_PROP_LIST:
			v.attributes(value, func(typ uint16, value []byte) {
				if typ == unix.IFLA_ALT_IFNAME {
					d.AltNames = append(d.AltNames, text(value))
				}
			})
		}
	})
	if v.err != nil {
		return nil, fmt.Errorf("decode device %d: %w", d.Index, v.err)
	}
	return d, nil
}

// decodeAddr reads an ifaddrmsg. It returns nil for addresses that the kernel
// does not use, or not yet: those that duplicate detection has not passed.
func decodeAddr(data []byte) (*tables.NodeAddress, error) {
	if len(data) < unix.SizeofIfAddrmsg {
		return nil, fmt.Errorf("decode address: %w", errTruncated)
	}
	if data[0] != unix.AF_INET && data[0] != unix.AF_INET6 {
		return nil, nil
	}
	var (
		v            values
		local, other netip.Addr // other is the peer where there is one
		flags        = uint32(data[2])
		a            = &tables.NodeAddress{Scope: scopeName(data[3]), DeviceIndex: v.int(data[4:])}
	)
	v.attributes(data[unix.SizeofIfAddrmsg:], func(typ uint16, value []byte) {
		switch typ {
		case unix.IFA_LOCAL:
			local = v.addr(value)
		case unix.IFA_ADDRESS:
			other = v.addr(value)
		case unix.IFA_FLAGS:
			flags = v.uint32(value)
		}
	})
	if !other.IsValid() {
		other = local
	}
	if a.Addr = local; !local.IsValid() {
		a.Addr = other
	}
	a.Prefix = v.prefix(other, data[1])
	a.Secondary = flags&unix.IFA_F_SECONDARY != 0
	a.Deprecated = flags&unix.IFA_F_DEPRECATED != 0
	if v.err != nil {
		return nil, fmt.Errorf("decode address of device %d: %w", a.DeviceIndex, v.err)
	}
	unchecked := flags&unix.IFA_F_TENTATIVE != 0 && flags&unix.IFA_F_OPTIMISTIC == 0
	if unchecked || flags&unix.IFA_F_DADFAILED != 0 {
		return nil, nil
	}
	return a, nil
}

// decodeNeigh reads an ndmsg, which is a neighbour or a bridge entry.
func decodeNeigh(data []byte, deleted bool) (event, error) {
	if len(data) < unix.SizeofNdMsg {
		return event{}, fmt.Errorf("decode neighbour: %w", errTruncated)
	}
	var (
		v      values
		addr   netip.Addr
		lladdr string
		master int
		vlan   uint16
		family = data[0]
		device = v.int(data[4:])
		state  = binary.NativeEndian.Uint16(data[8:])
		proxy  = data[10]&unix.NTF_PROXY != 0
	)
	v.attributes(data[unix.SizeofNdMsg:], func(typ uint16, value []byte) {
		switch {
		case typ == unix.NDA_DST && family != unix.AF_BRIDGE: // of a tunnel otherwise
			addr = v.addr(value)
		case typ == unix.NDA_LLADDR:
			lladdr = mac(value)
		case typ == unix.NDA_MASTER:
			master = v.int(value)
		case typ == unix.NDA_VLAN && len(value) >= 2:
			vlan = binary.NativeEndian.Uint16(value)
		}
	})
	switch {
	case v.err != nil:
		return event{}, fmt.Errorf("decode neighbour on device %d: %w", device, v.err)
	case family == unix.AF_BRIDGE:
		if master == 0 || lladdr == "" { // filters and tunnel ends of the device itself
			return event{}, nil
		}
		return event{deleted: deleted, row: &tables.BridgeEntry{
			BridgeIndex: master,
			MAC:         lladdr,
			VLAN:        int(vlan),
			DeviceIndex: device,
			Local:       state&unix.NUD_PERMANENT != 0,
			Static:      state&unix.NUD_NOARP != 0,
		}}, nil
	case family != unix.AF_INET && family != unix.AF_INET6, proxy, !addr.IsValid(), addr.IsMulticast():
		return event{}, nil
	}
	known := lladdr != "" && state&(unix.NUD_FAILED|unix.NUD_INCOMPLETE) == 0 && state != unix.NUD_NONE
	return event{deleted: deleted || !known, row: &tables.Neighbour{
		DeviceIndex: device,
		Addr:        addr,
		MAC:         lladdr,
		Permanent:   state&(unix.NUD_PERMANENT|unix.NUD_NOARP) != 0,
	}}, nil
}

// scopeName names the scope of an address or route.
func scopeName(scope uint8) string {
	switch scope {
	case unix.RT_SCOPE_UNIVERSE:
		return "global"
	case unix.RT_SCOPE_SITE:
		return "site"
	case unix.RT_SCOPE_LINK:
		return "link"
	case unix.RT_SCOPE_HOST:
		return "host"
	case unix.RT_SCOPE_NOWHERE:
		return "nowhere"
	}
	return strconv.Itoa(int(scope))
}
