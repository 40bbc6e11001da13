// SPDX-License-Identifier: Apache-2.0

package ctgc

import (
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/gc"
	"github.com/sluice-net/sluice/bpf/natmap"
)

// An empty node is never looked through, however long it runs.
func TestIdleEmpty(t *testing.T) {
	inBubble(t, DefaultConfig, func(w *world) {
		w.know()
		w.wait(24 * time.Hour)
		require.Empty(t, w.takeRuns())
		require.Empty(t, w.rows())
		require.InDelta(t, 24*60*60/5, w.counted, 2, "it is counted every five seconds")

		// The first connection is not looked for at once.
		w.set(ctmap.CT4TCP, 1)
		w.wait(firstInterval - 10*time.Second)
		require.Empty(t, w.takeRuns())
		w.wait(10 * time.Second)
		require.Equal(t, []string{ReasonInterval}, w.reasons())
	})
}

// Connections that are there cost one pass when the first of them may expire.
func TestIdleConnections(t *testing.T) {
	inBubble(t, DefaultConfig, func(w *world) {
		w.set(ctmap.CT4TCP, 100)
		expiry := clock() + 6*60*60
		w.does(func(gc.Filter) []gc.Pass {
			if clock() > expiry {
				return w.pass(100, 0)
			}
			return w.pass(0, expiry)
		})
		w.know()
		require.Equal(t, []string{ReasonStart}, w.reasons())
		w.wait(6 * time.Hour)
		require.Len(t, w.takeRuns(), 1, "that at the start")
		w.wait(10 * time.Second)
		require.Equal(t, []string{ReasonInterval}, w.reasons())
		w.wait(24 * time.Hour)
		require.Len(t, w.takeRuns(), 1)

		// One that lives on by packets: at most every half an hour.
		w.set(ctmap.CT4TCP, 1)
		w.does(func(gc.Filter) []gc.Pass { return w.pass(0, clock()+60*60) })
		w.wait(time.Hour)
		require.Len(t, w.takeRuns(), 1, "it is new")
		for range 24 {
			w.wait(5 * time.Minute)
			w.packets.Add(1)
		}
		require.Len(t, w.takeRuns(), 4)
		w.does(func(gc.Filter) []gc.Pass { return w.pass(0, clock()+1e6) })
		w.wait(12 * time.Hour)
		require.Len(t, w.takeRuns(), 2, "one for packets since the last, one for those just before it")
	})
}

// What a pass did not come by is looked for by the next.
func TestMissedEntries(t *testing.T) {
	inBubble(t, DefaultConfig, func(w *world) {
		w.set(ctmap.CT4TCP, 100)
		missed := uint64(1)
		w.does(func(gc.Filter) []gc.Pass {
			passes := w.pass(0, clock()+1e6)
			passes[0].Scanned -= missed
			missed = 0
			return passes
		})
		w.know()
		w.wait(24 * time.Hour)
		require.Equal(t, []string{ReasonStart, ReasonInterval}, w.reasons())
	})
}

// What is left over goes soon, what fails is tried again at the interval, and
// what waits for late replies when it has waited.
func TestLeftovers(t *testing.T) {
	for name, tc := range map[string]struct {
		left gc.Pass
		want time.Duration
	}{
		"removals that could not be told": {gc.Pass{Deferred: 1, NextExpiry: 1e6}, 10 * time.Second},
		"translations just used":          {gc.Pass{Kept: 1}, 10 * time.Second},
		// rounded up to a poll
		"failed": {gc.Pass{Failed: 1}, 450*time.Second + 5*time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, DefaultConfig, func(w *world) {
				w.set(natmap.Name4, 10)
				left := &tc.left
				left.Map, left.Scanned = natmap.Name4, 10
				w.does(func(gc.Filter) []gc.Pass {
					defer func() { left = &gc.Pass{Map: natmap.Name4, Scanned: 10} }()
					if left.NextExpiry != 0 {
						left.NextExpiry += clock()
					}
					return []gc.Pass{*left}
				})
				w.know()
				w.wait(24 * time.Hour)
				runs := w.takeRuns()
				require.Len(t, runs, 2)
				require.InDelta(t, tc.want.Seconds(), gaps(runs)[0].Seconds(), 5)
			})
		})
	}
}

// What waits for late replies is looked for when it has waited.
func TestAfterGrace(t *testing.T) {
	s := newSchedule(10*time.Second, time.Hour)
	o := &observation{
		now: time.Now(), packets: func() uint64 { return 0 },
		counts: gc.Counts{Now: 100, Entries: map[string]int{ctmap.CT4Any: 10}},
	}
	s.made(ReasonStart, []gc.Pass{{Map: ctmap.CT4Any, Scanned: 10, Kept: 10, NextExpiry: 99}}, nil, o)
	for second, want := range map[uint32]string{110: "", 159: "", 160: ReasonInterval} {
		o.now, o.counts.Now = s.last.Add(time.Duration(second-100)*time.Second), second
		require.Equal(t, want, s.decide(o), "%d", second)
	}
}

// The interval follows the share that expires.
func TestAdapt(t *testing.T) {
	minutes := func(m float64) time.Duration { return time.Duration(m * float64(time.Minute)) }
	for _, tc := range []struct {
		scanned, removed uint64
		before, want     time.Duration
	}{
		{100, 4, minutes(5), minutes(7.5)},
		{100, 5, minutes(5), minutes(5)},
		{100, 25, minutes(5), minutes(5)},
		{100, 26, minutes(5), 222 * time.Second},
		{100, 50, minutes(5), minutes(2.5)},
		{100, 100, minutes(5), 30 * time.Second}, // never by more than to a tenth
		{100, 90, time.Minute, 10 * time.Second},
		{100, 0, minutes(25), minutes(30)},
		{0, 0, minutes(5), minutes(7.5)},
	} {
		s := newSchedule(0, 30*time.Minute)
		s.interval = tc.before
		s.adapt([]gc.Pass{{Scanned: 1000, Expired: 1}, {Scanned: tc.scanned, Expired: tc.removed / 2, Orphans: tc.removed - tc.removed/2}})
		require.Equal(t, tc.want, s.interval, "%d of %d after %s", tc.removed, tc.scanned, tc.before)
	}
	require.Equal(t, time.Minute, newScheduleInterval(0, time.Minute), "the first one is within the bounds too")
	fixed := newSchedule(7*time.Second, time.Hour)
	fixed.adapt([]gc.Pass{{Scanned: 10, Expired: 10}})
	require.Equal(t, 7*time.Second, fixed.interval)
}

func newScheduleInterval(fixed, longest time.Duration) time.Duration {
	return newSchedule(fixed, longest).interval
}

// The same by the clock: connections are added all the time, and all of them
// expire, then none.
func TestIntervalSequence(t *testing.T) {
	for name, tc := range map[string]struct {
		cfg     Config
		expires int
		want    []time.Duration
	}{
		"none expires": {Config{CTGCMaxInterval: 15 * time.Minute}, 0,
			[]time.Duration{450 * time.Second, 675 * time.Second, 15 * time.Minute, 15 * time.Minute}},
		"half expires": {DefaultConfig, 50, // polled every five seconds
			[]time.Duration{150 * time.Second, 75 * time.Second, 40 * time.Second, 20 * time.Second, 10 * time.Second, 10 * time.Second}},
		"as short as can be": {Config{CTGCInterval: 5 * time.Second, CTGCMaxInterval: time.Hour}, 50,
			[]time.Duration{5 * time.Second, 5 * time.Second, 5 * time.Second}},
		"fixed": {Config{CTGCInterval: 20 * time.Second, CTGCMaxInterval: time.Hour}, 50,
			[]time.Duration{20 * time.Second, 20 * time.Second, 20 * time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, tc.cfg, func(w *world) {
				w.set(ctmap.CT4TCP, 100)
				w.does(func(gc.Filter) []gc.Pass {
					passes := w.pass(tc.expires, clock()+1)
					w.set(ctmap.CT4TCP, 100)
					return passes
				})
				w.know()
				var total time.Duration
				for _, d := range tc.want {
					total += d
				}
				w.wait(total)
				require.Equal(t, tc.want, gaps(w.takeRuns()))
			})
		})
	}
}

// While entries cannot be counted there is no pass. It follows when they can.
func TestCountFails(t *testing.T) {
	inBubble(t, DefaultConfig, func(w *world) {
		w.set(ctmap.CT4TCP, 0.3*size)
		w.does(func(gc.Filter) []gc.Pass { return w.pass(10, clock()+1e6) })
		w.failCounts(errTest)
		w.know()
		w.runner.released.add(netip.MustParseAddr("10.0.0.1"))
		w.wait(time.Minute)
		require.Empty(t, w.reasons())
		level, text := w.health.last()
		require.Equal(t, cell.StatusDegraded, level)
		require.Equal(t, "Connections that have ended may stay: count entries of the global maps: test error", text)

		w.failCounts(nil)
		w.wait(10 * time.Second)
		require.Equal(t, []string{ReasonEndpointsGone}, w.reasons(), "which removes what has expired, too")
		level, _ = w.health.last()
		require.Equal(t, cell.StatusOK, level)

		// A pass after which they cannot be counted is made again.
		w.does(func(gc.Filter) []gc.Pass {
			w.failCounts(errTest)
			return w.pass(10, clock()+1e6)
		})
		w.runner.released.add(netip.MustParseAddr("10.0.0.2"))
		w.wait(time.Minute)
		require.Equal(t, []string{ReasonEndpointsGone}, w.reasons())
		w.failCounts(nil)
		w.does(func(gc.Filter) []gc.Pass { return w.pass(10, clock()+1e6) })
		w.wait(10 * time.Second)
		require.Equal(t, []string{ReasonInterval}, w.reasons())
	})
}

// That it is not known how full the maps are is only that.
func TestShowFails(t *testing.T) {
	inBubble(t, DefaultConfig, func(w *world) {
		w.mu.Lock()
		w.unshown = errTest
		w.mu.Unlock()
		w.know()
		w.wait(time.Hour)
		require.Empty(t, w.takeRuns(), "they are known to be empty")
		_, text := w.health.last()
		require.Contains(t, text, "show how full the global maps are: test error")
	})
}

// A map that fills is looked at early; one that is nearly full twice in ten
// seconds, as long as there are packets.
func TestFilling(t *testing.T) {
	inBubble(t, DefaultConfig, func(w *world) {
		w.set(ctmap.CT4TCP, 300)
		w.does(func(gc.Filter) []gc.Pass { return w.pass(0, clock()+1e6) })
		w.know()
		require.Equal(t, []string{ReasonStart}, w.reasons())
		w.wait(time.Minute)

		w.set(ctmap.CT4TCP, 399) // grown, but not 40 % full
		w.wait(time.Minute)
		require.Empty(t, w.reasons())
		w.set(ctmap.CT4TCP, 400)
		w.wait(5 * time.Second)
		require.Equal(t, []string{ReasonFilling}, w.reasons())
		w.set(ctmap.CT4TCP, 499) // not grown by a tenth
		w.wait(time.Minute)
		require.Empty(t, w.reasons())
		w.set(ctmap.CT4TCP, 500)
		w.wait(5 * time.Second)
		require.Equal(t, []string{ReasonFilling}, w.reasons())
		w.set(ctmap.CT4TCP, 600)
		w.wait(5 * time.Second)
		require.Empty(t, w.reasons(), "not twice within the least interval")
		w.wait(5 * time.Second)
		require.Equal(t, []string{ReasonFilling}, w.reasons())

		w.set(ctmap.CT4TCP, 1000)
		w.takeRuns()
		for range 12 {
			w.packets.Add(1)
			w.wait(5 * time.Second)
		}
		require.Len(t, w.takeRuns(), 12, "it evicts")
		w.wait(time.Minute)
		require.Empty(t, w.takeRuns(), "nothing comes")
	})
}

// Late replies have no room in a map that is filled.
func TestGrace(t *testing.T) {
	for n, want := range map[int]time.Duration{0: ReplyGrace, 750: ReplyGrace, 751: 0} {
		for _, name := range []string{ctmap.CT4Any, ctmap.CT6Any} {
			o := observation{sizes: map[string]uint32{name: 1000}, counts: gc.Counts{Entries: map[string]int{name: n}}}
			require.Equal(t, want, o.grace(), "%s %d", name, n)
		}
	}
	o := observation{sizes: map[string]uint32{ctmap.CT4TCP: 1}, counts: gc.Counts{Entries: map[string]int{ctmap.CT4TCP: 1}}}
	require.Equal(t, ReplyGrace, o.grace(), "they are not TCP")
}
