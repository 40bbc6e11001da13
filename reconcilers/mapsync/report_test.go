// SPDX-License-Identifier: Apache-2.0

package mapsync

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// Numbers come to the table a moment after the writes that they are of.
func TestReport(t *testing.T) {
	l := newTestLoop(t, bpf.Spec{Name: "test", Type: bpf.TypeLPM, MaxEntries: 4})
	get := func() tables.BPFMap {
		row, _, found := l.report.table.Get(l.db.ReadTxn(), tables.BPFMapByName("test"))
		require.True(t, found)
		return *row
	}
	ready, _ := l.report.table.Initialized(l.db.ReadTxn())
	require.False(t, ready)
	l.rounds()
	ready, _ = l.report.table.Initialized(l.db.ReadTxn())
	require.True(t, ready)
	require.Zero(t, get().Writes)
	l.change(row(key(32, 10), 1))
	l.rounds()
	require.Zero(t, get().Writes)
	l.wait(reportDelay)
	require.Equal(t, tables.BPFMap{
		Name: "test", Type: bpf.TypeLPM, Backend: "memory", MaxEntries: 4, Entries: 1, Writes: 1,
	}, get())
}

func TestRetryDelay(t *testing.T) {
	r := retries{20 * time.Millisecond, 30 * time.Second}
	require.Equal(t, 20*time.Millisecond, r.delay(0))
	require.Equal(t, 160*time.Millisecond, r.delay(3))
	require.Equal(t, 30*time.Second, r.delay(11))
	require.Equal(t, 30*time.Second, r.delay(1000))
}
