// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"

	"github.com/sluice-net/sluice/bpf"
)

// Collector goes through the maps of one set. Its methods must not be called at
// the same time, and there must be one on a set of maps.
type Collector struct {
	programs  *ebpf.Collection
	maps      [allCount]*ebpf.Map
	iterators [allCount]*link.Iter
	events    *ringbuf.Reader
	released  []bpf.Address // what is in sluice_released
	fullest   []Ports       // as the last pass has found them
	always    Method        // of tests: instead of the choice by the number of entries
}

// Open prepares to collect in a set of maps, which must stay open.
func Open(maps Maps) (*Collector, error) { return OpenWith(maps, Extras{}) }

// OpenWith is the same for the set that packets use, of which pods have shares.
func OpenWith(maps Maps, extras Extras) (*Collector, error) {
	c := &Collector{maps: maps.list(extras.Shares)}
	wanted := map[string]bool{censusProgram: true}
	for i, m := range c.maps {
		if m != nil {
			wanted[programName(iteratorPrefix, i)] = true
			wanted[programName(keyPrefix, i)] = true
		}
	}
	var err error
	if c.programs, err = load(c.maps, extras.Ledger, wanted); err != nil {
		return nil, err
	}
	for i, m := range c.maps {
		if m == nil {
			continue
		}
		program := c.programs.Programs[programName(iteratorPrefix, i)]
		c.iterators[i], err = link.AttachIter(link.IterOptions{Program: program, Map: m})
		if err != nil {
			c.Close()
			return nil, fmt.Errorf("attach iterator to map %s: %w", names[i], err)
		}
	}
	if c.events, err = ringbuf.NewReader(c.programs.Maps[eventsMap]); err != nil {
		c.Close()
		return nil, fmt.Errorf("open events of removals: %w", err)
	}
	c.events.SetDeadline(time.Unix(1, 0)) // reads return what there is
	return c, nil
}

// Close releases what was opened. The maps stay open.
func (c *Collector) Close() error {
	var errs []error
	for _, it := range c.iterators {
		if it != nil {
			errs = append(errs, it.Close())
		}
	}
	if c.events != nil {
		errs = append(errs, c.events.Close())
	}
	c.programs.Close()
	return errors.Join(errs...)
}

// Count returns how many entries the maps have. It costs microseconds.
func (c *Collector) Count() (Counts, error) { return count(c.programs, c.maps) }

// Run makes a pass through all maps of the set, and returns what it did to each,
// also to those before one that fails.
func (c *Collector) Run(ctx context.Context, f Filter) (passes []Pass, err error) {
	if err := c.prepare(f); err != nil {
		return nil, err
	}
	counts, err := c.Count()
	if err != nil {
		return nil, err
	}
	if err := c.recount(ctx, stepBegin); err != nil {
		return nil, err
	}
	for i, m := range c.maps[:mapCount] {
		if m == nil {
			continue
		}
		if err := ctx.Err(); err != nil {
			return passes, err
		}
		p, err := c.collect(ctx, i, counts.Entries[names[i]], f)
		passes = append(passes, p)
		if err != nil {
			return passes, fmt.Errorf("collect in map %s: %w", names[i], err)
		}
	}
	return passes, c.recount(ctx, stepEnd)
}

// sparse is how many times more room than entries a nearly empty map has. There an
// iterator takes longer for the empty buckets than [Keys] takes for the entries, as
// measured by cmd/bench on different machines.
const sparse = 1000

// choose returns how to go through a map with so many entries.
func choose(entries int, room uint32) Method {
	if entries < int(room)/sparse {
		return Keys
	}
	return Iterator
}

// thorough is how often a map is gone through at most until a pass finds nothing more
// that has to go now.
const thorough = 5

// collect goes through a map, unless it is empty.
func (c *Collector) collect(ctx context.Context, index, entries int, f Filter) (Pass, error) {
	method := c.always
	if method == "" {
		if entries == 0 {
			return Pass{Map: names[index]}, nil
		}
		method = choose(entries, c.maps[index].MaxEntries())
	}
	p, err := c.pass(ctx, index, method, c.counting(), f)
	// A pass that removes entries may miss a neighbor of one. The next run finds it if it has
	// expired. What has to go whether it has expired or not is looked for again at once.
	for i := 1; i < thorough && err == nil && p.removed(f) > 0; i++ {
		var again Pass
		again, err = c.pass(ctx, index, method, stepNone, f)
		p.merge(&again)
		if again.removed(f) == 0 {
			break
		}
	}
	return p, err
}

// removed returns how many entries were removed that have to go now.
func (p *Pass) removed(f Filter) uint64 {
	if f.Survivor != nil { // which is called for each entry once
		return 0
	}
	return p.Released + p.Flushed
}

// merge adds what another pass through the same entries has done.
func (p *Pass) merge(q *Pass) {
	p.Expired += q.Expired
	p.Translations += q.Translations
	p.Orphans += q.Orphans
	p.Released += q.Released
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
