// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"slices"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-net/sluice/cmd/version"
	"github.com/sluice-net/sluice/tables"
)

// stateMetrics are how the agent as a whole, its sources and the egress policies
// fare on this node, counted when they are asked for.
type stateMetrics struct {
	stateMetricTables
	build, health, sources, policies *prometheus.Desc
}

type stateMetricTables struct {
	cell.In

	DB       *statedb.DB
	Health   statedb.Table[*tables.Health]
	Sources  statedb.Table[*tables.ObjectSource]
	Policies statedb.Table[*tables.EgressPolicyStatus]
	Groups   statedb.Table[*tables.EgressGroup]
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
		build:             desc("build_info", "1, labelled with the version of the agent.", "version", "goversion"),
		health:            desc("health_modules", "Parts of the agent by the health that they last reported.", "level"),
		sources:           desc("object_sources", "Kinds of objects, or files, by how reading them fares.", "state"),
		policies:          desc("egress_policies", "Egress policies by how they fare on this node.", "state"),
	}
}

// Describe implements [prometheus.Collector].
func (m *stateMetrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.build, m.health, m.sources, m.policies} {
		to <- d
	}
}

// States of [tables.ObjectSource].
var objectSourceStates = []string{"synced", "syncing", "absent", "broken"}

// egressState is how an egress policy fares: the first that applies.
type egressState string

const (
	egressFailed     egressState = "failed"     // the kernel refused some of it
	egressPending    egressState = "pending"    // the kernel does not have all of it yet
	egressNoGateway  egressState = "no gateway" // its traffic is dropped
	egressInvalid    egressState = "invalid"    // in force but for what is wrong
	egressConflicted egressState = "conflicted" // in force but for what an older policy wants too
	egressInForce    egressState = "in force"
)

var egressStates = []egressState{egressFailed, egressPending, egressNoGateway, egressInvalid, egressConflicted, egressInForce}

func egressStateOf(row *tables.EgressPolicyStatus, withoutGateway map[string]bool) egressState {
	switch {
	case row.Failed > 0:
		return egressFailed
	case row.Programmed < row.Rules:
		return egressPending
	case withoutGateway[row.Policy]:
		return egressNoGateway
	case len(row.Errors) > 0:
		return egressInvalid
	case len(row.Conflicts) > 0:
		return egressConflicted
	default:
		return egressInForce
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
	sendCounts(to, m.sources, kinds, objectSourceStates...)

	withoutGateway := map[string]bool{}
	for group := range m.Groups.All(txn) {
		if slices.ContainsFunc(group.Gateways, func(c tables.GatewayChoice) bool { return c.Node != "" }) {
			continue
		}
		for _, policy := range group.Policies {
			withoutGateway[policy] = true
		}
	}
	states := map[egressState]int{}
	for row := range m.Policies.All(txn) {
		states[egressStateOf(row, withoutGateway)]++
	}
	sendCounts(to, m.policies, states, egressStates...)
}

// sendCounts sends a gauge for each value of a label.
func sendCounts[Label ~string](to chan<- prometheus.Metric, desc *prometheus.Desc, counts map[Label]int, all ...Label) {
	for _, label := range all {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(counts[label]), string(label))
	}
}
