// SPDX-License-Identifier: Apache-2.0

// Package nodereport writes what this node tells of policies, and how many ports of egress
// addresses it needs, to the API server: the rows of the tables node-report and
// egress-port-demand, in the NodeReport of the node's name.
//
//	node-report, egress-voters ──► NodeReport of the node
//
// With --egress-ips it also acknowledges the nodes that vote on egress addresses, a while after it
// has read them: when no vote that was given in a former generation counts any more. It does so
// too where the status of policies is not reported.
//
// All nodes have something to tell when a policy changes, so each waits a while
// after it has written before it does again: 5 s, and in a large cluster as long as
// makes 50 reports a second of all nodes. A report is written when it differs from
// the last one, and once an hour in case it was deleted.
package nodereport

import (
	"log/slog"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"k8s.io/client-go/dynamic"

	"github.com/sluice-net/sluice/tables"
)

// Cell keeps the NodeReport of this node, if there is an API server to write to.
var Cell = cell.Module(
	"node-report",
	"What this node tells of policies",

	cell.Invoke(register),
)

// Version is that of the agent.
type Version string

type params struct {
	cell.In

	Log        *slog.Logger
	DB         *statedb.DB
	Jobs       job.Group
	Reporting  tables.Reporting
	EgressIPs  tables.EgressIPs
	Voters     statedb.Table[*tables.EgressVotersTaken]
	Client     dynamic.Interface
	Version    Version
	Reports    tables.Desired[*tables.PolicyReport]
	Ports      statedb.Table[*tables.EgressPortDemand]
	Nodes      statedb.Table[*tables.Node]
	LocalNode  tables.LocalNode
	Registerer prometheus.Registerer `optional:"true"`
	Pace       *Pace                 `optional:"true"`
}

// Pace says how fast reports follow what happens.
type Pace struct {
	// Settle is for how long nothing must change before a report is written: that a
	// policy is on its way into the kernel is not worth telling.
	Settle time.Duration
	// Least is the least time between reports, and Share that of each node in it.
	Least, Share time.Duration
}

// defaultPace is 50 reports a second of all nodes, in a cluster of 250 or more.
var defaultPace = Pace{Settle: 500 * time.Millisecond, Least: 5 * time.Second, Share: 20 * time.Millisecond}

// interval is the least time between reports of one node among so many.
func (p *Pace) interval(nodes int) time.Duration { return max(p.Least, time.Duration(nodes)*p.Share) }

func register(p params) error {
	written := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_node_reports_total", Help: "Writes of this node's NodeReport.",
	}, []string{"outcome"})
	if err := tables.RegisterMetrics(p.Registerer, written); err != nil {
		return err
	}
	if !p.Reporting.Enabled && !p.EgressIPs.Enabled {
		return nil
	}
	r, err := newReporter(p, written)
	if err != nil {
		return err
	}
	p.Jobs.Add(job.OneShot("write-node-report", r.run))
	return nil
}

func newReporter(p params, written *prometheus.CounterVec) (*reporter, error) {
	if p.Pace == nil {
		p.Pace = &defaultPace
	}
	changes, err := tables.Follow(p.DB, p.Reports.ToTable())
	if err != nil {
		return nil, err
	}
	return &reporter{
		params: p, changes: changes, written: written, limiter: rate.NewLimiter(rate.Every(p.Pace.Least), 1),
		pending: map[tables.PolicyID]*tables.PolicyReport{},
	}, nil
}
