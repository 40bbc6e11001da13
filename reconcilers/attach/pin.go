// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"context"
	"time"

	"github.com/cilium/hive/cell"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath"
	"github.com/sluice-net/sluice/reconcilers/tampering"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/pause"
)

// pinner pins the programs of pods' devices for the CNI plugin, which attaches them while
// no agent answers. It waits until they hold a pod that nothing is known of: before that
// they would let pass what they must not.
type pinner struct {
	datapath *datapath.Datapath
	links    func() links
	holding  tables.Holding

	tampering *tampering.Recorder
	pinned    bool // once
}

func (p *pinner) run(ctx context.Context, health cell.Health) error {
	if !p.datapath.Loaded() || !p.holding.Await(ctx) {
		return nil
	}
	retry := pause.NewBackoff(retryFirst, retryLast)
	for {
		next := guardEvery
		if err := p.pin(); err != nil {
			health.Degraded("Cannot pin programs for the CNI plugin", err)
			next = retry.Step()
		} else {
			health.OK("Pinned the programs for the CNI plugin")
			retry = pause.NewBackoff(retryFirst, retryLast)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(next):
		}
	}
}

func (p *pinner) pin() error {
	for _, program := range bpf.PinnedPrograms {
		done, err := bpf.PinProgram(p.links().programs, program, p.datapath.Program(program))
		if err != nil {
			return err
		}
		if done && p.pinned {
			p.tampering.Found(program.String(), tables.TamperedUnpinned, 1,
				"the program has lost its pin: it is pinned again")
		}
	}
	p.pinned = true
	return nil
}
