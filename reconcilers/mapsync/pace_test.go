// SPDX-License-Identifier: Apache-2.0

package mapsync

import (
	"iter"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
)

// All audits together work for one hundredth of the time.
func TestPace(t *testing.T) {
	var p pace
	at := func(ms int) time.Time { return time.Unix(1000, 0).Add(time.Duration(ms) * time.Millisecond) }
	require.Equal(t, at(0), p.next(at(0), 0))
	require.Equal(t, at(99), p.next(at(0), time.Millisecond))
	require.Equal(t, at(297), p.next(at(1), 2*time.Millisecond), "behind the other one")
	require.Equal(t, at(297), p.next(at(200), 0))
	require.Equal(t, at(1099), p.next(at(1000), time.Millisecond), "nothing is saved up")
}

// slowMap takes a millisecond for each piece.
type slowMap struct {
	pieces
	l *testLoop
}

func (s *slowMap) Walk() iter.Seq2[[]bpf.Entry[prefixKey, number], error] {
	return func(yield func([]bpf.Entry[prefixKey, number], error) bool) {
		for piece, err := range s.pieces.Walk() {
			s.l.clock = s.l.clock.Add(time.Millisecond)
			if !yield(piece, err) {
				return
			}
		}
	}
}

// An audit that is due pauses after each piece, and one that is waited for does not.
func TestAuditPauses(t *testing.T) {
	l := newTestLoop(t, bpf.Spec{}, func(l *testLoop, cfg *testConfig) {
		cfg.Map = &slowMap{pieces{Map: cfg.Map, memory: l.memory}, l}
	})
	const rows = 8
	for n := range byte(rows) {
		l.change(row(key(32, 10, n), 1))
	}
	l.rounds()
	l.startAudit()
	for n := range rows {
		began := l.clock
		require.Equal(t, began, l.audit.due, "piece %d", n)
		l.continueAudit()
		require.Equal(t, began.Add(100*time.Millisecond), l.audit.due)
		require.Equal(t, l.audit.due, l.nextTimer())
		l.elapsed(l.clock) // it is not due
		require.Equal(t, began.Add(time.Millisecond), l.clock)
		l.clock = l.audit.due
	}
	for l.audit != nil {
		l.clock = l.audit.due
		l.elapsed(l.clock)
	}
	require.Equal(t, "clean", l.report.lastAudit)

	began := l.clock
	require.True(t, l.compare().Clean())
	require.Equal(t, began.Add(rows*time.Millisecond), l.clock)
}
