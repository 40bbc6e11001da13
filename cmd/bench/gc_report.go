// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"time"

	"github.com/sluice-net/sluice/bpf/gc"
)

func printGCHead(w io.Writer, o *gcOptions) {
	fmt.Fprintf(w, "\ngc: removal of connections that have ended; medians of %d rounds, methods by turns\n", o.rounds)
	fmt.Fprintln(w, "  seed: entries are read by 1024, and those that had expired deleted one by one. Ratios: its CPU time over the method's, within rounds.")
	fmt.Fprintln(w, "  ns: CPU time for each connection of the map, removed or not, and wall time. M/s: millions of them by a CPU in a second of its time.")
	fmt.Fprintln(w, "  Longest run: of the kernel in each pass, at a stretch, by the clock; p50 and highest.")
	fmt.Fprintln(w, "  for-each leaves to the iterator what takes too long, which \">iterator\" says that it did.")
}

func printGC(w io.Writer, r *gcResults) {
	printGCScans(w, r.Scans)
	printGCFloor(w, r.Floor)
	printGCSparse(w, r.Sparse)
	if len(r.Observed) > 0 {
		fmt.Fprintf(w, "\ngc, all of %d connections removed, with somebody who is told of each: CPU time, ns for each\n", r.Observed[0].Entries)
		fmt.Fprintf(w, "  %-20s %10s %10s %22s %14s\n", "method", "silent", "observed", "price of a removal", "longest run")
		for _, o := range r.Observed {
			fmt.Fprintf(w, "  %-20s %10.0f %10.0f %22s %14s\n", o.Method, o.Silent.Median, o.Observed.Median,
				fmt.Sprintf("%.0f (%.0f..%.0f)", o.Price.Median, o.Price.Min, o.Price.Max), micro(o.LongestMax))
		}
	}
	printGCDatapath(w, r.Datapath)
	if r.Count.Calls > 0 {
		fmt.Fprintf(w, "\ngc, an idle node: to count the entries of six maps takes %.1f us of CPU time; wall time p50 %s, p99 %s; %d calls\n",
			float64(r.Count.CPU)/1000, micro(r.Count.WallP50), micro(r.Count.WallP99), r.Count.Calls)
	}
	for _, s := range r.Skipped {
		fmt.Fprintln(w, "  skipped:", s)
	}
}

// printGCScans prints the methods in groups by what they worked on.
func printGCScans(w io.Writer, scans []gcScan) {
	for i, s := range scans {
		if i == 0 || s.Entries != scans[i-1].Entries || s.Pairs != scans[i-1].Pairs {
			fmt.Fprintf(w, "\ngc, %d connections%s, room for %d\n", s.Entries, withPairs(s.Pairs), s.Room)
			fmt.Fprintf(w, "  %-8s %-18s %18s %8s %7s %21s %19s", "expired", "method", "ns", "wall ns", "M/s", "x seed", "longest run")
			if s.Pairs {
				fmt.Fprintf(w, "  %s", "with pass through translations: ns, x seed")
			}
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "  %5d %%  %-18s %18s %8.0f %7.2f %21s %19s", s.Expired, methodUsed(s.Method, s.Used), nanos(s.CPU), s.Wall.Median, s.Rate/1e6,
			times(s.Ratio), micro(s.LongestP50)+" "+micro(s.LongestMax))
		if s.Pairs {
			fmt.Fprintf(w, "  %18s %21s", nanos(s.Whole), times(s.WholeRatio))
		}
		fmt.Fprintln(w)
	}
}

func printGCSparse(w io.Writer, scans []gcScan) {
	for i, s := range scans {
		if i == 0 {
			fmt.Fprintf(w, "\ngc, nearly empty map: %d connections, room for %d\n", s.Entries, s.Room)
			fmt.Fprintf(w, "  %-18s %12s %21s %25s\n", "method", "us a pass", "x seed", "longest run")
		}
		fmt.Fprintf(w, "  %-18s %12.0f %21s %25s\n", methodUsed(s.Method, s.Used), s.Pass.Median, times(s.Ratio), micro(s.LongestP50)+" "+micro(s.LongestMax))
	}
}

func printGCDatapath(w io.Writer, loads []gcDatapath) {
	for i, d := range loads {
		if i == 0 {
			fmt.Fprintf(w, "\ngc beside the datapath: from_pod on packets of %d established connections, %d of each in a row; passes without end\n", gcPackets, gcBurst)
			fmt.Fprintln(w, "  CPU time of a packet, with its share of the system call; wall time of a burst.")
			fmt.Fprintf(w, "  %-9s %-18s %-9s %18s %21s %9s %27s %8s\n", "entries", "method", "CPU", "ns a packet", "x idle", "M/s", "burst p50, p99, max", "passes")
		}
		where := "another"
		switch {
		case d.Method == gcIdle:
			where = "-"
		case d.SameCPU:
			where = "the same"
		}
		fmt.Fprintf(w, "  %-9d %-18s %-9s %18s %21s %9.2f %27s %8d\n", d.Entries, methodUsed(d.Method, d.Used), where, nanos(d.Packet), times(d.Ratio), d.Rate.Median/1e6,
			micro(d.BurstP50)+" "+micro(d.BurstP99)+" "+micro(d.BurstMax), d.Passes)
	}
}

func methodUsed(method, used gc.Method) string {
	if used == method {
		return string(method)
	}
	return fmt.Sprintf("%s >%s", method, used)
}

func nanos(s spread) string { return fmt.Sprintf("%.0f (%.0f..%.0f)", s.Median, s.Min, s.Max) }
func times(s spread) string { return fmt.Sprintf("%.2f (%.2f..%.2f)", s.Median, s.Min, s.Max) }

func micro(d time.Duration) string { return fmt.Sprintf("%.0fus", float64(d)/1000) }
