// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

// eachPolicedServer runs a test for a pod that may begin what it likes, and whose
// ingress policies allow a peer only.
func eachPolicedServer(t *testing.T, test func(f *fixture)) {
	for _, w := range both {
		t.Run(w.Family, func(t *testing.T) {
			f := newSubject(t, w)
			f.policy(0, bpf.DirectionEgress, 0, 0, 0, allowDefault)
			f.policy(0, bpf.DirectionIngress, 0, 0, 0, denyDefault)
			f.policy(peerClass, bpf.DirectionIngress, 0, 0, 0, allowRule)
			test(f)
		})
	}
}

// revoke has ingress policies deny what they allowed the peer.
func (f *fixture) revoke() {
	f.Helper()
	f.policy(peerClass, bpf.DirectionIngress, 0, 0, 0, denyRule)
	f.subject(judgedPod, packettest.Generation+1)
}

// TestLostConnectionOfPeer: a connection of the other side whose entry was lost goes on
// both ways, and does not become the pod's own by what the pod sends.
func TestLostConnectionOfPeer(t *testing.T) {
	eachPolicedServer(t, func(f *fixture) {
		data := tcp(f.Server, f.Pod, 40000, 80, packettest.ACK)
		f.passed(f.toPod(tcp(f.Server, f.Pod, 40000, 80, packettest.SYN)...))
		f.passed(f.fromPod(tcp(f.Pod, f.Server, 80, 40000, packettest.SYN|packettest.ACK)...))
		f.passed(f.toPod(data...))

		require.NoError(f, f.Clear("sluice_ct4_tcp"))
		require.NoError(f, f.Clear("sluice_ct6_tcp"))
		for range 2 {
			f.passed(f.toPod(data...))
			f.checked(f.fromPod(tcp(f.Pod, f.Server, 80, 40000, packettest.ACK)...))
		}

		f.revoke()
		f.dropped(f.toPod(data...), bpf.ReasonPolicyRule)
	})
}

// TestResetOfNoConsequence: a reset with a wrong sequence number, which the pod ignores,
// ages the entry of the other side's connection, and does not make it the pod's own.
func TestResetOfNoConsequence(t *testing.T) {
	eachPolicedServer(t, func(f *fixture) {
		data := tcp(f.Server, f.Pod, 40000, 80, packettest.ACK)
		f.passed(f.toPod(tcp(f.Server, f.Pod, 40000, 80, packettest.SYN)...))
		f.passed(f.toPod(data...))
		f.passed(f.toPod(tcp(f.Server, f.Pod, 40000, 80, packettest.RST)...))
		f.expire()
		f.passed(f.toPod(data...))
		f.passed(f.fromPod(tcp(f.Pod, f.Server, 80, 40000, packettest.ACK)...))
		f.revoke()
		f.dropped(f.toPod(data...), bpf.ReasonPolicyRule)
	})
}

// TestForbiddenConnectionOfBefore: a connection of the other side whose beginning was not seen,
// and that policies forbid, does not resume when the pod sends again what it has sent.
func TestForbiddenConnectionOfBefore(t *testing.T) {
	eachPolicedServer(t, func(f *fixture) {
		data := tcp(f.Uncovered, f.Pod, 40000, 80, packettest.ACK)
		for range 2 {
			f.dropped(f.toPod(data...), bpf.ReasonPolicyDenied)
			f.checked(f.fromPod(tcp(f.Pod, f.Uncovered, 80, 40000, packettest.ACK)...))
		}
		all, err := f.Connections()
		require.NoError(f, err)
		require.Empty(f, all)
	})
}

// TestEchoReplyBeginsNothing: nor does an answer to an echo that was not seen.
func TestEchoReplyBeginsNothing(t *testing.T) {
	eachPolicedServer(t, func(f *fixture) {
		for range 2 {
			f.dropped(f.begin("ICMP", bpf.DirectionIngress, f.Uncovered), bpf.ReasonPolicyDenied)
			f.checked(f.answer("ICMP", bpf.DirectionIngress, f.Uncovered))
		}
	})
}

// TestRevokedDatagrams: of a flow of datagrams that the other side began, and that was
// cut, the pod's may go on by themselves if policies allow them. They do not make
// replies of those that are denied, for as long as the pod goes on.
func TestRevokedDatagrams(t *testing.T) {
	eachPolicedServer(t, func(f *fixture) {
		in, out := udp(f.Server, f.Pod, 40000, 5000), udp(f.Pod, f.Server, 5000, 40000)
		f.passed(f.toPod(in...))
		f.passed(f.fromPod(out...))
		f.revoke()
		f.dropped(f.toPod(in...), bpf.ReasonPolicyRule)
		for range 3 {
			f.checked(f.fromPod(out...))
			f.dropped(f.toPod(in...), bpf.ReasonPolicyRule)
			f.expired(30) // nor when they come at long intervals
		}
		f.checked(f.fromPod(out...))
		all, err := f.Connections()
		require.NoError(f, err)
		require.Len(f, all, 1, "that which was cut")
		for _, c := range all {
			require.Greater(f, c.Lifetime, uptime(f)+packettest.LifetimeAny/2, "it is kept while the pod goes on")
		}

		f.policy(0, bpf.DirectionEgress, 0, 0, 0, denyDefault)
		f.dropped(f.fromPod(out...), bpf.ReasonPolicyDenied)

		// After silence it is a flow of the pod, as any other.
		f.policy(0, bpf.DirectionEgress, 0, 0, 0, allowDefault)
		f.expired(61)
		f.checked(f.fromPod(out...))
		f.passed(f.toPod(in...))
	})
}

// TestBothBegin: what takes the pod's side of a flow that both began leaves the other's,
// which was allowed before and after; but not the rest of a connection of the pod.
func TestBothBegin(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		f.subject(judgedPod, packettest.Generation)
		f.policy(0, bpf.DirectionEgress, 0, 0, 0, allowRule)
		f.policy(0, bpf.DirectionIngress, 0, 0, 0, allowRule)
		f.passed(f.fromPod(udp(f.Pod, f.Server, 7946, 7946)...))
		f.passed(f.toPod(udp(f.Server, f.Pod, 7946, 7946)...))
		f.passed(f.fromPod(tcp(f.Pod, f.Server, 7946, 7946, packettest.SYN)...))
		f.policy(0, bpf.DirectionEgress, 0, 0, 0, denyRule)
		f.subject(judgedPod, packettest.Generation+1)
		for range 2 {
			f.passed(f.toPod(udp(f.Server, f.Pod, 7946, 7946)...))
			f.dropped(f.fromPod(udp(f.Pod, f.Server, 7946, 7946)...), bpf.ReasonPolicyRule)
		}
		f.dropped(f.toPod(tcp(f.Server, f.Pod, 7946, 7946, packettest.ACK)...), bpf.ReasonPolicyRule)
		f.policy(0, bpf.DirectionIngress, 0, 0, 0, denyRule)
		f.dropped(f.toPod(udp(f.Server, f.Pod, 7946, 7946)...), bpf.ReasonPolicyRule)
	})
}
