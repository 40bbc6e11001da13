// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"time"
)

func printPolicyHead(w io.Writer, mode string, o *policyOptions) {
	fmt.Fprintf(w, "\npolicy: network policy, maps in %s; %d pods of the node; each event measured %d times, from the table to the kernel's map\n", mode, o.local, o.samples)
	fmt.Fprintln(w, "  rows computed and entries written are an event's, CPU the whole process's for it. Identities and their entries are computed,")
	fmt.Fprintln(w, "  as of a system with an identity for each set of labels, and an entry for each pod, peer identity and port.")
}

func printPolicy(w io.Writer, r *policyResult) {
	fmt.Fprintf(w, "\npolicy %s\n", r.Scenario)
	fmt.Fprintf(w, "  %d identities, %d entries for them: here %d peer classes, %d subject classes, %d entries\n", r.Identities, r.PerID, r.Peers, r.Subjects, r.Entries)
	fmt.Fprintf(w, "  cold %s, of which %s to fill the base tables; CPU %s; %d writes; heap %.1f MB, %d bytes a pod; of policies %.1f MB\n",
		r.Cold.Round(time.Millisecond), r.ColdFill.Round(time.Millisecond), r.ColdCPU.Round(time.Millisecond), r.ColdWrites, float64(r.Heap)/1e6, r.Heap/uint64(r.Identities), float64(r.HeapPolicy)/1e6)
	fmt.Fprintf(w, "  %-34s %10s %10s %10s %10s %8s %8s %8s\n", "event", "p50", "p99", "max", "cpu", "rows", "writes", "deletes")
	for _, e := range r.Events {
		fmt.Fprintf(w, "  %-34s %10s %10s %10s %10s %8.1f %8.1f %8.1f\n", e.Event, short(e.P50), short(e.P99), short(e.Max), short(e.CPU), e.Rows, e.Writes, e.Deletes)
	}
	if e := r.Explain; e != nil {
		fmt.Fprintf(w, "  explain: %.0f answers a second over the socket, to %d clients in this process; p50 %s, p99 %s; CPU %s, with the client's\n",
			e.PerSecond, e.Clients, short(e.P50), short(e.P99), short(e.CPU))
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
