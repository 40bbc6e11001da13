// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// traffic is a protocol with the ports that policies of a [Generator] distinguish, and some
// between.
var traffic = []struct {
	protocol uint8
	family   int // 0: both
	ports    []uint16
}{
	{6, 0, []uint16{1, 53, 79, 80, 81, 443, 1023, 1024, 7999, 8000, 8080, 8085, 8086, 9999, 65535}},
	{17, 0, []uint16{53, 79, 80, 1024, 5353, 8080, 65535}},
	{132, 0, []uint16{53, 80, 132, 9998, 9999, 10000, 10001, 10002}},
	{1, 32, []uint16{0, 3, 8, 13}},
	{58, 128, []uint16{1, 128, 129}},
	{47, 0, []uint16{0}},
}

// Subjects returns the addresses of the pods of this node.
func (w *World) Subjects() (addrs []netip.Addr) {
	for _, e := range w.Endpoints {
		for _, a := range e.Addrs {
			if w.IsSubject(a) && w.Pod(a) == e {
				addrs = append(addrs, a)
			}
		}
	}
	return sorted(addrs)
}

// Peers returns addresses to test: those of pods, nodes and backends, and those at both ends of all
// prefixes that policies and groups name, and next to them.
func (w *World) Peers() (addrs []netip.Addr) {
	for _, e := range w.Endpoints {
		addrs = append(addrs, e.Addrs...)
	}
	for _, n := range w.Nodes {
		addrs = append(addrs, w.NodeAddrs(n)...)
	}
	for _, b := range w.Backends {
		addrs = append(addrs, b.Addrs...)
	}
	addrs = append(addrs, w.HostAddrs...)
	for _, text := range []string{"10.0.0.200", "10.0.1.200", "172.20.0.200", "203.0.113.1", "203.0.113.200", "198.51.100.8", "192.168.0.99", "169.254.169.254",
		"2001:db8::1", "2001:db8:ffff::1", "2a00::1", "fd00:0:1::99", "fd00:0:9::1"} {
		addrs = append(addrs, netip.MustParseAddr(text))
	}
	for _, p := range w.prefixes() {
		for _, a := range []netip.Addr{p.Addr(), p.Addr().Next(), p.Addr().Prev()} {
			if a.IsGlobalUnicast() {
				addrs = append(addrs, a)
			}
		}
	}
	return sorted(addrs)
}

func (w *World) prefixes() (prefixes []netip.Prefix) {
	for _, g := range w.Groups {
		prefixes = append(prefixes, g.Prefixes...)
	}
	for _, policy := range w.Policies {
		for _, rule := range policy.Rules {
			for _, item := range slices.Concat(rule.Ingress.Traffic, rule.Egress.Traffic) {
				for _, peer := range item.Peers {
					if peer.Kind == tables.PeerCIDR {
						prefixes = append(prefixes, peer.CIDR)
					}
					if peer.PeerPrefixes != nil {
						prefixes = append(prefixes, peer.Except...)
					}
				}
			}
		}
	}
	return prefixes
}

// Packets generates packets of the pods of this node, none if there are no pods.
func (w *World) Packets(random *rand.Rand, count int) []Packet {
	subjects, peers := w.Subjects(), w.Peers()
	if len(subjects) == 0 {
		return nil
	}
	packets := make([]Packet, 0, count)
	for len(packets) < count {
		packets = append(packets, PacketsBetween(
			random, subjects[random.IntN(len(subjects))], peers[random.IntN(len(peers))], 1,
		)...)
	}
	return packets
}

// PacketsBetween generates packets between a pod and a peer, in both directions; none if they have
// no family in common.
func PacketsBetween(random *rand.Rand, subject, peer netip.Addr, count int) (packets []Packet) {
	for subject != peer && subject.BitLen() == peer.BitLen() && len(packets) < count {
		if t := traffic[random.IntN(len(traffic))]; t.family == 0 || t.family == subject.BitLen() {
			packets = append(packets, Packet{
				Subject: subject, Peer: peer, Direction: bpf.Direction(random.IntN(bpf.Directions)),
				Protocol: t.protocol, Port: t.ports[random.IntN(len(t.ports))],
			})
		}
	}
	return packets
}

func sorted(addrs []netip.Addr) []netip.Addr {
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}
