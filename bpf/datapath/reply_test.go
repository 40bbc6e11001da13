// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"testing"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

// TestTooLateReply: what comes long after a flow has expired is no reply to it, whether
// the entry has been collected or not.
func TestTooLateReply(t *testing.T) {
	for _, w := range both {
		for _, transport := range judged {
			t.Run(w.Family+" "+transport, func(t *testing.T) {
				f := newSubject(t, w)
				f.policy(0, bpf.DirectionEgress, 0, 0, 0, allowRule)
				f.policy(0, bpf.DirectionIngress, 0, 0, 0, denyDefault)
				f.passed(f.begin(transport, bpf.DirectionEgress, f.Server))
				f.expired(30)
				f.passed(f.answer(transport, bpf.DirectionEgress, f.Server))
				f.expired(61)
				f.dropped(f.answer(transport, bpf.DirectionEgress, f.Server), bpf.ReasonPolicyDenied)
			})
		}
	}
}

// TestOpeningIsNoReply: a packet that opens a connection on the ports of one of the other
// side is judged as what it is, in both directions.
func TestOpeningIsNoReply(t *testing.T) {
	for _, w := range both {
		t.Run(w.Family, func(t *testing.T) {
			for _, ports := range [][2]uint16{{40000, 80}, {80, 40000}} {
				f := newSubject(t, w)
				f.policy(0, bpf.DirectionEgress, 0, 0, 0, denyDefault)
				f.policy(0, bpf.DirectionIngress, 0, 0, 0, allowRule)
				f.passed(f.toPod(tcp(f.Server, f.Pod, ports[0], ports[1], packettest.SYN)...))
				f.dropped(f.fromPod(tcp(f.Pod, f.Server, ports[1], ports[0], packettest.SYN)...), bpf.ReasonPolicyDenied)
				f.passed(f.fromPod(tcp(f.Pod, f.Server, ports[1], ports[0], packettest.SYN|packettest.ACK)...))

				f.policy(0, bpf.DirectionEgress, 0, 0, 0, allowRule)
				f.policy(0, bpf.DirectionIngress, 0, 0, 0, denyDefault)
				f.passed(f.fromPod(tcp(f.Pod, f.Server2, ports[0], ports[1], packettest.SYN)...))
				f.dropped(f.toPod(tcp(f.Server2, f.Pod, ports[1], ports[0], packettest.SYN)...), bpf.ReasonPolicyDenied)
				f.passed(f.toPod(tcp(f.Server2, f.Pod, ports[1], ports[0], packettest.SYN|packettest.ACK)...))
			}
		})
	}
}
