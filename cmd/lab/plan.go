// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"net/netip"
)

// Networks of the cluster and of the world.
var (
	UnderlayIPv4 = netip.MustParsePrefix("192.168.50.0/24")
	UnderlayIPv6 = netip.MustParsePrefix("fd00:50::/64")
	OutsideIPv4  = netip.MustParsePrefix("203.0.113.0/24")
	OutsideIPv6  = netip.MustParsePrefix("2001:db8:113::/64")
	PodsIPv4     = netip.MustParsePrefix("10.0.0.0/8")
	PodsIPv6     = netip.MustParsePrefix("fd00:10::/32")

	// The server answers on every address of these.
	WorldIPv4 = netip.MustParsePrefix("198.51.100.0/24")
	WorldIPv6 = netip.MustParsePrefix("2001:db8:51::/64")
)

// Addresses of the server, one for each family; others of its networks serve
// as other destinations.
var (
	ServerIPv4 = netip.MustParseAddr("198.51.100.10")
	ServerIPv6 = netip.MustParseAddr("2001:db8:51::10")
)

// Devices of a node, and of a pod.
const (
	UnderlayDevice = "eth0"
	OutsideDevice  = "eth1" // but eth0 with [Options.SingleInterface]
	PodDevice      = "eth0"
	bridgeDevice   = "cni0"
)

// What the numbers of hosts begin with.
const (
	routerHost  = 1
	nodeHosts   = 10  // node-1 is .11
	egressHosts = 100 // its egress IP .101
	podHosts    = 10  // the first pod of a node is .10
)

// hostOf returns an address of a network of /64 or of at most 16 bits of hosts.
func hostOf(p netip.Prefix, number int) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	if len(b) == 16 { // readable: decimal digits, as in fd00:50::11
		return netip.MustParseAddr(fmt.Sprintf("%s%d", p.Masked().Addr(), number))
	}
	b[2] += byte(number >> 8)
	b[3] += byte(number)
	a, _ := netip.AddrFromSlice(b)
	return a
}

// inNetwork is an address with the length of its network.
func inNetwork(p netip.Prefix, number int) netip.Prefix {
	return netip.PrefixFrom(hostOf(p, number), p.Bits())
}

// podNetworks are the networks of the pods of a node, by its number from 1.
func podNetworks(node int) (v4, v6 netip.Prefix) {
	return netip.MustParsePrefix(fmt.Sprintf("10.%d.0.0/16", node)), netip.MustParsePrefix(fmt.Sprintf("fd00:10:%d::/64", node))
}

// anywhere is the destination of a default route.
func anywhere(v6 bool) netip.Prefix {
	if v6 {
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
}
