// SPDX-License-Identifier: Apache-2.0

package bpfmap

import (
	"errors"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

var errInjected = errors.New("injected")

// A change that waits takes the value before away, where that must not stay.
func TestVacate(t *testing.T) {
	open := true
	l := newTestLoop(t, testConfig{gate: func(_ statedb.ReadTxn, op Op[prefixKey, number]) (any, string) {
		if op.Delete() || open {
			return nil, ""
		}
		return bpf.ClassKey{}, "its device"
	}})
	l.Vacate = func(op Op[prefixKey, number]) bool { return *op.Value > 9 }
	l.start()
	a, b, c := key(32, 10), key(32, 11), key(32, 12)
	l.change(row(a, 1), row(b, 2))
	l.round()
	l.requireSettled()

	open = false
	l.memory.Fail("test", bpf.OpDelete, errInjected, 1)
	l.change(row(a, 3), row(b, 11), row(c, 12))
	l.round()
	require.Equal(t, map[prefixKey]number{a: 1, b: 2}, l.held())
	require.Equal(t, "Error injected", l.status(b), "it must not stay")
	l.wait(l.retries.min)
	require.Equal(t, map[prefixKey]number{a: 1}, l.held())
	require.Equal(t, "Pending waiting for its device", l.status(a))
	require.Equal(t, "Pending waiting for its device", l.status(b))
	require.Empty(t, l.entry(b))

	open = true
	wtxn := l.db.WriteTxn(l.readiness)
	l.readiness.Insert(wtxn, &tables.ClassReadiness{})
	wtxn.Commit()
	l.round()
	require.Equal(t, map[prefixKey]number{a: 3, b: 11, c: 12}, l.held())
	l.requireSettled()
}

// What a gate relied on stays until what it let through is in the mirror: who
// changes it sees that there.
func TestHeldTables(t *testing.T) {
	l := newTestLoop(t, testConfig{gate: func(statedb.ReadTxn, Op[prefixKey, number]) (any, string) { return nil, "" }})
	l.Held = []statedb.TableMeta{l.readiness}
	l.start()
	a := key(32, 10)
	seen := make(chan string)
	l.memory.OnWrite(func(bpf.Write, bpf.Reader) {
		begun := make(chan struct{})
		go func() {
			close(begun)
			wtxn := l.db.WriteTxn(l.readiness)
			defer wtxn.Abort()
			seen <- l.entry(a)
		}()
		<-begun
	})
	l.change(row(a, 1))
	l.round()
	require.Equal(t, "1 same", <-seen)
	l.requireSettled()
}

// What is about to change or to go is announced in the mirror before it does, unless
// nobody relies on what that says.
func TestAnnouncement(t *testing.T) {
	for _, independent := range []bool{false, true} {
		l := newTestLoop(t, testConfig{})
		l.Independent = independent
		l.start()
		a, b := key(32, 10), key(32, 11)
		l.change(row(a, 1), row(b, 2))
		l.round()

		var seen []string
		l.memory.OnWrite(func(bpf.Write, bpf.Reader) { seen = append(seen, l.entry(a), l.entry(b)) })
		l.change(row(a, 3), row(b, 0))
		l.round()
		want := []string{"1 other", "2 absent", "1 other", "2 absent"}
		if independent {
			want = []string{"1 same", "2 same", "1 same", "2 same"}
		}
		require.Equal(t, want, seen)
		l.requireSettled()
	}
}
