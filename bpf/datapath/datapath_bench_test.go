// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

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
