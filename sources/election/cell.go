// SPDX-License-Identifier: Apache-2.0

// Package election has one of the operators of the cluster lead: it does what must be done in
// one place. Table leadership says whether it is this one.
//
//	Lease sluice ◄──acquire, renew──► election ──► leadership
//
// The election is client-go's. Agents of former versions, of which one wrote the status of
// objects, compete for the same Lease: while one of them holds it, no operator leads.
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

// Cell takes part in the election.
var Cell = cell.Module(
	"election",
	"Which operator leads",

	cell.Provide(source),
	cell.Invoke(register),
)

// FakeCell is [Cell] for scripts: a command says whether this operator leads.
var FakeCell = cell.Module(
	"election",
	"Whether this operator leads",

	cell.Provide(source),
	cell.Provide(func(db *statedb.DB, table statedb.RWTable[*tables.Leadership]) hive.ScriptCmdOut {
		return hive.NewScriptCmd("k8s/lead", leadCommand(&leadership{db, table}))
	}),
)

func source(t statedb.RWTable[*tables.Leadership]) tables.SourceOut {
	return tables.NewSourceOut("election", t)
}

// leaseName is the name of the lease, in the namespace of the operator.
const leaseName = "sluice"

// Identity is the name under which this operator holds the lease. No two may have the same.
type Identity string

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
	Identity   Identity
	Log        *slog.Logger
	Jobs       job.Group
	Registerer prometheus.Registerer `optional:"true"`
}

func register(p params) error {
	leads := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "sluice_leader", Help: "1 if this operator leads, 0 otherwise.",
	})
	if err := tables.RegisterMetrics(p.Registerer, leads); err != nil {
		return err
	}
	client, err := coordinationv1.NewForConfig(p.Connection.Config)
	if err != nil {
		return fmt.Errorf("create client for leases: %w", err)
	}
	e := &elector{
		leadership: leadership{p.DB, p.Table}, client: client, namespace: p.Connection.Namespace,
		identity: string(p.Identity), log: p.Log, leads: leads,
	}
	p.Jobs.Add(job.OneShot("elect", e.run))
	return nil
}

func leadCommand(l *leadership) script.Cmd {
	return script.Command(
		script.CmdUsage{Summary: "Have this operator lead, or another", Args: "yes|no"},
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
