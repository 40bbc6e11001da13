// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-net/sluice/tables"
)

// poolMetrics are how much of EgressIPPools is used, by the operator that leads.
type poolMetrics struct {
	poolMetricTables
	blocks, addresses, conditions *prometheus.Desc
}

type poolMetricTables struct {
	cell.In

	DB     *statedb.DB
	Pools  statedb.Table[*tables.EgressIPPool]
	Status statedb.Table[*tables.EgressIPPoolStatus]
}

func registerPoolMetrics(r prometheus.Registerer, t poolMetricTables) error {
	return register(r, newPoolMetrics(t))
}

func newPoolMetrics(t poolMetricTables) *poolMetrics {
	desc := func(name, help, label string) *prometheus.Desc {
		return prometheus.NewDesc("sluice_egress_pool_"+name, help, []string{"pool", label}, nil)
	}
	return &poolMetrics{
		poolMetricTables: t,
		blocks:           desc("blocks", "Blocks of ports of an EgressIPPool.", "state"),
		addresses:        desc("addresses", "Addresses of an EgressIPPool.", "state"),
		conditions: desc("condition",
			"1 if a condition of an EgressIPPool is true, 0 if it is not.", "condition"),
	}
}

// States of blocks and addresses.
const (
	stateUsed    = "used"
	stateResting = "resting"
	stateFree    = "free"
)

// Describe implements [prometheus.Collector].
func (m *poolMetrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.blocks, m.addresses, m.conditions} {
		to <- d
	}
}

// Collect implements [prometheus.Collector].
func (m *poolMetrics) Collect(to chan<- prometheus.Metric) {
	txn := m.DB.ReadTxn()
	for row := range m.Status.All(txn) {
		gauge := func(d *prometheus.Desc, n float64, label string) {
			to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, n, row.Pool, label)
		}
		if pool, _, found := m.Pools.Get(txn, tables.EgressIPPoolByName(row.Pool)); found {
			blocks := map[string]int{
				stateFree: tables.PortBlocks(pool.PortsPerBlock) - len(row.Blocks),
			}
			for _, b := range row.Blocks {
				if b.Released.IsZero() {
					blocks[stateUsed]++
				} else {
					blocks[stateResting]++
				}
			}
			for _, state := range []string{stateUsed, stateResting, stateFree} {
				gauge(m.blocks, float64(blocks[state]), state)
			}
		}
		gauge(m.addresses, float64(row.Addresses.Used), stateUsed)
		gauge(m.addresses, float64(max(row.Addresses.Total-row.Addresses.Used, 0)), stateFree)
		for _, c := range row.Conditions {
			isTrue := 0.0
			if c.Status == tables.ConditionTrue {
				isTrue = 1
			}
			gauge(m.conditions, isTrue, c.Type)
		}
	}
}
