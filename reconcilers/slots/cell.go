// SPDX-License-Identifier: Apache-2.0

// Package slots switches packets to the maps that this agent has written, with one write.
//
//	maps written, devices found ──► slots ──► sluice_state
//
// An agent that starts fills the slot of maps that packets do not use: see [bpf.Maps]. The
// slots flip when this one has everything that was desired when the tables were initialized.
// A grace period later the agent releases the former slot.
//
// The flip does not wait for pods whose devices have no programs: these are attached after
// it. If nothing has been written for some time, because the kernel refuses the rest, the
// slots flip too, and packets without an entry are dropped.
package slots

import (
	"log/slog"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath"
	"github.com/sluice-net/sluice/reconcilers/attach"
	"github.com/sluice-net/sluice/reconcilers/mapsync"
	"github.com/sluice-net/sluice/reconcilers/tampering"
	"github.com/sluice-net/sluice/tables"
)

// Cell flips the slots, and has the table slots.
var Cell = cell.Module(
	"slots",
	"Which slot of maps packets use",

	cell.ProvidePrivate(tables.NewSlotTable),
	cell.Provide(
		statedb.RWTable[*tables.Slot].ToTable,
		func(slots statedb.RWTable[*tables.Slot]) tables.SourceOut {
			return tables.NewSourceOut("flip", slots)
		},
	),
	cell.Provide(newGeneration),
	cell.Invoke(register),
)

type params struct {
	cell.In

	Log         *slog.Logger
	DB          *statedb.DB
	Jobs        job.Group
	Maps        *bpf.Maps
	Control     *mapsync.Control
	Slots       statedb.RWTable[*tables.Slot]
	Links       attach.Links
	Attachments statedb.Table[*tables.Attachment]
	Locals      statedb.Table[*tables.LocalEndpoint]
	Pods        statedb.Table[*tables.Pod]
	Datapath    *datapath.Datapath  `optional:"true"`
	Tampering   *tampering.Recorder `optional:"true"`
}

func register(p params) {
	p.Jobs.Add(job.OneShot("flip", newFlipper(p).run, job.WithShutdown()))
	for _, name := range p.Maps.Guarded() {
		p.Tampering.Watch(name, tables.TamperedUnpinned, tables.TamperedReplaced)
	}
	p.Tampering.Watch(bpf.StateMap, tables.TamperedChanged)
	g := &guard{params: p}
	p.Jobs.Add(job.OneShot("guard-maps", g.run))
}
