// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/cilium/ebpf"

	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/gc"
	"github.com/sluice-net/sluice/bpf/natmap"
)

// gcObserved is what it costs more to tell of removals, CPU time in ns each.
type gcObserved struct {
	Entries  int       `json:"entries"` // all of which are removed
	Method   gc.Method `json:"method"`
	Silent   spread    `json:"silentNs"`
	Observed spread    `json:"observedNs"`
	Price    spread    `json:"priceNs"` // of a removal, within rounds

	LongestMax time.Duration `json:"longestRunMaxns"` // with observers
}

// measureGCObserved compares passes with and without somebody who is told.
func measureGCObserved(ctx context.Context, o *gcOptions, add func(*gcResults)) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const entries = 64 << 10
	maps, err := newGCMaps(entries, 2*entries, false)
	if err != nil {
		return err
	}
	defer maps.close()
	collectors, err := openGC(maps.Maps, gcMethods)
	if err != nil {
		return err
	}
	defer collectors.close()
	if err := maps.age(100); err != nil {
		return err
	}
	var all []gcObserved
	for _, method := range []gc.Method{gc.Iterator, gc.UserSpace} {
		result := gcObserved{Entries: entries, Method: method}
		var silent, observed, price []float64
		for range o.rounds {
			var cost [2]float64
			for i, f := range []gc.Filter{{Expired: true}, {Expired: true}} {
				told := 0
				if i == 1 {
					f.Removed = func(gc.Entry) { told++ }
				}
				run, err := collect(ctx, collectors[method], f)
				if err != nil {
					return err
				}
				if i == 1 {
					result.LongestMax = max(result.LongestMax, run.longest)
					if told != run.removed {
						return fmt.Errorf("%s: %d connections were removed, and told of %d", method, run.removed, told)
					}
				}
				cost[i] = float64(run.cpu) / float64(max(run.removed, 1))
				if err := maps.fill(func(int) bool { return true }); err != nil {
					return err
				}
			}
			silent, observed, price = append(silent, cost[0]), append(observed, cost[1]), append(price, cost[1]-cost[0])
		}
		result.Silent, result.Observed, result.Price = spreadOf(silent), spreadOf(observed), spreadOf(price)
		all = append(all, result)
	}
	add(&gcResults{Observed: all})
	return nil
}

// gcCount is what it costs to ask how many entries the six maps have.
type gcCount struct {
	Calls   int           `json:"calls"`
	CPU     time.Duration `json:"cpuNs"` // mean
	WallP50 time.Duration `json:"wallP50Ns"`
	WallP99 time.Duration `json:"wallP99Ns"`
}

// measureGCCount measures all that an idle node does.
func measureGCCount(_ context.Context, o *gcOptions, add func(*gcResults)) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const room = 64 << 10
	var opened gc.Maps
	for name, m := range map[string]**ebpf.Map{
		ctmap.CT4TCP: &opened.CT4TCP, ctmap.CT4Any: &opened.CT4Any, ctmap.CT6TCP: &opened.CT6TCP, ctmap.CT6Any: &opened.CT6Any,
		natmap.Name4: &opened.NAT4, natmap.Name6: &opened.NAT6,
	} {
		spec, err := ctmap.Spec(name, room)
		if name == natmap.Name4 || name == natmap.Name6 {
			spec, err = natmap.Spec(name, room)
		}
		if err != nil {
			return err
		}
		if *m, err = ebpf.NewMap(spec); err != nil {
			return fmt.Errorf("make map %s: %w", name, err)
		}
		defer (*m).Close()
	}
	collectors, err := openGC(opened, gcMethods)
	if err != nil {
		return err
	}
	defer collectors.close()
	times := make([]time.Duration, o.counts)
	cpu := threadTime()
	for i := range times {
		begun := time.Now()
		if _, err := collectors[gc.Iterator].Count(); err != nil {
			return err
		}
		times[i] = time.Since(begun)
	}
	cpu = threadTime() - cpu
	slices.Sort(times)
	n := len(times)
	add(&gcResults{Count: gcCount{Calls: n, CPU: cpu / time.Duration(n), WallP50: times[n/2], WallP99: times[n*99/100]}})
	return nil
}
