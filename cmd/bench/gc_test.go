// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/cilium/ebpf/rlimit"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/gc"
	"github.com/sluice-net/sluice/bpf/natmap"
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

func requireRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		require.NotEqual(t, "1", os.Getenv("SLUICE_REQUIRE_PRIVILEGED"), "needs root")
		t.Skip("needs root")
	}
}

// A run removes what has ended, with translations, and puts it back; one that does not is no
// result.
func TestGCRun(t *testing.T) {
	requireRoot(t)
	runtime.LockOSThread() // whose CPU time is measured
	defer runtime.UnlockOSThread()
	require.NoError(t, rlimit.RemoveMemlock())
	maps, err := newGCMaps(gcCase{entries: 2000, room: 8000, pairs: true})
	require.NoError(t, err)
	defer maps.close()
	collector, err := gc.Open(maps.Maps)
	require.NoError(t, err)
	defer collector.Close()
	for _, percent := range []int{10, 100, 0} {
		require.NoError(t, maps.age(percent))
		run, err := maps.runs(t.Context(), 1, collector)
		require.NoError(t, err)
		require.Positive(t, run.cpu)
		counts, err := collector.Count()
		require.NoError(t, err)
		require.Equal(t, map[string]int{ctmap.CT4TCP: 2000, natmap.Name4: 4000}, counts.Entries)
	}
	require.NoError(t, maps.age(100))
	_, err = collect(t.Context(), collector, true)
	require.NoError(t, err)

	maps.percent = 50
	_, err = maps.runs(t.Context(), 1, collector)
	require.ErrorContains(t, err, "connections were looked at, not 2000")
}

func TestMeasureGC(t *testing.T) {
	requireRoot(t)
	o, out := &gcOptions{rounds: 1}, &strings.Builder{}
	require.NoError(t, o.complete(true))
	require.NoError(t, measureGC(t.Context(), out, o))
	require.Contains(t, out.String(), "4096 of 8192, translated")
	require.Regexp(t, `16 of 65536 +0 % +keys`, out.String())
}
