// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"strings"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

func TestPoolMetrics(t *testing.T) {
	db := statedb.New()
	pools, err := tables.NewEgressIPPoolTable(db)
	require.NoError(t, err)
	status, err := tables.NewEgressIPPoolStatusTable(db)
	require.NoError(t, err)
	registry := prometheus.NewPedanticRegistry()
	m := newPoolMetrics(poolMetricTables{DB: db, Pools: pools, Status: status})
	require.NoError(t, register(registry, m))

	wtxn := db.WriteTxn(pools, status)
	insert(t, wtxn, pools, &tables.EgressIPPool{Name: "p", PortsPerBlock: 4096}) // 15 blocks
	insert(t, wtxn, pools, &tables.EgressIPPool{Name: "of no status", PortsPerBlock: 64})
	insert(t, wtxn, status, &tables.EgressIPPoolStatus{Pool: "p", PoolStatus: tables.PoolStatus{
		Addresses: tables.PoolAddresses{Total: 5, Used: 2},
		Blocks: []tables.PortBlock{
			{Index: 0, Node: "a"}, {Index: 1, Node: "b"}, {Index: 2, Node: "c", Released: time.Unix(1, 0)},
		},
		Conditions: []tables.PoolCondition{
			{Condition: tables.Condition{
				Type: tables.ConditionBlocksAssigned, Status: tables.ConditionTrue,
			}},
			{Condition: tables.Condition{
				Type: tables.ConditionAddressesAssigned, Status: tables.ConditionFalse,
			}},
		},
	}})
	wtxn.Commit()

	families, err := registry.Gather()
	require.NoError(t, err)
	got := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.Metric {
			name := strings.TrimPrefix(family.GetName(), "sluice_egress_pool_")
			for _, label := range metric.Label {
				name += " " + label.GetValue()
			}
			got[name] = metric.Gauge.GetValue()
		}
	}
	require.Equal(t, map[string]float64{
		"addresses p free": 3, "addresses p used": 2,
		"blocks p free": 12, "blocks p resting": 1, "blocks p used": 2,
		"condition AddressesAssigned p": 0, "condition BlocksAssigned p": 1,
	}, got)
}
