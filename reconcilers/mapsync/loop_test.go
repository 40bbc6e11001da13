// SPDX-License-Identifier: Apache-2.0

package mapsync

import (
	"testing"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// A failed write is retried with growing delays, without an event, and its own status
// writes do not start it again.
func TestRetry(t *testing.T) {
	l := newTestLoop(t, bpf.Spec{})
	var seq uint64
	a := key(32, 10)
	l.memory.Fail("test", bpf.OpUpdate, unix.EPERM, 3)
	l.change(row(a, 1))
	l.rounds()
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

// The row of a removal is gone from the desired table, but the mirror has it until the
// kernel confirms.
func TestRemovalFails(t *testing.T) {
	l := newTestLoop(t, bpf.Spec{})
	a := key(32, 10)
	l.change(row(a, 7))
	l.rounds()
	l.memory.Fail("test", bpf.OpDelete, unix.EIO, 2)
	l.change(row(a, 0))
	l.rounds()
	require.Equal(t, "7 - - input/output error", l.entry(a))
	l.wait(time.Minute)
	l.requireSettled()
	require.Empty(t, l.held())
}

// A row that comes back while its removal fails needs no write.
func TestRemovalRevoked(t *testing.T) {
	l := newTestLoop(t, bpf.Spec{})
	var seq uint64
	a := key(32, 10)
	l.change(row(a, 7))
	l.rounds()
	l.memory.Fail("test", bpf.OpDelete, unix.EIO, -1)
	l.change(row(a, 0))
	l.rounds()
	l.writes(&seq)
	l.change(row(a, 7))
	l.rounds()
	l.requireSettled()
	require.Empty(t, l.writes(&seq))
}

// An entry stays for a while after its row went, as packets may be on the way to it. If its row
// returns meanwhile, nothing was.
func TestDeleteAfter(t *testing.T) {
	l := newTestLoop(t, bpf.Spec{}, func(_ *testLoop, cfg *testConfig) { cfg.DeleteAfter = Grace })
	var seq uint64
	a := key(32, 10)
	l.change(row(a, 7))
	l.rounds()
	l.writes(&seq)
	l.change(row(a, 0))
	l.rounds()
	require.Equal(t, "7 - true -", l.entry(a))
	l.wait(Grace - time.Millisecond)
	l.change(row(a, 7))
	l.rounds()
	l.wait(time.Second)
	l.requireSettled()
	require.Empty(t, l.writes(&seq))

	l.change(row(a, 0))
	l.rounds()
	l.wait(Grace - time.Millisecond)
	require.Empty(t, l.writes(&seq))
	l.wait(time.Millisecond)
	require.Equal(t, []string{"delete 10.0.0.0/32"}, l.writes(&seq))
	l.requireSettled()
}

// Others see in the mirror what the kernel may have before it does.
func TestAnnounced(t *testing.T) {
	l := newTestLoop(t, bpf.Spec{})
	a, b := key(32, 10), key(32, 11)
	l.change(row(a, 1), row(b, 1))
	l.rounds()
	var seen []string
	l.memory.OnWrite(func(w bpf.Write, _ bpf.Reader) {
		seen = append(seen, l.entry(w.Key.(prefixKey)))
	})
	l.change(row(a, 2), row(b, 0), row(key(32, 12), 1))
	l.rounds()
	require.Equal(t, []string{"1 2 true -", "- 1 true -", "1 delete - -"}, seen)
	l.requireSettled()

	l = newTestLoop(t, bpf.Spec{}, func(_ *testLoop, cfg *testConfig) { cfg.PublishIntent = false })
	l.memory.OnWrite(func(w bpf.Write, _ bpf.Reader) { require.Empty(t, l.entry(w.Key.(prefixKey))) })
	l.change(row(a, 1))
	l.rounds()
	l.requireSettled()
}

// What is not desired any more after its announcement, wants something else, or refers to
// what is not complete any more, is taken back.
func TestTakenBack(t *testing.T) {
	l := newTestLoop(t, bpf.Spec{}, gated)
	var seq uint64
	a := key(32, 10)
	for n := range uint32(4) {
		l.complete(n, true)
	}
	for _, then := range []*testRow{row(a, 0), row(a, 3)} {
		l.change(row(a, 2))
		l.beforePublish(func() { l.change(then) })
		_, err := l.round()
		require.NoError(t, err)
		require.Empty(t, l.writes(&seq), "%v", then)
		require.Empty(t, l.entry(a))
		l.rounds()
		l.requireSettled()
		require.Equal(t, then.Value, l.held()[a])
		l.change(row(a, 0))
		l.rounds()
		l.writes(&seq)
	}
	l.change(row(a, 2))
	l.beforePublish(func() { l.complete(2, false) })
	_, err := l.round()
	require.NoError(t, err)
	require.Empty(t, l.writes(&seq))
	require.Equal(t, "Pending", l.status(a))
	l.wait(patience)
	require.Equal(t, "Pending waiting for object 2: it is not in objects", l.status(a))
	l.complete(2, true)
	l.rounds()
	l.requireSettled()
}

// beforePublish calls a function once, between the first look of a round and the
// announcement.
func (l *testLoop) beforePublish(f func()) {
	refers := l.Refers
	l.Refers = func(r *testRow, kernel *number) []Reference {
		l.Refers = refers
		references := refers(r, kernel)
		f()
		return references
	}
}

// What a full map refuses is an error of that row alone, and gets in when an unrelated
// entry is deleted, at once and with no event of its own.
func TestFull(t *testing.T) {
	for _, err := range []error{nil, unix.ENOMEM} {
		l := newTestLoop(t, bpf.Spec{Name: "test", Type: bpf.TypeLPM, MaxEntries: 2})
		text := "Error map full (2 entries)"
		a, b, c, d := key(32, 10), key(32, 11), key(32, 12), key(32, 13)
		l.change(row(a, 1), row(b, 1))
		l.rounds()
		if err != nil {
			text = "Error map full: no memory"
			l.memory.Resize("test", 10)
			l.memory.Fail("test", bpf.OpUpdate, err, 2)
		}
		l.change(row(c, 1), row(d, 1), row(a, 5))
		l.rounds()
		require.Equal(t, text, l.status(c))
		require.Equal(t, text, l.status(d))
		require.Equal(t, "Done", l.status(a))
		require.Equal(t, 2, l.queue.counts[stateFailed])
		l.change(row(b, 0))
		l.rounds()
		require.Equal(t, "Done", l.status(c))
		require.Equal(t, text, l.status(d))
		l.memory.Resize("test", 3)
		l.wait(time.Minute)
		l.requireSettled()
	}
}

// Prefixes that replace one another: the longest is written first, and deleted last.
func TestOrder(t *testing.T) {
	l := newTestLoop(t, bpf.Spec{}, func(_ *testLoop, cfg *testConfig) {
		cfg.PublishIntent = false
	})
	var seq uint64
	l.change(row(key(8, 10), 1), row(key(32, 10, 1, 1, 1), 1))
	l.rounds()
	l.writes(&seq)
	l.change(row(key(32, 10, 1, 1, 1), 0), row(key(8, 10), 0),
		row(key(16, 10, 1), 2), row(key(24, 10, 1, 1), 3))
	l.rounds()
	require.Equal(t, []string{
		"update 10.1.1.0/24 -> 3", "update 10.1.0.0/16 -> 2", "delete 10.0.0.0/8", "delete 10.1.1.1/32",
	}, l.writes(&seq))
}

// A row that changes while the map is written keeps the status of its new self.
func TestChangedMeanwhile(t *testing.T) {
	l := newTestLoop(t, bpf.Spec{})
	a, b := key(32, 10), key(32, 11)
	changed := false
	l.memory.OnWrite(func(bpf.Write, bpf.Reader) {
		if !changed {
			changed = true
			l.change(row(a, 2), row(b, 0))
		}
	})
	l.change(row(a, 1), row(b, 1))
	_, err := l.round()
	require.NoError(t, err)
	require.Equal(t, "Pending", l.status(a))
	require.Equal(t, "1 - true -", l.entry(a)) // the mirror says what is
	require.Equal(t, map[prefixKey]number{a: 1, b: 1}, l.held())
	l.rounds()
	l.requireSettled()
	require.Equal(t, map[prefixKey]number{a: 2}, l.held())
}

// A row that wants what the map has already is done without a write, and the mirror has
// the number of the transaction that wants it.
func TestMade(t *testing.T) {
	l := newTestLoop(t, bpf.Spec{})
	made := func() uint64 {
		m, _, _ := l.Mirror.Get(l.db.ReadTxn(), tables.MirrorByKey[prefixKey, number](key(8, 10)))
		return m.Made
	}
	var seq uint64
	for n, value := range []number{1, 1, 2} {
		r := row(key(8, 10), value)
		r.Made = uint64(n + 5)
		l.change(r)
		if value == 2 {
			l.memory.Fail("test", bpf.OpUpdate, unix.EPERM, 1)
			l.rounds()
			require.EqualValues(t, 6, made(), "of the value that the kernel has")
			l.wait(time.Second)
		}
		l.rounds()
		l.requireSettled()
		require.EqualValues(t, n+5, made())
	}
	require.Len(t, l.writes(&seq), 3)
}

// A round that changes cached verdicts calls Raise once, after the writes and before they are
// confirmed. It calls Flush for addresses a grace period later.
func TestRaiseAndFlush(t *testing.T) {
	var events []string
	l := newTestLoop(t, bpf.Spec{}, func(l *testLoop, cfg *testConfig) {
		cfg.Revises = func(old, new *number) bool { return old != nil && new != nil }
		cfg.Raise = func() {
			for row := range l.rows.All(l.db.ReadTxn()) {
				require.Equal(t, "Pending", row.Status.Kind.String())
			}
			events = append(events, "raise")
		}
		cfg.Flushes = func(old, new *number) bool { return old == nil || new == nil }
		cfg.Flush = func(keys []prefixKey) {
			for _, k := range keys {
				events = append(events, "flush "+k.String())
			}
		}
	})
	l.memory.OnWrite(func(bpf.Write, bpf.Reader) { events = append(events, "write") })
	step := func(rows ...*testRow) []string {
		events = nil
		l.change(rows...)
		l.rounds()
		l.wait(Grace - time.Millisecond)
		events = append(events, "grace")
		l.wait(time.Second)
		l.requireSettled()
		return events
	}
	a, b, c := key(32, 10), key(32, 11), key(32, 12)
	require.Equal(t, []string{"write", "write", "grace", "flush 10.0.0.0/32", "flush 11.0.0.0/32"},
		step(row(a, 1), row(b, 1)))
	require.Equal(t, []string{"write", "write", "raise", "grace"}, step(row(a, 2), row(b, 2)))
	l.memory.Fail("test", bpf.OpUpdate, unix.EPERM, 1)
	require.Equal(t, []string{"write", "write", "grace", "flush 12.0.0.0/32"},
		step(row(c, 2)), "a write that failed is none")
	require.Equal(t, []string{"write", "grace", "flush 11.0.0.0/32"},
		step(row(b, 0), row(a, 2), row(c, 2)))
}

// A round is of some thousand entries: who comes later does not wait for all of a great
// change, and comes after those that were there before.
func TestBounded(t *testing.T) {
	l := newTestLoop(t, bpf.Spec{Name: "test", Type: bpf.TypeHash, MaxEntries: 3 * maxRound})
	var rows []*testRow
	for n := range 2*maxRound + 1 {
		rows = append(rows, row(key(32, 10, byte(n>>16), byte(n>>8), byte(n)), 1))
	}
	l.change(rows...)
	_, err := l.round()
	require.NoError(t, err)
	require.Len(t, l.held(), maxRound)
	require.False(t, l.passed)
	l.change(row(key(32, 11), 1))
	for range 2 {
		_, err = l.round()
		require.NoError(t, err)
	}
	require.Len(t, l.held(), 2*maxRound+2)
	require.True(t, l.passed)
	l.rounds()
	l.requireSettled()

	for _, r := range rows {
		r.Value = 0
	}
	l.change(rows...)
	_, err = l.round()
	require.NoError(t, err)
	undesired := 0
	for m := range l.Mirror.All(l.db.ReadTxn()) {
		if !m.Desired {
			undesired++
		}
	}
	require.Equal(t, maxRound+1, undesired, "the mirror says at once what is not desired any more")
}

// An object with many entries does not hold up that of another object, which comes later.
func TestTurns(t *testing.T) {
	l := newTestLoop(t, bpf.Spec{Name: "test", Type: bpf.TypeHash, MaxEntries: 4 * maxRound},
		func(_ *testLoop, cfg *testConfig) {
			cfg.Owner = func(r *testRow) uint32 { return uint32(r.Value) }
		})
	l.complete(1, true)
	l.complete(2, true)
	var rows []*testRow
	for n := range 3 * maxRound {
		rows = append(rows, row(key(32, 10, byte(n>>16), byte(n>>8), byte(n)), 1))
	}
	l.change(rows...)
	_, err := l.round()
	require.NoError(t, err)
	late := row(key(32, 11), 2)
	l.change(late)
	_, err = l.round()
	require.NoError(t, err)
	require.Len(t, l.held(), 2*maxRound)
	require.Contains(t, l.held(), late.Key)
	l.rounds()
	l.requireSettled()
}

// A row's key may have bits behind its prefix; the map's has not.
func TestUnmaskedKey(t *testing.T) {
	l := newTestLoop(t, bpf.Spec{})
	l.change(row(key(8, 10, 9, 9), 1))
	l.rounds()
	require.Equal(t, "1 - true -", l.entry(key(8, 10)))
	require.True(t, l.compare().Clean())
	l.requireSettled()
}
