// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

// newHold returns a node whose pods have addresses of a prefix, with flags set.
func newHold(t testing.TB, w packettest.Addresses, flags bpf.ConfigFlags) *fixture {
	f := newFixture(t, w)
	require.NoError(t, f.AddFlags(flags))
	require.NoError(t,
		f.SetIPCache(w.LocalPods(), bpf.IPCacheInCluster|bpf.IPCacheLocalPods, netip.Addr{}))
	return f
}

// unplace has the kernel not know the device of the pod: it has no entry, or one
// without device.
func (f *fixture) unplace(entry bool) {
	f.Helper()
	local := bpf.IPCacheInCluster | bpf.IPCachePod | bpf.IPCacheLocalPods
	require.NoError(f, f.SetIPCache(netip.PrefixFrom(f.Pod, f.Pod.BitLen()), local, netip.Addr{}))
	if entry {
		require.NoError(f, f.SetPod(f.Pod, bpf.PodValue{
			Subject: packettest.Plain, Flags: bpf.PodLocal,
		}))
	} else {
		require.NoError(f, f.RemovePod(f.Pod))
	}
}

func eachUnplaced(t *testing.T, flags bpf.ConfigFlags, test func(f *fixture, transport string)) {
	for _, w := range both {
		for _, transport := range judged {
			for name, entry := range map[string]bool{"no entry": false, "entry without device": true} {
				t.Run(w.Family+" "+transport+" "+name, func(t *testing.T) {
					f := newHold(t, w, flags)
					f.unplace(entry)
					test(f, transport)
				})
			}
		}
	}
}

// TestUnplacedWithoutPolicies: where there are no network policies, a pod without entry
// has its network, but for what egress policies may concern.
func TestUnplacedWithoutPolicies(t *testing.T) {
	eachUnplaced(t, 0, func(f *fixture, transport string) {
		unmarked := func(res *packettest.Result) {
			f.Helper()
			f.passed(res)
			require.Zero(f, res.Mark&packettest.MarkMask, "the backstop is to look at it")
		}
		unmarked(f.fromPod(request(transport, f.Pod, f.Server)...))
		require.NoError(f, f.Cover(f.Covered))
		f.dropped(f.fromPod(request(transport, f.Pod, f.Server)...), bpf.ReasonPodNotReady)
		unmarked(f.fromPod(request(transport, f.Pod, f.Uncovered)...))
		unmarked(f.fromPod(request(transport, f.Pod, f.RemotePod)...))
		f.passed(f.toPod(request(transport, f.Server, f.Pod)...))
		require.Nil(f, f.connection(connectionOf(transport, f.Pod, f.Uncovered)))

		// An address outside the node's pods belongs to no pod here.
		f.dropped(f.fromPod(request(transport, f.UnassignedPod, f.Uncovered)...), bpf.ReasonUnknownSource)
		f.dropped(f.fromPod(request(transport, f.OtherPod, f.Uncovered)...), bpf.ReasonUnknownSource)
	})
}

// TestUnplacedWithPolicies: where there are some, all is held that these are asked of.
func TestUnplacedWithPolicies(t *testing.T) {
	eachUnplaced(t, bpf.ConfigNetworkPolicies, func(f *fixture, transport string) {
		for _, peer := range []netip.Addr{f.Server, f.RemotePod, f.OtherPod, f.NodeIP, f.Service} {
			f.dropped(f.fromPod(request(transport, f.Pod, peer)...), bpf.ReasonPodNotReady)
			f.dropped(f.toPod(request(transport, peer, f.Pod)...), bpf.ReasonPodNotReady)
			f.dropped(f.toPod(response(transport, peer, f.Pod, podPort)...), bpf.ReasonPodNotReady)
		}
		own := packettest.Input{Program: "to_pod", Device: packettest.PodDevice,
			Packet: f.podFrame(request(transport, f.NodeIP, f.Pod)...)}
		f.dropped(f.run(own), bpf.ReasonPodNotReady)
		require.NoError(f, f.AddFlags(bpf.ConfigAllowLocalhost))
		f.passed(f.run(own))
		f.dropped(f.fromPod(request("UDP", f.Pod, f.Multicast)...), bpf.ReasonPodNotReady)
		f.dropped(f.toPod(request("UDP", f.Server, f.Multicast)...), bpf.ReasonPodNotReady)
	})
}

// TestHostAmongPods: the host's own address in the prefix of its pods is no pod's.
func TestHostAmongPods(t *testing.T) {
	for _, w := range both {
		t.Run(w.Family, func(t *testing.T) {
			f := newHold(t, w, bpf.ConfigNetworkPolicies)
			router := w.LocalPods().Addr().Next()
			require.NoError(t, f.SetIPCache(netip.PrefixFrom(router, router.BitLen()),
				bpf.IPCacheInCluster|bpf.IPCacheHost|bpf.IPCacheLocalPods, netip.Addr{}))
			f.dropped(f.toPod(request("TCP", f.Server, router)...), bpf.ReasonUnknownDestination)
			f.dropped(f.fromPod(request("TCP", router, f.Server)...), bpf.ReasonUnknownSource)
			verdict, _ := f.backstopAt(hookForward,
				tcp(router, f.Server, podPort, serverPort, packettest.SYN)...)
			require.EqualValues(t, nfAccept, verdict)
			verdict, _ = f.backstopAt(hookForward,
				tcp(f.Server, router, podPort, serverPort, packettest.SYN)...)
			require.EqualValues(t, nfAccept, verdict)
		})
	}
}

// TestUnknownWithoutPolicies: while it is not known what policies say of a pod, it has
// its network if there are none, and what has begun so is judged when they are known.
func TestUnknownWithoutPolicies(t *testing.T) {
	eachSubject(t, func(f *fixture, transport string, d bpf.Direction) {
		f.subject(0, packettest.Generation+1)
		for range 2 {
			f.passed(f.begin(transport, d, f.Server))
			f.passed(f.answer(transport, d, f.Server))
			require.Zero(
				f, f.tracked(transport, d, f.Server).Generation, "it is still to be judged",
			)
		}
		f.passed(f.begin(transport, d, f.Uncovered))

		// A policy comes: new flows are held, and those that there are go on.
		require.NoError(f, f.AddFlags(bpf.ConfigNetworkPolicies))
		f.passed(f.begin(transport, d, f.Server))
		f.dropped(f.begin(transport, d, f.OtherPod), bpf.ReasonPodNotReady)

		f.policy(0, d, 0, 0, 0, denyDefault)
		f.policy(peerClass, d, 0, 0, 0, allowRule)
		f.subject(judgedPod, packettest.Generation+1)
		f.dropped(f.begin(transport, d, f.Uncovered), bpf.ReasonPolicyDenied)
		f.dropped(f.answer(transport, d, f.Uncovered), bpf.ReasonPolicyDenied)
		f.passed(f.begin(transport, d, f.Server))
		require.EqualValues(
			f, packettest.Generation+1, f.tracked(transport, d, f.Server).Generation,
		)
		require.Equal(f, allowRule.Cookie, f.tracked(transport, d, f.Server).Cookie)
	})
}

// backstopAt runs the backstop at a hook on a packet without mark, of a connection that
// the host does not know.
func (f *fixture) backstopAt(
	hook byte, layers ...packettest.Layer,
) (verdict uint32, events []bpf.Event) {
	f.Helper()
	packet := f.podFrame(layers...)
	state := make([]byte, 48) // struct nf_hook_state
	state[0], state[1] = hook, protoIPv4
	if packet[12] == 0x86 {
		state[1] = protoIPv6
	}
	verdict, err := f.Program("backstop").Run(&ebpf.RunOptions{Data: packet, Context: state})
	require.NoError(f, err)
	events, err = f.Events()
	require.NoError(f, err)
	return verdict, events
}

// TestBackstopHolds: what pods of this node send past from_pod, or get past to_pod, is
// held where there are network policies.
func TestBackstopHolds(t *testing.T) {
	for _, w := range both {
		t.Run(w.Family, func(t *testing.T) {
			f := newHold(t, w, 0)
			free := w.LocalPods().Addr().Next().Next()
			accept := func(hook byte, from, to netip.Addr, why string) {
				t.Helper()
				verdict, events := f.backstopAt(hook, tcp(from, to, podPort, serverPort, packettest.SYN)...)
				require.EqualValues(f, nfAccept, verdict, why)
				require.Empty(f, events, why)
			}
			held := func(hook byte, from, to netip.Addr, reason bpf.Reason, d bpf.Direction) {
				t.Helper()
				verdict, events := f.backstopAt(hook, tcp(from, to, podPort, serverPort, packettest.SYN)...)
				require.EqualValues(f, nfDrop, verdict)
				require.Len(f, events, 1)
				require.Equal(f, reason, events[0].Reason)
				require.Equal(f, d, events[0].Direction)
				require.Equal(f, bpf.ProgramBackstop, events[0].Program)
				require.Equal(f, from, events[0].Source.Addr())
				require.Equal(f, to, events[0].Destination.Addr())
				require.EqualValues(f, podPort, binary.BigEndian.Uint16(events[0].SourcePort[:]))
				require.EqualValues(f, serverPort, binary.BigEndian.Uint16(events[0].DestPort[:]))
			}
			accept(hookForward, free, f.Server, "there are no policies")
			accept(hookForward, f.Server, free, "there are no policies")
			require.NoError(f, f.AddFlags(bpf.ConfigNetworkPolicies))
			held(hookForward, free, f.Server, bpf.ReasonPodNotReady, bpf.DirectionEgress)
			held(hookForward, free, f.RemotePod, bpf.ReasonPodNotReady, bpf.DirectionEgress)
			held(hookLocalIn, free, f.NodeIP, bpf.ReasonPodNotReady, bpf.DirectionEgress)
			held(hookForward, f.Server, free, bpf.ReasonPodNotReady, bpf.DirectionIngress)
			held(hookForward, f.RemotePod, free, bpf.ReasonPodNotReady, bpf.DirectionIngress)
			accept(hookForward, f.Server, f.Pod, "to_pod judges it")
			held(hookForward, f.Pod, f.Server, bpf.ReasonNotChecked, bpf.DirectionEgress)
			held(hookLocalIn, f.Pod, f.NodeIP, bpf.ReasonNotChecked, bpf.DirectionEgress)
			accept(hookForward, f.RemotePod, f.Server, "of another node")
			accept(hookForward, f.Server, f.RemotePod, "of another node")
			accept(hookForward, f.Server, f.UnassignedPod, "not of this node")
			accept(hookForward, free, f.Multicast, "to all on the link")

			f.unplace(true)
			held(hookForward, f.Pod, f.Server, bpf.ReasonPodNotReady, bpf.DirectionEgress)
			held(hookForward, f.Server, f.Pod, bpf.ReasonPodNotReady, bpf.DirectionIngress)
			f.unplace(false)
			held(hookForward, f.Pod, f.Server, bpf.ReasonPodNotReady, bpf.DirectionEgress)
			held(hookForward, f.Server, f.Pod, bpf.ReasonPodNotReady, bpf.DirectionIngress)

			config := f.Config
			config.Flags &^= bpf.ConfigBackstop
			require.NoError(f, f.SetConfig(config))
			accept(hookForward, free, f.Server, "switched off")
			accept(hookForward, f.Server, free, "switched off")
		})
	}
}

// TestBackstopLetsNeighboursFind: neighbour discovery is never held, what looks like it
// and comes from elsewhere is.
func TestBackstopLetsNeighboursFind(t *testing.T) {
	f := newHold(t, packettest.World6, bpf.ConfigNetworkPolicies)
	free := f.LocalPods().Addr().Next().Next()
	for kind := uint8(133); kind <= 137; kind++ {
		for hops, want := range map[uint8]int{255: nfAccept, 254: nfDrop} {
			verdict, _ := f.backstopAt(hookLocalIn, packettest.TTL(free, f.NodeIP, hops),
				packettest.ICMP{Version: 6, Type: kind})
			require.EqualValues(t, want, verdict, "type %d, %d hops", kind, hops)
		}
	}
	verdict, _ := f.backstopAt(hookLocalIn, packettest.TTL(free, f.NodeIP, 255),
		packettest.ICMP{Version: 6, Type: 128})
	require.EqualValues(t, nfDrop, verdict)
}

// TestServiceToUnplaced: what from_pod has let pass to a service is held where that has
// led to a pod without device.
func TestServiceToUnplaced(t *testing.T) {
	for _, network := range []string{"tcp", "udp"} {
		t.Run(network, func(t *testing.T) {
			tr := newTraffic(t)
			require.NoError(t, tr.AddFlags(bpf.ConfigNetworkPolicies))
			require.NoError(t,
				tr.SetIPCache(tr.LocalPods(), bpf.IPCacheInCluster|bpf.IPCacheLocalPods, netip.Addr{}))
			backend := netip.AddrPortFrom(tr.OtherPod, 9000)
			tr.translate(packettest.World4, 80, backend)
			if network == "tcp" {
				tr.echoTCP(tr.inPod(packettest.OtherPodDevice), backend)
			} else {
				tr.echoUDP(tr.inPod(packettest.OtherPodDevice), backend)
			}
			reached := func() bool {
				c, err := tr.dial(network, tr.Pod, netip.AddrPortFrom(tr.Service, 80), never)
				if err != nil {
					return false
				}
				defer c.Close()
				return tr.echoed(c, 10, never)
			}
			require.NoError(t, tr.RemovePod(tr.OtherPod))
			require.NoError(t, tr.SetIPCache(netip.PrefixFrom(tr.OtherPod, 32),
				bpf.IPCacheInCluster|bpf.IPCachePod|bpf.IPCacheLocalPods, netip.Addr{}))
			require.False(t, reached())
			events, err := tr.Events()
			require.NoError(t, err)
			drops := 0
			for _, e := range events {
				if e.Kind == bpf.EventDrop && e.Destination.Addr() == tr.OtherPod {
					require.Equal(t, bpf.ReasonPodNotReady, e.Reason)
					require.Equal(t, bpf.ProgramBackstop, e.Program)
					require.Equal(t, bpf.DirectionIngress, e.Direction)
					drops++
				}
			}
			require.NotZero(t, drops)
			require.NoError(t, tr.SetPod(tr.OtherPod, bpf.PodValue{
				Subject: packettest.Plain, IfIndex: tr.Index(packettest.OtherPodDevice),
				Flags: bpf.PodLocal, MAC: packettest.OtherPodMAC,
			}))
			require.Eventually(t, reached, soon, never/10)
		})
	}
}
