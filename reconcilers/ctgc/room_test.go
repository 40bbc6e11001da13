// SPDX-License-Identifier: Apache-2.0

package ctgc

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/gc"
)

// A pod that is dropped for its share gets a pass, which leaves late replies of others their
// time; a want of ports does not.
func TestSharesUsedUp(t *testing.T) {
	inBubble(t, DefaultConfig, func(w *world) {
		w.does(func(gc.Filter) []gc.Pass { return w.pass(0, clock()+1e6) })
		w.set(ctmap.CT4TCP, 10)
		w.know()
		w.wait(time.Minute)
		w.takeRuns()
		w.reasons()
		for range 1000 {
			w.runner.exhausted(ReasonSharesUsedUp)
			time.Sleep(time.Millisecond)
		}
		synctest.Wait()
		require.Equal(t, []string{ReasonSharesUsedUp}, w.reasons())
		runs := w.takeRuns()
		require.Equal(t, ReplyGrace, runs[0].filter.ReplyGrace)
		require.True(t, runs[0].filter.Expired && runs[0].filter.Orphans)

		w.runner.exhausted(ReasonPortsExhausted) // beside what waits
		w.wait(time.Minute)
		require.Equal(t, []string{ReasonPortsExhausted}, w.reasons())
		require.Zero(t, w.takeRuns()[0].filter.ReplyGrace)
	})
}

// Health says which map, and the ports of which egress address, are about to be full, before
// they are.
func TestLittleRoom(t *testing.T) {
	inBubble(t, DefaultConfig, func(w *world) {
		var events []string
		w.runner.reporter.event = func(message string) { events = append(events, message) }
		w.does(func(gc.Filter) []gc.Pass { return w.pass(0, clock()+1e6) })
		w.set(ctmap.CT4TCP, 0.8*size)
		w.know()
		w.wait(time.Minute)
		level, _ := w.health.last()
		require.Equal(t, cell.StatusOK, level)
		require.Empty(t, events)

		w.set(ctmap.CT4TCP, 0.81*size)
		w.wait(time.Minute)
		level, text := w.health.last()
		require.Equal(t, cell.StatusDegraded, level)
		require.Equal(t, "There is little room left for connections: map sluice_ct4_tcp is 81 % full: "+
			"a full map evicts its least recently used entries", text)
		w.wait(time.Hour)
		require.Len(t, events, 1, "of one want of room")

		w.mu.Lock()
		w.fullest = []gc.Ports{{
			Egress: netip.MustParseAddr("192.0.2.1"), Remote: netip.MustParseAddrPort("[2001:db8::1]:443"),
			Protocol: 6, Used: 91, Room: 100,
		}, {
			Egress: netip.MustParseAddr("192.0.2.2"), Remote: netip.MustParseAddrPort("203.0.113.1:53"),
			Protocol: 17, Used: 12, Room: 10,
		}}
		w.mu.Unlock()
		w.set(ctmap.CT4TCP, 10)
		w.wait(time.Hour)
		_, text = w.health.last()
		require.NotContains(t, text, "sluice_ct4_tcp")
		require.Contains(t, text, "91 of 100 ports of egress address 192.0.2.1 are taken towards [2001:db8::1]:443 by tcp")
		_, err := w.runner.Run(w.t.Context(), gc.Filter{Expired: true}, "")
		require.NoError(t, err)
		registry := prometheus.NewPedanticRegistry()
		require.NoError(t, registry.Register(w.runner.reporter.metrics.ports))
		families, err := registry.Gather()
		require.NoError(t, err)
		got := map[string]float64{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				key := f.GetName()
				for _, l := range m.GetLabel() { // by name
					key += " " + l.GetValue()
				}
				got[key] = m.GetGauge().GetValue()
			}
		}
		require.Equal(t, map[string]float64{
			"sluice_egress_ports_used [2001:db8::1]:443 192.0.2.1 tcp": 91,
			"sluice_egress_ports_free [2001:db8::1]:443 192.0.2.1 tcp": 9,
			"sluice_egress_ports_used 203.0.113.1:53 192.0.2.2 udp":    12,
			"sluice_egress_ports_free 203.0.113.1:53 192.0.2.2 udp":    0,
		}, got)

		w.mu.Lock()
		w.fullest = nil
		w.mu.Unlock()
		w.wait(time.Minute)
		level, _ = w.health.last()
		require.Equal(t, cell.StatusOK, level)
	})
}
