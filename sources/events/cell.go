// SPDX-License-Identifier: Apache-2.0

package events

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
)

// Cell provides the [Source], and has it read what a [Datapath] reports.
var Cell = cell.Module(
	"events",
	"Dropped packets and new flows",

	tables.Own(tables.NewDropTable),
	tables.Own(tables.NewMonitorTable),
	cell.Provide(
		newSource,
		tableSource,
	),
	cell.Invoke(register),
)

// InjectCell provides a script command for tests, which reports events that the programs did
// not. The agent does not have it.
var InjectCell = cell.Provide(commands)

func tableSource(drops statedb.RWTable[*tables.Drop], watchers statedb.RWTable[*tables.Monitor]) tables.SourceOut {
	return tables.NewSourceOut("packets", drops, watchers)
}

func newSource(v views, d Datapath, drops statedb.RWTable[*tables.Drop], watchers statedb.RWTable[*tables.Monitor]) *Source {
	e := newEnricher(v)
	return &Source{
		rules:    &ruleCounters{db: v.DB, cookies: v.Cookies, maps: d.Map},
		enricher: e,
		drops:    newRecorder(v.DB, drops, e),
		monitors: &monitors{db: v.DB, table: watchers},
		reports:  d.Loaded,
	}
}

func register(d Datapath, s *Source, jobs job.Group) {
	r := &reader{datapath: d, source: s}
	jobs.Add(
		job.OneShot("write-drops", s.drops.run, job.WithShutdown()),
		job.OneShot("read-events", r.run),
		job.Timer("sweep-rule-counters", s.rules.sweep, sweepInterval),
	)
}
