// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/sources/events"
)

// counters are what the programs would have counted, on two CPUs.
func counters(index uint32) []bpf.Metric {
	at := func(r bpf.Reason, d bpf.Direction) uint32 { return uint32(r)*bpf.Directions + uint32(d) }
	switch index {
	case at(bpf.ReasonNoGateway, bpf.DirectionEgress):
		return []bpf.Metric{{Packets: 2, Bytes: 148}, {Packets: 3, Bytes: 222}}
	case at(bpf.ReasonUnknownNode, bpf.DirectionIngress):
		return []bpf.Metric{{}, {Packets: 1, Bytes: 60}}
	case at(bpf.ReasonCount-1, bpf.DirectionEgress):
		return []bpf.Metric{{Packets: 4, Bytes: 400}, {}}
	case at(bpf.ReasonEventLost, bpf.DirectionEgress), at(bpf.ReasonEventLost, bpf.DirectionIngress):
		return []bpf.Metric{{Packets: 5}, {Packets: 1}}
	}
	return []bpf.Metric{{}, {}}
}

func lookupCounters(key, perCPU any) error {
	*perCPU.(*[]bpf.Metric) = counters(key.(uint32))
	return nil
}

func gather(t *testing.T, read func() ([]bpf.Metric, error)) (text string) {
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(newDatapathMetrics(slog.New(slog.DiscardHandler), read, func() events.Counts {
		return events.Counts{Drops: 7, Flows: 8, Malformed: 9, Lost: 10}
	}))
	families, err := r.Gather()
	require.NoError(t, err)
	var b strings.Builder
	for _, family := range families {
		for _, m := range family.Metric {
			b.WriteString(family.GetName())
			for _, l := range m.Label {
				b.WriteString(" " + l.GetValue())
			}
			b.WriteString(" = " + m.Counter.String() + "\n")
		}
	}
	return strings.ReplaceAll(strings.ReplaceAll(b.String(), "value:", ""), "  ", " ")
}

func TestDatapathMetrics(t *testing.T) {
	text := gather(t, func() ([]bpf.Metric, error) { return readMetrics(lookupCounters) })
	for _, line := range []string{
		"sluice_datapath_packets_total egress no egress gateway = 5\n",
		"sluice_datapath_bytes_total egress no egress gateway = 370\n",
		"sluice_datapath_packets_total ingress no egress gateway = 0\n",
		"sluice_datapath_packets_total ingress unknown overlay source = 1\n",
		"sluice_datapath_packets_total egress reason-47 = 4\n",
		"sluice_datapath_packets_total egress passed = 0\n",
		"sluice_datapath_events_total drop = 7\n",
		"sluice_datapath_events_total flow = 8\n",
		"sluice_datapath_events_lost_total kernel = 12\n",
		"sluice_datapath_events_lost_total client = 10\n",
		"sluice_datapath_events_malformed_total = 9\n",
	} {
		require.Contains(t, text, line)
	}
	require.NotContains(t, text, "event lost", "is no packet")
	require.NotContains(t, text, "reason-38", "a number without a meaning shows when it is met")

	for name, read := range map[string]func() ([]bpf.Metric, error){
		"no programs": func() ([]bpf.Metric, error) { return nil, nil },
		"error":       func() ([]bpf.Metric, error) { return nil, errors.New("closed") },
	} {
		text = gather(t, read)
		require.NotContains(t, text, "packets_total", name)
		require.Contains(t, text, "sluice_datapath_events_total drop = 7\n", "%s: the rest is there", name)
	}
}

// The same from a map of the kernel.
func TestDatapathMetricsOfKernel(t *testing.T) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 16, MaxEntries: uint32(bpf.ReasonCount) * bpf.Directions,
	})
	if err != nil {
		require.Empty(t, os.Getenv("SLUICE_REQUIRE_PRIVILEGED"), "BPF maps are not possible here: %v", err)
		t.Skipf("BPF maps are not possible here: %v", err)
	}
	defer m.Close()
	cpus := ebpf.MustPossibleCPU()
	for i := range m.MaxEntries() {
		values := make([]bpf.Metric, cpus)
		for cpu, value := range counters(i)[:min(2, cpus)] {
			values[cpu] = value
		}
		if cpus == 1 {
			values[0].Packets += counters(i)[1].Packets
			values[0].Bytes += counters(i)[1].Bytes
		}
		require.NoError(t, m.Put(i, values))
	}
	want, err := readMetrics(lookupCounters)
	require.NoError(t, err)
	got, err := readMetrics(m.Lookup)
	require.NoError(t, err)
	require.Equal(t, want, got)

	require.NoError(t, m.Close())
	_, err = readMetrics(m.Lookup)
	require.ErrorContains(t, err, "read sluice_metrics")
}
