// SPDX-License-Identifier: Apache-2.0

package ctgc

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/gc"
)

// Observers get each removal of their family once, as it was.
func TestObservers(t *testing.T) {
	inBubble(t, DefaultConfig, func(w *world) {
		four, six := removal("10.0.0.1"), removal("fd00::1")
		asked := 0
		w.set(ctmap.CT4TCP, 10)
		w.does(func(f gc.Filter) []gc.Pass {
			if f.Removed != nil {
				asked++
				f.Removed(four)
				f.Removed(six)
				four.CT.Packets++ // what was told stays as it was
			}
			return w.pass(2, 0)
		})
		w.know()
		require.Zero(t, asked, "to tell takes time: there are no observers")

		ctx, leave := context.WithCancel(w.t.Context())
		var got4, got6, other4, own []gc.Entry
		var completed atomic.Int32
		complete := func(err error) { require.NoError(t, err); completed.Add(1) }
		collect := func(to *[]gc.Entry) func(gc.Entry) { return func(e gc.Entry) { *to = append(*to, e) } }
		w.runner.Observe4().Observe(ctx, collect(&got4), complete)
		w.runner.Observe6().Observe(w.t.Context(), collect(&got6), complete)
		w.runner.Observe4().Observe(w.t.Context(), collect(&other4), complete)
		_, err := w.runner.Run(w.t.Context(), gc.Filter{Removed: collect(&own)}, "")
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, []gc.Entry{removal("10.0.0.1")}, got4)
		require.Equal(t, got4, other4)
		require.Equal(t, []gc.Entry{six}, got6)
		require.Len(t, own, 2, "who asks is told too")

		_, err = w.runner.Flush(w.t.Context(), func(gc.Entry) bool { return true }, "flush")
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, removal("10.0.0.9"), got4[1])

		leave()
		synctest.Wait()
		require.EqualValues(t, 1, completed.Load())
		_, err = w.runner.Run(w.t.Context(), gc.Filter{}, "")
		require.NoError(t, err)
		synctest.Wait()
		require.Len(t, got4, 2)
		require.Len(t, other4, 3)
		w.stop()
		synctest.Wait()
		require.EqualValues(t, 3, completed.Load(), "the agent ends")
	})
}

// A pass never waits for an observer; what that misses is counted.
func TestObserverOverflow(t *testing.T) {
	inBubble(t, DefaultConfig, func(w *world) {
		w.does(func(f gc.Filter) []gc.Pass {
			for range queueSize + 11 {
				f.Removed(removal("10.0.0.1"))
			}
			return w.pass(0, 0)
		})
		got, proceed := 0, make(chan struct{})
		w.runner.Observe4().Observe(w.t.Context(), func(gc.Entry) { <-proceed; got++ }, func(error) {})
		w.runner.observers.tell(removal("10.0.0.1")) // taken, so that the queue is empty
		synctest.Wait()
		_, err := w.runner.Run(w.t.Context(), gc.Filter{}, "")
		require.NoError(t, err)
		rows := w.rows()
		require.EqualValues(t, 11, rows[0].Lost)
		require.EqualValues(t, 11, w.metric("sluice_ctgc_observer_lost_total"))
		close(proceed)
		synctest.Wait()
		require.Equal(t, 1+queueSize, got)
	})
}

// A pass through more than one set tells of each removal once too.
func TestObserversOfSets(t *testing.T) {
	inBubble(t, DefaultConfig, func(w *world) {
		w.does(func(f gc.Filter) []gc.Pass {
			f.Removed(removal("10.0.0.1"))
			return nil
		})
		got, own := 0, 0
		w.runner.Observe4().Observe(w.t.Context(), func(gc.Entry) { got++ }, func(error) {})
		do := collect(gc.Filter{Removed: func(gc.Entry) { own++ }})
		for range 3 {
			_, err := do(w.t.Context(), w.fakeCollector, &w.runner.observers)
			require.NoError(t, err)
		}
		synctest.Wait()
		require.Equal(t, []int{3, 3}, []int{got, own})
	})
}

func TestFake(t *testing.T) {
	f := NewFake()
	f.Enable()
	require.True(t, f.Enabled())
	f.Answer([]gc.Pass{{Map: "m"}}, errTest)
	passes, err := f.Run(t.Context(), gc.Filter{All: true}, "why")
	require.Equal(t, errTest, err)
	require.Equal(t, []gc.Pass{{Map: "m"}}, passes)
	require.Equal(t, []FakeRun{{Filter: gc.Filter{All: true}, Reason: "why"}}, f.Runs())

	ctx, cancel := context.WithCancel(t.Context())
	got, done := make(chan gc.Entry), make(chan error)
	f.Observe6().Observe(ctx, func(e gc.Entry) { got <- e }, func(err error) { done <- err })
	f.Remove(removal("10.0.0.1"))
	f.Remove(removal("fd00::1"))
	require.Equal(t, removal("fd00::1"), <-got)
	cancel()
	require.NoError(t, <-done)
}
