// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

// Types of messages between neighbors.
const (
	routerSolicitation     = 133
	routerAdvertisement    = 134
	neighbourSolicitation  = 135
	neighbourAdvertisement = 136
	redirectMessage        = 137
)

var (
	everybodyMAC = packettest.MAC{255, 255, 255, 255, 255, 255}
	allNodes     = netip.MustParseAddr("ff02::1")
	allRouters   = netip.MustParseAddr("ff02::2")
)

// linkLocalOf is the link-local address that Linux gives a device with a MAC address.
func linkLocalOf(m packettest.MAC) netip.Addr {
	return netip.AddrFrom16([16]byte{
		0xfe, 0x80, 8: m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5],
	})
}

// soliciting is the group in which the owner of an address is asked for.
func soliciting(a netip.Addr) netip.Addr {
	b := a.As16()
	return netip.AddrFrom16([16]byte{0xff, 2, 11: 1, 0xff, b[13], b[14], b[15]})
}

// arp is an ARP message, and its frame.
type arp struct {
	frame, senderMAC packettest.MAC
	operation        uint16
	sender, target   netip.Addr
	more             int // bytes behind it
}

func (a arp) bytes() []byte {
	b := packettest.Build(packettest.Ethernet{
		Dst: everybodyMAC, Src: a.frame, Type: packettest.EtherTypeARP,
	})
	b = append(b, 0, 1, 8, 0, 6, 4)
	b = binary.BigEndian.AppendUint16(b, a.operation)
	b = append(append(b, a.senderMAC[:]...), a.sender.AsSlice()...)
	b = append(append(b, make([]byte, 6)...), a.target.AsSlice()...)
	return append(b, packettest.Pattern(a.more)...)
}

// neighbour is a message of neighbor discovery with a target, if there is one, and an option
// with a MAC address.
func neighbour(kind uint8, from, to, target netip.Addr, more int) []packettest.Layer {
	var body packettest.Payload
	if target.IsValid() {
		body = target.AsSlice()
	}
	body = append(append(body, 1, 1), packettest.PodMAC[:]...)
	return []packettest.Layer{
		packettest.TTL(from, to, 255), packettest.ICMP{Version: 6, Type: kind},
		append(body, packettest.Pattern(more)...),
	}
}

// TestAnnouncedIPv4: a pod's ARP is about its own address, from its own MAC address.
func TestAnnouncedIPv4(t *testing.T) {
	f := newFixture(t, packettest.World4)
	require.NoError(t, f.SetIPCache(netip.PrefixFrom(f.Pod, 24).Masked(),
		bpf.IPCacheInCluster|bpf.IPCacheLocalPods, netip.Addr{}))
	none, free := netip.IPv4Unspecified(), netip.MustParseAddr("10.244.1.77")
	send := func(a arp) *packettest.Result {
		if a.frame == (packettest.MAC{}) {
			a.frame = packettest.PodMAC
		}
		a.senderMAC = a.frame
		return f.run(packettest.Input{Program: "from_pod", Device: packettest.PodDevice, Packet: a.bytes()})
	}
	for operation := uint16(1); operation <= 2; operation++ {
		f.passed(send(arp{operation: operation, sender: f.Pod, target: f.OtherPod}))
		f.passed(send(arp{operation: operation, sender: f.Pod, target: f.Pod}))
		f.passed(send(arp{operation: operation, sender: f.Pod, target: f.Pod, more: 18})) // padded
		for _, other := range []netip.Addr{f.OtherPod, f.NodeIP, f.RemotePod, f.Server, free} {
			f.dropped(send(arp{operation: operation, sender: other, target: f.Pod}), bpf.ReasonUnknownSource)
			f.dropped(send(arp{operation: operation, sender: other, target: other}), bpf.ReasonUnknownSource)
		}
		f.dropped(send(arp{operation: operation, sender: f.Pod, target: f.OtherPod, frame: packettest.OtherPodMAC}),
			bpf.ReasonUnknownSource)
		f.dropped(send(arp{operation: operation, sender: f.Pod, target: f.Pod, more: 200}), bpf.ReasonMalformed)
	}
	f.passed(send(arp{operation: 1, sender: none, target: f.Pod}))
	f.dropped(send(arp{operation: 1, sender: none, target: f.OtherPod}), bpf.ReasonUnknownSource)

	// Of a pod that is not known yet, an address that no known pod has may be its own.
	f.unplace(false)
	f.passed(send(arp{operation: 1, sender: f.Pod, target: f.Pod}))
	f.passed(send(arp{operation: 1, sender: none, target: free}))
	f.dropped(send(arp{operation: 1, sender: f.OtherPod, target: f.OtherPod}), bpf.ReasonUnknownSource)
	f.dropped(send(arp{operation: 1, sender: f.NodeIP, target: f.NodeIP}), bpf.ReasonUnknownSource)

	config := f.Config
	config.Flags &^= bpf.ConfigStrictSource
	require.NoError(t, f.SetConfig(config))
	f.passed(send(arp{operation: 2, sender: f.OtherPod, target: f.OtherPod, frame: packettest.OtherPodMAC}))
}

// TestAnnouncedIPv6: the same of neighbor discovery. Its sources say where an address is, too.
func TestAnnouncedIPv6(t *testing.T) {
	f := newFixture(t, packettest.World6)
	own, host := linkLocalOf(packettest.PodMAC), netip.MustParseAddr("fe80::1")
	private, none := netip.MustParseAddr("fe80::1234:5678:9abc:def0"), netip.IPv6Unspecified()
	require.NoError(t, f.SetIPCache(netip.PrefixFrom(host, 128),
		bpf.IPCacheInCluster|bpf.IPCacheHost, netip.Addr{}))
	others := []netip.Addr{f.OtherPod, f.NodeIP, f.RemotePod, f.Server, f.UnassignedPod, host,
		linkLocalOf(packettest.OtherPodMAC)}
	for _, a := range []netip.Addr{f.Pod, own, private} {
		// Looking for a neighbor, and whether it is still there; answers; and whether another
		// device has the address.
		f.passed(f.fromPod(neighbour(neighbourSolicitation, a, soliciting(f.OtherPod), f.OtherPod, 0)...))
		f.passed(f.fromPod(neighbour(neighbourSolicitation, a, f.OtherPod, f.OtherPod, 0)...))
		f.passed(f.fromPod(neighbour(neighbourSolicitation, a, host, host, 0)...))
		f.passed(f.fromPod(neighbour(neighbourSolicitation, a, f.NodeIP, f.NodeIP, 0)...))
		f.passed(f.fromPod(neighbour(neighbourAdvertisement, a, f.OtherPod, f.Pod, 0)...))
		f.passed(f.fromPod(neighbour(neighbourAdvertisement, a, allNodes, a, 0)...))
		f.passed(f.fromPod(neighbour(neighbourSolicitation, none, soliciting(a), a, 8)...)) // with a nonce
		f.passed(f.fromPod(neighbour(routerSolicitation, a, allRouters, netip.Addr{}, 0)...))
		for _, other := range others {
			f.dropped(f.fromPod(neighbour(neighbourAdvertisement, a, allNodes, other, 0)...), bpf.ReasonUnknownSource)
		}
	}
	f.passed(f.fromPod(neighbour(routerSolicitation, none, allRouters, netip.Addr{}, 0)...))
	for _, other := range others {
		f.dropped(f.fromPod(neighbour(neighbourSolicitation, other, soliciting(f.NodeIP), f.NodeIP, 0)...), bpf.ReasonUnknownSource)
		f.dropped(f.fromPod(neighbour(neighbourAdvertisement, other, allNodes, f.Pod, 0)...), bpf.ReasonUnknownSource)
		f.dropped(f.fromPod(neighbour(neighbourSolicitation, none, soliciting(other), other, 0)...), bpf.ReasonUnknownSource)
		f.dropped(f.fromPod(neighbour(routerSolicitation, other, allRouters, netip.Addr{}, 0)...), bpf.ReasonUnknownSource)
	}
	ethernet := packettest.Ethernet{Dst: everybodyMAC, Src: packettest.OtherPodMAC}
	f.dropped(f.run(packettest.Input{Program: "from_pod", Device: packettest.PodDevice,
		Packet: packettest.Build(append([]packettest.Layer{ethernet},
			neighbour(neighbourAdvertisement, f.Pod, allNodes, f.Pod, 0)...)...)}), bpf.ReasonUnknownSource)

	// A pod may be known by an address of the other family, when this one is not yet.
	require.NoError(t, f.SetPod(f.Pod, bpf.PodValue{Subject: packettest.Plain, Flags: bpf.PodLocal}))
	require.NoError(t, f.SetDevice(packettest.PodDevice, packettest.World4.Pod))
	f.passed(f.fromPod(neighbour(neighbourAdvertisement, f.Pod, allNodes, f.Pod, 0)...))

	config := f.Config
	config.Flags &^= bpf.ConfigStrictSource
	require.NoError(t, f.SetConfig(config))
	f.passed(f.fromPod(neighbour(neighbourAdvertisement, f.Pod, allNodes, f.OtherPod, 0)...))
	f.dropped(f.fromPod(neighbour(neighbourSolicitation, f.Pod, f.Server, f.Server, 0)...), bpf.ReasonUnknownDestination)
}

// TestNeighboursOnLink: neighbor discovery is no way for data, from whatever source: it does
// not leave the link, is no longer than it needs to be, and pods are no routers.
func TestNeighboursOnLink(t *testing.T) {
	for _, strict := range []bool{true, false} {
		f := newSubject(t, packettest.World6)
		if !strict {
			config := f.Config
			config.Flags &^= bpf.ConfigStrictSource
			require.NoError(t, f.SetConfig(config))
		}
		f.policy(0, bpf.DirectionEgress, 0, 0, 0, denyDefault)
		own := linkLocalOf(packettest.PodMAC)
		far := []netip.Addr{f.Server, f.Uncovered, f.RemotePod, f.SecondNode, f.Service, f.UnassignedPod,
			netip.MustParseAddr("ff05::1"), netip.MustParseAddr("ff0e::1")}
		for _, from := range []netip.Addr{f.Pod, own} {
			for _, to := range far {
				f.dropped(f.fromPod(neighbour(routerSolicitation, from, to, netip.Addr{}, 0)...), bpf.ReasonUnknownDestination)
				f.dropped(f.fromPod(neighbour(neighbourSolicitation, from, to, to, 0)...), bpf.ReasonUnknownDestination)
				f.dropped(f.fromPod(neighbour(neighbourSolicitation, from, to, f.OtherPod, 0)...), bpf.ReasonUnknownDestination)
				f.dropped(f.fromPod(neighbour(neighbourAdvertisement, from, to, f.Pod, 0)...), bpf.ReasonUnknownDestination)
			}
			for _, to := range append(far, f.OtherPod, own, f.NodeIP, allNodes) {
				f.dropped(f.fromPod(neighbour(routerAdvertisement, from, to, netip.Addr{}, 0)...), bpf.ReasonUnknownSource)
				f.dropped(f.fromPod(neighbour(redirectMessage, from, to, f.Pod, 16)...), bpf.ReasonUnknownSource)
			}
			// The group is that of the target, as is one who is asked directly.
			f.dropped(f.fromPod(neighbour(neighbourSolicitation, from, soliciting(f.Pod), f.OtherPod, 0)...), bpf.ReasonUnknownDestination)
			f.dropped(f.fromPod(neighbour(neighbourSolicitation, from, f.OtherPod, f.NodeIP, 0)...), bpf.ReasonUnknownDestination)
			for _, to := range []netip.Addr{f.OtherPod, soliciting(f.OtherPod)} {
				f.dropped(f.fromPod(neighbour(neighbourSolicitation, from, to, f.OtherPod, 200)...), bpf.ReasonMalformed)
				f.dropped(f.fromPod(append([]packettest.Layer{
					packettest.TTL(from, to, 255), packettest.Options{Kind: packettest.Destination, Words: 20},
				}, neighbour(neighbourSolicitation, from, to, f.OtherPod, 0)[1:]...)...), bpf.ReasonMalformed)
			}
			f.dropped(f.fromPod(neighbour(neighbourAdvertisement, from, allNodes, f.Pod, 200)...), bpf.ReasonMalformed)
			f.dropped(f.fromPod(neighbour(routerSolicitation, from, allRouters, netip.Addr{}, 200)...), bpf.ReasonMalformed)
		}
		// Nor is it by the frame, behind the packet.
		behind := append(f.podFrame(neighbour(neighbourSolicitation, f.Pod, f.OtherPod, f.OtherPod, 0)...), packettest.Pattern(300)...)
		f.dropped(f.run(packettest.Input{Program: "from_pod", Device: packettest.PodDevice, Packet: behind}), bpf.ReasonMalformed)
	}
}

// TestMembership: a pod may say which groups it is in, on its link, and no more by it.
func TestMembership(t *testing.T) {
	f := newSubject(t, packettest.World6)
	f.policy(0, bpf.DirectionEgress, 0, 0, 0, denyDefault)
	f.policy(0, bpf.DirectionIngress, 0, 0, 0, denyDefault)
	own, routers := linkLocalOf(packettest.PodMAC), netip.MustParseAddr("ff02::16")
	mld := func(from, to netip.Addr, hops uint8, length int) []packettest.Layer {
		return []packettest.Layer{
			packettest.TTL(from, to, hops), packettest.Options{Kind: packettest.HopByHop},
			packettest.ICMP{Version: 6, Type: 143}, packettest.Pattern(length),
		}
	}
	f.passed(f.fromPod(mld(own, routers, 1, 60)...))
	f.passed(f.fromPod(mld(netip.IPv6Unspecified(), routers, 1, 60)...))
	f.passed(f.toPod(mld(netip.MustParseAddr("fe80::1"), allNodes, 1, 20)...))
	f.dropped(f.fromPod(mld(own, routers, 1, 900)...), bpf.ReasonMalformed)
	f.dropped(f.fromPod(mld(f.Pod, routers, 1, 60)...), bpf.ReasonPolicyDenied)
	f.dropped(f.fromPod(mld(f.Pod, f.Server, 1, 60)...), bpf.ReasonPolicyDenied)
	f.dropped(f.fromPod(mld(own, routers, 64, 60)...), bpf.ReasonPolicyDenied)

	f = newSubject(t, packettest.World4)
	f.policy(0, bpf.DirectionEgress, 0, 0, 0, denyDefault)
	f.policy(0, bpf.DirectionIngress, 0, 0, 0, denyDefault)
	igmp := func(from, to netip.Addr, hops uint8, length int) []packettest.Layer {
		return []packettest.Layer{
			packettest.IPv4{Src: from, Dst: to, TTL: hops, Protocol: 2}, packettest.Pattern(length),
		}
	}
	group, all := netip.MustParseAddr("224.0.0.22"), netip.MustParseAddr("224.0.0.1")
	f.passed(f.fromPod(igmp(f.Pod, group, 1, 40)...))
	f.passed(f.toPod(igmp(f.NodeIP, all, 1, 8)...))
	f.dropped(f.fromPod(igmp(f.Pod, group, 1, 900)...), bpf.ReasonMalformed)
	f.dropped(f.fromPod(igmp(f.OtherPod, group, 1, 40)...), bpf.ReasonUnknownSource)
	f.dropped(f.fromPod(igmp(f.Pod, f.Server, 1, 40)...), bpf.ReasonPolicyDenied)
	f.dropped(f.fromPod(igmp(f.Pod, group, 64, 40)...), bpf.ReasonPolicyDenied)
}
