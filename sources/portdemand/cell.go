// SPDX-License-Identifier: Apache-2.0

// Package portdemand finds out how many ports of EgressIPPools this node uses, how many blocks it
// needs for that, and which of those that it gives back have no connections any more:
//
//	sluice_ports, sluice_nat4, sluice_nat6, egress-ip-pools, egress-blocks ──► egress-port-demand
//
// A node needs another block before the ports of those that it has are used up: new connections
// do not wait for the API server and the operator.
package portdemand

import (
	"context"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
)

// Cell keeps the table egress-port-demand.
var Cell = cell.Module(
	"port-demand",
	"Ports of egress addresses that this node needs",

	tables.Own(tables.NewEgressPortDemandTable),
	cell.Provide(source),
	cell.Invoke(register),
)

// Maps returns a map of the programs by its name, nil if there is none.
type Maps func(name string) *ebpf.Map

// Recount has the connections removed that have ended, after which the counts of ports are right:
// without that they may be too high.
type Recount func(context.Context) error

const (
	// lookInterval is the time between two looks at the counts.
	lookInterval = 10 * time.Second
	// walkInterval is the least time between two searches in all translations.
	walkInterval = time.Minute
	// drainAge is for how long the programs have known that a block is closed before it may be
	// drained: packets that were on their way have long passed.
	drainAge = 5 * time.Minute
	// peakAge is for how long few ports must be used before fewer blocks are needed.
	peakAge = time.Hour
)

func source(demand statedb.RWTable[*tables.EgressPortDemand]) tables.SourceOut {
	return tables.NewSourceOut("port-demand", demand)
}

type params struct {
	cell.In

	DB        *statedb.DB
	Demand    statedb.RWTable[*tables.EgressPortDemand]
	Pools     statedb.Table[*tables.EgressIPPool]
	Blocks    statedb.Table[*tables.EgressBlock]
	LocalNode tables.LocalNode
}

type outside struct {
	cell.In

	EgressIPs tables.EgressIPs
	Maps      Maps
	Recount   Recount
}

func register(p params, o outside, jobs job.Group) {
	if !o.EgressIPs.Enabled {
		return
	}
	l := newLooker(p, kernel{o.Maps, o.Recount})
	jobs.Add(job.Timer("find-egress-port-demand", l.look, lookInterval))
}
