// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf/ctmap"
)

// Numbers of linux/netfilter/nfnetlink_conntrack.h and nf_conntrack_tcp.h that
// the libraries lack.
const (
	ctaTupleOrig, ctaTupleReply, ctaProtoInfo, ctaZone               = 1, 2, 4, 18
	ctaTupleIP, ctaTupleProto                                        = 1, 2
	ctaIPv4Src, ctaIPv4Dst, ctaIPv6Src, ctaIPv6Dst                   = 1, 2, 3, 4
	ctaProtoNum, ctaSrcPort, ctaDstPort, ctaICMPID, ctaICMPType      = 1, 2, 3, 4, 5
	ctaICMPv6ID, ctaICMPv6Type                                       = 7, 8
	ctaProtoInfoTCP, ctaTCPState                                     = 1, 1
	icmpEchoReply, icmpEchoRequest, icmp6EchoRequest, icmp6EchoReply = 0, 8, 128, 129
	tcpSynSent, tcpSynRecv, tcpEstablished, tcpFinWait, tcpCloseWait = 1, 2, 3, 4, 5
	nfgenmsgSize                                                     = 4
	nfnlSubsysConntrack, ctMsgGet                                    = 1, 1
)

// connection is an entry of the kernel's conntrack table. Both tuples are of the
// direction in which the connection began: as its source sees it, and as its destination
// does. They differ where addresses were translated.
type connection struct {
	near, far ctmap.Tuple
	tcpState  uint8
}

// dumpConntrack calls f with each entry of the conntrack table that the programs
// would track. That changes while it is read.
func dumpConntrack(ns namespace, f func(connection)) error {
	at := netns.NsHandle(ns)
	if ns.own() {
		at = netns.None()
	}
	s, err := nl.GetNetlinkSocketAt(at, netns.None(), unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("open netlink socket: %w", err)
	}
	defer s.Close()
	timeout := unix.Timeval{Sec: 10}
	_ = s.SetReceiveTimeout(&timeout) // cannot fail
	socket := &nl.SocketHandle{Socket: s}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		req := nl.NewNetlinkRequest(nfnlSubsysConntrack<<8|ctMsgGet, unix.NLM_F_DUMP)
		req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: socket}
		req.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
		err := req.ExecuteIter(unix.NETLINK_NETFILTER, 0, func(msg []byte) bool {
			if c, ok := parseConnection(msg); ok {
				f(c)
			}
			return true
		})
		if err != nil && !errors.Is(err, nl.ErrDumpInterrupted) {
			return fmt.Errorf("list connections: %w", err)
		}
	}
	return nil
}

// parseConnection reads a message of the conntrack table. It is not ok if the
// programs would not track what it is of.
func parseConnection(msg []byte) (c connection, ok bool) {
	if len(msg) < nfgenmsgSize {
		return c, false
	}
	var original, reply, zoned bool
	attributes(msg[nfgenmsgSize:], func(typ uint16, value []byte) {
		switch typ {
		case ctaTupleOrig:
			c.near, original = parseTuple(value, true)
		case ctaTupleReply:
			c.far, reply = parseTuple(value, false)
			c.far.Source, c.far.Destination = c.far.Destination, c.far.Source
		case ctaProtoInfo:
			c.tcpState = parseTCPState(value)
		case ctaZone:
			zoned = true // its addresses are another network's
		}
	})
	return c, original && reply && !zoned
}

// parseTuple reads one direction of a connection. The identifier of an echo is
// the port on the side of the one who asks.
func parseTuple(b []byte, asks bool) (t ctmap.Tuple, ok bool) {
	var (
		src, dst         netip.Addr
		srcPort, dstPort uint16
		icmpType         = -1
	)
	attributes(b, func(typ uint16, value []byte) {
		attributes(value, func(inner uint16, value []byte) {
			switch {
			case typ == ctaTupleIP && (inner == ctaIPv4Src || inner == ctaIPv6Src):
				src, _ = netip.AddrFromSlice(value)
			case typ == ctaTupleIP && (inner == ctaIPv4Dst || inner == ctaIPv6Dst):
				dst, _ = netip.AddrFromSlice(value)
			case typ != ctaTupleProto || len(value) == 0:
			case inner == ctaProtoNum:
				t.Protocol = value[0]
			case inner == ctaICMPType || inner == ctaICMPv6Type:
				icmpType = int(value[0])
			case len(value) < 2:
			case inner == ctaSrcPort:
				srcPort = binary.BigEndian.Uint16(value)
			case inner == ctaDstPort:
				dstPort = binary.BigEndian.Uint16(value)
			case (inner == ctaICMPID || inner == ctaICMPv6ID) && asks:
				srcPort = binary.BigEndian.Uint16(value)
			case inner == ctaICMPID || inner == ctaICMPv6ID:
				dstPort = binary.BigEndian.Uint16(value)
			}
		})
	})
	t.Source, t.Destination = netip.AddrPortFrom(src, srcPort), netip.AddrPortFrom(dst, dstPort)
	return t, src.IsValid() && dst.IsValid() && tracked(t.Protocol, icmpType)
}

// tracked reports whether the programs track a protocol; of ICMP, echoes.
func tracked(protocol uint8, icmpType int) bool {
	switch protocol {
	case unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP:
		return true
	case unix.IPPROTO_ICMP:
		return icmpType == icmpEchoRequest || icmpType == icmpEchoReply
	case unix.IPPROTO_ICMPV6:
		return icmpType == icmp6EchoRequest || icmpType == icmp6EchoReply
	}
	return false
}

func parseTCPState(b []byte) (state uint8) {
	attributes(b, func(typ uint16, value []byte) {
		if typ != ctaProtoInfoTCP {
			return
		}
		attributes(value, func(typ uint16, value []byte) {
			if typ == ctaTCPState && len(value) > 0 {
				state = value[0]
			}
		})
	})
	return state
}

// attributes calls f with the type and value of each netlink attribute in b.
func attributes(b []byte, f func(typ uint16, value []byte)) {
	for len(b) >= unix.SizeofNlAttr {
		size := int(binary.NativeEndian.Uint16(b))
		typ := binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
		if size < unix.SizeofNlAttr || size > len(b) {
			return
		}
		f(typ, b[unix.SizeofNlAttr:size])
		b = b[min((size+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1), len(b)):]
	}
}
