// SPDX-License-Identifier: Apache-2.0

package bpfmap_test

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
)

// backends returns the back ends that there are here.
func backends(t testing.TB) map[string]bpf.Backend {
	all := map[string]bpf.Backend{"memory": bpf.NewMemory()}
	path := filepath.Join(t.TempDir(), "bpffs")
	if err := bpf.Probe(path); err != nil {
		t.Logf("without kernel maps: %v", err)
		return all
	}
	kernel, err := bpf.OpenKernel(path, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	all["kernel"] = kernel
	t.Cleanup(func() {
		kernel.Close()
		require.NoError(t, unix.Unmount(path, unix.MNT_DETACH))
	})
	return all
}

// An agent on kernel maps writes nothing when it starts on what it left.
func TestAgentKernel(t *testing.T) {
	kernel, ok := backends(t)["kernel"]
	if !ok {
		t.Skip("kernel maps are not possible here")
	}
	for range 2 { // each agent fills a slot of its own
		a := newAgent(t, kernel)
		a.start()
		a.insert(0, 5000, 7, true)
		a.settle()
		lines, err := a.maps.Dump("sluice_sources")
		require.NoError(t, err)
		require.Len(t, lines, 5000)
		writes, deletes := a.control.Counts("sluice_sources")
		require.Equal(t, []uint64{5000, 0}, []uint64{writes, deletes})
		a.stop()
	}
}

// One new row among 10,000: from its insertion to its status being Done, which
// is after its entry is in the map. The best case: nothing else goes on.
func BenchmarkOneOf10000(b *testing.B) {
	for name, backend := range backends(b) {
		b.Run(name, func(b *testing.B) {
			a := newAgent(b, backend)
			a.start()
			defer a.stop()
			a.insert(0, 10000, 1, true)
			a.settle()
			var times []time.Duration
			for n := 10000; b.Loop(); n++ {
				start := time.Now()
				a.insert(n, 1, 2, false)
				for {
					row, _, watch, _ := a.sources.GetWatch(a.db.ReadTxn(), sourceByAddr(addr(n)))
					if row.Status.Kind.String() == "Done" {
						break
					}
					<-watch
				}
				times = append(times, time.Since(start))
			}
			slices.Sort(times)
			b.ReportMetric(float64(times[len(times)/2].Microseconds()), "p50-µs")
			b.ReportMetric(float64(times[len(times)*99/100].Microseconds()), "p99-µs")
		})
	}
}

// The first pass over many rows, on an empty map and on one that has them.
func BenchmarkStart(b *testing.B) {
	for name, backend := range backends(b) {
		for _, n := range []int{10000, 50000} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				for b.Loop() {
					b.StopTimer()
					_, err := backend.Sweep()
					require.NoError(b, err)
					a := newAgent(b, backend)
					a.start()
					b.StartTimer()
					a.insert(0, n, 1, true)
					a.settle()
					b.StopTimer()
					writes, _ := a.control.Counts("sluice_sources")
					b.ReportMetric(float64(writes), "writes")
					a.stop()
					b.StartTimer()
				}
			})
		}
	}
}
