// SPDX-License-Identifier: Apache-2.0

package mapsync

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
)

func benchKey(n int) prefixKey { return key(32, 10, byte(n>>16), byte(n>>8), byte(n)) }

// A hundred thousand rows at once.
func BenchmarkLoad(b *testing.B) {
	const rows = 100_000
	for b.Loop() {
		b.StopTimer()
		l := newTestLoop(b, bpf.Spec{Name: "test", Type: bpf.TypeHash, MaxEntries: rows})
		var all []*testRow
		for n := range rows {
			all = append(all, row(benchKey(n), 1))
		}
		l.change(all...)
		b.StartTimer()
		for l.rounds(); l.queue.isDue(l.clock); {
			l.rounds()
		}
	}
}

// One row among a hundred thousand, while as many wait for another object.
func BenchmarkChange(b *testing.B) {
	const rows = 100_000
	l := newTestLoop(b, bpf.Spec{Name: "test", Type: bpf.TypeHash, MaxEntries: rows}, gated)
	var all []*testRow
	for n := range rows {
		all = append(all, row(benchKey(n), number(1+n%2)))
	}
	l.complete(1, true)
	l.change(all...)
	l.rounds()
	require.Len(b, l.held(), rows/2)
	for n := 0; b.Loop(); n++ {
		l.change(row(key(32, 11), number(n%2)))
		l.rounds()
	}
}

// What an audit of a map in the kernel costs for each entry, and how long one of the map takes
// when all audits have one hundredth of a core.
func BenchmarkAudit(b *testing.B) {
	const rows = 100_000
	if os.Geteuid() != 0 {
		b.Skip("needs root to make maps")
	}
	path := filepath.Join(b.TempDir(), "bpffs")
	require.NoError(b, bpf.Probe(path))
	defer unix.Unmount(path, unix.MNT_DETACH)
	kernel, err := bpf.OpenKernel(path, slog.New(slog.DiscardHandler))
	require.NoError(b, err)
	defer kernel.Close()
	for _, spec := range []bpf.Spec{
		{Name: "hash", Type: bpf.TypeHash, MaxEntries: 2 * rows},
		{Name: "trie", Type: bpf.TypeLPM, MaxEntries: 2 * rows},
	} {
		b.Run(spec.Name, func(b *testing.B) {
			l := newTestLoop(b, bpf.Spec{}, func(l *testLoop, cfg *testConfig) {
				var err error
				cfg.Map, err = bpf.Open[prefixKey, number](kernel, spec)
				require.NoError(b, err)
			})
			var all []*testRow
			for n := range rows {
				all = append(all, row(benchKey(n), 1))
			}
			l.change(all...)
			for l.rounds(); l.queue.isDue(l.clock); {
				l.rounds()
			}
			var before, after unix.Rusage
			require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &before))
			for b.Loop() {
				reply := make(chan auditReply, 1)
				for l.startAudit(reply); l.audit != nil; {
					l.continueAudit()
				}
				require.True(b, (<-reply).result.Clean())
			}
			require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &after))
			cpu := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
			each := float64(cpu) / float64(b.N) / rows
			b.ReportMetric(each, "cpu-ns/entry")
			b.ReportMetric(each*rows*auditShare/1e9, "s/100k-entries-at-1%")
		})
	}
}
