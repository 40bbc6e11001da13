// SPDX-License-Identifier: Apache-2.0

package packettest

import "net/netip"

// Addresses are those of one family in the small world of a [Node].
type Addresses struct {
	Family string

	Pod, OtherPod   netip.Addr // of the node
	RemotePod       netip.Addr // of the second node
	UnassignedPod   netip.Addr // in the cluster, of no pod
	NodeIP          netip.Addr // in the network of the nodes
	SecondNode      netip.Addr
	ThirdNode       netip.Addr
	Service         netip.Addr
	Server, Server2 netip.Addr // outside, covered by the policy
	Excluded        netip.Addr // outside, covered, but excluded by the policy
	Uncovered       netip.Addr // outside, covered by no policy
	LinkLocal       netip.Addr
	Multicast       netip.Addr
	Egress          netip.Addr // of the node, given to pods only
	SharedEgress    netip.Addr // of the node, used by the host too
	Router          netip.Addr // by which the egress device reaches what is outside

	Cluster          netip.Prefix
	Services         netip.Prefix
	RemotePods       netip.Prefix
	Covered          netip.Prefix
	CoveredExclusion netip.Prefix
	LocalScope       []netip.Prefix
}

// IPv4 and IPv6 are the worlds of the two families.
var (
	World4 = Addresses{
		Family: "IPv4",
		Pod:    addr("10.244.1.10"), OtherPod: addr("10.244.1.11"), RemotePod: addr("10.244.2.10"), UnassignedPod: addr("10.244.9.9"),
		NodeIP: addr("172.16.0.1"), SecondNode: addr("172.16.0.2"), ThirdNode: addr("172.16.0.3"),
		Service: addr("10.96.0.1"), Server: addr("203.0.113.5"), Server2: addr("203.0.113.6"), Excluded: addr("203.0.113.200"),
		Uncovered: addr("198.51.100.7"), LinkLocal: addr("169.254.169.254"), Multicast: addr("224.0.0.251"),
		Egress: addr("192.0.2.20"), SharedEgress: addr("192.0.2.10"), Router: addr("192.0.2.1"),
		Cluster: prefix("10.244.0.0/16"), Services: prefix("10.96.0.0/16"), RemotePods: prefix("10.244.2.0/24"),
		Covered: prefix("203.0.113.0/24"), CoveredExclusion: prefix("203.0.113.128/25"),
		LocalScope: []netip.Prefix{prefix("169.254.0.0/16"), prefix("224.0.0.0/4"), prefix("255.255.255.255/32")},
	}
	World6 = Addresses{
		Family: "IPv6",
		Pod:    addr("fd00:244:1::10"), OtherPod: addr("fd00:244:1::11"), RemotePod: addr("fd00:244:2::10"), UnassignedPod: addr("fd00:244:9::9"),
		NodeIP: addr("fd00:172::1"), SecondNode: addr("fd00:172::2"), ThirdNode: addr("fd00:172::3"),
		Service: addr("fd00:96::1"), Server: addr("2001:db8:5::5"), Server2: addr("2001:db8:5::6"), Excluded: addr("2001:db8:5:8000::1"),
		Uncovered: addr("2001:db8:7::7"), LinkLocal: addr("fe80::1"), Multicast: addr("ff02::fb"),
		Egress: addr("2001:db8:1::20"), SharedEgress: addr("2001:db8:1::10"), Router: addr("2001:db8:1::1"),
		Cluster: prefix("fd00:244::/32"), Services: prefix("fd00:96::/64"), RemotePods: prefix("fd00:244:2::/64"),
		Covered: prefix("2001:db8:5::/48"), CoveredExclusion: prefix("2001:db8:5:8000::/50"),
		LocalScope: []netip.Prefix{prefix("fe80::/10"), prefix("ff00::/8")},
	}
)

// LocalPods is the prefix that the pods of the node have their addresses from.
func (w Addresses) LocalPods() netip.Prefix {
	bits := 24
	if w.Pod.Is6() {
		bits = 64
	}
	return netip.PrefixFrom(w.Pod, bits).Masked()
}

func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }
func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// IP returns the IP header of a packet, of the family of its addresses.
func IP(src, dst netip.Addr) Layer {
	if src.Is4() {
		return IPv4{Src: src, Dst: dst}
	}
	return IPv6{Src: src, Dst: dst}
}

// TTL returns the IP header of a packet with so many hops left.
func TTL(src, dst netip.Addr, hops uint8) Layer {
	if src.Is4() {
		return IPv4{Src: src, Dst: dst, TTL: hops}
	}
	return IPv6{Src: src, Dst: dst, HopLimit: hops}
}
