// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

func TestPolicyMetrics(t *testing.T) {
	synctest.Test(t, testPolicyMetrics)
}

func testPolicyMetrics(t *testing.T) {
	db := statedb.New()
	status, err := tables.NewNetworkPolicyStatusTable(db)
	require.NoError(t, err)
	verdicts, err := tables.NewVerdictTable(db)
	require.NoError(t, err)
	kernel, err := tables.NewVerdictMirrorTable(db)
	require.NoError(t, err)
	m := newPolicyMetrics(policyMetricTables{
		DB: db, Status: status, Verdicts: verdicts, Kernel: kernel,
	})
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, register(registry, m, m.delay))

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- m.observe(ctx, nil) }()
	defer func() {
		cancel()
		require.NoError(t, <-done)
	}()
	synctest.Wait()
	// insert inserts a status, which the metrics have seen when it returns.
	insert := func(
		name string, state tables.PolicyState, revision statedb.Revision, wasApplied bool,
	) {
		wtxn := db.WriteTxn(status)
		defer wtxn.Abort()
		_, _, err := status.Insert(wtxn, &tables.NetworkPolicyStatus{
			Policy: tables.PolicyID{
				Kind: tables.PolicyKubernetes, Name: tables.Name{Namespace: "shop", Name: name},
			},
			State: state, Wanted: revision, WasApplied: wasApplied,
		})
		require.NoError(t, err)
		wtxn.Commit()
		synctest.Wait()
	}
	values := func() map[string]float64 {
		families, err := registry.Gather()
		require.NoError(t, err)
		values := map[string]float64{}
		for _, family := range families {
			for _, metric := range family.Metric {
				if h := metric.Histogram; h != nil {
					values["count"], values["sum"] = float64(h.GetSampleCount()), h.GetSampleSum()
					continue
				}
				values[family.GetName()+" "+metric.Label[0].GetValue()] = metric.Gauge.GetValue()
			}
		}
		return values
	}
	insert("web", tables.PolicyPending, 1, false)
	insert("db", tables.PolicyPending, 2, false)
	insert("large", tables.PolicyTooLarge, 4, false)
	time.Sleep(2 * time.Second)
	insert("db", tables.PolicyInvalid, 2, true)
	wtxn := db.WriteTxn(verdicts, kernel)
	for set := range uint32(3) {
		_, _, err = verdicts.Insert(wtxn, &tables.Verdict{Key: bpf.VerdictKey{Set: set + 1}})
		require.NoError(t, err)
	}
	_, _, err = kernel.Insert(wtxn,
		&tables.VerdictMirror{Key: bpf.VerdictKey{Set: 1}, Present: true})
	require.NoError(t, err)
	wtxn.Commit()

	got := values()
	require.Equal(t, 1.0, got["count"])
	require.Equal(t, 2.0, got["sum"])
	require.Equal(t, 1.0, got["sluice_policies pending"])
	require.Equal(t, 1.0, got["sluice_policies invalid"])
	require.Equal(t, 1.0, got["sluice_policies too large"])
	require.Equal(t, 0.0, got["sluice_policies in force"])
	require.Equal(t, 3.0, got["sluice_policy_entries tables"])
	require.Equal(t, 1.0, got["sluice_policy_entries kernel"])

	time.Sleep(time.Second)
	insert("db", tables.PolicyInForce, 2, true) // of the same revision: not again
	insert("web", tables.PolicyInForce, 1, true)
	require.Equal(t, 2.0, values()["count"])
	require.Equal(t, 5.0, values()["sum"])
	insert("db", tables.PolicyPending, 3, false)
	time.Sleep(4 * time.Second)
	insert("db", tables.PolicyInForce, 3, true)
	require.Equal(t, 3.0, values()["count"])
	require.Equal(t, 9.0, values()["sum"])
}
