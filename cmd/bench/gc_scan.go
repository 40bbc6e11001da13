// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"time"

	"github.com/sluice-net/sluice/bpf/gc"
)

// gcScan is what a method costs a connection, in ns, or what a pass costs where
// there are hardly any.
type gcScan struct {
	Entries int       `json:"entries"`
	Room    int       `json:"room"`           // of the map
	Expired int       `json:"expiredPercent"` // of the entries
	Pairs   bool      `json:"translations"`   // each connection has its two entries in the other map
	Method  gc.Method `json:"method"`
	Used    gc.Method `json:"used"` // what for-each came to: it leaves to the iterator what is too much for one run
	Passes  int       `json:"passes"`
	CPU     spread    `json:"cpuNs"` // of each connection, with those that stay
	Wall    spread    `json:"wallNs"`
	Pass    spread    `json:"passCPUUs"`  // of a pass, microseconds
	Whole   spread    `json:"wholeCPUNs"` // with the pass through the translations
	Rate    float64   `json:"entriesPerCPUSecond"`

	// How often the method's CPU time is in that of the seed's way, within rounds.
	Ratio      spread `json:"ratioToSeed"`
	WholeRatio spread `json:"wholeRatioToSeed"`

	LongestP50 time.Duration `json:"longestRunP50ns"` // longest run of the kernel of each pass
	LongestMax time.Duration `json:"longestRunMaxns"`
}

// gcCase is what methods are compared on.
type gcCase struct {
	entries, room, percent int
	pairs                  bool
	methods                []gc.Method
}

// measureGCScans compares the methods on maps of all sizes.
func measureGCScans(ctx context.Context, o *gcOptions, add func(*gcResults)) error {
	for _, pairs := range []bool{false, true} {
		for _, entries := range slices.Concat(o.whole, o.sizes) {
			free, err := freeMemory()
			if err != nil {
				return err
			}
			if need := gcMemory(entries, pairs); free < 2*need {
				add(&gcResults{Skipped: []string{fmt.Sprintf("%d connections%s: their maps take %d MB, and %d MB are free",
					entries, withPairs(pairs), need>>20, free>>20)}})
				continue
			}
			scans, err := compareGC(ctx, o, gcCase{entries: entries, room: 2 * entries, pairs: pairs, methods: gcMethods}, []int{0, 10, 100})
			if err != nil {
				return fmt.Errorf("%d connections%s: %w", entries, withPairs(pairs), err)
			}
			add(&gcResults{Scans: scans})
		}
	}
	return nil
}

func withPairs(pairs bool) string {
	if pairs {
		return " with translations"
	}
	return ""
}

// measureGCSparse compares them where hardly anything is in a large map: the
// kernel goes past empty buckets at a stretch.
func measureGCSparse(ctx context.Context, o *gcOptions, add func(*gcResults)) error {
	for _, entries := range gcSparse {
		scans, err := compareGC(ctx, o, gcCase{entries: entries, room: o.room, methods: sparseMethods}, []int{0})
		if err != nil {
			return fmt.Errorf("%d connections: %w", entries, err)
		}
		add(&gcResults{Sparse: scans})
	}
	return nil
}

// compareGC measures the methods by turns, on the same maps, with shares of the
// connections having ended.
func compareGC(ctx context.Context, o *gcOptions, c gcCase, percents []int) ([]gcScan, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	maps, err := newGCMaps(c.entries, c.room, c.pairs)
	if err != nil {
		return nil, err
	}
	defer maps.close()
	collectors, err := openGC(maps.Maps, c.methods)
	if err != nil {
		return nil, err
	}
	defer collectors.close()
	var all []gcScan
	for _, c.percent = range percents {
		if err := maps.age(c.percent); err != nil {
			return nil, err
		}
		runs := map[gc.Method][][]gcRun{} // of each round
		for round := range o.rounds {
			for turn := range c.methods {
				method := c.methods[(round+turn)%len(c.methods)] // so that none is always behind the same
				var passes []gcRun
				for range passesOf(o, c) {
					if err := ctx.Err(); err != nil {
						return nil, err
					}
					run, err := collectors.run(ctx, method, maps)
					if err != nil {
						return nil, fmt.Errorf("%s, %d %% expired: %w", method, c.percent, err)
					}
					passes = append(passes, run)
				}
				runs[method] = append(runs[method], passes)
			}
		}
		all = append(all, summarize(c, runs)...)
	}
	return all, nil
}

// passesOf is how many passes a round has: more where they are short.
func passesOf(o *gcOptions, c gcCase) int { return max(1, o.volume/max(c.entries, c.room/16)) }

// gcCollectors are those of package gc, by their methods.
type gcCollectors map[gc.Method]*gc.Collector

func openGC(maps gc.Maps, methods []gc.Method) (gcCollectors, error) {
	all := gcCollectors{}
	for _, method := range methods {
		if method == methodSeed {
			continue
		}
		c, err := gc.Open(gc.Options{Maps: maps, Method: method, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			all.close()
			return nil, err
		}
		all[method] = c
	}
	return all, nil
}

func (c gcCollectors) close() {
	for _, collector := range c {
		collector.Close()
	}
}

// run has a method collect what has ended, insists that it did, and puts it back.
func (c gcCollectors) run(ctx context.Context, method gc.Method, maps *gcMaps) (r gcRun, err error) {
	if method == methodSeed {
		r, err = collectSeed(maps.CT4TCP, maps.NAT4, maps.now)
	} else {
		r, err = collect(ctx, c[method], gc.Filter{Expired: true, Orphans: maps.NAT4 != nil})
	}
	if err != nil {
		return r, err
	}
	// A pass may leave out neighbours of what it removes.
	if want := maps.expired(); r.removed > want || r.removed < want*98/100 || r.scanned < maps.entries*98/100 {
		return r, fmt.Errorf("%d connections were looked at, not %d, and %d removed, not %d", r.scanned, maps.entries, r.removed, want)
	}
	if maps.percent == 0 {
		return r, nil
	}
	return r, maps.fill(func(i int) bool { return endedAt(i, maps.percent) })
}

// summarize returns what each method came to.
func summarize(c gcCase, runs map[gc.Method][][]gcRun) (all []gcScan) {
	perEntry := func(passes []gcRun, of func(gcRun) time.Duration) float64 {
		var sum time.Duration
		for _, p := range passes {
			sum += of(p)
		}
		return float64(sum) / float64(len(passes)) / float64(c.entries)
	}
	cpu := func(r gcRun) time.Duration { return r.cpu }
	wall := func(r gcRun) time.Duration { return r.wall }
	whole := func(r gcRun) time.Duration { return r.wholeCPU }
	for _, method := range c.methods {
		s := gcScan{Entries: c.entries, Room: c.room, Expired: c.percent, Pairs: c.pairs, Method: method}
		var cpus, walls, passes, wholes, ratios, wholeRatios []float64
		var longest []time.Duration
		for round, rs := range runs[method] {
			seed := runs[methodSeed][round]
			cpus, walls, wholes = append(cpus, perEntry(rs, cpu)), append(walls, perEntry(rs, wall)), append(wholes, perEntry(rs, whole))
			passes = append(passes, perEntry(rs, cpu)*float64(c.entries)/1000)
			ratios = append(ratios, perEntry(seed, cpu)/perEntry(rs, cpu))
			wholeRatios = append(wholeRatios, perEntry(seed, whole)/perEntry(rs, whole))
			for _, r := range rs {
				longest = append(longest, r.longest)
				s.Used = r.method
			}
		}
		slices.Sort(longest)
		s.Passes = len(longest)
		s.LongestP50, s.LongestMax = longest[len(longest)/2], longest[len(longest)-1]
		s.CPU, s.Wall, s.Pass, s.Whole = spreadOf(cpus), spreadOf(walls), spreadOf(passes), spreadOf(wholes)
		s.Ratio, s.WholeRatio = spreadOf(ratios), spreadOf(wholeRatios)
		s.Rate = 1e9 / s.CPU.Median
		all = append(all, s)
	}
	return all
}
