// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"fmt"

	"github.com/cilium/ebpf"
)

// Flush removes the connections that are chosen, also those in use, with their
// translations: a pod that goes on sending begins them anew. Each is chosen by
// what it was when its map was read. removed, if not nil, is called once for each
// entry that is removed, of connections and translations, with its final value.
//
// It works by system calls, as it is for a person who looks for some connections;
// all of them, and those of addresses, [Collector.Run] removes.
func (c *Collector) Flush(ctx context.Context, chosen func(Entry) bool, removed func(Entry)) ([]Pass, error) {
	return flush(ctx, c.maps, chosen, removed)
}

// Flush is [Collector.Flush] on maps that nobody has opened a collector on.
func Flush(ctx context.Context, maps Maps, chosen func(Entry) bool, removed func(Entry)) ([]Pass, error) {
	return flush(ctx, maps.list(), chosen, removed)
}

func flush(ctx context.Context, maps [mapCount]*ebpf.Map, chosen func(Entry) bool, removed func(Entry)) (passes []Pass, err error) {
	for i, m := range maps {
		if m == nil || i >= indexNAT4 {
			continue
		}
		p, err := passUserSpace(ctx, maps, i, Filter{chosen: chosen, Removed: removed})
		passes = append(passes, p)
		if err != nil {
			return passes, fmt.Errorf("flush map %s: %w", names[i], err)
		}
	}
	return passes, nil
}
