// SPDX-License-Identifier: Apache-2.0

package ctgc

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/gc"
	"github.com/sluice-net/sluice/tables"
)

// Nothing is removed unasked before endpoints and nodes are known; requests are
// served.
func TestEnable(t *testing.T) {
	inBubble(t, DefaultConfig, func(w *world) {
		w.set(ctmap.CT4TCP, size/2)
		w.runner.exhausted(ReasonPortsExhausted)
		w.wait(time.Hour)
		require.Empty(t, w.takeRuns())
		level, text := w.health.last()
		require.Equal(t, cell.StatusOK, level)
		require.Equal(t, "Waiting for the endpoints to be known", text)

		passes, err := w.runner.Run(w.t.Context(), gc.Filter{All: true}, "")
		require.NoError(t, err)
		require.Len(t, passes, 2)
		require.Equal(t, []string{ReasonRequest}, w.reasons())
		require.Len(t, w.takeRuns(), 1)

		wtxn := w.db.WriteTxn(w.endpoints)
		w.ready[0](wtxn)
		wtxn.Commit()
		w.wait(time.Hour)
		require.Empty(t, w.takeRuns(), "nodes are not known")
		w.know()
		w.runner.Enable() // again
		require.Equal(t, []string{ReasonPortsExhausted}, w.reasons(), "what was asked for before")
		_, text = w.health.last()
		require.Equal(t, "global maps: at least 5m0s between passes", text)
	})
}

// Without maps in the kernel there is nothing to do.
func TestMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRunner()
		r.loaded = func() bool { return false }
		r.reporter = &reporter{}
		ctx, stop := context.WithCancel(t.Context())
		health := &fakeHealth{}
		go r.run(ctx, health)
		r.Enable()
		r.released.add(netip.MustParseAddr("10.0.0.1"))
		r.exhausted(ReasonPortsExhausted)
		time.Sleep(time.Hour)
		_, err := r.Run(t.Context(), gc.Filter{}, "")
		require.ErrorIs(t, err, ErrNoMaps)
		_, err = r.Flush(t.Context(), func(gc.Entry) bool { return true }, "")
		require.ErrorIs(t, err, ErrNoMaps)
		_, text := health.last()
		require.Equal(t, "No programs are loaded: there are no connections", text)
		stop()
		synctest.Wait()
		_, err = r.Run(t.Context(), gc.Filter{}, "")
		require.ErrorIs(t, err, ErrStopped)
	})
}

// Requests wait for the pass that runs, and for one another.
func TestRequests(t *testing.T) {
	inBubble(t, DefaultConfig, func(w *world) {
		running := 0
		w.does(func(f gc.Filter) []gc.Pass {
			running++
			require.Equal(t, 1, running)
			time.Sleep(time.Second)
			running--
			return w.pass(0, clock()+1e6)
		})
		w.set(ctmap.CT4TCP, 10)
		w.know() // which begins a pass
		answers := make(chan int, 3)
		for n := range 3 {
			go func() {
				survivor := func(gc.Entry) {}
				passes, err := w.runner.Run(w.t.Context(), gc.Filter{Expired: true, Survivor: survivor}, fmt.Sprint("request ", n))
				require.NoError(t, err)
				answers <- len(passes)
			}()
		}
		ctx, cancel := context.WithTimeout(w.t.Context(), 500*time.Millisecond)
		defer cancel()
		_, err := w.runner.Run(ctx, gc.Filter{}, "impatient")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		w.wait(4 * time.Second)
		require.Equal(t, []int{2, 2, 2}, []int{<-answers, <-answers, <-answers})
		runs := w.takeRuns()
		require.Len(t, runs, 4)
		require.Equal(t, []time.Duration{time.Second, time.Second, time.Second}, gaps(runs))
		require.NotNil(t, runs[1].filter.Survivor)
		require.Contains(t, w.reasons(), "request 1")

		// Who gives up ends the pass, and that is no failure.
		ctx, cancel = context.WithTimeout(w.t.Context(), 100*time.Millisecond)
		defer cancel()
		passes, err := w.runner.Run(ctx, gc.Filter{Expired: true, Orphans: true}, "")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Len(t, passes, 2)
		level, _ := w.health.last()
		require.Equal(t, cell.StatusOK, level)
	})
}

// A flood of packets without a port is one pass, and another when it goes on.
func TestPortsExhausted(t *testing.T) {
	inBubble(t, DefaultConfig, func(w *world) {
		w.does(func(gc.Filter) []gc.Pass { return w.pass(0, clock()+1e6) })
		w.know()
		w.runner.exhausted(ReasonPortsExhausted)
		w.wait(time.Minute)
		require.Empty(t, w.takeRuns(), "there is nothing")
		w.set(ctmap.CT4TCP, 10)
		for range 1000 {
			w.runner.exhausted(ReasonPortsExhausted)
			time.Sleep(time.Millisecond)
		}
		synctest.Wait()
		require.Equal(t, []string{ReasonPortsExhausted}, w.reasons())
		w.wait(time.Minute)
		runs := w.takeRuns()
		require.Equal(t, []time.Duration{10 * time.Second}, gaps(runs))
		require.Zero(t, runs[0].filter.ReplyGrace, "what waits for late replies has ports")
		require.True(t, runs[0].filter.Expired && runs[0].filter.Orphans)
		require.Equal(t, []string{ReasonPortsExhausted}, w.reasons())
	})
}

// Endpoints go without waiting, and all of their addresses in one pass.
func TestReleased(t *testing.T) {
	inBubble(t, DefaultConfig, func(w *world) {
		w.set(ctmap.CT4TCP, 10)
		w.does(func(gc.Filter) []gc.Pass {
			time.Sleep(2 * time.Second)
			return w.pass(0, clock()+1e6)
		})
		for n := range 500 {
			w.pod(n, fmt.Sprintf("10.0.%d.%d", n/250, n%250), fmt.Sprintf("fd00::%x", n+1))
		}
		w.pod(1000, "10.1.0.1", "10.1.0.2")
		w.know()
		w.wait(2 * time.Second) // the pass at the start
		w.reasons()
		w.takeRuns()

		began := time.Now()
		for n := range 500 {
			w.pod(n)
		}
		w.pod(7777, "10.0.0.7") // a pod has the address of one of them
		w.pod(1000, "10.1.0.2") // one has lost one
		w.wait(time.Second)     // the pass has begun
		w.pod(1001, "10.1.0.9")
		w.pod(1001)
		require.Equal(t, time.Second, time.Since(began), "nothing waits for a pass")
		w.wait(time.Minute)

		runs := w.takeRuns()
		require.Equal(t, 2, len(runs))
		require.Equal(t, 300*time.Millisecond, runs[0].at.Sub(began))
		addrs := runs[0].filter.Addrs
		require.Equal(t, 2*500-1+1, len(addrs))
		has := func(addr string) bool { return slices.Contains(addrs, netip.MustParseAddr(addr)) }
		require.Equal(t, []bool{false, true, true}, []bool{has("10.0.0.7"), has("10.1.0.1"), has("fd00::1")})
		require.True(t, runs[0].filter.Expired && runs[0].filter.Orphans, "the rest goes along")
		require.Equal(t, []netip.Addr{netip.MustParseAddr("10.1.0.9")}, runs[1].filter.Addrs)
		require.Equal(t, 2*time.Second+18*time.Second, gaps(runs)[0], "they take a tenth of the time at most")
		require.Equal(t, []string{ReasonEndpointsGone, ReasonEndpointsGone}, w.reasons())

		// Nothing to go through, or nothing that has gone.
		w.set(ctmap.CT4TCP, 0)
		w.pod(1000)
		w.wait(time.Minute)
		w.set(ctmap.CT4TCP, 10)
		w.pod(7777, "10.0.0.7", "10.0.0.8")
		w.wait(time.Minute)
		require.Empty(t, w.takeRuns())
	})
}

// Pods that go one after the other do not put off the first of them.
func TestReleasedTrickle(t *testing.T) {
	inBubble(t, DefaultConfig, func(w *world) {
		w.set(ctmap.CT4TCP, 10)
		w.know()
		w.takeRuns()
		began, addr := time.Now(), netip.MustParseAddr("10.0.0.0")
		for range 100 {
			addr = addr.Next()
			w.runner.released.add(addr)
			w.wait(50 * time.Millisecond)
		}
		runs := w.takeRuns()
		require.Equal(t, 300*time.Millisecond, runs[0].at.Sub(began))
		require.LessOrEqual(t, len(runs), 5000/300)
	})
}

func TestReleasedMany(t *testing.T) {
	inBubble(t, DefaultConfig, func(w *world) {
		w.set(ctmap.CT4TCP, 10)
		w.know()
		w.takeRuns()
		addr := netip.MustParseAddr("10.0.0.0")
		for range maxReleased + 5 {
			addr = addr.Next()
			w.runner.released.add(addr)
		}
		w.wait(time.Second)
		runs := w.takeRuns()
		require.Equal(t, 2, len(runs))
		require.Equal(t, maxReleased, len(runs[0].filter.Addrs))
		require.Len(t, runs[1].filter.Addrs, 5)
	})
}

// A pass that fails is seen, and is made again; addresses are not forgotten.
func TestFailures(t *testing.T) {
	inBubble(t, DefaultConfig, func(w *world) {
		w.set(ctmap.CT4TCP, 10)
		w.fail(errTest)
		w.know()
		level, text := w.health.last()
		require.Equal(t, cell.StatusDegraded, level)
		require.Equal(t, "Connections that have ended may stay: last pass through the global maps: test error", text)
		w.wait(10 * time.Second)
		require.Len(t, w.takeRuns(), 2, "it is made again")
		w.runner.released.add(netip.MustParseAddr("10.0.0.1"))
		w.wait(29 * time.Second)
		rows := w.rows()
		require.Equal(t, "test error", rows[0].Error)
		require.Empty(t, rows[0].Map)
		require.Equal(t, []string{ReasonStart, ReasonInterval, ReasonEndpointsGone, ReasonEndpointsGone, ReasonEndpointsGone}, w.reasons(), "each ten seconds")

		w.fail(nil)
		w.takeRuns()
		w.wait(10 * time.Second)
		level, _ = w.health.last()
		require.Equal(t, cell.StatusOK, level)
		var released int
		for _, r := range w.takeRuns() {
			released += len(r.filter.Addrs)
		}
		require.Equal(t, 1, released)
		w.wait(2 * time.Minute)
		require.Empty(t, w.takeRuns())
	})
}

// The maps may not be there to be gone through yet.
func TestOpening(t *testing.T) {
	inBubbleWith(t, DefaultConfig, errors.New("no such method"), func(w *world) {
		w.set(ctmap.CT4TCP, 10)
		w.know()
		level, text := w.health.last()
		require.Equal(t, cell.StatusDegraded, level)
		require.Equal(t, "The maps of connections cannot be gone through: no such method", text)
		_, err := w.runner.Run(w.t.Context(), gc.Filter{}, "")
		require.ErrorContains(t, err, "cannot be gone through")
		w.canOpen()
		w.wait(15 * time.Second)
		require.Equal(t, []string{ReasonStart}, w.reasons())
		w.stop()
		synctest.Wait()
		require.True(t, w.closed)
	})
}

// The table is bounded, and has rows of maps that are used.
func TestHistory(t *testing.T) {
	inBubble(t, DefaultConfig, func(w *world) {
		w.set(ctmap.CT4TCP, 10)
		w.does(func(gc.Filter) []gc.Pass { return w.pass(1, clock()+1000) })
		w.know()
		row := w.rows()[0]
		require.Len(t, w.rows(), 1)
		require.Equal(t, ctmap.CT4TCP, row.Map)
		require.Equal(t, []any{uint64(10), uint64(1), "iterator", "global", time.Millisecond},
			[]any{row.Scanned, row.Expired, row.Method, row.Set, row.LongestRun})
		require.Equal(t, row.Started.Add(firstInterval), row.NextRun)
		for range 300 {
			_, err := w.runner.Run(w.t.Context(), gc.Filter{}, "")
			require.NoError(t, err)
		}
		rows := w.rows()
		require.Len(t, rows, maxRows)
		require.EqualValues(t, 301, rows[maxRows-1].ID)
		require.EqualValues(t, 301-maxRows+1, rows[0].ID)
	})
}

// Metrics count what passes do; free text is one reason. Health says how it goes,
// and bpf-maps has each map.
func TestReports(t *testing.T) {
	inBubble(t, DefaultConfig, func(w *world) {
		w.set(ctmap.CT4TCP, 10)
		w.does(func(gc.Filter) []gc.Pass {
			return []gc.Pass{{Map: ctmap.CT4TCP, Scanned: 10, Expired: 4, Translations: 3, Duration: time.Second, LongestRun: time.Millisecond}}
		})
		w.know()
		for _, reason := range []string{"", "Alice", "Bob"} {
			_, err := w.runner.Run(w.t.Context(), gc.Filter{}, reason)
			require.NoError(t, err)
		}
		require.EqualValues(t, 1, w.metric("sluice_ctgc_runs_total", ctmap.CT4TCP, ReasonStart, "done"))
		require.EqualValues(t, 3, w.metric("sluice_ctgc_runs_total", ctmap.CT4TCP, ReasonRequest))
		require.EqualValues(t, 4*4, w.metric("sluice_ctgc_removed_total", ctmap.CT4TCP, "expired"))
		require.EqualValues(t, 4*3, w.metric("sluice_ctgc_removed_total", ctmap.CT4TCP, "translation"))
		require.EqualValues(t, 0.001, w.metric("sluice_ctgc_longest_run_seconds", ctmap.CT4TCP))
		w.wait(5 * time.Second)
		require.EqualValues(t, 180, w.metric("sluice_ctgc_interval_seconds", globalSet), "0.4 of it expired")
		_, text := w.health.last()
		require.Equal(t, "global maps: at least 3m0s between passes", text)
		require.Contains(t, w.shown, []tables.BPFMap{{Name: ctmap.CT4TCP, Type: tables.TypeLRU, Backend: "kernel", Entries: 10, MaxEntries: size}})
	})
}

func TestConfig(t *testing.T) {
	require.NoError(t, DefaultConfig.validate())
	for want, edit := range map[string]func(*Config){
		"--ct-gc-interval -1s: want 0, or 5s at least, which is how often entries are counted": func(c *Config) { c.CTGCInterval = -time.Second },
		"--ct-gc-interval 4s: want 0, or 5s at least, which is how often entries are counted":  func(c *Config) { c.CTGCInterval = 4 * time.Second },
		"--ct-gc-max-interval 9s is less than 10s, the least time between passes":              func(c *Config) { c.CTGCMaxInterval = 9 * time.Second },
	} {
		c := DefaultConfig
		edit(&c)
		require.EqualError(t, c.validate(), want)
	}
}
