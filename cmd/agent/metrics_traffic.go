// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-net/sluice/tables"
)

// trafficMetrics are the rows of egress-traffic, of which there are no more than counters in the
// kernel.
type trafficMetrics struct {
	db             *statedb.DB
	table          statedb.Table[*tables.EgressTraffic]
	packets, bytes *prometheus.Desc
}

func registerTrafficMetrics(
	r prometheus.Registerer, db *statedb.DB, table statedb.Table[*tables.EgressTraffic],
) error {
	return register(r, newTrafficMetrics(db, table))
}

func newTrafficMetrics(db *statedb.DB, table statedb.Table[*tables.EgressTraffic]) *trafficMetrics {
	labels := []string{"policy", "egress_ip", "direction"}
	return &trafficMetrics{
		db: db, table: table,
		packets: prometheus.NewDesc("sluice_egress_traffic_packets_total",
			"Packets that this node as a gateway has translated for an egress policy.", labels, nil),
		bytes: prometheus.NewDesc("sluice_egress_traffic_bytes_total",
			"Bytes of the frames of these packets.", labels, nil),
	}
}

// Describe implements [prometheus.Collector].
func (m *trafficMetrics) Describe(to chan<- *prometheus.Desc) {
	to <- m.packets
	to <- m.bytes
}

// Collect implements [prometheus.Collector].
func (m *trafficMetrics) Collect(to chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, value uint64, row *tables.EgressTraffic, direction string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value),
			row.Policy, row.EgressIP.String(), direction)
	}
	for row := range m.table.All(m.db.ReadTxn()) {
		send(m.packets, row.SentPackets, row, "sent")
		send(m.bytes, row.SentBytes, row, "sent")
		send(m.packets, row.ReceivedPackets, row, "received")
		send(m.bytes, row.ReceivedBytes, row, "received")
	}
}
