// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

// TestErrorsAboutDenied: an ICMP error about a flow that policies have cut does not pass, and does
// not let the flow go on.
func TestErrorsAboutDenied(t *testing.T) {
	eachSubject(t, func(f *fixture, transport string, d bpf.Direction) {
		f.policy(0, d, 0, 0, 0, denyDefault)
		f.policy(peerClass, d, 0, 0, 0, allowRule)
		f.policy(0, 1-d, 0, 0, 0, denyDefault)
		f.passed(f.begin(transport, d, f.Server))
		f.passed(f.answer(transport, d, f.Server))
		id := uint16(podPort)
		if transport == "ICMP" {
			id = echoID
		}
		from, to := f.Server, f.Pod // of the flow
		if d == bpf.DirectionEgress {
			from, to = f.Pod, f.Server
		}
		send := func(from, to netip.Addr, layers ...packettest.Layer) *packettest.Result {
			layers = append([]packettest.Layer{packettest.IP(from, to)}, layers...)
			if from == f.Pod {
				return f.fromPod(layers...)
			}
			return f.toPod(layers...)
		}
		// Of who began it about an answer, and of the other side about a request.
		report := func(message packettest.ICMP) (results []*packettest.Result) {
			return append(results,
				send(from, to, message, about(0, response(transport, to, from, id)...)),
				send(to, from, message, about(0, request(transport, from, to)...)))
		}
		for _, message := range icmpErrors(f) {
			for _, res := range report(message) {
				f.passed(res)
			}
		}
		f.unpolicy(peerClass, d)
		f.subject(judgedPod, packettest.Generation+1)
		for _, message := range icmpErrors(f) {
			for _, res := range report(message) {
				f.dropped(res, bpf.ReasonPolicyDenied)
			}
		}
		f.dropped(f.begin(transport, d, f.Server), bpf.ReasonPolicyDenied)
		require.NotNil(f, f.tracked(transport, d, f.Server))
	})
}
