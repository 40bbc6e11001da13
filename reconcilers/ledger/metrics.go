// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-net/sluice/bpf"
)

type metrics struct {
	records *prometheus.CounterVec
	used    prometheus.Gauge
	open    prometheus.Gauge
	found   *prometheus.CounterVec
	missed  prometheus.CounterFunc
}

// newMetrics makes the metrics of a ledger, whose maps are nil if there is none.
func newMetrics(maps func() *bpf.Ledger) *metrics {
	return &metrics{
		records: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_ledger_records_total",
			Help: "Records of the ledger, by what became of them at an output.",
		}, []string{"output", "outcome"}),
		used: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "sluice_ledger_buffer_ratio",
			Help: "How full the kernel's buffer of the ledger was when it was last read.",
		}),
		open: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "sluice_ledger_open_translations",
			Help: "Translations that have begun and have no end in the ledger yet.",
		}),
		found: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_ledger_ends_found_total",
			Help: "Ends in the ledger that no program has recorded, by their reason.",
		}, []string{"reason"}),
		missed: prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "sluice_ledger_missed_total",
			Help: "Records of the ledger that the kernel's buffer had no room for.",
		}, func() float64 {
			ledger := maps()
			if ledger == nil {
				return 0
			}
			missed, _, err := ledger.Missed()
			if err != nil {
				return 0
			}
			return float64(missed)
		}),
	}
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.records, m.used, m.open, m.found, m.missed}
}
