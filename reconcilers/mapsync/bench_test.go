// SPDX-License-Identifier: Apache-2.0

package mapsync

import (
	"testing"

	"github.com/stretchr/testify/require"

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
