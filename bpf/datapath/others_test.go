// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

// arrive has a frame arrive at the pod's device, from another one of the node.
func (f *fixture) arrive(to packettest.MAC, layers ...packettest.Layer) *packettest.Result {
	f.Helper()
	ethernet := packettest.Ethernet{Dst: to, Src: packettest.OtherPodMAC}
	return f.run(packettest.Input{Program: "to_pod", Device: packettest.PodDevice, Ingress: packettest.OtherPodDevice,
		Packet: packettest.Build(append([]packettest.Layer{ethernet}, layers...)...)})
}

// TestForOthers: what is addressed to others does not get to a pod, whether it is by a MAC
// address that the pod has not, or by its own; and no policy need select the pod.
func TestForOthers(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		for _, to := range []netip.Addr{f.OtherPod, f.RemotePod, f.UnassignedPod, f.NodeIP, f.Server, f.Service} {
			for _, from := range []netip.Addr{f.RemotePod, f.Server} {
				f.dropped(f.arrive(packettest.PodMAC, request(transport, from, to)...), bpf.ReasonUnknownDestination)
				// A bridge may send it to all: that is counted, and not reported.
				res := f.arrive(packettest.OtherPodMAC, request(transport, from, to)...)
				require.Equal(f, packettest.Drop, res.Verdict)
				require.Equal(f, 1, res.Reasons[bpf.ReasonUnknownDestination], "%v", res.Reasons)
				require.Empty(f, res.Events)
			}
		}
		f.dropped(f.arrive(everybodyMAC, request(transport, f.Server, f.OtherPod)...), bpf.ReasonUnknownDestination)
		f.passed(f.arrive(packettest.PodMAC, request(transport, f.Server, f.Pod)...))

		// Whether it is for a pod that is not known yet cannot be told, as ever.
		require.NoError(f, f.RemovePod(f.Pod))
		f.passed(f.arrive(packettest.PodMAC, request(transport, f.Server, f.Uncovered)...))
		require.NoError(f, f.SetPod(f.Pod, f.LocalPod(packettest.Plain)))

		config := f.Config
		config.Flags &^= bpf.ConfigStrictSource
		require.NoError(f, f.SetConfig(config))
		f.passed(f.arrive(packettest.PodMAC, request(transport, f.Server, f.Uncovered)...))
	})
}

// TestSourceMAC: a pod sends from its own MAC address, as far as that is known.
func TestSourceMAC(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		send := func(layers ...packettest.Layer) *packettest.Result {
			ethernet := packettest.Ethernet{Dst: f.MAC(packettest.PodDevice), Src: packettest.OtherPodMAC}
			return f.run(packettest.Input{Program: "from_pod", Device: packettest.PodDevice,
				Packet: packettest.Build(append([]packettest.Layer{ethernet}, layers...)...)})
		}
		f.dropped(send(request(transport, f.Pod, f.Uncovered)...), bpf.ReasonUnknownSource)
		f.dropped(send(request(transport, f.Pod, f.OtherPod)...), bpf.ReasonUnknownSource)
		from := netip.MustParseAddr("169.254.7.7")
		if f.Pod.Is6() {
			from = netip.MustParseAddr("fe80::7")
		}
		f.dropped(send(request(transport, from, f.Multicast)...), bpf.ReasonUnknownSource)
		lldp := append(packettest.Build(packettest.Ethernet{Dst: everybodyMAC, Src: packettest.OtherPodMAC,
			Type: packettest.EtherTypeLLDP}), packettest.Pattern(60)...)
		f.dropped(f.run(packettest.Input{Program: "from_pod", Device: packettest.PodDevice, Packet: lldp}), bpf.ReasonUnknownSource)

		unknown := f.LocalPod(packettest.Plain)
		unknown.MAC = packettest.MAC{}
		require.NoError(f, f.SetPod(f.Pod, unknown))
		f.checked(send(request(transport, f.Pod, f.Uncovered)...))
	})
}

// broadcasts are destinations that all on the link get.
func (f *fixture) broadcasts() []netip.Addr {
	if f.Pod.Is6() {
		return []netip.Addr{f.Multicast, allNodes, netip.MustParseAddr("ff0e::7")}
	}
	return []netip.Addr{f.Multicast, netip.MustParseAddr("224.0.0.1"), netip.MustParseAddr("255.255.255.255"),
		netip.MustParseAddr("10.244.1.255"), netip.MustParseAddr("10.244.1.0")}
}

// TestToMany: what goes to many is judged for each pod that gets it, by who sends it, and
// for the pod that sends it, by where it goes. It begins no connection.
func TestToMany(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		sources := []netip.Addr{f.Pod, netip.MustParseAddr("169.254.7.7")}
		if f.Pod.Is6() {
			sources[1] = netip.MustParseAddr("fe80::7")
		}
		open := func() {
			for _, to := range f.broadcasts() {
				f.passed(f.arrive(everybodyMAC, request(transport, f.OtherPod, to)...))
				if to.IsMulticast() {
					for _, from := range sources {
						f.passed(f.fromPod(request(transport, from, to)...))
					}
				}
			}
		}
		open()
		f.subject(judgedPod, packettest.Generation)
		f.peer(f.OtherPod, peerClass, bpf.IPCacheInCluster|bpf.IPCachePod)
		f.policy(0, bpf.DirectionEgress, 0, 0, 0, denyDefault)
		f.policy(0, bpf.DirectionIngress, 0, 0, 0, denyDefault)
		for _, to := range f.broadcasts() {
			f.dropped(f.arrive(everybodyMAC, request(transport, f.OtherPod, to)...), bpf.ReasonPolicyDenied)
			for _, from := range sources {
				if to.IsMulticast() || from == f.Pod {
					f.dropped(f.fromPod(request(transport, from, to)...), bpf.ReasonPolicyDenied)
				}
			}
			// Nor with an address that is not the pod's.
			for _, from := range []netip.Addr{f.OtherPod, f.Server, f.Pod.Prev().Prev()} {
				f.dropped(f.fromPod(request(transport, from, to)...), bpf.ReasonUnknownSource)
			}
			f.policy(peerClass, bpf.DirectionIngress, 0, 0, 0, allowRule)
			f.passed(f.arrive(everybodyMAC, request(transport, f.OtherPod, to)...))
			f.dropped(f.arrive(everybodyMAC, request(transport, f.RemotePod, to)...), bpf.ReasonPolicyDenied)
			f.unpolicy(peerClass, bpf.DirectionIngress)

			f.peer(to, peerClass, bpf.IPCacheLocalScope)
			f.policy(peerClass, bpf.DirectionEgress, 0, 0, 0, allowRule)
			f.checked(f.fromPod(request(transport, f.Pod, to)...))
			f.unpolicy(peerClass, bpf.DirectionEgress)
		}
		all, err := f.Connections()
		require.NoError(f, err)
		for tuple := range all {
			require.False(f, tuple.Saddr.IsMulticast() || tuple.Daddr.IsMulticast(), "%v", tuple)
		}

		// The host reaches its pods in this way too.
		require.NoError(f, f.AddFlags(bpf.ConfigAllowLocalhost|bpf.ConfigNetworkPolicies))
		host := packettest.Input{Program: "to_pod", Device: packettest.PodDevice, Packet: packettest.Build(append(
			[]packettest.Layer{packettest.Ethernet{Dst: everybodyMAC, Src: f.MAC(packettest.PodDevice)}},
			request(transport, f.NodeIP, f.broadcasts()[0])...)...)}
		f.passed(f.run(host))

		// As long as it is not known what policies say, it is held.
		for _, subject := range []uint32{0, judgedPod} {
			require.NoError(f, f.SetPod(f.Pod, f.LocalPod(subject)))
			if subject != 0 {
				require.NoError(f, f.RemovePod(f.Pod))
			}
			for _, to := range f.broadcasts() {
				f.dropped(f.arrive(everybodyMAC, request(transport, f.OtherPod, to)...), bpf.ReasonPodNotReady)
			}
			f.dropped(f.fromPod(request(transport, sources[1], f.Multicast)...), bpf.ReasonPodNotReady)
		}
	})
}

// TestAskForAddress: a pod may ask for an address before it has one, and gets the answer, but
// not from a pod.
func TestAskForAddress(t *testing.T) {
	f := newSubject(t, packettest.World4)
	for _, d := range []bpf.Direction{bpf.DirectionEgress, bpf.DirectionIngress} {
		f.policy(0, d, 0, 0, 0, denyDefault)
	}
	none, all := netip.IPv4Unspecified(), netip.MustParseAddr("255.255.255.255")
	ask, answer := packettest.UDP{Src: 68, Dst: 67}, packettest.UDP{Src: 67, Dst: 68}
	f.checked(f.fromPod(packettest.IP(none, all), ask, packettest.Pattern(250)))
	f.dropped(f.fromPod(packettest.IP(f.Pod, all), ask, packettest.Pattern(250)), bpf.ReasonPolicyDenied)
	f.dropped(f.fromPod(packettest.IP(none, f.OtherPod), ask, packettest.Pattern(250)), bpf.ReasonUnknownSource)
	f.dropped(f.fromPod(packettest.IP(none, all), packettest.UDP{Src: 68, Dst: 53}), bpf.ReasonUnknownSource)
	f.passed(f.arrive(everybodyMAC, packettest.IP(f.Server, all), answer, packettest.Pattern(250)))
	f.dropped(f.arrive(everybodyMAC, packettest.IP(f.OtherPod, all), answer, packettest.Pattern(250)), bpf.ReasonPolicyDenied)
	f.dropped(f.arrive(everybodyMAC, packettest.IP(none, all), ask, packettest.Pattern(250)), bpf.ReasonPolicyDenied)
}
