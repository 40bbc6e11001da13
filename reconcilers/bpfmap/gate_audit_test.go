// SPDX-License-Identifier: Apache-2.0

package bpfmap

import (
	"testing"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// Rows wait for the class they name, and one class wakes only its own.
func TestGate(t *testing.T) {
	classOf := func(v number) bpf.ClassKey { return bpf.ClassKey{Role: bpf.RoleEgress, Number: uint32(v)} }
	asked := 0
	var l *testLoop
	l = newTestLoop(t, testConfig{gate: func(txn statedb.ReadTxn, op Op[prefixKey, number]) (any, string) {
		asked++
		if op.Delete() {
			return bpf.ClassKey{}, ""
		}
		class := classOf(*op.Value)
		if r, _, found := l.readiness.Get(txn, tables.ClassReadinessByKey(class)); !found || !r.Registered {
			return class, "class " + class.String()
		}
		return class, ""
	}})
	l.start()
	ready := func(n number, ready bool) {
		wtxn := l.db.WriteTxn(l.readiness)
		l.readiness.Insert(wtxn, &tables.ClassReadiness{ClassKey: classOf(n), Wanted: true, Registered: ready})
		wtxn.Commit()
		l.round()
	}
	a, b, c := key(32, 10), key(32, 11), key(32, 12)
	ready(9, true)
	l.change(row(c, 9))
	l.round()
	l.change(row(a, 1), row(b, 2), row(c, 2))
	l.round()
	require.Equal(t, "Pending waiting for class egress/1", l.status(a))
	require.Equal(t, "Pending waiting for class egress/2", l.status(b))
	require.Equal(t, "9 other", l.entry(c))
	require.Equal(t, 3, l.items.counts[stateWaiting])
	l.wait(reportDelay)
	require.Equal(t, cell.StatusOK, l.health.Level)

	asked = 0
	ready(2, true)
	require.Equal(t, 2, asked)
	require.Equal(t, map[prefixKey]number{b: 2, c: 2}, l.held())
	ready(1, false)
	require.Equal(t, "Pending waiting for class egress/1", l.status(a))
	ready(1, true)
	l.requireSettled()
}

// What opens gates wakes nobody while nothing waits for it, though it is heard of in a
// while.
func TestOpenerUnheard(t *testing.T) {
	var l *testLoop
	l = newTestLoop(t, testConfig{gate: func(txn statedb.ReadTxn, _ Op[prefixKey, number]) (any, string) {
		if _, _, found := l.readiness.Get(txn, tables.ClassReadinessByKey(bpf.ClassKey{})); !found {
			return bpf.ClassKey{}, "the class"
		}
		return bpf.ClassKey{}, ""
	}})
	l.start()
	opens := func() <-chan struct{} {
		l.round()
		_, opens, err := l.step(l.now)
		require.NoError(t, err)
		return opens
	}
	require.Nil(t, opens())
	require.LessOrEqual(t, time.Until(l.nextTimer()), unheard)
	l.change(row(key(32, 10), 1))
	waits := opens()
	require.NotNil(t, waits)
	wtxn := l.db.WriteTxn(l.readiness)
	l.readiness.Insert(wtxn, &tables.ClassReadiness{})
	wtxn.Commit()
	<-waits
	require.Nil(t, opens())
	l.requireSettled()
}

// A gate that opens with nothing told of it is found open soon, and seldom looked at
// while it stays closed.
func TestGateOpensUntold(t *testing.T) {
	asked, open := 0, false
	l := newTestLoop(t, testConfig{gate: func(_ statedb.ReadTxn, op Op[prefixKey, number]) (any, string) {
		asked++
		if open {
			return nil, ""
		}
		return bpf.ClassKey{}, "what nobody tells of"
	}})
	l.start()
	a := key(32, 10)
	l.change(row(a, 1))
	l.round()
	revisions := func() [2]statedb.Revision {
		txn := l.db.ReadTxn()
		return [2]statedb.Revision{l.rows.Revision(txn), l.Entries.Revision(txn)}
	}
	before := revisions()
	l.wait(time.Minute)
	require.Equal(t, "Pending waiting for what nobody tells of", l.status(a))
	require.Equal(t, 12, asked, "at once, after 20 ms, 60 ms, ... 41 s")
	require.Equal(t, before, revisions(), "to look says nothing new")

	wtxn := l.db.WriteTxn(l.readiness)
	l.readiness.Insert(wtxn, &tables.ClassReadiness{Wanted: true})
	wtxn.Commit()
	l.round()
	require.Equal(t, 13, asked)
	open = true
	l.wait(l.retries.min)
	require.Equal(t, map[prefixKey]number{a: 1}, l.held())
	l.requireSettled()

	open = false
	l.change(row(a, 2))
	l.round()
	before = revisions()
	l.wait(time.Minute)
	require.Equal(t, before, revisions(), "nor of a value that is to be replaced")
	l.change(row(a, 0))
	l.round()
	before = revisions()
	l.wait(time.Minute)
	require.Equal(t, before, revisions(), "nor of one that is to go")
	open = true
	l.wait(time.Minute)
	require.Empty(t, l.held())
	l.requireSettled()
}

// Changes of what is tied to an entry that waits have this looked at too, which
// puts off none of its own looks by more than the time that it has waited.
func TestGateOfTiedOpensUntold(t *testing.T) {
	open := false
	l := newTestLoop(t, testConfig{gate: func(_ statedb.ReadTxn, op Op[prefixKey, number]) (any, string) {
		if op.Key.PrefixLen == 32 && !open {
			return bpf.ClassKey{}, "what nobody tells of"
		}
		return nil, ""
	}})
	l.start()
	a, around := key(32, 10), key(8, 10)
	l.change(row(a, 1))
	l.round()
	for n := range 50 {
		l.change(row(around, number(n%2+1)))
		l.round()
	}
	require.Equal(t, 1, l.items.counts[stateWaiting])
	open = true
	l.wait(2 * l.retries.min)
	require.Equal(t, number(1), l.held()[a])
	l.requireSettled()
}

// Whatever else writes to the map is found and undone.
func TestAudit(t *testing.T) {
	l := newTestLoop(t, testConfig{})
	l.start()
	a, b, c, foreign := key(32, 10), key(32, 11), key(32, 12), key(24, 99)
	l.change(row(a, 1), row(b, 2), row(c, 3))
	l.round()
	result, err := l.audit(l.now)
	require.NoError(t, err)
	require.True(t, result.Clean())
	require.Equal(t, "clean", l.report.lastAudit)

	_, err = l.target.Delete([]prefixKey{a})
	require.NoError(t, err)
	_, err = l.target.Update([]prefixKey{b, foreign}, []number{9, 9})
	require.NoError(t, err)
	l.memory.Fail("test", bpf.OpDelete, unix.EPERM, 1)
	result, err = l.audit(l.now)
	require.NoError(t, err)
	require.Equal(t, "repaired 1 missing, 1 changed, 1 foreign, 1 left", result.String())
	require.Contains(t, l.logged.String(), "Map differs from what was written to it")
	require.Equal(t, "9 absent operation not permitted", l.entry(foreign))
	l.wait(time.Second)
	l.requireSettled()
	require.Contains(t, l.health.Status, "the last audit repaired 1 missing")

	result, err = l.audit(l.now)
	require.NoError(t, err)
	require.True(t, result.Clean())
	l.wait(time.Second)
	require.Equal(t, "3 entries", l.health.Status)
}

// An audit while rows are failing and waiting leaves them to their retries.
func TestAuditOfDirty(t *testing.T) {
	l := newTestLoop(t, testConfig{})
	l.start()
	a, b := key(32, 10), key(32, 11)
	l.memory.Fail("test", bpf.OpUpdate, unix.EPERM, -1)
	l.change(row(a, 1), row(b, 2))
	l.round()
	l.memory.Fail("test", bpf.OpAny, nil, 0)
	// Somebody else has put just what is desired, and something else.
	_, err := l.target.Update([]prefixKey{a, b}, []number{1, 7})
	require.NoError(t, err)
	result, err := l.audit(l.now)
	require.NoError(t, err)
	require.Equal(t, "repaired 0 missing, 0 changed, 2 foreign", result.String())
	l.requireSettled()
}

// A removal waits for its gate too, and the mirror says for what.
func TestGateOfRemoval(t *testing.T) {
	open := false
	class := bpf.ClassKey{Role: bpf.RoleEgress, Number: 4}
	l := newTestLoop(t, testConfig{gate: func(_ statedb.ReadTxn, op Op[prefixKey, number]) (any, string) {
		if op.Delete() && !open {
			return class, "the users of class " + class.String()
		}
		return bpf.ClassKey{}, ""
	}})
	l.start()
	a := key(32, 10)
	l.change(row(a, 1))
	l.round()
	l.change(row(a, 0))
	l.round()
	require.Equal(t, "1 absent waiting for the users of class egress/4", l.entry(a))
	open = true
	wtxn := l.db.WriteTxn(l.readiness)
	l.readiness.Insert(wtxn, &tables.ClassReadiness{ClassKey: class})
	wtxn.Commit()
	l.round()
	l.requireSettled()
}

// brokenMap is a map that cannot be read for a while.
type brokenMap struct {
	bpf.Map[prefixKey, number]
	broken int
}

func (m *brokenMap) Dump() ([]bpf.Entry[prefixKey, number], error) {
	if m.broken > 0 {
		m.broken--
		return nil, unix.EIO
	}
	return m.Map.Dump()
}

// A map that cannot be read is not written to either.
func TestUnreadable(t *testing.T) {
	inner, err := bpf.Open[prefixKey, number](bpf.NewMemory(), bpf.Spec{Name: "test", Type: bpf.TypeLPM, MaxEntries: 10})
	require.NoError(t, err)
	broken := &brokenMap{inner, 2}
	l := newTestLoop(t, testConfig{target: broken})
	a := key(32, 10)
	l.change(row(a, 1))
	require.ErrorIs(t, l.loadOnce(), unix.EIO)
	initialized, _ := l.Entries.Initialized(l.db.ReadTxn())
	require.False(t, initialized)
	require.True(t, l.load(t.Context()))
	require.Zero(t, broken.broken)
	require.Equal(t, cell.StatusOK, l.health.Level)
	l.round()
	l.requireSettled()

	broken.broken = 1
	_, err = l.audit(l.now)
	require.ErrorIs(t, err, unix.EIO)
	l.wait(time.Second)
	require.Equal(t, cell.StatusDegraded, l.health.Level)
	require.Contains(t, l.health.Status, "cannot be read back")
	_, err = l.audit(l.now)
	require.NoError(t, err)
	l.wait(time.Second)
	require.Equal(t, cell.StatusOK, l.health.Level)
}
