// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

func TestStateMetrics(t *testing.T) {
	db := statedb.New()
	health, err := tables.NewHealthTable(db)
	require.NoError(t, err)
	sources, err := tables.NewObjectSourceTable(db)
	require.NoError(t, err)
	policies, err := tables.NewEgressPolicyStatusTable(db)
	require.NoError(t, err)
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, register(registry, newStateMetrics(stateMetricTables{DB: db, Health: health, Sources: sources, Policies: policies})))

	wtxn := db.WriteTxn(health, sources, policies)
	for id, level := range map[string]cell.Level{"a": cell.StatusOK, "b": cell.StatusDegraded, "c": cell.StatusDegraded} {
		insert(t, wtxn, health, &tables.Health{ID: id, Level: level})
	}
	insert(t, wtxn, sources, &tables.ObjectSource{Source: "nodes", State: "broken"})
	none, some := []string{"none: no node matches", "none: no node is ready"}, []string{"none: no node matches", "node-1 (192.0.2.1)"}
	for _, status := range []*tables.EgressPolicyStatus{
		{Policy: "nobody", Gateways: none, Rules: 1, Programmed: 1, Errors: []string{"spec: wrong"}},
		{Policy: "refused", Gateways: none, Rules: 2, Programmed: 1, Failed: 1},
		{Policy: "late", Gateways: some, Rules: 2, Programmed: 1, LosesTo: []string{"well"}},
		{Policy: "wrong", Gateways: some, Rules: 1, Programmed: 1, Errors: []string{"spec: wrong"}, LosesTo: []string{"well"}},
		{Policy: "second", Gateways: some, Rules: 1, Programmed: 1, LosesTo: []string{"well"}},
		{Policy: "well", Gateways: some, Rules: 1, Programmed: 1, Conflicts: []string{"10.0.0.0/8 is also wanted by [second]"}},
	} {
		insert(t, wtxn, policies, status)
	}
	wtxn.Commit()

	families, err := registry.Gather()
	require.NoError(t, err)
	got := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.Metric {
			if family.GetName() == "sluice_build_info" {
				require.Equal(t, 1.0, metric.Gauge.GetValue())
				continue
			}
			got[family.GetName()+" "+metric.Label[0].GetValue()] = metric.Gauge.GetValue()
		}
	}
	require.Equal(t, map[string]float64{
		"sluice_health_modules OK": 1, "sluice_health_modules Degraded": 2, "sluice_health_modules Stopped": 0,
		"sluice_object_sources synced": 0, "sluice_object_sources syncing": 0, "sluice_object_sources absent": 0, "sluice_object_sources kept": 0, "sluice_object_sources broken": 1,
		"sluice_egress_policies failed": 1, "sluice_egress_policies pending": 1, "sluice_egress_policies no gateway": 1,
		"sluice_egress_policies invalid": 1, "sluice_egress_policies conflicted": 1, "sluice_egress_policies in force": 1,
	}, got)
}

func insert[Row any](t *testing.T, wtxn statedb.WriteTxn, table statedb.RWTable[Row], row Row) {
	t.Helper()
	_, _, err := table.Insert(wtxn, row)
	require.NoError(t, err)
}
