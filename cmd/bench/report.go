// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"slices"
	"time"
)

// spread is what several rounds came to.
type spread struct{ median, min, max float64 }

func spreadOf(rounds []float64) spread {
	sorted := slices.Sorted(slices.Values(rounds))
	n := len(sorted)
	if n == 0 {
		return spread{}
	}
	return spread{median: (sorted[(n-1)/2] + sorted[n/2]) / 2, min: sorted[0], max: sorted[n-1]}
}

func (s spread) text(decimals int) string {
	return fmt.Sprintf("%.*f (%.*f..%.*f)", decimals, s.median, decimals, s.min, decimals, s.max)
}

// result is what one kind of event cost.
type result struct {
	event         string
	p50, p99, max time.Duration
	cost          // of all events
	samples       int
}

func resultOf(event string, times []time.Duration, c cost) result {
	n := len(times)
	sorted := slices.Sorted(slices.Values(times))
	return result{event, sorted[n/2], sorted[n*99/100], sorted[n-1], c, n}
}

// each returns how much of a cost one event has.
func (r *result) each(n int) float64 { return float64(n) / float64(r.samples) }

func printResults(w io.Writer, results []result) {
	fmt.Fprintf(
		w, "  %-38s %10s %10s %10s %8s %8s %8s\n", "event", "p50", "p99", "max", "rows", "writes",
		"deletes",
	)
	for _, r := range results {
		fmt.Fprintf(w, "  %-38s %10s %10s %10s %8.1f %8.1f %8.1f\n", r.event,
			short(r.p50), short(r.p99), short(r.max), r.each(r.rows), r.each(r.writes), r.each(r.deletes))
	}
}

// short rounds to what a figure is worth.
func short(d time.Duration) time.Duration {
	switch {
	case d > time.Second:
		return d.Round(time.Millisecond)
	case d > time.Millisecond:
		return d.Round(10 * time.Microsecond)
	}
	return d.Round(100 * time.Nanosecond)
}
