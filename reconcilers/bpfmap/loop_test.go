// SPDX-License-Identifier: Apache-2.0

package bpfmap

import (
	"testing"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// Nothing is written before the desired table is initialized. Until all is written, and
// again when there is something new, the map is not settled; what it has no room for does
// not count, and what fails otherwise does.
func TestStart(t *testing.T) {
	l := newTestLoop(t, testConfig{spec: bpf.Spec{Name: "test", Type: bpf.TypeLPM, MaxEntries: 2}})
	unsettled := func() string { return l.unsettled(l.db.ReadTxn()) }
	var seq uint64
	l.writes(&seq)
	require.NoError(t, l.loadOnce())
	initialized, _ := l.Entries.Initialized(l.db.ReadTxn())
	require.True(t, initialized)
	a, b, c := key(8, 10), key(16, 10, 1), key(32, 11, 1, 2, 3)
	l.change(row(a, 1), row(b, 5))
	require.Equal(t, "rows is not complete", unsettled())
	// run would still be in awaitDesired here.
	wtxn := l.db.WriteTxn(l.rows)
	l.ready(wtxn)
	wtxn.Commit()
	require.Equal(t, "about to be written", unsettled())
	l.round()
	l.requireSettled()
	require.Empty(t, unsettled())
	require.Equal(t, []string{"update 10.1.0.0/16 -> 5", "update 10.0.0.0/8 -> 1"}, l.writes(&seq))
	ready, _ := l.report.table.Initialized(l.db.ReadTxn())
	require.True(t, ready)

	l.change(row(c, 1))
	require.Equal(t, "about to be written", unsettled())
	l.round()
	require.Equal(t, "Error map full (2 entries)", l.status(c))
	require.Empty(t, unsettled())

	l.memory.Fail("test", bpf.OpUpdate, unix.EIO, 1)
	l.change(row(a, 2))
	l.round()
	require.Equal(t, "10.0.0.0/8: "+unix.EIO.Error(), unsettled())
	l.wait(time.Minute)
	require.Empty(t, unsettled())
}

// A failed write is retried with growing delays, without an event, and its own
// status writes do not start it again.
func TestRetry(t *testing.T) {
	l := newTestLoop(t, testConfig{})
	l.start()
	var seq uint64
	a := key(32, 10)
	l.memory.Fail("test", bpf.OpUpdate, unix.EPERM, 3)
	l.change(row(a, 1))
	l.round()
	require.Equal(t, "Error operation not permitted", l.status(a))
	require.Equal(t, "", l.entry(a))
	require.Equal(t, cell.StatusDegraded, l.health.Level)
	require.Contains(t, l.health.Status, "1 could not be written or removed, such as 10.0.0.0/32")
	require.Len(t, l.writes(&seq), 1)
	l.wait(19 * time.Millisecond)
	require.Empty(t, l.writes(&seq))
	l.wait(time.Millisecond)
	require.Len(t, l.writes(&seq), 1)
	l.wait(39 * time.Millisecond)
	require.Empty(t, l.writes(&seq))
	l.wait(time.Millisecond)
	require.Equal(t, []string{"update 10.0.0.0/32 -> 1 (operation not permitted)"}, l.writes(&seq))
	l.wait(80 * time.Millisecond)
	require.Equal(t, []string{"update 10.0.0.0/32 -> 1"}, l.writes(&seq))
	l.requireSettled()
	l.wait(reportDelay)
	require.Equal(t, cell.StatusOK, l.health.Level)
	require.Equal(t, "1 entries", l.health.Status)
}

// The row of a removal is gone from the desired table, but the mirror has it
// until the kernel confirms.
func TestRemovalFails(t *testing.T) {
	l := newTestLoop(t, testConfig{})
	l.start()
	a := key(32, 10)
	l.change(row(a, 7))
	l.round()
	l.memory.Fail("test", bpf.OpDelete, unix.EIO, 2)
	l.change(row(a, 0))
	l.round()
	require.Equal(t, "7 absent input/output error", l.entry(a))
	l.wait(time.Minute)
	l.requireSettled()
	require.Empty(t, l.held())
}

// A row that comes back while its removal fails needs no write.
func TestRemovalRevoked(t *testing.T) {
	l := newTestLoop(t, testConfig{})
	l.start()
	var seq uint64
	a := key(32, 10)
	l.change(row(a, 7))
	l.round()
	l.memory.Fail("test", bpf.OpDelete, unix.EIO, -1)
	l.change(row(a, 0))
	l.round()
	l.writes(&seq)
	l.change(row(a, 7))
	l.round()
	l.requireSettled()
	require.Empty(t, l.writes(&seq))
}

// Others see in the mirror that an entry will change before it does.
func TestAnnounced(t *testing.T) {
	l := newTestLoop(t, testConfig{})
	l.start()
	a, b := key(32, 10), key(32, 11)
	l.change(row(a, 1), row(b, 1))
	l.round()
	var seen []string
	l.memory.OnWrite(func(w bpf.Write, _ bpf.Reader) { seen = append(seen, l.entry(w.Key.(prefixKey))) })
	l.change(row(a, 2), row(b, 0), row(key(32, 12), 1))
	l.round()
	require.Equal(t, []string{"1 other", "", "1 absent"}, seen)
	l.requireSettled()
}

// What a full map refuses is an error of that row alone, and gets in when an
// unrelated entry is deleted, at once and with no event of its own.
func TestFull(t *testing.T) {
	l := newTestLoop(t, testConfig{spec: bpf.Spec{Name: "test", Type: bpf.TypeLPM, MaxEntries: 2}})
	l.start()
	a, b, c, d := key(32, 10), key(32, 11), key(32, 12), key(32, 13)
	l.change(row(a, 1), row(b, 1))
	l.round()
	l.change(row(c, 1), row(d, 1), row(a, 5))
	l.round()
	require.Equal(t, "Error map full (2 entries)", l.status(c))
	require.Equal(t, "Error map full (2 entries)", l.status(d))
	require.Equal(t, "Done", l.status(a))
	l.wait(time.Hour)
	require.Equal(t, 2, l.items.counts[stateFailed])
	l.change(row(b, 0))
	l.round()
	require.Equal(t, "Done", l.status(c))
	require.Equal(t, "Error map full (2 entries)", l.status(d))
	l.memory.Resize("test", 3)
	l.wait(time.Minute)
	l.requireSettled()
}

// In a full map, ten prefixes are replaced by the one that covers them, though
// there is no room to have both: in the end, and not before it was tried well.
func TestFullReplaced(t *testing.T) {
	l := newTestLoop(t, testConfig{spec: bpf.Spec{Name: "test", Type: bpf.TypeLPM, MaxEntries: 10}})
	l.start()
	for i := range byte(10) {
		l.change(row(key(32, 10, 0, 0, i), 1))
	}
	l.round()
	var gone []*testRow
	for i := range byte(10) {
		gone = append(gone, row(key(32, 10, 0, 0, i), 0))
	}
	l.change(append(gone, row(key(8, 10), 2))...)
	l.round()
	require.Equal(t, "Error map full (10 entries)", l.status(key(8, 10)))
	require.Len(t, l.held(), 10)
	require.Equal(t, "1 absent waiting for an overlapping entry to be written first", l.entry(key(32, 10, 0, 0, 3)))
	l.wait(time.Second)
	l.requireSettled()
	require.Contains(t, l.logged.String(), "before writing what replaces them")
}

// A failed write holds back what overlaps it, in its own round and in later
// ones, and nothing else.
func TestHeld(t *testing.T) {
	l := newTestLoop(t, testConfig{})
	l.start()
	long, short, other := key(16, 10, 1), key(8, 10), key(8, 11)
	l.change(row(short, 1))
	l.round()
	var seq uint64
	l.writes(&seq)
	l.memory.Fail("test", bpf.OpUpdate, unix.EPERM, 2)
	l.change(row(long, 2), row(short, 3))
	l.round()
	require.Equal(t, "Error operation not permitted", l.status(long))
	require.Equal(t, "Pending waiting for an overlapping entry to be written first", l.status(short))
	require.Equal(t, "1 other", l.entry(short))
	l.change(row(other, 4), row(short, 5))
	l.round()
	require.Equal(t, "Done", l.status(other))
	require.Equal(t, []string{
		"update 10.1.0.0/16 -> 2 (operation not permitted)",
		"update 10.1.0.0/16 -> 2 (operation not permitted)", // tried again, as it goes before 10/8
		"update 11.0.0.0/8 -> 4",
	}, l.writes(&seq))
	l.wait(time.Second)
	require.Equal(t, []string{"update 10.1.0.0/16 -> 2", "update 10.0.0.0/8 -> 5"}, l.writes(&seq))
	l.requireSettled()
}

// A row that changes while the map is written keeps the status of its new self.
func TestChangedMeanwhile(t *testing.T) {
	l := newTestLoop(t, testConfig{})
	l.start()
	a, b := key(32, 10), key(32, 11)
	changed := false
	l.memory.OnWrite(func(bpf.Write, bpf.Reader) {
		if !changed {
			changed = true
			l.change(row(a, 2), row(b, 0))
		}
	})
	l.change(row(a, 1), row(b, 1))
	_, _, err := l.step(l.now)
	require.NoError(t, err)
	require.Equal(t, "Pending", l.status(a))
	require.Equal(t, "1 same", l.entry(a)) // the mirror says what is
	require.Equal(t, map[prefixKey]number{a: 1, b: 1}, l.held())
	l.round()
	l.requireSettled()
	require.Equal(t, map[prefixKey]number{a: 2}, l.held())
}

// Numbers come to the table a moment after the writes that they are of.
func TestReport(t *testing.T) {
	l := newTestLoop(t, testConfig{spec: bpf.Spec{Name: "test", Type: bpf.TypeLPM, MaxEntries: 4}})
	l.start()
	get := func() tables.BPFMap {
		row, _, found := l.report.table.Get(l.db.ReadTxn(), tables.BPFMapByName("test"))
		require.True(t, found)
		return *row
	}
	l.round()
	require.Zero(t, get().Writes)
	l.change(row(key(32, 10), 1))
	l.round()
	require.Zero(t, get().Writes)
	l.wait(reportDelay)
	require.Equal(t, tables.BPFMap{
		Name: "test", Type: bpf.TypeLPM, Backend: "memory", MaxEntries: 4, Entries: 1, Writes: 1,
	}, get())
	require.InDelta(t, 25, func() float64 { m := get(); return m.PressurePercent() }(), 0.01)
}

func TestRetryDelay(t *testing.T) {
	r := retries{20 * time.Millisecond, 30 * time.Second}
	require.Equal(t, 20*time.Millisecond, r.delay(0))
	require.Equal(t, 160*time.Millisecond, r.delay(3))
	require.Equal(t, 30*time.Second, r.delay(11))
	require.Equal(t, 30*time.Second, r.delay(1000))
}

// A row's key may have bits behind its prefix; the map's has not.
func TestUnmaskedKey(t *testing.T) {
	l := newTestLoop(t, testConfig{})
	l.start()
	l.change(row(key(8, 10, 9, 9), 1))
	l.round()
	require.Equal(t, "1 same", l.entry(key(8, 10)))
	result, err := l.audit(l.now)
	require.NoError(t, err)
	require.True(t, result.Clean())
}
