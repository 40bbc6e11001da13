// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/cilium/ebpf/rlimit"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/gc"
)

// Each connection of the benchmark is another, and leaves by a port of its own.
func TestGCFlowsDiffer(t *testing.T) {
	flows, egress := map[ctmap.Key4]bool{}, map[string]bool{}
	for _, i := range []int{0, 1, 255, 256, 1<<14 - 1, 1 << 14, 1<<22 - 1, 1 << 22, 1<<24 - 1} {
		flows[ctmap.NewKey4(gcFlow(i))] = true
		egress[gcEgress(i).String()] = true
		require.Equal(t, gcEgress(i), gcReplies(i).Destination)
	}
	require.Len(t, flows, 9)
	require.Len(t, egress, 9)
}

func TestShareOfConnectionsThatEnded(t *testing.T) {
	for _, percent := range []int{0, 10, 100} {
		require.Equal(t, 10*percent, (&gcMaps{entries: 1000, percent: percent}).expired())
	}
	for i := range 1000 {
		require.False(t, endedAt(i, 10) && !endedAt(i, 20), "who has ended stays so when more have")
	}
}

func TestShortGC(t *testing.T) {
	o := &gcOptions{sizes: []int{4 << 20, 64 << 10}, whole: gcWhole, rounds: 5}
	require.NoError(t, o.complete(true))
	require.Equal(t, []int{16 << 10}, o.sizes)
	require.Equal(t, 1, o.rounds)
}

// The ratio is of CPU time, and of runs of the same round.
func TestSummarizeGC(t *testing.T) {
	run := func(method gc.Method, cpu, longest time.Duration) []gcRun {
		return []gcRun{{method: method, cpu: cpu, wholeCPU: 2 * cpu, wall: 3 * cpu, longest: longest}}
	}
	c := gcCase{entries: 1000, room: 2000, methods: []gc.Method{gc.ForEach, methodSeed}}
	scans := summarize(c, map[gc.Method][][]gcRun{
		gc.ForEach: {run(gc.ForEach, 100*time.Microsecond, 5), run(gc.Iterator, 200*time.Microsecond, 7), run(gc.ForEach, 100*time.Microsecond, 6)},
		methodSeed: {run(methodSeed, 400*time.Microsecond, 1), run(methodSeed, 800*time.Microsecond, 1), run(methodSeed, 300*time.Microsecond, 1)},
	})
	require.Len(t, scans, 2)
	s := scans[0]
	require.Equal(t, spread{100, 100, 200}, s.CPU)
	require.Equal(t, spread{300, 300, 600}, s.Wall)
	require.Equal(t, spread{200, 200, 400}, s.Whole)
	require.Equal(t, spread{4, 3, 4}, s.Ratio)
	require.Equal(t, 1e7, s.Rate)
	require.Equal(t, 3, s.Passes)
	require.Equal(t, []time.Duration{6, 7}, []time.Duration{s.LongestP50, s.LongestMax})
	require.Equal(t, spread{1, 1, 1}, scans[1].Ratio)
}

// All methods remove the same from maps of the kernel, with translations; and one
// that does not is no result.
func TestGCMethodsRemoveTheSame(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("SLUICE_REQUIRE_PRIVILEGED") == "1" {
			t.Fatal("needs root")
		}
		t.Skip("needs root")
	}
	runtime.LockOSThread() // whose CPU time is measured
	defer runtime.UnlockOSThread()
	require.NoError(t, rlimit.RemoveMemlock())
	maps, err := newGCMaps(2000, 8000, true)
	require.NoError(t, err)
	defer maps.close()
	collectors, err := openGC(maps.Maps, sparseMethods)
	require.NoError(t, err)
	defer collectors.close()
	for _, percent := range []int{10, 100, 0} {
		require.NoError(t, maps.age(percent))
		for _, method := range sparseMethods {
			run, err := collectors.run(t.Context(), method, maps)
			require.NoError(t, err, method)
			require.Positive(t, run.wholeCPU, method)
			counts, err := collectors[gc.Iterator].Count()
			require.NoError(t, err)
			require.Equal(t, map[string]int{ctmap.CT4TCP: 2000, "sluice_nat4": 4000}, counts.Entries, "it is put back")
		}
	}
	// The seed's way takes the translations along.
	require.NoError(t, maps.age(100))
	_, err = collectSeed(maps.CT4TCP, maps.NAT4, maps.now)
	require.NoError(t, err)
	counts, err := collectors[gc.Iterator].Count()
	require.NoError(t, err)
	require.Equal(t, map[string]int{ctmap.CT4TCP: 0, "sluice_nat4": 0}, counts.Entries)

	maps.percent = 50
	_, err = collectors.run(t.Context(), gc.Iterator, maps)
	require.ErrorContains(t, err, "0 connections were looked at")
}
