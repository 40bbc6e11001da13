// SPDX-License-Identifier: Apache-2.0

// Package traffic reads what the programs of a gateway have translated, by policies and egress
// addresses, and removes the counters of policies that are gone.
//
//	sluice_traffic, sluice_trafhits ──► egress-traffic
//
// The counters are the programs': an agent that starts finds and continues them.
package traffic

import (
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
)

// Cell keeps the table egress-traffic.
var Cell = cell.Module(
	"traffic",
	"Traffic of egress policies",

	tables.Own(tables.NewEgressTrafficTable),
	cell.Provide(source),
	cell.Invoke(register),
)

// Maps returns a map of the programs by its name, nil if there is none.
type Maps func(name string) *ebpf.Map

// Time between two looks at the counters, and between two searches for those to remove.
const (
	readInterval  = 5 * time.Second
	sweepInterval = time.Minute
)

func source(traffic statedb.RWTable[*tables.EgressTraffic]) tables.SourceOut {
	return tables.NewSourceOut("traffic", traffic)
}

type params struct {
	cell.In

	DB       *statedb.DB
	Traffic  statedb.RWTable[*tables.EgressTraffic]
	Policies statedb.Table[*tables.EgressPolicy]
	Maps     Maps
}

func register(p params, jobs job.Group) {
	c := &counters{params: p}
	jobs.Add(
		job.Timer("read-egress-traffic", c.read, readInterval),
		job.Timer("sweep-egress-traffic", c.sweep, sweepInterval),
	)
}
