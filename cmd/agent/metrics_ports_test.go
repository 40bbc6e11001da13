// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"

	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
)

func TestPortMetrics(t *testing.T) {
	db := statedb.New()
	table, err := tables.NewEgressPortDemandTable(db)
	require.NoError(t, err)
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registerPortMetrics(registry, db, table))
	tablestest.Insert(t, db, table, &tables.EgressPortDemand{
		PoolPorts: tables.PoolPorts{Pool: "p", Blocks: 3}, Has: 2,
	})
	families, err := registry.Gather()
	require.NoError(t, err)
	require.Len(t, families, 1)
	require.Equal(t, "sluice_egress_node_blocks", families[0].GetName())
	got := map[string]float64{}
	for _, m := range families[0].Metric {
		require.Equal(t, "p", m.Label[0].GetValue())
		got[m.Label[1].GetValue()] = m.Gauge.GetValue()
	}
	require.Equal(t, map[string]float64{"has": 2, "wants": 3}, got)
}
