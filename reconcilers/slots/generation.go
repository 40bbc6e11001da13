// SPDX-License-Identifier: Apache-2.0

package slots

import (
	"context"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"

	"github.com/sluice-net/sluice/bpf"
)

// soon is how long [Generation.RaiseSoon] waits for further calls.
const soon = time.Second

// Generation raises the generation of cached verdicts: see [bpf.Maps.Raise].
type Generation struct {
	maps  *bpf.Maps
	retry chan struct{}
	later chan struct{}
}

func newGeneration(maps *bpf.Maps, jobs job.Group) *Generation {
	g := &Generation{maps: maps, retry: make(chan struct{}, 1), later: make(chan struct{}, 1)}
	jobs.Add(job.OneShot("raise-generation", g.run))
	return g
}

// Raise has the next packet of each connection judged again. It retries until it succeeds.
func (g *Generation) Raise() {
	if g.maps.Raise() != nil {
		signal(g.retry)
	}
}

// RaiseSoon is Raise, once for all calls within a second.
func (g *Generation) RaiseSoon() { signal(g.later) }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (g *Generation) run(ctx context.Context, health cell.Health) error {
	for {
		select {
		case <-g.retry:
		case <-g.later:
			if !wait(ctx, soon) {
				return nil
			}
			select {
			case <-g.later: // drop calls in the meantime
			default:
			}
		case <-ctx.Done():
			return nil
		}
		if !try(ctx, health, "Cannot raise the generation", g.maps.Raise) {
			return nil
		}
		health.OK("Connections are judged again when something changes for them")
	}
}
