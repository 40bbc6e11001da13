// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/cilium/ebpf"
)

// Options say what to collect in and how.
type Options struct {
	Maps   Maps
	Method Method // empty: [Auto]
	Log    *slog.Logger
}

// Collector goes through the maps of one set. Its methods must not be called at
// the same time, and there must be one on a set of maps.
type Collector struct {
	maps     [mapCount]*ebpf.Map
	method   Method
	kernel   *kernel // nil if entries are removed from user space
	census   *census // nil if entries can only be counted by reading them
	fallback error
}

// Open prepares to collect in a set of maps, which must stay open. If the kernel
// takes no programs for it, entries are removed from user space, unless another
// method is asked for.
func Open(opts Options) (*Collector, error) {
	c := &Collector{maps: opts.Maps.list(), method: opts.Method}
	var err error
	switch c.method {
	case "":
		c.method = Auto
	case Auto, Iterator, ForEach, Keys, UserSpace:
	default:
		return nil, fmt.Errorf("unknown method %q: want one of %s, %s, %s, %s, %s", c.method, Auto, Iterator, ForEach, Keys, UserSpace)
	}
	if c.method != UserSpace {
		if c.kernel, err = openKernel(c.maps); err != nil && c.method != Auto {
			return nil, fmt.Errorf("collect by method %s: %w", c.method, err)
		} else if err != nil {
			c.fallback = err
			opts.Log.Warn("Connections are removed from user space, which is slower: the kernel takes no programs for it", "error", err)
		}
	}
	if c.census, err = openCensus(c.maps); err != nil {
		opts.Log.Warn("Entries of maps are counted by reading them: the kernel does not tell", "error", err)
	}
	return c, nil
}

// Close releases what was opened. The maps stay open.
func (c *Collector) Close() error {
	if c.census != nil {
		c.census.Close()
	}
	if c.kernel != nil {
		return c.kernel.close()
	}
	return nil
}

// Fallback returns why entries are removed from user space, if nobody asked for
// that; otherwise nil.
func (c *Collector) Fallback() error { return c.fallback }

// Run makes a pass through all maps of the set, and returns what it did to each,
// also to those before one that fails.
func (c *Collector) Run(ctx context.Context, f Filter) (passes []Pass, err error) {
	var entries map[string]int // nil if it is not known
	if c.kernel != nil {
		if err := c.kernel.prepare(f); err != nil {
			return nil, err
		}
		if c.method == Auto && c.census != nil {
			if counts, err := c.census.count(); err == nil {
				entries = counts.Entries
			}
		}
	}
	for i, m := range c.maps {
		if m == nil {
			continue
		}
		if err := ctx.Err(); err != nil {
			return passes, err
		}
		p, err := c.pass(ctx, i, entries, f)
		passes = append(passes, p)
		if err != nil {
			return passes, fmt.Errorf("collect in map %s: %w", names[i], err)
		}
	}
	return passes, nil
}

func (c *Collector) pass(ctx context.Context, index int, entries map[string]int, f Filter) (Pass, error) {
	if c.kernel == nil {
		return passUserSpace(ctx, c.maps, index, f)
	}
	method := c.method
	switch n, known := entries[names[index]]; {
	case method != Auto:
	case !known:
		method = Iterator
	case n == 0:
		return Pass{Map: names[index]}, nil
	default:
		method = choose(n, c.maps[index].MaxEntries())
	}
	p, err := c.kernel.pass(ctx, index, method, f)
	// A pass that removes entries may miss a neighbour. The next one finds what has
	// expired, but what is to go now has none.
	for i := 1; i < thorough && err == nil && p.removed(f) > 0; i++ {
		var again Pass
		again, err = c.kernel.pass(ctx, index, method, f)
		p.merge(&again)
		if again.removed(f) == 0 {
			break
		}
	}
	return p, err
}

// thorough is how often a map is gone through at most until nothing is found that
// has to go whether it has expired or not.
const thorough = 5

// removed returns how many entries have been removed that have to go now.
func (p *Pass) removed(f Filter) uint64 {
	if f.Survivor != nil { // who is told of each once
		return 0
	}
	return p.Scrubbed + p.Flushed
}

// merge adds what another pass through the same entries has done.
func (p *Pass) merge(q *Pass) {
	p.Expired += q.Expired
	p.Translations += q.Translations
	p.Orphans += q.Orphans
	p.Scrubbed += q.Scrubbed
	p.Flushed += q.Flushed
	p.Condemned += q.Condemned
	p.Revived += q.Revived
	p.Deferred += q.Deferred
	p.Failed += q.Failed
	p.Kept = q.Kept
	p.Duration += q.Duration
	p.LongestRun = max(p.LongestRun, q.LongestRun)
	p.NextExpiry = q.NextExpiry
}

// CountsByReading reports whether [Collector.Count] reads all entries, as the kernel
// does not tell how many there are.
func (c *Collector) CountsByReading() bool { return c.census == nil }

// Count returns how many entries the maps have. It costs microseconds, unless the
// kernel does not tell.
func (c *Collector) Count() (Counts, error) {
	if c.census != nil {
		return c.census.count()
	}
	return countByReading(c.maps)
}
