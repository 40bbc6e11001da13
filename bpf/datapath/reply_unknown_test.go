// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

// TestRepliesThatTheHostForgot: what the pod sends as a reply does not leave with the node's
// address when the host no longer knows what it replies to, which it then takes for a connection
// of the pod's own.
func TestRepliesThatTheHostForgot(t *testing.T) {
	tr := newTraffic(t)
	wire := tr.newWire()
	for _, w := range both {
		for _, transport := range []string{"UDP", "TCP"} {
			t.Run(w.Family+" "+transport, func(t *testing.T) {
				tr := &traffic{&fixture{Node: tr.Node, TB: t, Addresses: w}, tr.pods}
				require.NoError(t, tr.Reset())
				tr.leaveAs(w.Server, w.NodeIP)
				require.NoError(t, tr.Cover(w.Covered))
				tr.selected(tr.remote(second()))
				tr.onNode(func() { tr.routeTo(w.Pod, packettest.PodDevice, packettest.PodMAC) })

				begin := opening(transport, w.Server, w.Pod, serverPort, podPort)
				reply := udp(w.Pod, w.Server, podPort, serverPort)
				later := reply
				if transport == "TCP" {
					reply = tcp(w.Pod, w.Server, podPort, serverPort, packettest.SYN|packettest.ACK)
					later = tcp(w.Pod, w.Server, podPort, serverPort, packettest.PSH|packettest.ACK)
				}
				wire.send(tr.wireFrame(begin...))
				require.Eventually(t, func() bool {
					all, err := tr.Connections()
					require.NoError(t, err)
					return len(all) > 0
				}, soon, time.Millisecond)
				tr.send(packettest.PodDevice, rawFrame{bytes: tr.ofPod(reply...)})
				require.NotNil(t, wire.next(w.Pod, soon), "a reply")

				tr.onNode(func() {
					require.NoError(t, netlink.ConntrackTableFlush(netlink.ConntrackTable))
				})
				tr.send(packettest.PodDevice, rawFrame{bytes: tr.ofPod(later...)})
				require.Nil(t, wire.next(w.NodeIP, never))
			})
		}
	}
}
