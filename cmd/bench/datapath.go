// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
)

// Parts of the benchmark.
const (
	partControl  = "control"
	partPolicy   = "policy"
	partPrograms = "programs"
	partTraffic  = "traffic"
	partGC       = "gc"
)

var parts = []string{partControl, partPolicy, partPrograms, partTraffic, partGC}

// datapathOptions say how the datapath is measured.
type datapathOptions struct {
	parts []string
	short bool

	flows         int
	packets       int
	programRounds int

	rounds int
	window time.Duration

	gc     *gcOptions
	policy *policyOptions
}

func datapathFlags(flags *pflag.FlagSet) *datapathOptions {
	o := &datapathOptions{gc: gcFlags(flags), policy: policyFlags(flags)}
	flags.StringSliceVar(&o.parts, "parts", parts,
		"what is measured: control (the agent's control plane), policy (the same with network policies), programs (ns per packet of each program), traffic (throughput and latency in a cluster of network namespaces), gc (removal of connections that have ended); all but the first two need root")
	flags.BoolVar(&o.short, "short", false, "measure policy, programs, traffic and gc just long enough to see that this works; the figures mean little")
	flags.IntVar(&o.flows, "program-flows", 100_000, "number of flows of each program's way, beside the one hot flow")
	flags.IntVar(&o.packets, "program-packets", 200_000, "packets by which each program's way is measured in a round")
	flags.IntVar(&o.programRounds, "program-rounds", 3, "rounds of measuring programs")
	flags.IntVar(&o.rounds, "traffic-rounds", 5, "rounds of measuring traffic; in each all arms have their turn")
	flags.DurationVar(&o.window, "traffic-time", 3*time.Second, "how long each arm is measured in a round")
	return o
}

// complete checks the options, and shortens what is to be short.
func (o *datapathOptions) complete() error {
	for _, part := range o.parts {
		if !slices.Contains(parts, part) {
			return fmt.Errorf("unknown part %q: want %s", part, strings.Join(parts, ", "))
		}
	}
	if o.flows < 1 || o.packets < 1 || o.programRounds < 1 || o.rounds < 1 || o.window <= 0 {
		return fmt.Errorf("flows, packets, rounds and times must be positive")
	}
	if o.short {
		o.flows, o.packets, o.programRounds = min(o.flows, 1000), min(o.packets, 5000), 1
		o.rounds, o.window = 1, min(o.window, 200*time.Millisecond)
	}
	if err := o.policy.complete(o.short); err != nil {
		return err
	}
	return o.gc.complete(o.short)
}

func (o *datapathOptions) has(part string) bool { return slices.Contains(o.parts, part) }

// datapathResults are those parts of the results.
type datapathResults struct {
	Programs []programResult `json:"programs,omitempty"`
	Traffic  []trafficResult `json:"traffic,omitempty"`
	GC       *gcResults      `json:"gc,omitempty"`
}

// measure measures the parts that are asked for, and prints the results.
func (o *datapathOptions) measure() (all datapathResults, err error) {
	if !o.has(partPrograms) && !o.has(partTraffic) && !o.has(partGC) {
		return all, nil
	}
	if !isolated() {
		fmt.Println("\nprograms, traffic and gc are not measured: that needs root")
		return all, nil
	}
	// So that an interrupted run removes its files; the rest the kernel does.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if o.has(partPrograms) {
		if all.Programs, err = measurePrograms(ctx, o); err != nil {
			return all, fmt.Errorf("measure programs: %w", err)
		}
		printPrograms(os.Stdout, o, all.Programs)
	}
	if o.has(partTraffic) {
		printTrafficHead(os.Stdout, o)
		show := func(results []trafficResult) { printTraffic(os.Stdout, results) }
		if all.Traffic, err = measureTraffic(ctx, o, show); err != nil {
			return all, fmt.Errorf("measure traffic: %w", err)
		}
		printWays(os.Stdout, all.Traffic)
	}
	if o.has(partGC) {
		printGCHead(os.Stdout, o.gc)
		if all.GC, err = measureGC(ctx, o.gc, func(r *gcResults) { printGC(os.Stdout, r) }); err != nil {
			return all, fmt.Errorf("measure garbage collection: %w", err)
		}
	}
	return all, nil
}

// spread is what several rounds came to.
type spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

func spreadOf(rounds []float64) spread {
	sorted := slices.Sorted(slices.Values(rounds))
	n := len(sorted)
	if n == 0 {
		return spread{}
	}
	return spread{Median: (sorted[(n-1)/2] + sorted[n/2]) / 2, Min: sorted[0], Max: sorted[n-1]}
}
