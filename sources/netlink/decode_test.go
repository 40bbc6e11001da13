// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/tables"
)

// attr encodes an attribute.
func attr(typ uint16, value ...byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(value)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, value...)
	return append(b, make([]byte, align(len(b))-len(b))...)
}

func u32(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

func addr(s string) []byte { return netip.MustParseAddr(s).AsSlice() }

func link(family byte, index, flags uint32, attrs ...[]byte) []byte {
	b := slices.Concat([]byte{family, 0, 0, 0}, u32(index), u32(flags), u32(0))
	return append(b, bytes.Join(attrs, nil)...)
}

func TestDecodeLink(t *testing.T) {
	d, err := decodeLink(link(unix.AF_UNSPEC, 7, unix.IFF_UP|unix.IFF_RUNNING,
		attr(unix.IFLA_IFNAME, []byte("eth0\x00")...),
		attr(unix.IFLA_MTU, u32(1450)...),
		attr(unix.IFLA_ADDRESS, 0x0a, 0x58, 0, 0, 0, 1),
		attr(unix.IFLA_MASTER, u32(3)...),
		attr(unix.IFLA_LINK, u32(8)...),
		attr(unix.IFLA_LINK_NETNSID, u32(2)...),
		attr(unix.IFLA_QDISC, []byte("fq\x00")...),
		attr(unix.IFLA_LINKINFO|unix.NLA_F_NESTED, attr(unix.IFLA_INFO_KIND, []byte("veth")...)...),
		attr(unix.IFLA_PROP_LIST|unix.NLA_F_NESTED, slices.Concat(
			attr(unix.IFLA_ALT_IFNAME, []byte("one\x00")...), attr(unix.IFLA_ALT_IFNAME, []byte("two\x00")...))...),
	))
	require.NoError(t, err)
	require.Equal(t, &tables.Device{
		Index: 7, Name: "eth0", AltNames: []string{"one", "two"}, Type: "veth", Up: true, OperUp: true, MTU: 1450,
		MAC: "0a:58:00:00:00:01", MasterIndex: 3, ParentIndex: 8, PeerNetNSID: 2, Qdiscs: []string{"fq"},
	}, d)

	d, err = decodeLink(link(unix.AF_UNSPEC, 1, unix.IFF_LOOPBACK, attr(unix.IFLA_ADDRESS, 0, 0, 0, 0, 0, 0)))
	require.NoError(t, err)
	require.Equal(t, &tables.Device{Index: 1, Type: "loopback", PeerNetNSID: -1}, d)

	d, err = decodeLink(link(unix.AF_BRIDGE, 7, 0))
	require.NoError(t, err)
	require.Nil(t, d, "a port that leaves its bridge is not a device that is gone")
}

func TestDecodeAddr(t *testing.T) {
	header := func(family, bits, flags, scope byte) []byte {
		return append([]byte{family, bits, flags, scope}, u32(2)...)
	}
	tests := []struct {
		name string
		data []byte
		want *tables.NodeAddress
	}{
		{
			name: "IPv4",
			data: slices.Concat(header(unix.AF_INET, 24, 0, 0), attr(unix.IFA_ADDRESS, addr("10.0.0.5")...), attr(unix.IFA_LOCAL, addr("10.0.0.5")...)),
			want: &tables.NodeAddress{Addr: netip.MustParseAddr("10.0.0.5"), Prefix: netip.MustParsePrefix("10.0.0.0/24"), DeviceIndex: 2, Scope: "global"},
		}, {
			name: "point to point",
			data: slices.Concat(header(unix.AF_INET, 32, 0, unix.RT_SCOPE_LINK), attr(unix.IFA_ADDRESS, addr("10.9.9.9")...), attr(unix.IFA_LOCAL, addr("10.0.0.5")...)),
			want: &tables.NodeAddress{Addr: netip.MustParseAddr("10.0.0.5"), Prefix: netip.MustParsePrefix("10.9.9.9/32"), DeviceIndex: 2, Scope: "link"},
		}, {
			name: "IPv6 with flags",
			data: slices.Concat(header(unix.AF_INET6, 64, 0, 0), attr(unix.IFA_ADDRESS, addr("fd00::5")...), attr(unix.IFA_FLAGS, u32(unix.IFA_F_TEMPORARY|unix.IFA_F_DEPRECATED)...)),
			want: &tables.NodeAddress{Addr: netip.MustParseAddr("fd00::5"), Prefix: netip.MustParsePrefix("fd00::/64"), DeviceIndex: 2, Scope: "global", Secondary: true, Deprecated: true},
		}, {
			name: "tentative",
			data: slices.Concat(header(unix.AF_INET6, 64, unix.IFA_F_TENTATIVE, 0), attr(unix.IFA_ADDRESS, addr("fd00::5")...)),
		}, {
			name: "duplicate",
			data: slices.Concat(header(unix.AF_INET6, 64, 0, 0), attr(unix.IFA_ADDRESS, addr("fd00::5")...), attr(unix.IFA_FLAGS, u32(unix.IFA_F_DADFAILED)...)),
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := decodeAddr(tt.data)
			require.NoError(t, err)
			require.Equal(t, tt.want, got)
		})
	}
	_, err := decodeAddr(slices.Concat(header(unix.AF_INET, 33, 0, 0), attr(unix.IFA_LOCAL, addr("10.0.0.5")...)))
	require.ErrorIs(t, err, errAddress)
}

func route(family, bits, tos, table, typ byte, flags uint32, attrs ...[]byte) []byte {
	b := append([]byte{family, bits, 0, tos, table, unix.RTPROT_STATIC, unix.RT_SCOPE_UNIVERSE, typ}, u32(flags)...)
	return append(b, bytes.Join(attrs, nil)...)
}

func nexthop(flags byte, device uint32, attrs ...[]byte) []byte {
	body := bytes.Join(attrs, nil)
	b := binary.NativeEndian.AppendUint16(nil, uint16(8+len(body)))
	return slices.Concat(b, []byte{flags, 0}, u32(device), body)
}

func TestDecodeRoute(t *testing.T) {
	ten := netip.MustParsePrefix("10.0.0.0/8")
	via := append(binary.NativeEndian.AppendUint16(nil, unix.AF_INET6), addr("fe80::1")...)
	tests := []struct {
		name       string
		data       []byte
		live, dead []*tables.Route
	}{
		{
			name: "default",
			data: route(unix.AF_INET, 0, 0, 254, unix.RTN_UNICAST, 0, attr(unix.RTA_OIF, u32(2)...), attr(unix.RTA_GATEWAY, addr("10.0.0.1")...),
				attr(unix.RTA_PREFSRC, addr("10.0.0.5")...), attr(unix.RTA_PRIORITY, u32(100)...)),
			live: []*tables.Route{{Table: 254, Destination: netip.MustParsePrefix("0.0.0.0/0"), DeviceIndex: 2, Priority: 100,
				Gateway: netip.MustParseAddr("10.0.0.1"), Source: netip.MustParseAddr("10.0.0.5"), Type: "unicast", Scope: "global"}},
		}, {
			name: "IPv6 default of a table with a large number",
			data: route(unix.AF_INET6, 0, 0, 252, unix.RTN_UNREACHABLE, 0, attr(unix.RTA_TABLE, u32(100000)...)),
			live: []*tables.Route{{Table: 100000, Destination: netip.MustParsePrefix("::/0"), Type: "unreachable", Scope: "global"}},
		}, {
			name: "hops alive and dead",
			data: route(unix.AF_INET, 8, 0, 254, unix.RTN_UNICAST, 0, attr(unix.RTA_DST, addr("10.0.0.0")...), attr(unix.RTA_MULTIPATH, slices.Concat(
				nexthop(0, 2, attr(unix.RTA_VIA, via...)), nexthop(unix.RTNH_F_DEAD, 3, attr(unix.RTA_GATEWAY, addr("10.1.0.1")...)))...)),
			live: []*tables.Route{{Table: 254, Destination: ten, DeviceIndex: 2, Gateway: netip.MustParseAddr("fe80::1"), Type: "unicast", Scope: "global"}},
			dead: []*tables.Route{{Table: 254, Destination: ten, DeviceIndex: 3, Gateway: netip.MustParseAddr("10.1.0.1"), Type: "unicast", Scope: "global"}},
		},
		{name: "with a type of service", data: route(unix.AF_INET, 0, 4, 254, unix.RTN_UNICAST, 0)},
		{name: "cached", data: route(unix.AF_INET6, 0, 0, 254, unix.RTN_UNICAST, unix.RTM_F_CLONED)},
		{name: "other family", data: route(unix.AF_MPLS, 20, 0, 254, unix.RTN_UNICAST, 0)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			live, dead, err := decodeRoute(tt.data)
			require.NoError(t, err)
			require.Equal(t, tt.live, live)
			require.Equal(t, tt.dead, dead)
		})
	}
}

func TestDecodeNeigh(t *testing.T) {
	header := func(family byte, state uint16, flags byte) []byte {
		return slices.Concat([]byte{family, 0, 0, 0}, u32(2), binary.NativeEndian.AppendUint16(nil, state), []byte{flags, 0})
	}
	mac, dst := attr(unix.NDA_LLADDR, 2, 0, 0, 0, 0, 1), attr(unix.NDA_DST, addr("10.0.0.7")...)
	known := &tables.Neighbour{DeviceIndex: 2, Addr: netip.MustParseAddr("10.0.0.7"), MAC: "02:00:00:00:00:01"}
	unknown := &tables.Neighbour{DeviceIndex: 2, Addr: netip.MustParseAddr("10.0.0.7")}
	fixed := &tables.Neighbour{DeviceIndex: 2, Addr: netip.MustParseAddr("10.0.0.7"), MAC: "02:00:00:00:00:01", Permanent: true}
	tests := []struct {
		name string
		data []byte
		want event
	}{
		{"reachable", slices.Concat(header(unix.AF_INET, unix.NUD_REACHABLE, 0), mac, dst), event{row: known}},
		{"stale", slices.Concat(header(unix.AF_INET, unix.NUD_STALE, 0), mac, dst), event{row: known}},
		{"permanent", slices.Concat(header(unix.AF_INET, unix.NUD_PERMANENT, 0), mac, dst), event{row: fixed}},
		{"failed", slices.Concat(header(unix.AF_INET, unix.NUD_FAILED, 0), mac, dst), event{row: known, deleted: true}},
		{"incomplete", slices.Concat(header(unix.AF_INET, unix.NUD_INCOMPLETE, 0), dst), event{row: unknown, deleted: true}},
		{"multicast", slices.Concat(header(unix.AF_INET6, unix.NUD_NOARP, 0), mac, attr(unix.NDA_DST, addr("ff02::1")...)), event{}},
		{"proxy", slices.Concat(header(unix.AF_INET, unix.NUD_PERMANENT, unix.NTF_PROXY), dst), event{}},
		{
			"bridge entry", slices.Concat(header(unix.AF_BRIDGE, unix.NUD_PERMANENT, 0), mac, attr(unix.NDA_MASTER, u32(9)...), attr(unix.NDA_VLAN, 10, 0)),
			event{row: &tables.BridgeEntry{BridgeIndex: 9, DeviceIndex: 2, MAC: "02:00:00:00:00:01", VLAN: 10, Local: true}},
		},
		{"filter of a device", slices.Concat(header(unix.AF_BRIDGE, unix.NUD_PERMANENT, unix.NTF_SELF), mac), event{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := decodeNeigh(tt.data, false)
			require.NoError(t, err)
			require.Equal(t, tt.want, got)
		})
	}
}

func TestDecodeEventStale(t *testing.T) {
	for typ, want := range map[uint16]kinds{
		unix.RTM_NEWADDR:    addresses,
		unix.RTM_DELADDR:    addresses | routes,
		unix.RTM_DELNEXTHOP: routes,
		unix.RTM_NEWNEXTHOP: 0,
		unix.RTM_NEWRULE:    0,
	} {
		ev, err := decodeEvent(syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: typ}})
		require.NoError(t, err)
		require.Equal(t, event{stale: want}, ev)
	}
}

func TestDecodeTruncated(t *testing.T) {
	whole := link(unix.AF_UNSPEC, 7, 0, attr(unix.IFLA_MTU, u32(1500)...))
	for cut := range len(whole) {
		if cut == unix.SizeofIfInfomsg {
			continue // a message without attributes
		}
		_, err := decodeLink(whole[:cut])
		if cut > unix.SizeofIfInfomsg && cut < unix.SizeofIfInfomsg+4 {
			require.NoError(t, err, "less than an attribute is padding")
			continue
		}
		require.ErrorIs(t, err, errTruncated, "cut at %d", cut)
	}
}

// Any bytes give an event or an error.
func FuzzDecodeEvent(f *testing.F) {
	for _, typ := range []uint16{unix.RTM_NEWLINK, unix.RTM_NEWADDR, unix.RTM_NEWROUTE, unix.RTM_DELROUTE, unix.RTM_NEWNEIGH} {
		f.Add(typ, link(unix.AF_UNSPEC, 7, 0, attr(unix.IFLA_LINKINFO, attr(unix.IFLA_INFO_KIND, []byte("veth")...)...)))
		f.Add(typ, route(unix.AF_INET, 0, 0, 254, 1, 0, attr(unix.RTA_MULTIPATH, nexthop(0, 2, attr(unix.RTA_GATEWAY, addr("10.0.0.1")...))...)))
	}
	f.Fuzz(func(t *testing.T, typ uint16, data []byte) {
		ev, err := decodeEvent(syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: typ}, Data: data})
		if err == nil {
			if hops, ok := ev.row.([]*tables.Route); ok {
				for _, r := range hops {
					require.True(t, r.Destination.IsValid())
					require.Equal(t, r.Destination, r.Destination.Masked())
				}
			}
		}
		_, _ = decodeAddr(data)
	})
}
