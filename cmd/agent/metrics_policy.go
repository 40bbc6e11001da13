// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-net/sluice/tables"
)

var policyMetricsCell = cell.Module(
	"policy-metrics", "The status of network policies", cell.Invoke(registerPolicyMetrics),
)

// policyMetrics are the status of network policies on this node. There are none per
// policy or rule: their number would be whatever users make it.
type policyMetrics struct {
	policyMetricTables
	delay    prometheus.Histogram
	policies *prometheus.Desc // by state
	entries  *prometheus.Desc // wanted, and in the kernel
}

type policyMetricTables struct {
	cell.In

	DB       *statedb.DB
	Status   statedb.Table[*tables.NetworkPolicyStatus]
	Verdicts statedb.Table[*tables.Verdict]
	Kernel   statedb.Table[*tables.VerdictMirror]
}

func registerPolicyMetrics(r prometheus.Registerer, t policyMetricTables, jobs job.Group) error {
	m := newPolicyMetrics(t)
	jobs.Add(job.OneShot("observe-policy-delay", m.observe))
	return register(r, m, m.delay)
}

func newPolicyMetrics(t policyMetricTables) *policyMetrics {
	return &policyMetrics{
		policyMetricTables: t,
		delay: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "sluice_policy_implementation_delay_seconds",
			Help: "From the event about a network policy to the kernel having all that it says, and nothing more of what it said before.",
			// From 1 ms to 33 s.
			Buckets: prometheus.ExponentialBuckets(1e-3, 2, 16),
		}),
		policies: prometheus.NewDesc(
			"sluice_policies", "Network policies by their status on this node.", []string{"state"}, nil,
		),
		entries: prometheus.NewDesc(
			"sluice_policy_entries",
			"Entries of sluice_verdicts: those that are wanted, and those that the kernel has.",
			[]string{"in"}, nil,
		),
	}
}

var policyStates = []tables.PolicyState{
	tables.PolicyTooLarge, tables.PolicyInvalid, tables.PolicyUnsupported, tables.PolicyFailed,
	tables.PolicyPending, tables.PolicyNotHere, tables.PolicyInForce,
}

// Describe implements [prometheus.Collector].
func (m *policyMetrics) Describe(to chan<- *prometheus.Desc) {
	to <- m.policies
	to <- m.entries
}

// Collect implements [prometheus.Collector].
func (m *policyMetrics) Collect(to chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, value int, label string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(value), label)
	}
	txn := m.DB.ReadTxn()
	counts := map[tables.PolicyState]int{}
	for row := range m.Status.All(txn) {
		counts[row.State]++
	}
	sendCounts(to, m.policies, counts, policyStates...)
	send(m.entries, m.Verdicts.NumObjects(txn), "tables")
	send(m.entries, m.Kernel.NumObjects(txn), "kernel")
}

// observe measures each revision of each policy once, until the context ends: from when
// its status is first seen to when it is applied.
func (m *policyMetrics) observe(ctx context.Context, _ cell.Health) error {
	changes, err := tables.Follow(m.DB, m.Status)
	if err != nil {
		return err
	}
	defer changes.Close()
	type measured struct {
		revision statedb.Revision
		since    time.Time
		applied  bool
	}
	policies := map[tables.PolicyID]measured{}
	for {
		rows, watch := changes.Next(m.DB.ReadTxn())
		for change := range rows {
			row := change.Object
			if change.Deleted {
				delete(policies, row.Policy)
				continue
			}
			p := policies[row.Policy]
			if p.revision != row.Wanted {
				p = measured{revision: row.Wanted, since: time.Now()}
			}
			if row.WasApplied && !p.applied {
				p.applied = true
				m.delay.Observe(time.Since(p.since).Seconds())
			}
			policies[row.Policy] = p
		}
		select {
		case <-ctx.Done():
			return nil
		case <-watch:
		}
	}
}
