// SPDX-License-Identifier: Apache-2.0

package slots

import (
	"context"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/hive/cell"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// guardEvery is how often the guard looks at the maps.
const guardEvery = time.Second

// guard puts right what something else changes of maps as a whole, from the flip on: which slot is
// active, the generation, the maps in slots, and the pins. The entries are audited by package
// mapsync.
type guard struct{ params }

func (g *guard) run(ctx context.Context, health cell.Health) error {
	if !tables.AwaitInitialized(ctx, g.DB, g.Slots) {
		return nil
	}
	for wait(ctx, guardEvery) {
		if err := g.check(); err != nil {
			health.Degraded("Maps cannot be guarded", err)
		} else {
			health.OK("Maps are in their slots, and pinned")
		}
	}
	return nil
}

func (g *guard) check() error {
	was, err := g.Maps.RestoreState()
	if err != nil {
		return err
	}
	if was != "" {
		g.Tampering.Found(bpf.StateMap, tables.TamperedChanged, 1,
			fmt.Sprintf("it said %s: this agent's slot is in force again", was))
	}
	kernel, ok := g.Maps.Backend().(*bpf.Kernel)
	if !ok {
		return nil
	}
	own := func(string) *ebpf.Map { return nil }
	if g.Datapath != nil {
		own = g.Datapath.Pinned
	}
	damage, err := kernel.Restore(own)
	for _, d := range damage {
		kind, text := tables.TamperedUnpinned, "its pin was gone: it is pinned again"
		if d.Replaced {
			kind, text = tables.TamperedReplaced, "another map was in its place: it is back"
		}
		g.Tampering.Found(d.Map, kind, 1, text)
	}
	return err
}
