// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-net/sluice/cmd/version"
	"github.com/sluice-net/sluice/tables"
)

// stateMetrics are the states of the agent, or the operator, as a whole, of its sources and of egress
// policies on this node, counted when they are asked for.
type stateMetrics struct {
	stateMetricTables
	build, health, sources, policies *prometheus.Desc
}

type stateMetricTables struct {
	cell.In

	DB       *statedb.DB
	Health   statedb.Table[*tables.Health]
	Sources  statedb.Table[*tables.ObjectSource]
	Policies statedb.Table[*tables.EgressPolicyStatus] `optional:"true"` // the operator has none
}

func registerStateMetrics(r prometheus.Registerer, t stateMetricTables) error {
	return register(r, newStateMetrics(t))
}

func newStateMetrics(t stateMetricTables) *stateMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("sluice_"+name, help, labels, nil)
	}
	return &stateMetrics{
		stateMetricTables: t,
		build: desc(
			"build_info", "1, labeled with the version of the agent.", "version", "goversion",
		),
		health: desc(
			"health_modules", "Parts of the agent by the health that they last reported.", "level",
		),
		sources: desc(
			"object_sources", "Kinds of objects, or files, by the state of reading them.", "state",
		),
		policies: desc(
			"egress_policies", "Egress policies by state on this node.", "state",
		),
	}
}

// Describe implements [prometheus.Collector].
func (m *stateMetrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.build, m.health, m.sources, m.policies} {
		to <- d
	}
}

// Collect implements [prometheus.Collector]. States that nothing is in are 0, so
// that alerts know them.
func (m *stateMetrics) Collect(to chan<- prometheus.Metric) {
	v := version.Get()
	to <- prometheus.MustNewConstMetric(m.build, prometheus.GaugeValue, 1, v.Version, v.Go)

	txn := m.DB.ReadTxn()
	levels := map[cell.Level]int{}
	for row := range m.Health.All(txn) {
		levels[row.Level]++
	}
	sendCounts(to, m.health, levels, cell.StatusOK, cell.StatusDegraded, cell.StatusStopped)

	kinds := map[string]int{}
	for row := range m.Sources.All(txn) {
		kinds[row.State]++
	}
	sendCounts(
		to, m.sources, kinds, tables.SourceSynced, tables.SourceSyncing, tables.SourceAbsent,
		tables.SourceBroken, tables.SourceKept,
	)

	if m.Policies == nil {
		return
	}
	states := map[tables.EgressState]int{}
	for row := range m.Policies.All(txn) {
		states[row.State()]++
	}
	sendCounts(to, m.policies, states, tables.EgressStates...)
}

// sendCounts sends a gauge for each value of a label.
func sendCounts[Label ~string](
	to chan<- prometheus.Metric, desc *prometheus.Desc, counts map[Label]int, all ...Label,
) {
	for _, label := range all {
		to <- prometheus.MustNewConstMetric(
			desc, prometheus.GaugeValue, float64(counts[label]), string(label),
		)
	}
}
