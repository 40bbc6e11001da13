// SPDX-License-Identifier: Apache-2.0

package ctgc

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-net/sluice/bpf/gc"
)

// metrics are those of all passes.
type metrics struct {
	runs, removed *prometheus.CounterVec
	duration      *prometheus.HistogramVec
	longest       *prometheus.GaugeVec
	interval      *prometheus.GaugeVec
	lost          prometheus.Counter
	released      *prometheus.CounterVec
	ports         *portMetrics
}

func newMetrics() *metrics {
	name := func(name string) string { return "sluice_ctgc_" + name }
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	gauge := func(name, help string, label string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{label})
	}
	return &metrics{
		ports:    &portMetrics{},
		runs:     counter(name("runs_total"), "Passes through a map.", "map", "reason", "outcome"),
		removed:  counter(name("removed_total"), "Entries removed by passes through a map, of it or of that of its translations.", "map", "reason"),
		longest:  gauge(name("longest_run_seconds"), "For how long the kernel was busy at a stretch with the last pass through a map, at most.", "map"),
		interval: gauge(name("interval_seconds"), "Time between passes, at least.", "set"),
		released: counter(name("released_addresses_total"),
			"Addresses of endpoints that had gone, by whether another endpoint had taken them.",
			"outcome"),
		lost: prometheus.NewCounter(prometheus.CounterOpts{
			Name: name("observer_lost_total"), Help: "Removals that an observer was too slow for.",
		}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: name("run_seconds"), Help: "How long passes through a map took.",
			Buckets: prometheus.ExponentialBuckets(100e-6, 4, 9),
		}, []string{"map"}),
	}
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{
		m.runs, m.removed, m.duration, m.longest, m.interval, m.lost, m.released, m.ports,
	}
}

// passed counts a pass. What is free text in the table is one reason here.
func (m *metrics) passed(p *report) {
	reason := p.reason
	if !slices.Contains(ownReasons, reason) {
		reason = ReasonRequest
	}
	m.lost.Add(float64(p.lost))
	if len(p.passes) == 0 {
		m.runs.WithLabelValues("", reason, p.outcome(0)).Inc()
	}
	for i := range p.passes {
		one, name := &p.passes[i], p.set.nameOf(p.passes[i].Map)
		m.runs.WithLabelValues(name, reason, p.outcome(i)).Inc()
		m.duration.WithLabelValues(name).Observe(one.Duration.Seconds())
		m.longest.WithLabelValues(name).Set(one.LongestRun.Seconds())
		m.count(name, one)
	}
}

func (m *metrics) count(name string, p *gc.Pass) {
	for reason, n := range map[string]uint64{
		string(gc.Expired): p.Expired, "translation": p.Translations, string(gc.Orphan): p.Orphans,
		string(gc.Released): p.Released, string(gc.Flushed): p.Flushed, string(gc.Condemned): p.Condemned,
	} {
		m.removed.WithLabelValues(name, reason).Add(float64(n))
	}
}
