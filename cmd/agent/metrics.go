// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"time"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// metricsCell provides the registry of all metrics, and the metrics of the
// libraries that the agent is built on.
var metricsCell = cell.Group(
	cell.Provide(
		newRegistry,
		func(r *prometheus.Registry) (prometheus.Registerer, prometheus.Gatherer) { return r, r },
		func(r prometheus.Registerer) (statedb.Metrics, error) {
			m := newTableMetrics()
			return m, register(r, m.all()...)
		},
		func(r prometheus.Registerer) (reconciler.Metrics, error) {
			m := newReconcilerMetrics()
			return m, register(r, m.duration, m.errors, m.failing)
		},
		func(r prometheus.Registerer) (job.Metrics, error) {
			m := newJobMetrics()
			return m, register(r, m.duration, m.errors)
		},
		func(r prometheus.Registerer) (hive.Metrics, error) {
			m := hiveMetrics{prometheus.NewGaugeVec(prometheus.GaugeOpts{
				Name: "sluice_agent_phase_seconds", Help: "How long the agent took to populate, start and stop.",
			}, []string{"phase"})}
			return m, register(r, m.phase)
		},
	),
)

func newRegistry() (*prometheus.Registry, error) {
	r := prometheus.NewRegistry()
	return r, register(r, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
}

func register(r prometheus.Registerer, all ...prometheus.Collector) error {
	var errs error
	for _, c := range all {
		errs = errors.Join(errs, r.Register(c))
	}
	return errs
}

// buckets are of things that take from 10 µs to 1 s.
var buckets = prometheus.ExponentialBuckets(10e-6, 10, 6)

// jobMetrics implements [job.Metrics].
type jobMetrics struct {
	job.NopMetrics
	duration *prometheus.HistogramVec
	errors   *prometheus.CounterVec
}

func newJobMetrics() jobMetrics {
	return jobMetrics{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "sluice_job_timer_seconds", Help: "How long the runs of periodic jobs took.", Buckets: buckets,
		}, []string{"job"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_job_errors_total", Help: "Failed runs of jobs.",
		}, []string{"job"}),
	}
}

// JobError implements [job.Metrics].
func (m jobMetrics) JobError(name string, _ error) { m.errors.WithLabelValues(name).Inc() }

// TimerRunDuration implements [job.Metrics].
func (m jobMetrics) TimerRunDuration(name string, d time.Duration) {
	m.duration.WithLabelValues(name).Observe(d.Seconds())
}

// hiveMetrics implements [hive.Metrics].
type hiveMetrics struct{ phase *prometheus.GaugeVec }

// PopulateDuration implements [hive.Metrics].
func (m hiveMetrics) PopulateDuration(d time.Duration) { m.set("populate", d) }

// StartDuration implements [hive.Metrics].
func (m hiveMetrics) StartDuration(d time.Duration) { m.set("start", d) }

// StopDuration implements [hive.Metrics].
func (m hiveMetrics) StopDuration(d time.Duration) { m.set("stop", d) }

func (m hiveMetrics) set(phase string, d time.Duration) {
	m.phase.WithLabelValues(phase).Set(d.Seconds())
}

// reconcilerMetrics implements [reconciler.Metrics].
type reconcilerMetrics struct {
	duration *prometheus.HistogramVec
	errors   *prometheus.CounterVec
	failing  *prometheus.GaugeVec
}

func newReconcilerMetrics() reconcilerMetrics {
	labels := []string{"module", "name", "operation"}
	return reconcilerMetrics{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "sluice_reconciler_seconds", Help: "How long operations of reconcilers took.", Buckets: buckets,
		}, labels),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_reconciler_errors_total", Help: "Failed operations of reconcilers.",
		}, labels),
		failing: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "sluice_reconciler_failing", Help: "Rows whose last operation failed.",
		}, []string{"module", "name"}),
	}
}

// ReconciliationDuration implements [reconciler.Metrics].
func (m reconcilerMetrics) ReconciliationDuration(id cell.FullModuleID, name, operation string, d time.Duration) {
	m.duration.WithLabelValues(id.String(), name, operation).Observe(d.Seconds())
}

// ReconciliationErrors implements [reconciler.Metrics].
func (m reconcilerMetrics) ReconciliationErrors(id cell.FullModuleID, name string, added, current int) {
	m.errors.WithLabelValues(id.String(), name, "reconcile").Add(float64(added))
	m.failing.WithLabelValues(id.String(), name).Set(float64(current))
}

// PruneDuration implements [reconciler.Metrics].
func (m reconcilerMetrics) PruneDuration(id cell.FullModuleID, name string, d time.Duration) {
	m.duration.WithLabelValues(id.String(), name, "prune").Observe(d.Seconds())
}

// PruneError implements [reconciler.Metrics].
func (m reconcilerMetrics) PruneError(id cell.FullModuleID, name string, err error) {
	if err != nil {
		m.errors.WithLabelValues(id.String(), name, "prune").Inc()
	}
}
