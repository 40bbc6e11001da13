// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"time"
)

func printPrograms(w io.Writer, o *datapathOptions, results []programResult) {
	fmt.Fprintf(w, "\nprograms: ns per packet over an empty program, medians of %d rounds (lowest..highest); of empty: ratio to it\n", o.programRounds)
	fmt.Fprintln(w, "  * The kernel repeats one packet. All else is run by one system call a packet, in which each run begins with colder caches.")
	fmt.Fprintf(w, "  %-32s %-13s %8s  %22s %9s %9s\n", "path", "program", "flows", "ns over empty", "empty ns", "of empty")
	for _, r := range results {
		repeated := ""
		if r.Repeated {
			repeated = " *"
		}
		over := fmt.Sprintf("%.0f (%.0f..%.0f)", r.Over.Median, r.Over.Min, r.Over.Max)
		fmt.Fprintf(w, "  %-32s %-13s %8d  %22s %9.0f %8.1fx%s\n", r.Path, r.Program, r.Flows, over, r.Empty.Median, r.Ratio.Median, repeated)
	}
}

func printTrafficHead(w io.Writer, o *datapathOptions) {
	fmt.Fprintf(w, "\ntraffic: %d rounds of %s an arm, arms by turns; medians (lowest..highest)\n", o.rounds, o.window)
	fmt.Fprintf(w, "  Sender, nodes and receiver share %d CPUs, so a rate is what their time is enough for, not that of a network.\n", runtime.NumCPU())
	fmt.Fprintln(w, "  CPUs: share of all CPU time in use, by whomever. Ratios are of Sluice to another arm, within rounds.")
	fmt.Fprintln(w, "  To a server outside, nftables at the pod's node is the way without a gateway; nftables at the gateway has the same hop")
	fmt.Fprintln(w, "  over a VXLAN as Sluice (policy routing, MTU 1450), and the kernel's connection tracking.")
}

// printTraffic prints the arms of one comparison by one kind of traffic.
func printTraffic(w io.Writer, results []trafficResult) {
	fmt.Fprintf(w, "\n%s, %s\n", results[0].Path, results[0].Measure)
	for _, r := range results {
		line := fmt.Sprintf("  %-23s %-38s CPUs %3.0f %%%s", r.Arm, rate(r), 100*r.Busy, details(r))
		fmt.Fprintln(w, line)
	}
	for _, r := range results {
		for _, other := range slices.Sorted(maps.Keys(r.Ratios)) {
			ratio := r.Ratios[other]
			fmt.Fprintf(w, "    %.1f %% (%.1f..%.1f) of %s\n", 100*ratio.Median, 100*ratio.Min, 100*ratio.Max, other)
		}
	}
}

func rate(r trafficResult) string {
	format := "%.0f (%.0f..%.0f) %s"
	if r.Rate.Median < 1000 {
		format = "%.2f (%.2f..%.2f) %s"
	}
	return fmt.Sprintf(format, r.Rate.Median, r.Rate.Min, r.Rate.Max, r.Unit)
}

func details(r trafficResult) string {
	switch {
	case r.P50 > 0:
		return fmt.Sprintf("  p50 %s, p99 %s", r.P50.Round(100*time.Nanosecond), r.P99.Round(100*time.Nanosecond))
	case r.Sent > 0:
		return fmt.Sprintf("  %.0f sent", r.Sent)
	}
	return ""
}

// printWays shows that packets went where the arms say.
func printWays(w io.Writer, results []trafficResult) {
	type way struct{ path, arm string }
	var (
		ways    []way
		source  = map[way]string{}
		counted = map[way]map[string]uint64{}
		dropped = map[way]map[string]uint64{}
	)
	for _, r := range results {
		k := way{r.Path, r.Arm}
		if counted[k] == nil {
			ways = append(ways, k)
			source[k], counted[k], dropped[k] = r.Source.String(), map[string]uint64{}, map[string]uint64{}
		}
		for name, n := range r.Counted {
			counted[k][name] += n
		}
		for name, n := range r.Dropped {
			dropped[k][name] += n
		}
	}
	fmt.Fprintln(w, "\nways that packets took, checked in each round: what the server saw as source, and packets counted (several segments can be one)")
	for _, k := range ways {
		fmt.Fprintf(w, "  %s, %s: from %s\n", k.path, k.arm, source[k])
		for _, name := range slices.Sorted(maps.Keys(counted[k])) {
			fmt.Fprintf(w, "    %-40s %12d\n", name, counted[k][name])
		}
		for _, name := range slices.Sorted(maps.Keys(dropped[k])) {
			fmt.Fprintf(w, "    %-40s %12d\n", "programs dropped: "+name, dropped[k][name])
		}
	}
}
