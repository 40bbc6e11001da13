// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/cilium/ebpf/rlimit"
	"github.com/spf13/pflag"

	"github.com/sluice-net/sluice/bpf/gc"
)

// methodSeed is how the seed system collects: it reads entries in batches, and
// deletes one by one those that had expired when they were read. It is what the
// methods of package gc are compared with; connections that are used in between
// it loses.
const methodSeed gc.Method = "seed"

// gcMethods are what is compared, in the order in which it is printed.
var gcMethods = []gc.Method{gc.Iterator, gc.ForEach, gc.UserSpace, methodSeed}

// sparseMethods are compared where hardly anything is in a map: the product's own
// choice, too.
var sparseMethods = append([]gc.Method{gc.Auto}, gcMethods...)

// gcSparse are how many connections it has then.
var gcSparse = []int{16, 1 << 10}

// gcWhole are the sizes at which for-each is measured where it is meant for: it
// goes through these at once.
var gcWhole = []int{2 << 10, 4 << 10, 8 << 10, 16 << 10}

// gcOptions say how garbage collection is measured.
type gcOptions struct {
	sizes  []int // entries of the map of connections
	whole  []int
	rounds int
	volume int // entries that a method looks at in a round, at least
	room   int // of the map that is nearly empty
	counts int // calls of Count
	window time.Duration
}

func gcFlags(flags *pflag.FlagSet) *gcOptions {
	o := &gcOptions{whole: gcWhole, volume: 128 << 10, room: 512 << 10, counts: 10_000, window: 500 * time.Millisecond}
	flags.IntSliceVar(&o.sizes, "gc-sizes", []int{64 << 10, 512 << 10, 4 << 20}, "numbers of connections in the map of which those that ended are removed; it has room for twice as many, and takes some 300 bytes for each, with translations 750")
	flags.IntVar(&o.rounds, "gc-rounds", 5, "rounds of measuring garbage collection; in each all methods have their turn")
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
		o.whole, o.rounds, o.volume, o.room, o.counts, o.window = []int{4 << 10}, 1, 1, 128<<10, 1000, 20*time.Millisecond
		if len(o.sizes) > 0 {
			o.sizes = []int{min(slices.Min(o.sizes), 16<<10)}
		}
	}
	return nil
}

// gcResults are what garbage collection costs.
type gcResults struct {
	Scans    []gcScan     `json:"scans"`
	Sparse   []gcScan     `json:"sparse"`
	Floor    []gcFloor    `json:"floor"`
	Observed []gcObserved `json:"observed"`
	Datapath []gcDatapath `json:"datapath"`
	Count    gcCount      `json:"count"`
	Skipped  []string     `json:"skipped,omitempty"`
}

// measureGC measures all of it. show gets the results of each step.
func measureGC(ctx context.Context, o *gcOptions, show func(*gcResults)) (*gcResults, error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, err
	}
	r := &gcResults{}
	add := func(part *gcResults) {
		show(part)
		r.add(part)
	}
	for _, step := range []struct {
		name string
		do   func(context.Context, *gcOptions, func(*gcResults)) error
	}{
		{"scans", measureGCScans},
		{"the iterator by itself", measureGCFloor},
		{"nearly empty map", measureGCSparse},
		{"observers", measureGCObserved},
		{"datapath beside it", measureGCDatapath},
		{"count", measureGCCount},
	} {
		if err := step.do(ctx, o, add); err != nil {
			return r, fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return r, nil
}

func (r *gcResults) add(part *gcResults) {
	r.Scans = append(r.Scans, part.Scans...)
	r.Sparse = append(r.Sparse, part.Sparse...)
	r.Floor = append(r.Floor, part.Floor...)
	r.Observed = append(r.Observed, part.Observed...)
	r.Datapath = append(r.Datapath, part.Datapath...)
	r.Skipped = append(r.Skipped, part.Skipped...)
	if part.Count.Calls > 0 {
		r.Count = part.Count
	}
}
