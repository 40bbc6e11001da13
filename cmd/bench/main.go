// SPDX-License-Identifier: Apache-2.0

// Bench measures Sluice in parts, each of which prints a table:
//
//	control   the agent with egress policies, from the change of a table to the kernel's map
//	policy    the same with network policies, beside another policy engine if one is given
//	programs  what each BPF program costs a packet, over an empty program
//	gc        removal of connections that have ended
//
// The benchmark writes the agent's base tables itself, in the place of sources. As root it runs
// in a network and a mount namespace of its own; otherwise it measures only control and
// policy, with maps in memory.
//
// Times depend on the machine and on what else it does. Compare them within one run.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"

	"github.com/cilium/ebpf/rlimit"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
)

func main() {
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

// Parts of the benchmark.
const (
	partControl  = "control"
	partPolicy   = "policy"
	partPrograms = "programs"
	partGC       = "gc"
)

var allParts = []string{partControl, partPolicy, partPrograms, partGC}

// options are those of all parts.
type options struct {
	parts   []string
	short   bool
	mode    string
	profile string

	control  controlOptions
	policy   *policyOptions
	programs programOptions
	gc       *gcOptions
}

func (o *options) flags(flags *pflag.FlagSet) {
	flags.StringSliceVar(
		&o.parts, "parts", allParts, "what is measured; all but control and policy need root",
	)
	flags.BoolVar(
		&o.short, "short", false,
		"measure all but control just long enough to see that this works; the figures mean little",
	)
	flags.StringVar(&o.mode, "bpf", "auto", "where the maps are: auto, kernel, memory")
	flags.StringVar(&o.profile, "cpuprofile", "", "file to which a CPU profile is written")
	flags.IntSliceVar(
		&o.control.endpoints, "endpoints", []int{1000, 10000, 50000},
		"numbers of endpoints with egress policies",
	)
	flags.IntSliceVar(&o.control.policies, "policies", []int{6, 10, 100}, "numbers of egress policies")
	flags.IntVar(
		&o.control.samples, "samples", 200, "how often each event is measured with egress policies",
	)
	flags.IntVar(
		&o.programs.flows, "program-flows", 100_000,
		"number of flows of each program's way, beside the one hot flow",
	)
	flags.IntVar(
		&o.programs.packets, "program-packets", 200_000,
		"packets by which each program's way is measured in a round",
	)
	flags.IntVar(
		&o.programs.rounds, "program-rounds", 3, "rounds of measuring programs",
	)
	o.policy, o.gc = policyFlags(flags), gcFlags(flags)
}

// complete checks the options, and shortens what is to be short.
func (o *options) complete() error {
	for _, part := range o.parts {
		if !slices.Contains(allParts, part) {
			return fmt.Errorf("unknown part %q: want %s", part, strings.Join(allParts, ", "))
		}
	}
	if min(o.control.samples, o.programs.flows, o.programs.packets, o.programs.rounds) < 1 {
		return errors.New("samples, flows, packets and rounds must be positive")
	}
	if o.short {
		o.programs = programOptions{min(o.programs.flows, 1000), min(o.programs.packets, 5000), 1}
	}
	return errors.Join(o.policy.complete(o.short), o.gc.complete(o.short))
}

func (o *options) has(part string) bool { return slices.Contains(o.parts, part) }

func run() error {
	var o options
	o.flags(pflag.CommandLine)
	pflag.Parse()
	if err := o.complete(); err != nil {
		return err
	}
	if o.profile != "" {
		f, err := os.Create(o.profile)
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
	site := site{mode: o.mode, bpffs: filepath.Join(dir, "bpffs"), dir: dir}
	defer unix.Unmount(site.bpffs, unix.MNT_DETACH)
	if site.mode == "auto" {
		site.mode = "memory"
		if isolated() && bpf.Probe(site.bpffs) == nil {
			site.mode = "kernel"
		}
	}
	if site.mode == "kernel" {
		if !isolated() {
			return errors.New("--bpf=kernel needs root, for a network namespace of its own")
		}
		if err := rlimit.RemoveMemlock(); err != nil {
			return err
		}
	}
	// So that an interrupted run removes its files; the rest the kernel does.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	return o.measure(ctx, site)
}

// measure measures the parts that are asked for, and prints the results.
func (o *options) measure(ctx context.Context, p site) error {
	for _, part := range []struct {
		name string
		root bool
		do   func() error
	}{
		{partControl, false, func() error { return measureControl(os.Stdout, p, o.control) }},
		{partPolicy, false, func() error { _, err := measurePolicies(os.Stdout, p, o.policy); return err }},
		{partPrograms, true, func() error { return measurePrograms(ctx, os.Stdout, o.programs) }},
		{partGC, true, func() error { return measureGC(ctx, os.Stdout, o.gc) }},
	} {
		if !o.has(part.name) {
			continue
		}
		if part.root && !isolated() {
			fmt.Printf("\n%s is not measured: that needs root\n", part.name)
			continue
		}
		if err := part.do(); err != nil {
			return fmt.Errorf("measure %s: %w", part.name, err)
		}
	}
	return nil
}
