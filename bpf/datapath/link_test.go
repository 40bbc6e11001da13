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
// with, but it may ask for an address by it, and talk to all on the link.
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
				f.checked(f.fromPod(request(transport, from, f.Multicast)...))
				f.dropped(f.fromPod(request(transport, f.Pod, f.LinkLocal)...), bpf.ReasonPolicyDenied)

				config := f.Config
				config.Flags &^= bpf.ConfigStrictSource
				require.NoError(t, f.SetConfig(config))
				f.checked(f.fromPod(request(transport, from, f.LinkLocal)...))
			})
		}
	}
}
