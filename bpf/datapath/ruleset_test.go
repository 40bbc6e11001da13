// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

// TestMissing: what refers to something that is not there allows nothing, whatever is said
// of all others.
func TestMissing(t *testing.T) {
	for name, remove := range map[string]func(f *fixture, d bpf.Direction) error{
		"ruleset": func(f *fixture, _ bpf.Direction) error {
			return f.Map("sluice_subjects").Delete(bpf.SubjectKey{Subject: judgedPod})
		},
		"peer": func(f *fixture, _ bpf.Direction) error { return f.Clear("sluice_ipcache") },
		"class": func(f *fixture, _ bpf.Direction) error {
			return f.Clear("sluice_peers")
		},
		"policy": func(f *fixture, d bpf.Direction) error {
			f.unpolicy(0, d)
			f.unpolicy(peerClass, d)
			return nil
		},
		"verdict of a set": func(f *fixture, d bpf.Direction) error {
			return f.RemoveVerdict(bpf.VerdictKeyOf(setOf(peerClass, d), 0, 0, 0))
		},
		"verdict of all": func(f *fixture, d bpf.Direction) error {
			f.unpolicy(peerClass, d)
			return f.RemoveVerdict(bpf.VerdictKeyOf(setOf(0, d), 0, 0, 0))
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachSubject(t, func(f *fixture, transport string, d bpf.Direction) {
				f.policy(0, d, 0, 0, 0, allowDefault)
				f.policy(peerClass, d, 0, 0, 0, allowRule)
				f.passed(f.begin(transport, d, f.Server))
				require.NoError(f, remove(f, d))
				f.passed(f.begin(transport, d, f.Server)) // the verdict stands

				require.NoError(f, f.SetGeneration(packettest.Generation+1))
				res := f.begin(transport, d, f.Server)
				f.dropped(res, bpf.ReasonPolicyDenied)
				require.Zero(f, res.Events[0].Cookie)
				require.NoError(f, f.Clear(connectionMap(f, transport)))
				f.dropped(f.begin(transport, d, f.Server), bpf.ReasonPolicyDenied)
				require.Nil(f, f.tracked(transport, d, f.Server))
			})
		})
	}
}

func connectionMap(f *fixture, transport string) string {
	name := "sluice_ct6_"
	if f.Pod.Is4() {
		name = "sluice_ct4_"
	}
	if transport == "TCP" {
		return name + "tcp"
	}
	return name + "any"
}

// TestPodOfAnotherNode: the entry of a pod that this node may be the gateway of is not that
// of a pod here: nothing is delivered to it, or taken from it at a device.
func TestPodOfAnotherNode(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		f.selected(f.Here(f.Egress))
		id := portOf(
			f.translated(f.fromPod(request(transport, f.Pod, f.Server)...), f.Egress), transport,
		)
		f.delivered(f.fromNetdev(response(transport, f.Server, f.Egress, id)...))

		// It has moved, and with it nothing but the flag is another.
		elsewhere := f.LocalPod(packettest.Routed)
		elsewhere.Flags = 0
		require.NoError(f, f.SetPod(f.Pod, elsewhere))
		f.dropped(f.fromPod(request(transport, f.Pod, f.Server)...), bpf.ReasonUnknownSource)
		f.dropped(f.fromNetdev(response(transport, f.Server, f.Egress, id)...), bpf.ReasonNoRule)
		res := f.fromOverlay(second(), response(transport, f.Server, f.Pod, id)...)
		f.dropped(res, bpf.ReasonNoRule)

		// To its address here policies say nothing, and nothing is tracked.
		require.NoError(f, f.SetSubject(packettest.Routed, judgedRules))
		before, err := f.Connections()
		require.NoError(f, err)
		f.passed(f.toPod(request(transport, f.Server2, f.Pod)...))
		after, err := f.Connections()
		require.NoError(f, err)
		require.Equal(f, before, after)

		// This node is its gateway.
		f.livesOn(f.Pod, second())
		f.translated(f.fromOverlay(second(), request(transport, f.Pod, f.Server2)...), f.Egress)
	})
}

// TestAddressComesHere: a gateway does not judge what it tracks for a pod of another node.
// When a pod of this node gets the address, its policies judge that.
func TestAddressComesHere(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		f.selected(f.Here(f.Egress))
		require.NoError(f, f.SetPod(f.Pod, bpf.PodValue{Subject: packettest.Routed}))
		f.livesOn(f.Pod, second())
		f.translated(f.fromOverlay(second(), request(transport, f.Pod, f.Server)...), f.Egress)
		require.Zero(f, f.connection(connectionOf(transport, f.Pod, f.Server)).Generation)

		f.subject(judgedPod, packettest.Generation+1)
		f.policy(0, bpf.DirectionEgress, 0, 0, 0, denyDefault)
		f.dropped(f.fromPod(request(transport, f.Pod, f.Server)...), bpf.ReasonPolicyDenied)
	})
}

// TestGenerationRaised: a new generation has policies asked once more of a flow that lives.
// It stays with its gateway and its translation, is no new flow, and each of its packets is
// counted once.
func TestGenerationRaised(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		f.selected(f.Here(f.Egress))
		f.subject(judgedRouted, packettest.Generation)
		f.peer(f.Server, peerClass, 0)
		f.policy(peerClass, bpf.DirectionEgress, 0, 0, 0, allowRule)
		next := func() *packettest.Result {
			if transport == "TCP" {
				return f.fromPod(tcp(f.Pod, f.Server, podPort, serverPort, packettest.ACK)...)
			}
			return f.fromPod(request(transport, f.Pod, f.Server)...)
		}
		first := f.fromPod(request(transport, f.Pod, f.Server)...)
		require.NotEmpty(f, first.Events, "a flow begins")
		given := portOf(f.translated(first, f.Egress), transport)
		before, err := f.Translations()
		require.NoError(f, err)

		require.NoError(f, f.SetGateway(packettest.Group, f.remote(third())))
		f.policy(peerClass, bpf.DirectionEgress, 0, 0, 0, allowOther)
		require.NoError(f, f.SetGeneration(packettest.Generation+1))
		for packet := range uint64(3) {
			res := next()
			require.Equal(f, given, portOf(f.translated(res, f.Egress), transport))
			require.Empty(f, res.Events)
			counted, err := f.Decided(allowOther.Cookie)
			require.NoError(f, err)
			require.Equal(f, packet+1, counted.Packets)
			c := f.connection(connectionOf(transport, f.Pod, f.Server))
			require.EqualValues(f, packettest.Generation+1, c.Generation)
			require.EqualValues(f, packet+2, c.Packets)
			// It has been judged: what is there now is not asked.
			f.policy(peerClass, bpf.DirectionEgress, 0, 0, 0, denyRule)
		}
		after, err := f.Translations()
		require.NoError(f, err)
		require.Len(f, after, len(before))

		require.NoError(f, f.SetGeneration(packettest.Generation+2))
		f.dropped(next(), bpf.ReasonPolicyRule)
	})
}

// TestUnroutedStays: without an egress policy a new generation cuts nothing, also not where
// others' policies cover the destination.
func TestUnroutedStays(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		require.NoError(f, f.Cover(f.Covered))
		next := func() *packettest.Result {
			if transport == "TCP" {
				return f.fromPod(tcp(f.Pod, f.Server, podPort, serverPort, packettest.ACK)...)
			}
			return f.fromPod(request(transport, f.Pod, f.Server)...)
		}
		f.checked(f.fromPod(request(transport, f.Pod, f.Server)...))
		for i := range uint32(3) {
			require.NoError(f, f.SetGeneration(packettest.Generation+1+i))
			res := next()
			f.checked(res)
			require.Empty(f, res.Events)
		}
	})
}

// TestFlipOfLiveFlows: the next packet behind a flip is decided about by the other slot, if
// it begins a flow; those of flows that live when the generation is another one.
func TestFlipOfLiveFlows(t *testing.T) {
	eachSubject(t, func(f *fixture, transport string, d bpf.Direction) {
		f.policy(peerClass, d, 0, 0, 0, allowRule)
		f.passed(f.begin(transport, d, f.Server))

		require.NoError(f, f.UseSlot(1))
		require.NoError(f, f.FillSlot(f.Addresses))
		f.subject(judgedPod, packettest.Generation)
		require.NoError(
			f, f.SetIPCache(netip.PrefixFrom(f.Server, f.Server.BitLen()), 0, netip.Addr{}),
		)
		f.policy(0, d, 0, 0, 0, denyDefault)
		f.passed(f.begin(transport, d, f.Server))
		res := f.begin(transport, d, f.Server2)
		f.dropped(res, bpf.ReasonPolicyDenied)
		require.EqualValues(f, 1, res.Events[0].Slot, "slot of the event")
		f.decided(res, denyDefault.Cookie, 1)

		require.NoError(f, f.SetGeneration(packettest.Generation+1))
		f.dropped(f.begin(transport, d, f.Server), bpf.ReasonPolicyDenied)
	})
}

// TestFlowsOfBothSides: of a pod that an egress policy selects, or may, its own flow comes
// first, should there be one of the other side with the same ports: it must not leave by the
// ordinary way.
func TestFlowsOfBothSides(t *testing.T) {
	for name, subject := range map[string]uint32{"chosen": packettest.Routed, "not known": 0} {
		t.Run(name, func(t *testing.T) {
			eachFamily(t, func(f *fixture) {
				const low, high = 80, 5000
				send := func(flags uint8) *packettest.Result {
					return f.fromPod(tcp(f.Pod, f.Server, low, high, flags)...)
				}
				f.selected(f.remote(second()))
				f.toGateway(send(packettest.SYN), second())
				theirs := packettest.Tuple{Daddr: f.Server, Saddr: f.Pod, Dport: low, Sport: high,
					Protocol: packettest.TCPProtocol, Flags: packettest.In}
				ours := packettest.Tuple{Daddr: f.Pod, Saddr: f.Server, Dport: high, Sport: low,
					Protocol: packettest.TCPProtocol}
				c := f.connection(ours)
				require.NotNil(f, c)
				c.Gateway = bpf.Address{}
				require.NoError(f, f.SetConnection(theirs, *c))

				require.NoError(f, f.SetPod(f.Pod, f.LocalPod(subject)))
				f.toGateway(send(packettest.ACK), second())
				require.NoError(f, f.SetPod(f.Pod, f.LocalPod(packettest.Plain)))
				f.checked(send(packettest.ACK))
			})
		})
	}
}
