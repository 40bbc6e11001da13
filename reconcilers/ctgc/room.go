// SPDX-License-Identifier: Apache-2.0

package ctgc

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/gc"
)

// short is the part of a map, or of the ports towards a destination, above which there is
// little room left. The alerts have it too.
const short = 0.8

// shortOf says of what a set has little room left.
func shortOf(s *set, o *observation) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(o.counts.Entries)) {
		if fill := o.fill(name); fill > short {
			errs = append(errs, fmt.Errorf(
				"map %s is %.0f %% full: a full map evicts its least recently used entries", s.nameOf(name), 100*fill))
		}
	}
	for _, p := range s.collector.Fullest() {
		if float64(p.Used) > short*float64(p.Room) {
			errs = append(errs, fmt.Errorf("%d of %d ports of egress address %s are taken towards %s by %s",
				p.Used, p.Room, p.Egress, p.Remote, ctmap.Protocol(p.Protocol).String()))
		}
	}
	return errors.Join(errs...)
}

// portMetrics shows of which egress addresses and destinations the last pass found the largest
// part of the ports to be used.
type portMetrics struct {
	fullest atomic.Pointer[[]gc.Ports]
}

var (
	portLabels    = []string{"egress", "destination", "protocol"}
	portsUsedDesc = prometheus.NewDesc(
		"sluice_egress_ports_used",
		"Ports of an egress address that pods use towards a destination: where the largest part is used.",
		portLabels, nil,
	)
	portsFreeDesc = prometheus.NewDesc(
		"sluice_egress_ports_free", "Ports of an egress address that are left towards such a destination.",
		portLabels, nil,
	)
)

func (m *portMetrics) show(fullest []gc.Ports) { m.fullest.Store(&fullest) }

// Describe implements [prometheus.Collector].
func (m *portMetrics) Describe(descs chan<- *prometheus.Desc) {
	descs <- portsUsedDesc
	descs <- portsFreeDesc
}

// Collect implements [prometheus.Collector].
func (m *portMetrics) Collect(metrics chan<- prometheus.Metric) {
	fullest := m.fullest.Load()
	if fullest == nil {
		return
	}
	for _, p := range *fullest {
		labels := []string{p.Egress.String(), p.Remote.String(), ctmap.Protocol(p.Protocol).String()}
		gauge := func(desc *prometheus.Desc, n int) {
			metrics <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(n), labels...)
		}
		gauge(portsUsedDesc, p.Used)
		gauge(portsFreeDesc, max(p.Room-p.Used, 0))
	}
}
