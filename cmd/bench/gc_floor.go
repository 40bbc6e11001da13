// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf/gc"
)

// gcFloor is what the kernel's iterator takes by itself: with a program that does
// nothing, beside the one that looks for expired connections and finds none.
type gcFloor struct {
	Entries int    `json:"entries"`
	Empty   spread `json:"emptyCPUNs"` // CPU time of an entry
	Program spread `json:"cpuNs"`
}

// measureGCFloor measures both by turns.
func measureGCFloor(ctx context.Context, o *gcOptions, add func(*gcResults)) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	empty, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "empty", Type: ebpf.Tracing, AttachType: ebpf.AttachTraceIter, AttachTo: "bpf_map_elem", License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	if err != nil {
		return fmt.Errorf("load an empty iterator: %w", err)
	}
	defer empty.Close()
	var all []gcFloor
	for _, entries := range slices.Concat(o.whole, o.sizes) {
		floor, err := floorOf(ctx, empty, entries, o.rounds)
		if err != nil {
			return fmt.Errorf("%d entries: %w", entries, err)
		}
		all = append(all, floor)
	}
	add(&gcResults{Floor: all})
	return nil
}

func floorOf(ctx context.Context, empty *ebpf.Program, entries, rounds int) (gcFloor, error) {
	floor := gcFloor{Entries: entries}
	maps, err := newGCMaps(entries, 2*entries, false)
	if err != nil {
		return floor, err
	}
	defer maps.close()
	collectors, err := openGC(maps.Maps, gcMethods)
	if err != nil {
		return floor, err
	}
	defer collectors.close()
	it, err := link.AttachIter(link.IterOptions{Program: empty, Map: maps.CT4TCP})
	if err != nil {
		return floor, fmt.Errorf("attach an empty iterator: %w", err)
	}
	defer it.Close()
	var nothing, something []float64
	for round := range rounds + 1 {
		cpu := threadTime()
		if err := readAll(it); err != nil {
			return floor, err
		}
		cpu = threadTime() - cpu
		run, err := collect(ctx, collectors[gc.Iterator], gc.Filter{Expired: true})
		if err != nil {
			return floor, err
		}
		if round > 0 { // the first one warms up
			nothing, something = append(nothing, perEntry(cpu, entries)), append(something, perEntry(run.cpu, entries))
		}
	}
	floor.Empty, floor.Program = spreadOf(nothing), spreadOf(something)
	return floor, nil
}

func perEntry(d time.Duration, entries int) float64 { return float64(d) / float64(entries) }

// readAll runs an iterator that writes nothing.
func readAll(it *link.Iter) error {
	opened, err := it.Open()
	if err != nil {
		return fmt.Errorf("open an empty iterator: %w", err)
	}
	defer opened.Close()
	fd, buffer := int(opened.(*os.File).Fd()), make([]byte, 8)
	for {
		n, err := unix.Read(fd, buffer)
		switch {
		case errors.Is(err, unix.EAGAIN): // after a million entries
		case err != nil:
			return fmt.Errorf("read an empty iterator: %w", err)
		case n == 0:
			return nil
		}
	}
}

func printGCFloor(w io.Writer, floors []gcFloor) {
	for i, f := range floors {
		if i == 0 {
			fmt.Fprintln(w, "\ngc, the kernel's iterator by itself: CPU time for each connection, none expired")
			fmt.Fprintf(w, "  %-12s %20s %20s %8s\n", "connections", "a program of nothing", "iterator", "more")
		}
		fmt.Fprintf(w, "  %-12d %20s %20s %7.0f%%\n", f.Entries, nanos(f.Empty), nanos(f.Program), 100*(f.Program.Median/f.Empty.Median-1))
	}
}
