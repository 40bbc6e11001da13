// SPDX-License-Identifier: Apache-2.0

package mapsync

import (
	"testing"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
)

// Rows wait for the object that they refer to, and it is asked about once for all of them.
func TestGate(t *testing.T) {
	l := newTestLoop(t, bpf.Spec{}, gated)
	a, b, c := key(32, 10), key(32, 11), key(32, 12)
	l.complete(9, true)
	l.change(row(c, 9))
	l.rounds()
	l.change(row(a, 1), row(b, 2), row(c, 2))
	before := l.rows.Revision(l.db.ReadTxn())
	l.rounds()
	l.wait(patience - time.Millisecond)
	require.Equal(t, before, l.rows.Revision(l.db.ReadTxn()), "most rows wait for a moment")
	l.wait(time.Millisecond)
	require.Equal(t, "Pending waiting for object 1: it is not in objects", l.status(a))
	require.Equal(t, "Pending waiting for object 2: it is not in objects", l.status(b))
	require.Equal(t, "9 - true -", l.entry(c))
	require.Equal(t, 3, l.queue.counts[stateWaiting])
	l.wait(reportDelay)
	require.Equal(t, cell.StatusOK, l.health.Level)
	require.Equal(t, "1 entries, 3 waiting for other maps", l.health.Status)

	l.complete(2, true)
	l.asked = 0
	_, err := l.round()
	require.NoError(t, err)
	require.Equal(t, 3, l.asked, "1 and 2, and 2 again in the second look")
	require.Equal(t, map[prefixKey]number{b: 2, c: 2}, l.held())
	l.complete(1, true)
	l.rounds()
	l.requireSettled()
}

// While nothing waits, changes of what gates read wake nothing.
func TestNotWaiting(t *testing.T) {
	l := newTestLoop(t, bpf.Spec{}, gated)
	wakes := func() bool {
		l.rounds()
		watches, err := l.round()
		require.NoError(t, err)
		l.complete(5, true)
		l.complete(5, false)
		for _, watch := range watches {
			select {
			case <-watch:
				return true
			default:
			}
		}
		return false
	}
	require.False(t, wakes())
	l.change(row(key(32, 10), 1))
	require.True(t, wakes())
	l.complete(1, true)
	require.False(t, wakes())
	l.requireSettled()
}

// A row that changes stops waiting for what it referred to before.
func TestWaitsForOther(t *testing.T) {
	l := newTestLoop(t, bpf.Spec{}, gated)
	a := key(32, 10)
	l.complete(2, true)
	for _, value := range []number{1, 3, 2} {
		l.change(row(a, value))
		l.rounds()
	}
	l.requireSettled()
	l.change(row(a, 1))
	l.rounds()
	l.change(row(a, 0))
	l.rounds()
	l.requireSettled()
	require.Empty(t, l.held())
}

// A deletion waits too, and the mirror says for what.
func TestReleases(t *testing.T) {
	l := newTestLoop(t, bpf.Spec{}, func(l *testLoop, cfg *testConfig) {
		cfg.Releases = func(prefixKey) []Reference { return []Reference{l.needs.On(4)} }
	})
	a := key(32, 10)
	l.change(row(a, 1))
	l.rounds()
	l.change(row(a, 0))
	l.rounds()
	l.wait(patience)
	require.Equal(t, "1 - - waiting for object 4: it is not in objects", l.entry(a))
	l.complete(4, true)
	l.rounds()
	l.requireSettled()
}

// What must not stay while the row waits is removed, as soon as the map does not refuse it.
func TestVacate(t *testing.T) {
	l := newTestLoop(t, bpf.Spec{}, gated, func(_ *testLoop, cfg *testConfig) {
		cfg.DeleteWhileBlocked = func(_ *testRow, kernel number) bool { return kernel > 9 }
	})
	a, b := key(32, 10), key(32, 11)
	l.complete(1, true)
	l.complete(10, true)
	l.change(row(a, 1), row(b, 10))
	l.rounds()
	l.memory.Fail("test", bpf.OpDelete, unix.EPERM, 1)
	l.change(row(a, 2), row(b, 2))
	l.rounds()
	require.Equal(t, map[prefixKey]number{a: 1, b: 10}, l.held())
	require.Equal(t, "Error operation not permitted", l.status(b))
	l.wait(time.Minute)
	l.rounds()
	require.Equal(t, map[prefixKey]number{a: 1}, l.held())
	l.wait(patience)
	require.Equal(t, "Pending waiting for object 2: it is not in objects", l.status(b))
	l.complete(2, true)
	l.rounds()
	require.Equal(t, map[prefixKey]number{a: 2, b: 2}, l.held())
	l.requireSettled()
}

// Conditions of a dependency have to be met together.
func TestConditions(t *testing.T) {
	l := newTestLoop(t, bpf.Spec{}, gated)
	rows := l.rows.ToTable()
	query := func(n uint32) statedb.Query[*testRow] { return testRowIndex.Query(key(32, byte(n))) }
	l.needs.conditions = append(l.needs.conditions, IsDone(rows, query))
	l.change(row(key(32, 10), 11), row(key(32, 11), 12))
	l.complete(11, true)
	l.rounds()
	l.wait(patience)
	require.Equal(t, "Pending waiting for object 11: rows", l.status(key(32, 10)))
	require.Equal(t, "Pending waiting for object 12: it is not in objects", l.status(key(32, 11)))
	l.wait(time.Minute)
	require.Empty(t, l.held())
	l.needs.conditions = l.needs.conditions[:1]
	l.complete(12, true)
	l.rounds()
	l.requireSettled()
}
