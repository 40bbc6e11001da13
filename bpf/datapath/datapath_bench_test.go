// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

const manyFlows = 100_000

// BenchmarkPrograms measures what the programs add to a packet: the time in the
// kernel over that of an empty program in the same run. A way whose packets the
// program changes, or that has many flows, is measured one run at a time, and so
// with colder caches.
func BenchmarkPrograms(b *testing.B) {
	for _, m := range packettest.Measurements(manyFlows) {
		b.Run(fmt.Sprintf("%s/flows=%d", m.Name, m.Flows), func(b *testing.B) {
			f := newFixture(b, packettest.World4)
			packets := b.N
			if m.Fresh {
				packets = min(packets, m.Flows)
			}
			cost, err := f.Measure(m, packets)
			require.NoError(b, err)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(cost.Over()), "ns/packet")
			b.ReportMetric(float64(cost.Empty), "empty-ns")
		})
	}
}

// BenchmarkProbeAnswered measures what the programs of a gateway add to a probe that they answer,
// of one node and of many by turns: the time in the kernel over that of an empty program in the
// same run. What the kernel itself spends on a packet of the overlay is not in it.
func BenchmarkProbeAnswered(b *testing.B) {
	for _, count := range []int{1, 5_000} {
		b.Run(fmt.Sprintf("nodes=%d", count), func(b *testing.B) {
			f := newFixture(b, packettest.World4)
			require.NoError(b, f.SetOverlayKeys(false, firstKey))
			here := f.Config.Underlay.Addr()
			var nodes []netip.Addr
			var probes [][]byte
			for i := range count {
				node := netip.AddrFrom4([4]byte{10, 99, byte(i >> 8), byte(i)})
				require.NoError(b, f.SetNode(node, 0))
				nodes = append(nodes, node)
				probes = append(probes,
					bpf.ProbeFrame(firstKey, bpf.ProbeRequest, node, here, uint64(i)))
			}
			cost, err := f.MeasureTunneled("from_overlay", nodes, probes, b.N)
			require.NoError(b, err)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(cost.Over()), "ns/probe")
			b.ReportMetric(float64(cost.Empty), "empty-ns")
		})
	}
}
