// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"time"

	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"
)

// tableMetrics implements [statedb.Metrics].
type tableMetrics struct {
	rows, revision, deleted, trackers *prometheus.GaugeVec // by table
	cleaning                          *prometheus.CounterVec
	contention                        *prometheus.CounterVec
	transaction                       *prometheus.HistogramVec // by writer
}

var _ statedb.Metrics = &tableMetrics{}

func newTableMetrics() *tableMetrics {
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "sluice_table_" + name, Help: help}, []string{"table"})
	}
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sluice_table_" + name, Help: help}, []string{"table"})
	}
	return &tableMetrics{
		rows:       gauge("rows", "Rows in a table."),
		revision:   gauge("revision", "Changes made to a table since the start."),
		deleted:    gauge("deleted_rows", "Deleted rows that some follower of a table has not seen yet."),
		trackers:   gauge("followers", "Followers of the changes of a table."),
		cleaning:   counter("cleaning_seconds_total", "Time spent on forgetting deleted rows."),
		contention: counter("lock_seconds_total", "Time that writers waited for the lock of a table."),
		transaction: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "sluice_table_write_seconds", Help: "How long modules held tables for writing.", Buckets: buckets,
		}, []string{"writer"}),
	}
}

func (m *tableMetrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.rows, m.revision, m.deleted, m.trackers, m.cleaning, m.contention, m.transaction}
}

// WriteTxnTableAcquisition implements [statedb.Metrics].
func (m *tableMetrics) WriteTxnTableAcquisition(_, table string, d time.Duration) {
	m.contention.WithLabelValues(table).Add(d.Seconds())
}

// WriteTxnTotalAcquisition implements [statedb.Metrics].
func (m *tableMetrics) WriteTxnTotalAcquisition(string, []string, time.Duration) {}

// WriteTxnDuration implements [statedb.Metrics].
func (m *tableMetrics) WriteTxnDuration(writer string, _ []string, d time.Duration) {
	m.transaction.WithLabelValues(writer).Observe(d.Seconds())
}

// GraveyardLowWatermark implements [statedb.Metrics].
func (m *tableMetrics) GraveyardLowWatermark(string, statedb.Revision) {}

// GraveyardCleaningDuration implements [statedb.Metrics].
func (m *tableMetrics) GraveyardCleaningDuration(table string, d time.Duration) {
	m.cleaning.WithLabelValues(table).Add(d.Seconds())
}

// GraveyardObjectCount implements [statedb.Metrics].
func (m *tableMetrics) GraveyardObjectCount(table string, n int) {
	m.deleted.WithLabelValues(table).Set(float64(n))
}

// ObjectCount implements [statedb.Metrics].
func (m *tableMetrics) ObjectCount(table string, n int) {
	m.rows.WithLabelValues(table).Set(float64(n))
}

// DeleteTrackerCount implements [statedb.Metrics].
func (m *tableMetrics) DeleteTrackerCount(table string, n int) {
	m.trackers.WithLabelValues(table).Set(float64(n))
}

// Revision implements [statedb.Metrics].
func (m *tableMetrics) Revision(table string, revision statedb.Revision) {
	m.revision.WithLabelValues(table).Set(float64(revision))
}
