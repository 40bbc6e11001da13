// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

// TestSourceOfTheLink: an address of the link is none that a pod gets by its policies
// with, but it may ask for an address by it, and talk to many on the link if policies allow it.
func TestSourceOfTheLink(t *testing.T) {
	for _, w := range both {
		for _, transport := range transports {
			t.Run(w.Family+" "+transport, func(t *testing.T) {
				f := newSubject(t, w)
				f.policy(0, bpf.DirectionEgress, 0, 0, 0, denyDefault)
				from := netip.MustParseAddr("169.254.7.7")
				if w.Pod.Is6() {
					from = netip.MustParseAddr("fe80::7")
					f.checked(f.fromPod(packettest.IP(from, f.LinkLocal), packettest.UDP{Src: 546, Dst: 547}, packettest.Pattern(60)))
				}
				f.dropped(f.fromPod(request(transport, from, f.LinkLocal)...), bpf.ReasonUnknownSource)
				f.dropped(f.fromPod(request(transport, from, f.Multicast)...), bpf.ReasonPolicyDenied)
				f.dropped(f.fromPod(request(transport, f.Pod, f.LinkLocal)...), bpf.ReasonPolicyDenied)

				config := f.Config
				config.Flags &^= bpf.ConfigStrictSource
				require.NoError(t, f.SetConfig(config))
				f.checked(f.fromPod(request(transport, from, f.LinkLocal)...))
			})
		}
	}
}

// TestDestinationOfTheLink: nothing gets to a pod by an address of the link, which its
// policies do not know, but the address that it has asked for.
func TestDestinationOfTheLink(t *testing.T) {
	for _, w := range both {
		for _, transport := range transports {
			t.Run(w.Family+" "+transport, func(t *testing.T) {
				f := newSubject(t, w)
				f.policy(0, bpf.DirectionIngress, 0, 0, 0, allowRule)
				own, far := netip.MustParseAddr("169.254.7.7"), f.LinkLocal
				if w.Pod.Is6() {
					own = netip.MustParseAddr("fe80::7")
					f.passed(f.toPod(packettest.IP(far, own), packettest.UDP{Src: 547, Dst: 546}, packettest.Pattern(60)))
					f.passed(f.toPod(packettest.IP(f.Server, own), packettest.UDP{Src: 547, Dst: 546}, packettest.Pattern(60)))
				}
				for _, from := range []netip.Addr{far, f.OtherPod, f.NodeIP, f.Server} {
					f.dropped(f.toPod(request(transport, from, own)...), bpf.ReasonUnknownDestination)
				}
				f.passed(f.toPod(request(transport, far, f.Multicast)...))
				f.passed(f.toPod(request(transport, far, f.Pod)...)) // judged as the outside

				config := f.Config
				config.Flags &^= bpf.ConfigStrictSource
				require.NoError(t, f.SetConfig(config))
				f.passed(f.toPod(request(transport, far, own)...))
			})
		}
	}
}

// TestNeighboursFarAway: the types of neighbour and multicast listener discovery are not
// a way past policies, to where these do not go.
func TestNeighboursFarAway(t *testing.T) {
	f := newSubject(t, packettest.World6)
	f.policy(0, bpf.DirectionEgress, 0, 0, 0, denyDefault)
	f.policy(0, bpf.DirectionIngress, 0, 0, 0, denyDefault)
	local, group := netip.MustParseAddr("fe80::10"), netip.MustParseAddr("ff02::16")
	message := func(kind, hops uint8, from, to netip.Addr) []packettest.Layer {
		return []packettest.Layer{packettest.TTL(from, to, hops), packettest.ICMP{Version: 6, Type: kind}, packettest.Pattern(64)}
	}
	for _, kind := range []uint8{130, 131, 132, 133, 134, 135, 136, 137, 143} {
		f.dropped(f.fromPod(message(kind, 64, f.Pod, f.Server)...), bpf.ReasonPolicyDenied)
		f.dropped(f.toPod(message(kind, 64, f.Server, f.Pod)...), bpf.ReasonPolicyDenied)
		f.dropped(f.toPod(message(kind, 1, local, f.Pod)...), bpf.ReasonPolicyDenied)
		if kind >= 133 && kind <= 137 {
			f.dropped(f.fromPod(message(kind, 1, local, group)...), bpf.ReasonPolicyDenied)
			f.passed(f.toPod(message(kind, 255, f.OtherPod, f.Pod)...))
		} else {
			f.passed(f.fromPod(message(kind, 1, local, group)...))
			f.passed(f.fromPod(message(kind, 1, local, netip.MustParseAddr("ff05::2"))...)) // a report of a group of the site
			f.dropped(f.fromPod(message(kind, 255, f.Pod, f.Server)...), bpf.ReasonPolicyDenied)
		}
	}
}
