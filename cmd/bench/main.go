// SPDX-License-Identifier: Apache-2.0

// Bench measures the agent's control plane: from the change of a base table to
// the kernel's map, at several sizes, with the rows and writes that each event
// cost beside its time. Objects have no source: the benchmark writes their
// tables itself. The results are printed as a table, and as JSON on request.
//
// As root all of it runs in a network and a mount namespace of its own, where the
// agent attaches its programs too; else the maps are in memory.
//
// The same is measured of network policy, at the sizes at which other engines were.
//
// Then it measures the datapath: what each program costs a packet, by test runs
// over an empty program; and throughput and latency in clusters of network
// namespaces, with Sluice, without it, and with the kernel's own means in its place.
// And what it costs to remove connections that have ended, beside the seed's way.
//
// Times depend on the machine and on what else it does. Compare them within one
// run, with the floor that the run measures too: a bare write to a map.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strings"

	"github.com/cilium/ebpf/rlimit"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/cmd/lab"
)

func main() {
	lab.AgentMain(os.Args) // of the clusters in which traffic is measured
	if !isolated() {
		code, err := isolate()
		if err == nil {
			os.Exit(code)
		}
		fmt.Fprintln(os.Stderr, "bench: no maps in the kernel:", err)
	}
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
		datapath  = datapathFlags(pflag.CommandLine)
	)
	pflag.Parse()
	if err := datapath.complete(); err != nil {
		return err
	}
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
	if isolated() {
		if err := setUpNamespaces(); err != nil {
			return err
		}
	}
	dir, err := os.MkdirTemp("", "sluice-bench-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	// A BPF file system of its own, which the back end mounts.
	bpffs := filepath.Join(dir, "bpffs")
	defer unix.Unmount(bpffs, unix.MNT_DETACH)
	if *mode == "auto" {
		*mode = "memory"
		if isolated() && bpf.Probe(bpffs) == nil {
			*mode = "kernel"
		}
	}
	if *mode == "kernel" {
		if !isolated() {
			return errors.New("--bpf=kernel needs root, for a network namespace of its own")
		}
		if err := rlimit.RemoveMemlock(); err != nil {
			return err
		}
	}
	if !datapath.has(partControl) {
		*endpoints = nil
	} else {
		fmt.Printf("maps in %s; each event measured %d times\n", *mode, *samples)
	}
	var all results
	for _, e := range *endpoints {
		for _, p := range *policies {
			results, err := measure(*mode, bpffs, dir, size{e, p}, *samples)
			if err != nil {
				return fmt.Errorf("%d endpoints, %d policies: %w", e, p, err)
			}
			print(size{e, p}, results)
			all.Control = append(all.Control, results...)
		}
	}
	if datapath.has(partPolicy) {
		if all.Policy, err = measurePolicies(os.Stdout, *mode, bpffs, dir, datapath.policy); err != nil {
			return fmt.Errorf("measure policies: %w", err)
		}
	}
	if all.datapathResults, err = datapath.measure(); err != nil {
		return err
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

// results are what --json writes.
type results struct {
	Control []result       `json:"control,omitempty"`
	Policy  []policyResult `json:"policy,omitempty"`
	datapathResults
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
