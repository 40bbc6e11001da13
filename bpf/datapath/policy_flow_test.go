// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

// TestRepliesPass: what answers an allowed flow needs no policy, nor do errors about it.
func TestRepliesPass(t *testing.T) {
	eachSubject(t, func(f *fixture, transport string, d bpf.Direction) {
		f.policy(0, bpf.DirectionEgress, 0, 0, 0, denyDefault)
		f.policy(0, bpf.DirectionIngress, 0, 0, 0, denyDefault)
		f.dropped(f.answer(transport, d, f.Server), bpf.ReasonPolicyDenied)
		protocol, port := protocolAndPort(transport, f.Pod)
		f.policy(peerClass, d, protocol, port, 16, allowRule)
		f.passed(f.begin(transport, d, f.Server))
		f.passed(f.answer(transport, d, f.Server))
		f.passed(f.begin(transport, d, f.Server))
		c := f.tracked(transport, d, f.Server)
		require.EqualValues(f, 3, c.Packets)
		counted, err := f.Decided(allowRule.Cookie)
		require.NoError(f, err)
		require.EqualValues(f, 2, counted.Packets, "of the original direction, the second on the fast path")

		// A reply is judged by the port that the flow has, should the generation be another.
		f.subject(judgedPod, packettest.Generation+1)
		f.passed(f.answer(transport, d, f.Server))

		// An error about the flow, from a router on the way; then one about another.
		about := request(transport, f.Pod, f.Server)
		send, from := f.toPod, f.Uncovered
		if d == bpf.DirectionIngress {
			about = response(transport, f.Pod, f.Server, podPort)
			if transport == "ICMP" {
				about = response(transport, f.Pod, f.Server, echoID)
			}
		}
		f.passed(send(unreachable(from, f.Pod, about)...))
		about = tcp(f.Pod, f.Server, 1, 2, packettest.ACK)
		f.dropped(send(unreachable(from, f.Pod, about)...), bpf.ReasonPolicyDenied)
	})
}

// unreachable returns an ICMP error about a packet.
func unreachable(from, to netip.Addr, about []packettest.Layer) []packettest.Layer {
	kind := packettest.ICMP{Version: 4, Type: 3, Code: 1}
	if from.Is6() {
		kind = packettest.ICMP{Version: 6, Type: 1, Code: 3}
	}
	return []packettest.Layer{packettest.IP(from, to), kind, packettest.Payload(packettest.Build(about...))}
}

// TestRevoked: another generation has a live flow judged anew, in both directions;
// what is allowed again goes on.
func TestRevoked(t *testing.T) {
	eachSubject(t, func(f *fixture, transport string, d bpf.Direction) {
		f.policy(0, d, 0, 0, 0, denyDefault)
		f.policy(peerClass, d, 0, 0, 0, allowRule)
		f.passed(f.begin(transport, d, f.Server))
		f.passed(f.answer(transport, d, f.Server))

		// Without a new generation the verdict stands.
		f.unpolicy(peerClass, d)
		f.passed(f.begin(transport, d, f.Server))
		f.subject(judgedPod, packettest.Generation+1)
		before := *f.tracked(transport, d, f.Server)
		f.dropped(f.answer(transport, d, f.Server), bpf.ReasonPolicyDenied)
		f.dropped(f.begin(transport, d, f.Server), bpf.ReasonPolicyDenied)
		f.dropped(f.begin(transport, d, f.Server), bpf.ReasonPolicyDenied)
		require.Equal(f, before, *f.tracked(transport, d, f.Server), "what is dropped keeps nothing alive")

		f.policy(peerClass, d, 0, 0, 0, allowOther)
		f.passed(f.answer(transport, d, f.Server))
		f.passed(f.begin(transport, d, f.Server))
		c := f.tracked(transport, d, f.Server)
		require.EqualValues(f, packettest.Generation+1, c.Generation)
		require.Equal(f, allowOther.Cookie, c.Cookie)
		f.unpolicy(peerClass, d)
		f.passed(f.begin(transport, d, f.Server))

		// Of a pod that policies do not select any more everything passes.
		f.subject(packettest.Plain, packettest.Generation+2)
		f.passed(f.begin(transport, d, f.Server))
		require.Zero(f, f.tracked(transport, d, f.Server).Cookie)
	})
}

// TestPolicyUnknown: what is not known yet holds new flows, and those of who had the
// address before. Flows that no policy has judged go on.
func TestPolicyUnknown(t *testing.T) {
	eachSubject(t, func(f *fixture, transport string, d bpf.Direction) {
		f.policy(0, d, 0, 0, 0, allowRule)
		f.passed(f.begin(transport, d, f.Server))
		require.NoError(f, f.AddFlags(bpf.ConfigNetworkPolicies))
		f.subject(0, packettest.Generation+1)
		f.dropped(f.begin(transport, d, f.Server), bpf.ReasonPodNotReady)
		f.dropped(f.answer(transport, d, f.Server), bpf.ReasonPodNotReady)

		key := connectionOf(transport, f.Pod, f.Server)
		if d == bpf.DirectionIngress {
			key = connectionOf(transport, f.Server, f.Pod)
			key.Flags = packettest.In
		}
		c := *f.connection(key)
		c.Generation = 0 // as of a flow that began before there were programs
		require.NoError(f, f.SetConnection(key, c))
		f.passed(f.begin(transport, d, f.Server))
		f.passed(f.answer(transport, d, f.Server))
		require.Zero(f, f.tracked(transport, d, f.Server).Generation, "it is still to be judged")
		f.dropped(f.begin(transport, d, f.Uncovered), bpf.ReasonPodNotReady)
		f.dropped(f.begin(transport, d, f.OtherPod), bpf.ReasonPodNotReady)

		f.policy(0, d, 0, 0, 0, denyDefault)
		f.subject(judgedPod, packettest.Generation+1)
		f.dropped(f.begin(transport, d, f.Server), bpf.ReasonPolicyDenied)
	})
}
