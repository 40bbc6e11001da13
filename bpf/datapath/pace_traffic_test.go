// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

// TestDepartureReachesQueue: the kernel keeps the departure time that a packet gets, from the pod's
// device to the queue of the one by which it leaves: that with the egress address, and that to the
// other nodes, to which it goes in the overlay.
func TestDepartureReachesQueue(t *testing.T) {
	tr := newTraffic(t)
	require.NoError(t, tr.Within(func() error {
		for _, device := range []string{packettest.EgressDevice, packettest.UnderlayDevice} {
			l, err := link.AttachTCX(link.TCXOptions{
				Interface: int(tr.Index(device)), Program: tr.Program("departs"),
				Attach: ebpf.AttachTCXEgress,
			})
			require.NoError(t, err)
			t.Cleanup(func() { l.Close() })
		}
		return nil
	}))
	for _, w := range both {
		for way, prepare := range map[string]func(*fixture){
			"by the egress device": func(f *fixture) { f.selected(f.Here(f.Egress)) },
			"by the overlay":       func(f *fixture) { f.moving(second()) },
		} {
			t.Run(w.Family+" "+way, func(t *testing.T) {
				tr := &traffic{&fixture{Node: tr.Node, TB: t, Addresses: w}, tr.pods}
				require.NoError(t, tr.Reset())
				prepare(tr.fixture)
				tr.pace(slow, 0)
				key := bucketOf(netip.Addr{}, bpf.DirectionEgress)
				tr.setBucket(key, bpf.LimitWait/2)
				until := tr.bucket(key).Time - uint64(bpf.LimitBurst)
				packet := tr.ofPod(request("UDP", w.Pod, w.Server)...)
				tr.send(packettest.PodDevice, rawFrame{bytes: packet})
				require.Eventually(t, func() bool {
					var departure uint64
					err := tr.Map("departures").Lookup(uint32(0), &departure)
					return err == nil && departure == until
				}, soon, time.Millisecond)
			})
		}
	}
}
