// SPDX-License-Identifier: Apache-2.0

// Bench measures the agent's control plane: from the change of a base table to
// the kernel's map, at several sizes, with the rows and writes that each event
// cost beside its time. There are no sources: the benchmark writes the base
// tables itself. The results are printed as a table, and as JSON on request.
//
// Times depend on the machine and on what else it does. Compare them within one
// run, with the floor that the run measures too: a bare write to a map.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strings"

	"github.com/cilium/ebpf/rlimit"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run() error {
	var (
		endpoints = pflag.IntSlice("endpoints", []int{1000, 10000, 50000}, "numbers of endpoints")
		policies  = pflag.IntSlice("policies", []int{6, 10, 100}, "numbers of policies")
		samples   = pflag.Int("samples", 200, "how often each event is measured")
		mode      = pflag.String("bpf", "auto", "where the maps are: auto, kernel, memory")
		jsonFile  = pflag.String("json", "", "file to which the results are written as JSON")
		profile   = pflag.String("cpuprofile", "", "file to which a CPU profile is written")
	)
	pflag.Parse()
	if *profile != "" {
		f, err := os.Create(*profile)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	dir, err := os.MkdirTemp("", "sluice-bench-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	// A BPF file system of its own, which the back end mounts.
	bpffs := filepath.Join(dir, "bpffs")
	defer unix.Unmount(bpffs, 0)
	if *mode == "auto" {
		*mode = "memory"
		if bpf.Probe(bpffs) == nil {
			*mode = "kernel"
		}
	}
	if *mode == "kernel" {
		if err := rlimit.RemoveMemlock(); err != nil {
			return err
		}
	}
	fmt.Printf("maps in %s; each event measured %d times\n", *mode, *samples)
	var all []result
	for _, e := range *endpoints {
		for _, p := range *policies {
			results, err := measure(*mode, bpffs, dir, size{e, p}, *samples)
			if err != nil {
				return fmt.Errorf("%d endpoints, %d policies: %w", e, p, err)
			}
			print(size{e, p}, results)
			all = append(all, results...)
		}
	}
	if *jsonFile == "" {
		return nil
	}
	b, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(*jsonFile, append(b, '\n'), 0o644)
}

func print(s size, results []result) {
	fmt.Printf("\n%d endpoints x %d policies\n", s.endpoints, s.policies)
	fmt.Printf("  %-34s %10s %10s %10s %8s %8s %8s\n", "event", "p50", "p99", "max", "rows", "writes", "deletes")
	for _, r := range results {
		note := ""
		if r.Note != "" {
			note = "  " + r.Note
		}
		fmt.Println(strings.TrimRight(fmt.Sprintf("  %-34s %10s %10s %10s %8.1f %8.1f %8.1f%s",
			r.Event, r.P50, r.P99, r.Max, r.Rows, r.Writes, r.Deletes, note), " "))
	}
}
