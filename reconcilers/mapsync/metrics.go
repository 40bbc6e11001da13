// SPDX-License-Identifier: Apache-2.0

package mapsync

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-net/sluice/tables"
)

// metrics are those of all maps.
type metrics struct {
	entries, maxEntries, pressure *prometheus.GaugeVec
	pending, waiting, failed      *prometheus.GaugeVec
	operations, repairs           *prometheus.CounterVec
	latency                       *prometheus.HistogramVec
}

func newMetrics() *metrics {
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(
			prometheus.GaugeOpts{Name: "sluice_map_" + name, Help: help}, []string{"map"},
		)
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(
			prometheus.CounterOpts{Name: "sluice_map_" + name, Help: help},
			append([]string{"map"}, labels...),
		)
	}
	return &metrics{
		entries:    gauge("entries", "Entries in the map."),
		maxEntries: gauge("max_entries", "Room for entries in the map."),
		pressure:   gauge("pressure_ratio", "Entries in the map by its room, from 0 to 1."),
		pending:    gauge("pending", "Entries and removals about to be written."),
		waiting:    gauge("waiting", "Entries and removals waiting for another map."),
		failed:     gauge("failed", "Entries and removals that failed and will be retried."),
		operations: counter("operations_total", "Entries written and deleted.", "operation", "outcome"),
		repairs: counter(
			"audit_repairs_total",
			"Differences between the map and what was written to it.",
			"kind",
		),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "sluice_map_latency_seconds",
			Help:    "Time from a row becoming pending to its entry being in the map.",
			Buckets: prometheus.ExponentialBuckets(10e-6, 4, 12),
		}, []string{"map"}),
	}
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{
		m.entries, m.maxEntries, m.pressure, m.pending, m.waiting, m.failed, m.operations, m.repairs,
		m.latency,
	}
}

// mapMetrics are those of one map.
type mapMetrics struct {
	entries, maxEntries, pressure prometheus.Gauge
	pending, waiting, failed      prometheus.Gauge
	updates, deletes              outcomes
	missing, changed, foreign     prometheus.Counter
	latency                       prometheus.Observer
}

// outcomes count the entries of one operation.
type outcomes struct{ done, full, failed prometheus.Counter }

func (m *metrics) of(name string) *mapMetrics {
	operation := func(op string) outcomes {
		with := func(outcome string) prometheus.Counter {
			return m.operations.WithLabelValues(name, op, outcome)
		}
		return outcomes{with("done"), with("full"), with("failed")}
	}
	return &mapMetrics{
		entries:    m.entries.WithLabelValues(name),
		maxEntries: m.maxEntries.WithLabelValues(name),
		pressure:   m.pressure.WithLabelValues(name),
		pending:    m.pending.WithLabelValues(name),
		waiting:    m.waiting.WithLabelValues(name),
		failed:     m.failed.WithLabelValues(name),
		updates:    operation("update"),
		deletes:    operation("delete"),
		missing:    m.repairs.WithLabelValues(name, "missing"),
		changed:    m.repairs.WithLabelValues(name, "changed"),
		foreign:    m.repairs.WithLabelValues(name, "foreign"),
		latency:    m.latency.WithLabelValues(name),
	}
}

// set sets the metrics to what the row of bpf-maps says.
func (m *mapMetrics) set(row *tables.BPFMap) {
	m.entries.Set(float64(row.Entries))
	m.maxEntries.Set(float64(row.MaxEntries))
	m.pressure.Set(row.PressurePercent() / 100)
	m.pending.Set(float64(row.Pending))
	m.waiting.Set(float64(row.Waiting))
	m.failed.Set(float64(row.Failed))
}

func (m *mapMetrics) audited(r AuditResult) {
	m.missing.Add(float64(r.Missing))
	m.changed.Add(float64(r.Changed))
	m.foreign.Add(float64(r.Foreign))
}

// fill sets the metrics of a map that has no reconciler.
func (m *metrics) fill(row *tables.BPFMap) {
	m.entries.WithLabelValues(row.Name).Set(float64(row.Entries))
	m.maxEntries.WithLabelValues(row.Name).Set(float64(row.MaxEntries))
	m.pressure.WithLabelValues(row.Name).Set(row.PressurePercent() / 100)
}

func (m *metrics) forget(name string) {
	for _, gauge := range []*prometheus.GaugeVec{m.entries, m.maxEntries, m.pressure} {
		gauge.DeleteLabelValues(name)
	}
}
