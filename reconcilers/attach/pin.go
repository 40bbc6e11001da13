// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"context"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath"
	"github.com/sluice-net/sluice/tables"
)

// pinner pins the programs of pods' devices. The CNI plugin lets a pod start as held when
// it has attached them, so they are not pinned before they hold pods: after a boot that is
// when sluice_config says so, which is later than the backstop.
type pinner struct {
	db       *statedb.DB
	configs  statedb.Table[*tables.DatapathConfig]
	datapath *datapath.Datapath
	links    func() links
}

func (p *pinner) run(ctx context.Context, health cell.Health) error {
	for {
		var retry <-chan time.Time
		row, _, changed, found := p.configs.GetWatch(p.db.ReadTxn(), tables.DatapathConfigByIndex(0))
		if found && row.HoldsPods() {
			err := p.pin()
			if err == nil {
				health.OK("Pinned the programs of pods' devices")
				return nil
			}
			health.Degraded("Cannot pin the programs of pods' devices", err)
			retry = time.After(retryLast)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-retry:
		}
	}
}

func (p *pinner) pin() error {
	if !p.datapath.Loaded() {
		return nil
	}
	for _, program := range bpf.PinnedPrograms {
		if err := bpf.PinProgram(p.links().programs, program, p.datapath.Program(program)); err != nil {
			return err
		}
	}
	return nil
}
