// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-net/sluice/tables"
)

// portMetrics are the rows of egress-port-demand.
type portMetrics struct {
	db     *statedb.DB
	table  statedb.Table[*tables.EgressPortDemand]
	blocks *prometheus.Desc
}

func registerPortMetrics(
	r prometheus.Registerer, db *statedb.DB, table statedb.Table[*tables.EgressPortDemand],
) error {
	return register(r, newPortMetrics(db, table))
}

func newPortMetrics(
	db *statedb.DB, table statedb.Table[*tables.EgressPortDemand],
) *portMetrics {
	return &portMetrics{
		db: db, table: table,
		blocks: prometheus.NewDesc("sluice_egress_node_blocks",
			"Blocks of ports of an EgressIPPool for new connections of this node's pods.",
			[]string{"pool", "state"}, nil),
	}
}

// Describe implements [prometheus.Collector].
func (m *portMetrics) Describe(to chan<- *prometheus.Desc) { to <- m.blocks }

// Collect implements [prometheus.Collector].
func (m *portMetrics) Collect(to chan<- prometheus.Metric) {
	for row := range m.table.All(m.db.ReadTxn()) {
		for state, blocks := range map[string]int{"has": row.Has, "wants": row.Blocks} {
			to <- prometheus.MustNewConstMetric(
				m.blocks, prometheus.GaugeValue, float64(blocks), row.Pool, state)
		}
	}
}
