// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"testing"

	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
)

func TestTrafficMetrics(t *testing.T) {
	db := statedb.New()
	table, err := tables.NewEgressTrafficTable(db)
	require.NoError(t, err)
	tablestest.Insert(t, db, table, &tables.EgressTraffic{
		Policy: "bank", EgressIP: netip.MustParseAddr("203.0.113.7"),
		SentPackets: 3, SentBytes: 300, ReceivedPackets: 2, ReceivedBytes: 120,
	})
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registerTrafficMetrics(registry, db, table))
	families, err := registry.Gather()
	require.NoError(t, err)
	got := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.Metric {
			name := family.GetName()
			for _, label := range metric.Label {
				name += " " + label.GetName() + "=" + label.GetValue()
			}
			got[name] = metric.Counter.GetValue()
		}
	}
	require.Equal(t, map[string]float64{
		"sluice_egress_traffic_packets_total direction=sent egress_ip=203.0.113.7 policy=bank":     3,
		"sluice_egress_traffic_bytes_total direction=sent egress_ip=203.0.113.7 policy=bank":       300,
		"sluice_egress_traffic_packets_total direction=received egress_ip=203.0.113.7 policy=bank": 2,
		"sluice_egress_traffic_bytes_total direction=received egress_ip=203.0.113.7 policy=bank":   120,
	}, got)
}
