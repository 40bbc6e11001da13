// SPDX-License-Identifier: Apache-2.0

// Package election has one agent of the cluster lead: it writes on objects what all
// agents tell. Table leadership says which one it is.
//
//	Lease sluice ◄──look, campaign, renew──► election ──► leadership
//
// With client-go's election each candidate asks for the lease every other second,
// which with 5,000 nodes is 2,500 requests a second. Here most agents only look at
// the lease, and the more rarely the more others would find it free before: the
// nodes that are ready are ranked, and that of rank r looks every 5 s x (1 + r), and
// every 5 minutes at least. For N nodes that is about ln(N)/5 + N/300 requests a
// second. An agent that finds it free campaigns for it, as client-go does.
//
// Nothing but the status of objects depends on there being a leader.
package election

import (
	"fmt"
	"log/slog"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"github.com/sluice-net/sluice/sources/kubernetes"
	"github.com/sluice-net/sluice/tables"
)

// Cell takes part in the election, if this agent reports the status of policies.
var Cell = cell.Module(
	"election",
	"Which agent writes the status of objects",

	cell.Provide(source),
	cell.Invoke(register),
)

// FakeCell is [Cell] for scripts: a command says whether this agent leads.
var FakeCell = cell.Module(
	"election",
	"Whether this agent writes the status of objects",

	cell.Provide(source),
	cell.Provide(func(db *statedb.DB, table statedb.RWTable[*tables.Leadership]) hive.ScriptCmdOut {
		return hive.NewScriptCmd("k8s/lead", leadCommand(&leadership{db, table}))
	}),
)

func source(t statedb.RWTable[*tables.Leadership]) tables.SourceOut {
	return tables.NewSourceOut("election", t)
}

// leaseName is the name of the lease, in the namespace of the agent.
const leaseName = "sluice"

// leadership is the table and its database.
type leadership struct {
	DB    *statedb.DB
	Table statedb.RWTable[*tables.Leadership]
}

type params struct {
	cell.In

	DB         *statedb.DB
	Table      statedb.RWTable[*tables.Leadership]
	Connection *kubernetes.Connection
	Reporting  tables.Reporting
	Nodes      statedb.Table[*tables.Node]
	LocalNode  tables.LocalNode
	Log        *slog.Logger
	Jobs       job.Group
	Registerer prometheus.Registerer `optional:"true"`
}

func register(p params) error {
	leads := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "sluice_leader", Help: "1 if this agent writes the status of objects, 0 otherwise.",
	})
	if p.Registerer != nil {
		if err := p.Registerer.Register(leads); err != nil {
			return err
		}
	}
	if !p.Reporting.Enabled {
		return nil
	}
	client, err := coordinationv1.NewForConfig(p.Connection.Config)
	if err != nil {
		return fmt.Errorf("create client for leases: %w", err)
	}
	e := &elector{
		leadership: leadership{p.DB, p.Table}, client: client, namespace: p.Connection.Namespace,
		node:  p.LocalNode.Name,
		nodes: p.Nodes, log: p.Log, leads: leads,
	}
	p.Jobs.Add(job.OneShot("elect", e.run))
	return nil
}

func leadCommand(l *leadership) script.Cmd {
	return script.Command(script.CmdUsage{Summary: "Have this agent lead, or another", Args: "yes|no"},
		func(_ *script.State, args ...string) (script.WaitFunc, error) {
			if len(args) != 1 || args[0] != "yes" && args[0] != "no" {
				return nil, script.ErrUsage
			}
			return nil, l.set(
				tables.Leadership{Lease: "sluice-system/" + leaseName, Leading: args[0] == "yes"},
			)
		})
}

// set writes the one row.
func (l *leadership) set(row tables.Leadership) error {
	wtxn := l.DB.WriteTxn(l.Table)
	defer wtxn.Abort()
	if old, _, found := l.Table.Get(wtxn, tables.LeadershipByLease(row.Lease)); found && *old == row {
		return nil
	}
	if _, _, err := l.Table.Insert(wtxn, &row); err != nil {
		return err
	}
	wtxn.Commit()
	return nil
}
