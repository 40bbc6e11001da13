// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath"
	"github.com/sluice-net/sluice/sources/events"
)

// datapathMetrics are what the programs count, read when they are asked for,
// and the counts of their events.
type datapathMetrics struct {
	log    *slog.Logger
	read   func() ([]bpf.Metric, error) // by reason*Directions + direction; nil if no programs are loaded
	counts func() events.Counts

	packets, bytes          *prometheus.Desc // by reason and direction
	events, lost, malformed *prometheus.Desc
}

func registerDatapathMetrics(r prometheus.Registerer, log *slog.Logger, d *datapath.Datapath, s *events.Source) error {
	read := func() ([]bpf.Metric, error) {
		m := d.Metrics()
		if m == nil {
			return nil, nil
		}
		return readMetrics(m.Lookup)
	}
	return register(r, newDatapathMetrics(log, read, s.Counts))
}

func newDatapathMetrics(log *slog.Logger, read func() ([]bpf.Metric, error), counts func() events.Counts) *datapathMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("sluice_datapath_"+name, help, labels, nil)
	}
	return &datapathMetrics{
		log: log, read: read, counts: counts,
		packets:   desc("packets_total", "Packets by what became of them, and direction as seen from the pod.", "reason", "direction"),
		bytes:     desc("bytes_total", "Bytes of the frames of these packets.", "reason", "direction"),
		events:    desc("events_total", "Events read: dropped packets and new flows.", "kind"),
		lost:      desc("events_lost_total", "Events for which there was no room, in the kernel's buffer or in that of a client.", "at"),
		malformed: desc("events_malformed_total", "Records of the kernel's buffer that are no event."),
	}
}

// Describe implements [prometheus.Collector].
func (m *datapathMetrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.packets, m.bytes, m.events, m.lost, m.malformed} {
		to <- d
	}
}

// Collect implements [prometheus.Collector]. Reasons that are never met are 0,
// so that their rates are known from the first packet on.
func (m *datapathMetrics) Collect(to chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, value uint64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value), labels...)
	}
	counts := m.counts()
	send(m.events, counts.Drops, "drop")
	send(m.events, counts.Flows, "flow")
	send(m.lost, counts.Lost, "client")
	send(m.malformed, counts.Malformed)

	metrics, err := m.read()
	if err != nil {
		m.log.Warn("Counters of packets cannot be read", "error", err)
		return
	}
	var lost uint64
	for i, metric := range metrics {
		reason, direction := bpf.Reason(i/bpf.Directions), bpf.Direction(i%bpf.Directions)
		switch {
		case reason == bpf.ReasonEventLost:
			lost += metric.Packets
		case events.KnownReason(reason) || metric.Packets > 0:
			send(m.packets, metric.Packets, reason.String(), direction.String())
			send(m.bytes, metric.Bytes, reason.String(), direction.String())
		}
	}
	send(m.lost, lost, "kernel")
}

// readMetrics sums the counters of all CPUs.
func readMetrics(lookup func(key, perCPU any) error) ([]bpf.Metric, error) {
	sums := make([]bpf.Metric, int(bpf.ReasonCount)*bpf.Directions)
	var perCPU []bpf.Metric
	for i := range sums {
		if err := lookup(uint32(i), &perCPU); err != nil {
			return nil, fmt.Errorf("read sluice_metrics: %w", err)
		}
		for _, m := range perCPU {
			sums[i].Packets += m.Packets
			sums[i].Bytes += m.Bytes
		}
	}
	return sums, nil
}
