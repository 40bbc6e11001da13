// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/cilium/ebpf/rlimit"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf/gc"
)

// gcOptions say how the removal of connections that have ended is measured.
type gcOptions struct {
	sizes  []int // connections in the map
	rounds int
	volume int // connections that a round goes through at least, by several passes
	sparse int // room of the map that is nearly empty
}

func gcFlags(flags *pflag.FlagSet) *gcOptions {
	o := &gcOptions{volume: 128 << 10, sparse: 512 << 10}
	flags.IntSliceVar(
		&o.sizes, "gc-sizes", []int{8 << 10, 512 << 10},
		"numbers of connections, in maps with room for twice as many; each takes some 300 bytes, with translations 750",
	)
	flags.IntVar(
		&o.rounds, "gc-rounds", 5,
		"rounds of measuring garbage collection",
	)
	return o
}

// complete checks the options, and shortens what is to be short.
func (o *gcOptions) complete(short bool) error {
	for _, size := range o.sizes {
		if size < 1<<10 || size > 1<<24 {
			return fmt.Errorf("size %d of garbage collection: want %d to %d", size, 1<<10, 1<<24)
		}
	}
	if o.rounds < 1 {
		return fmt.Errorf("rounds of garbage collection must be positive")
	}
	if short {
		o.sizes, o.rounds, o.volume, o.sparse = []int{4 << 10}, 1, 1, 64<<10
	}
	return nil
}

// gcRun is one collection.
type gcRun struct {
	scanned, removed int // connections
	cpu              time.Duration
	longest          time.Duration // for which the kernel was busy at a stretch
	method           gc.Method     // of the connections' map
}

// gcCase is what is measured.
type gcCase struct {
	entries, room, percent int // percent of the connections have ended
	pairs                  bool
}

func (c gcCase) String() string {
	text := fmt.Sprintf("%d of %d", c.entries, c.room)
	if c.pairs {
		text += ", translated"
	}
	return text
}

// measureGC measures package gc, and prints each case.
func measureGC(ctx context.Context, w io.Writer, o *gcOptions) error {
	if err := rlimit.RemoveMemlock(); err != nil {
		return err
	}
	fmt.Fprintf(w, "\ngc: removal of connections that have ended; medians of %d rounds "+
		"(lowest..highest)\n", o.rounds)
	fmt.Fprintln(w, "  CPU time for each connection of the map, removed or not.")
	fmt.Fprintf(w, "  %-30s %8s  %-10s %24s %20s\n",
		"connections, room", "expired", "method", "ns", "longest run, us")
	for _, pairs := range []bool{false, true} {
		for _, entries := range o.sizes {
			c := gcCase{entries: entries, room: 2 * entries, pairs: pairs}
			if err := o.measure(ctx, w, c, 0, 10, 100); err != nil {
				return err
			}
		}
	}
	return o.measure(ctx, w, gcCase{entries: 16, room: o.sparse}, 0)
}

// measure measures a case with shares of the connections having ended.
func (o *gcOptions) measure(ctx context.Context, w io.Writer, c gcCase, percents ...int) error {
	runtime.LockOSThread() // whose CPU time is measured
	defer runtime.UnlockOSThread()
	maps, err := newGCMaps(c)
	if err != nil {
		return err
	}
	defer maps.close()
	collector, err := gc.Open(maps.Maps)
	if err != nil {
		return err
	}
	defer collector.Close()
	for _, c.percent = range percents {
		if err := maps.age(c.percent); err != nil {
			return err
		}
		var times, longest []float64
		var method gc.Method
		for range o.rounds {
			passes := max(1, o.volume/max(c.entries, c.room/16))
			r, err := maps.runs(ctx, passes, collector)
			if err != nil {
				return fmt.Errorf("%s, %d %% expired: %w", c, c.percent, err)
			}
			times = append(times, float64(r.cpu)/float64(passes*c.entries))
			longest, method = append(longest, r.longest.Seconds()*1e6), r.method
		}
		fmt.Fprintf(w, "  %-30s %6d %%  %-10s %24s %20s\n", c, c.percent, method,
			spreadOf(times).text(0), spreadOf(longest).text(0))
	}
	return nil
}

// collect has package gc collect.
func collect(ctx context.Context, c *gc.Collector, orphans bool) (r gcRun, err error) {
	begun := threadTime()
	passes, err := c.Run(ctx, gc.Filter{Expired: true, Orphans: orphans})
	r.cpu = threadTime() - begun
	if err != nil {
		return r, err
	}
	r.method, r.scanned, r.removed = passes[0].Method, int(passes[0].Scanned), int(passes[0].Expired)
	for _, p := range passes {
		r.longest = max(r.longest, p.LongestRun)
		if p.Failed > 0 || p.Deferred > 0 {
			return r, fmt.Errorf(
				"map %s: %d entries could not be removed, %d not be told of", p.Map, p.Failed,
				p.Deferred,
			)
		}
	}
	return r, nil
}

// runs collects several times, insists that what has ended is removed, and puts it back.
func (m *gcMaps) runs(ctx context.Context, n int, c *gc.Collector) (sum gcRun, err error) {
	want := m.expired()
	for range n {
		r, err := collect(ctx, c, m.NAT4 != nil)
		if err != nil {
			return sum, err
		}
		// A pass may leave out neighbors of what it removes.
		if r.removed > want || r.removed < want*98/100 || r.scanned < m.entries*98/100 {
			return sum, fmt.Errorf(
				"%d connections were looked at, not %d, and %d removed, not %d", r.scanned,
				m.entries, r.removed, want,
			)
		}
		sum.cpu, sum.longest, sum.method = sum.cpu+r.cpu, max(sum.longest, r.longest), r.method
		if err := m.age(m.percent); err != nil {
			return sum, err
		}
	}
	return sum, nil
}

// threadTime returns the CPU time of the thread, to which the caller is locked: so
// that what is measured is not what others do meanwhile.
func threadTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
