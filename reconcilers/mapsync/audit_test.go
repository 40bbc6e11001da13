// SPDX-License-Identifier: Apache-2.0

package mapsync

import (
	"iter"
	"testing"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
)

// Whatever else writes to the map is found and undone.
func TestAudit(t *testing.T) {
	l := newTestLoop(t, bpf.Spec{}, func(_ *testLoop, cfg *testConfig) { cfg.DeleteAfter = time.Hour })
	a, b, c, foreign := key(32, 10), key(32, 11), key(32, 12), key(24, 99)
	l.change(row(a, 1), row(b, 2), row(c, 3))
	l.rounds()
	require.True(t, l.compare().Clean())
	require.Equal(t, "clean", l.report.lastAudit)

	_, err := l.Map.Delete([]prefixKey{a})
	require.NoError(t, err)
	_, err = l.Map.Update([]prefixKey{b, foreign}, []number{9, 9})
	require.NoError(t, err)
	l.memory.Fail("test", bpf.OpDelete, unix.EPERM, 1)
	require.Equal(t, "repaired 1 missing, 1 changed, 1 foreign, 1 left", l.compare().String())
	require.Equal(t, "9 - - operation not permitted", l.entry(foreign))
	l.wait(time.Second)
	l.requireSettled()
	require.Contains(t, l.health.Status, "the last audit repaired 1 missing")

	require.True(t, l.compare().Clean())
	l.wait(time.Second)
	require.Equal(t, "3 entries", l.health.Status)
}

// What is damaged is repaired by way of its gate, and says so until then.
func TestAuditGated(t *testing.T) {
	l := newTestLoop(t, bpf.Spec{}, gated)
	a := key(32, 10)
	l.complete(1, true)
	l.change(row(a, 1))
	l.rounds()
	l.complete(1, false)
	_, err := l.Map.Update([]prefixKey{a}, []number{7})
	require.NoError(t, err)
	require.Equal(t, "repaired 0 missing, 1 changed, 0 foreign, 1 left", l.compare().String())
	require.Equal(t, "Pending", l.status(a))
	l.wait(patience)
	require.Equal(t, "Pending waiting for object 1: it is not in objects", l.status(a))
	require.Equal(t, "7 - true -", l.entry(a))
	l.complete(1, true)
	l.rounds()
	l.requireSettled()
}

// An audit while rows are failing has them tried.
func TestAuditOfDirty(t *testing.T) {
	l := newTestLoop(t, bpf.Spec{})
	a, b := key(32, 10), key(32, 11)
	l.memory.Fail("test", bpf.OpUpdate, unix.EPERM, -1)
	l.change(row(a, 1), row(b, 2))
	l.rounds()
	l.memory.Fail("test", bpf.OpAny, nil, 0)
	// Something else has put just what is desired, and something else.
	_, err := l.Map.Update([]prefixKey{a, b}, []number{1, 7})
	require.NoError(t, err)
	require.Equal(t, "repaired 0 missing, 0 changed, 2 foreign", l.compare().String())
	l.requireSettled()
}

// pieces is a map of which each piece is one entry.
type pieces struct {
	bpf.Map[prefixKey, number]
	memory *bpf.Memory
	broken bool
}

func (p *pieces) Walk() iter.Seq2[[]bpf.Entry[prefixKey, number], error] {
	return func(yield func([]bpf.Entry[prefixKey, number], error) bool) {
		if p.broken {
			yield(nil, unix.EIO)
			return
		}
		entries, _ := p.Map.Dump()
		for _, e := range entries {
			p.memory.Read(func(r bpf.Reader) {
				value, found := bpf.Get[prefixKey, number](r, "test", e.Key)
				entries = []bpf.Entry[prefixKey, number]{{Key: e.Key, Value: value}}
				if !found {
					entries = nil
				}
			})
			if !yield(entries, nil) {
				return
			}
		}
	}
}

// Rounds go on between the pieces of an audit, and what they write is no difference. One
// that is asked for meanwhile is of the whole map, and what the first one has found is not
// lost.
func TestAuditInPieces(t *testing.T) {
	l := newTestLoop(t, bpf.Spec{}, func(l *testLoop, cfg *testConfig) {
		cfg.Map = &pieces{Map: cfg.Map, memory: l.memory}
	})
	for n := range byte(8) {
		l.change(row(key(32, 10, n), 1))
	}
	l.rounds()
	_, err := l.Map.Update([]prefixKey{key(8, 99)}, []number{1})
	require.NoError(t, err)
	first, second := make(chan auditReply, 1), make(chan auditReply, 1)
	l.startAudit(first)
	for n := range byte(8) {
		l.change(row(key(32, 10, n), 0), row(key(32, 20, n), 1))
		_, err := l.round()
		require.NoError(t, err)
		l.elapsed(l.clock)
		require.NotNil(t, l.audit)
	}
	l.startAudit(second)
	l.rounds()
	for _, reply := range []chan auditReply{first, second} {
		require.Equal(t, "repaired 0 missing, 0 changed, 1 foreign", (<-reply).result.String())
	}
	l.requireSettled()
}

// A map that cannot be read back is written all the same.
func TestUnreadable(t *testing.T) {
	var broken *pieces
	l := newTestLoop(t, bpf.Spec{}, func(l *testLoop, cfg *testConfig) {
		broken = &pieces{Map: cfg.Map, memory: l.memory, broken: true}
		cfg.Map = broken
	})
	l.change(row(key(32, 10), 1))
	require.True(t, l.compare().Clean())
	require.ErrorIs(t, l.report.auditErr, unix.EIO)
	l.requireSettled()
	l.wait(time.Second)
	require.Equal(t, cell.StatusDegraded, l.health.Level)
	require.Contains(t, l.health.Status, "cannot be read back")
	broken.broken = false
	l.compare()
	l.wait(time.Second)
	require.Equal(t, cell.StatusOK, l.health.Level)
}
