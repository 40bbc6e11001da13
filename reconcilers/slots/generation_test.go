// SPDX-License-Identifier: Apache-2.0

package slots

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
)

// TestRaise: verdicts of this agent's maps are made anew, and of no other's.
func TestRaise(t *testing.T) {
	inBubble(t, func(w *world) {
		w.startFlipped().stop()
		a := w.start()
		before := a.current()
		a.generation.Raise()
		a.generation.RaiseSoon()
		a.pass(time.Minute)
		require.Equal(t, before, a.current(), "the former agent's maps are active")

		a.leaves(0, "", true)
		close(a.links)
		a.pass(pollInterval)
		a.requireFlipped()
		before = a.current()
		a.generation.Raise()
		require.Equal(t, before+1, a.current())
	})
}

// TestRaiseFails: it is tried again.
func TestRaiseFails(t *testing.T) {
	inBubble(t, func(w *world) {
		a := w.startFlipped()
		before := a.current()
		w.memory.Fail(bpf.StateMap, bpf.OpUpdate, unix.EPERM, -1)
		a.generation.Raise()
		a.pass(time.Minute)
		require.Equal(t, before, a.current())
		require.ErrorIs(t, a.failure("raise"), unix.EPERM)
		w.memory.Fail(bpf.StateMap, bpf.OpUpdate, nil, 0)
		a.pass(time.Minute)
		require.Equal(t, before+1, a.current())
		require.NoError(t, a.failure("raise"))
	})
}

// TestRaiseSoon: many calls are one.
func TestRaiseSoon(t *testing.T) {
	inBubble(t, func(w *world) {
		a := w.startFlipped()
		before := a.current()
		for range 100 {
			a.generation.RaiseSoon()
			a.pass(soon / 200)
		}
		require.Equal(t, before, a.current())
		a.pass(time.Minute)
		require.Equal(t, before+1, a.current())
	})
}
