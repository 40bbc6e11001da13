// SPDX-License-Identifier: Apache-2.0

// Package slots brings what an agent has written into force, with one write.
//
//	all tables and maps ──► slots ──► sluice_state
//
// An agent that starts fills the slot of maps that is not in force, see [bpf.Maps]. Packets
// meet the other one, as the agent before has left it, until all that is desired is written:
// all tables are complete, no rule has anything to derive, and no map anything to write. Then
// the slots flip, and a grace period later the former one is given up.
//
// What cannot be written does not put the flip off for ever: an entry that its map has no
// room for, and what waits for it. Nor does what waits for a program at a device, which is
// attached after the flip only, where there was none before.
package slots

import (
	"log/slog"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/reconcilers/attach"
	"github.com/sluice-net/sluice/reconcilers/bpfmap"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

// Cell flips the slots, and has the table slots.
var Cell = cell.Module(
	"slots",
	"Which slot of maps is in force",

	cell.ProvidePrivate(tables.NewSlotTable),
	cell.Provide(
		statedb.RWTable[*tables.Slot].ToTable,
		func(slots statedb.RWTable[*tables.Slot]) tables.SourceOut { return tables.NewSourceOut("flip", slots) },
	),
	cell.Invoke(register),
)

type params struct {
	cell.In

	Log         *slog.Logger
	DB          *statedb.DB
	Jobs        job.Group
	Maps        *bpf.Maps
	Rules       *derive.Metrics
	Control     *bpfmap.Control
	Slots       statedb.RWTable[*tables.Slot]
	Links       attach.Links
	Attachments statedb.Table[*tables.Attachment]
	Locals      statedb.Table[*tables.LocalEndpoint]
}

func register(p params) {
	wtxn := p.DB.WriteTxn(p.Slots)
	f := &flipper{params: p, flipped: p.Slots.RegisterInitializer(wtxn, "flip")}
	wtxn.Commit()
	p.Jobs.Add(job.OneShot("flip", f.run, job.WithShutdown()))
}
