// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/stretchr/testify/require"
)

// scenarios have for each alert series, in Prometheus' notation and a sample a
// minute, with which it fires for what is named bad, and not for what is good.
var scenarios = map[string][]string{
	"SluiceDown": {
		`up{node="bad", job="sluice-system/sluice"} 0x30`,
		`up{node="bad", job="sluice-metrics"} 0x30`,
		`up{node="good", job="sluice-system/sluice"} 1x30`,
		`up{node="other", job="kubelet"} 0x30`,
	},
	"SluiceNotReady": {
		`sluice_ready{node="bad"} 0x30`,
		`sluice_ready{node="good"} 0x3 1x27`,
	},
	"SluiceDegraded": {
		`sluice_health_modules{node="bad", level="Degraded"} 1x30`,
		`sluice_health_modules{node="good", level="Degraded"} 0x15 1x5 0x10`,
		`sluice_health_modules{node="good", level="OK"} 9x30`,
	},
	"SluiceSourceBroken": {
		`sluice_object_sources{node="bad", state="broken"} 2x30`,
		`sluice_object_sources{node="bad", state="kept"} 1x30`,
		`sluice_object_sources{node="good", state="absent"} 2x30`,
		`sluice_object_sources{node="good", state="broken"} 0x30`,
	},
	"SluiceOperatorAbsent": {
		`sluice_node_reports_total{cluster="bad", node="a", outcome="written"} 2x5 3x25`,
		`sluice_node_reports_total{cluster="bad", node="b", outcome="written"} 2x5 3x25`,
		`sluice_leader{cluster="bad", pod="one", job="sluice-operator"} 0x30`,
		`sluice_leader{cluster="bad", pod="two", job="sluice-operator"} 0x30`,
		`sluice_node_reports_total{cluster="good", node="a", outcome="written"} 2x5 3x25`,
		`sluice_leader{cluster="good", pod="one", job="sluice-operator"} 0x20 1x10`,
		`sluice_leader{cluster="good", pod="two", job="sluice-operator"} 1x20 0x10`,
		`sluice_node_reports_total{cluster="good, off", node="a", outcome="failed"} 2x5 3x25`,
	},
	"SluiceMapNearlyFull": {
		`sluice_map_pressure_ratio{node="bad", map="sluice_policy"} 0.85x30`,
		`sluice_map_pressure_ratio{node="good", map="sluice_policy"} 0.7x30`,
		`sluice_map_pressure_ratio{node="good", map="sluice_ct4_tcp"} 1x30`,
		`sluice_map_pressure_ratio{node="good", map="sluice_frag6"} 1x30`,
	},
	"SluiceConnectionMapNearlyFull": {
		`sluice_map_pressure_ratio{node="bad", map="sluice_ct4_tcp"} 0.95x30`,
		`sluice_map_pressure_ratio{node="bad", map="sluice_nat6"} 1x30`,
		`sluice_map_pressure_ratio{node="good", map="sluice_nat4"} 0.5x27 1x3`,
		`sluice_map_pressure_ratio{node="good", map="sluice_policy"} 1x30`,
	},
	"SluiceMapWritesFail": {
		`sluice_map_failed{node="bad", map="sluice_policy"} 3x30`,
		`sluice_map_failed{node="good", map="sluice_policy"} 0x29 3`,
	},
	"SluiceMapWritesStuck": {
		`sluice_map_waiting{node="bad", map="sluice_sources"} 1x30`,
		`sluice_map_waiting{node="good", map="sluice_sources"} 1 0 1 0 1 0 1 0 1 0 1 0 1 0 1 0 1 0 1 0 1 0 1 0 1 0 1 0 1 0 1`,
		`sluice_map_pending{node="bad", map="sluice_policy"} 5x30`,
		`sluice_map_pending{node="good", map="sluice_policy"} 0x30`,
	},
	"SluiceMapChangedByOthers": {
		`sluice_map_audit_repairs_total{node="bad", map="sluice_policy", kind="missing"} 0x25 2x5`,
		`sluice_map_audit_repairs_total{node="good", map="sluice_policy", kind="missing"} 2x30`,
	},
	"SluiceProgramsChangedByOthers": {
		`sluice_tampering_total{node="bad", object="from_pod", kind="detached"} 0x25 1x5`,
		`sluice_tampering_total{node="good", object="from_pod", kind="detached"} 1x30`,
		`sluice_tampering_total{node="good", object="sluice_policy", kind="missing"} 0x25 1x5`,
	},
	"SluiceProgramsNotAttached": {
		`sluice_reconciler_failing{node="bad", module="attach", name="attachments"} 1x30`,
		`sluice_reconciler_failing{node="good", module="attach", name="attachments"} 0x30`,
		`sluice_reconciler_failing{pod="good", module="egress-voters-object", name=""} 1x30`,
	},
	"SluiceEgressAddressesStuck": {
		`sluice_reconciler_failing{pod="bad", module="egress-voters-object", name=""} 1x30`,
		`sluice_reconciler_failing{node="bad", module="egress-bgp", name="sessions"} 1x30`,
		`sluice_reconciler_failing{node="good", module="egress-bgp", name="sessions"} 0x30`,
		`sluice_reconciler_failing{node="good", module="sysctl", name="sysctls"} 1x30`,
	},
	"SluiceEgressPolicyWithoutGateway": {
		`sluice_egress_policies{node="bad", state="no gateway"} 1x30`,
		`sluice_egress_policies{node="good", state="in force"} 1x30`,
		`sluice_egress_policies{node="good", state="no gateway"} 0x30`,
	},
	"SluiceEgressPolicyNotInForce": {
		`sluice_egress_policies{node="bad", state="pending"} 1 0 1x30`,
		`sluice_egress_policies{node="good", state="pending"} 1 0 1 0x30`,
	},
	"SluiceNetworkPolicyNotInForce": {
		`sluice_policies{node="bad", state="failed"} 1x30`,
		`sluice_policies{node="bad", state="pending"} 0x30`,
		`sluice_policies{node="good", state="not here"} 100x30`,
	},
	"SluicePolicyInvalid": {
		`sluice_policies{cluster="bad", node="a", state="invalid"} 2x30`,
		`sluice_policies{cluster="bad", node="b", state="invalid"} 2x30`,
		`sluice_egress_policies{cluster="bad", node="a", state="invalid"} 0x30`, // every agent has all states
		`sluice_egress_policies{cluster="bad", node="b", state="invalid"} 0x30`,
		`sluice_policies{cluster="good", node="c", state="in force"} 2x30`,
	},
	"SluicePortsExhausted": {
		`sluice_datapath_packets_total{node="bad", reason="no SNAT port", direction="egress"} 0+5x30`,
		`sluice_datapath_packets_total{node="good", reason="no SNAT port", direction="egress"} 7x30`,
	},
	"SluicePortsNearlyExhausted": {
		`sluice_egress_ports_used{node="bad", egress="192.0.2.1", destination="203.0.113.1:443", protocol="tcp"} 90x30`,
		`sluice_egress_ports_free{node="bad", egress="192.0.2.1", destination="203.0.113.1:443", protocol="tcp"} 10x30`,
		`sluice_egress_ports_used{node="good", egress="192.0.2.1", destination="203.0.113.1:443", protocol="udp"} 50x30`,
		`sluice_egress_ports_free{node="good", egress="192.0.2.1", destination="203.0.113.1:443", protocol="udp"} 50x30`,
	},
	"SluiceEgressPoolExhausted": {
		`sluice_egress_pool_condition{cluster="bad", pool="p", condition="BlocksAssigned"} 0x30`,
		`sluice_egress_pool_condition{cluster="good", pool="p", condition="BlocksAssigned"} 1x30`,
		`sluice_egress_pool_condition{cluster="good", pool="p", condition="AddressesUsable"} 0x30`,
		`sluice_egress_pool_condition{cluster="good", pool="p", condition="Accepted"} 0x30`,
	},
	"SluiceEgressPoolNearlyExhausted": {
		`sluice_egress_pool_blocks{cluster="bad", pool="p", state="used"} 200x30`,
		`sluice_egress_pool_blocks{cluster="bad", pool="p", state="resting"} 40x30`,
		`sluice_egress_pool_blocks{cluster="bad", pool="p", state="free"} 12x30`,
		`sluice_egress_pool_blocks{cluster="good", pool="p", state="used"} 200x30`,
		`sluice_egress_pool_blocks{cluster="good", pool="p", state="resting"} 0x30`,
		`sluice_egress_pool_blocks{cluster="good", pool="p", state="free"} 52x30`,
	},
	"SluiceEgressPoolAddressesNearlyExhausted": {
		`sluice_egress_pool_addresses{cluster="bad", pool="p", state="used"} 13x30`,
		`sluice_egress_pool_addresses{cluster="bad", pool="p", state="free"} 1x30`,
		`sluice_egress_pool_addresses{cluster="good", pool="p", state="used"} 12x30`,
		`sluice_egress_pool_addresses{cluster="good", pool="p", state="free"} 2x30`,
		`sluice_egress_pool_addresses{cluster="good", pool="small", state="used"} 1x30`,
		`sluice_egress_pool_addresses{cluster="good", pool="small", state="free"} 0x30`,
		`sluice_egress_pool_addresses{cluster="good", pool="fixed", state="used"} 14x30`,
		`sluice_egress_pool_addresses{cluster="good", pool="fixed", state="free"} 0x30`,
		`sluice_egress_pool_condition{cluster="good", pool="fixed", condition="AddressesUsable"} 0x30`,
		`sluice_egress_pool_condition{cluster="bad", pool="p", condition="AddressesAssigned"} 1x30`,
	},
	"SluiceGatewayLost": {
		`sluice_gateway_paths{node="bad", state="lost"} 1x30`,
		`sluice_gateway_paths{node="good", state="lost"} 0 1 0x28`,
		`sluice_gateway_paths{node="good", state="healthy"} 3x30`,
	},
	"SluicePodShareUsedUp": {
		`sluice_datapath_packets_total{node="bad", reason="connection share used up", direction="egress"} 0+5x30`,
		`sluice_datapath_packets_total{node="good", reason="port share used up", direction="egress"} 7x30`,
	},
	"SluiceEgressDrops": {
		`sluice_datapath_packets_total{node="bad", reason="no egress gateway", direction="egress"} 0+50x30`,
		`sluice_datapath_packets_total{node="bad", reason="no egress gateway", direction="ingress"} 0+50x30`,
		`sluice_datapath_packets_total{node="bad", reason="no port block", direction="egress"} 0+500x30`,
		`sluice_datapath_packets_total{node="good", reason="pod not ready", direction="egress"} 0+5x30`,
		`sluice_datapath_packets_total{node="good", reason="policy denied", direction="egress"} 0+5000x30`,
	},
	"SluiceConnectionGCFails": {
		`sluice_ctgc_runs_total{node="bad", map="sluice_ct4_tcp", outcome="failed"} 0+1x30`,
		`sluice_ctgc_runs_total{node="good", map="sluice_ct4_tcp", outcome="done"} 0+1x30`,
	},
}

// Each alert fires for what is bad, stays silent for what is good and without any
// series, and not before it has lasted as long as the rule says.
func TestAlerts(t *testing.T) {
	rules := alerts(t)
	for name := range scenarios {
		require.Contains(t, rules, name, "a scenario without an alert")
	}
	engine := promqltest.NewTestEngine(t, false, 5*time.Minute, 100_000)
	for name, rule := range rules {
		t.Run(name, func(t *testing.T) {
			series, ok := scenarios[name]
			require.True(t, ok, "an alert without a scenario")
			store := promqltest.LoadedStorage(t, "load 1m\n  "+strings.Join(series, "\n  ")+"\n")
			defer store.Close()
			start := time.Unix(0, 0)
			lasted := map[string]time.Duration{} // for how long each series has been true
			for minute := range 31 {
				query, err := engine.NewInstantQuery(t.Context(), store, nil, rule.Expr, start.Add(time.Duration(minute)*time.Minute))
				require.NoError(t, err)
				result := query.Exec(t.Context())
				require.NoError(t, result.Err)
				vector, err := result.Vector()
				require.NoError(t, err)
				lasted = longer(lasted, vector)
				query.Close()
			}
			require.NotEmpty(t, lasted, "it does not fire")
			firing := 0
			for series, since := range lasted {
				if since >= time.Duration(rule.For) {
					require.Contains(t, series, `"bad"`)
					firing++
				}
			}
			require.NotZero(t, firing, "it does not last %s: %v", model.Duration(rule.For), lasted)
		})
	}
}

// longer returns for how long the series of a vector have been there, a minute on.
func longer(lasted map[string]time.Duration, vector promql.Vector) map[string]time.Duration {
	next := map[string]time.Duration{}
	for _, sample := range vector {
		key := sample.Metric.String()
		if since, ok := lasted[key]; ok {
			next[key] = since + time.Minute
		} else {
			next[key] = 0
		}
	}
	return next
}
