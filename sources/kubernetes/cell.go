// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"errors"
	"log/slog"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/spf13/pflag"

	"github.com/sluice-net/sluice/sources/objects"
	"github.com/sluice-net/sluice/tables"
)

// Cell reflects the objects of an API server, if that is the source.
var Cell = cell.Module(
	"kubernetes",
	"Objects of the API server",

	cell.Config(Config{}),
	cell.ProvidePrivate(func(cfg Config) connector {
		return func(kinds []*objects.Kind) (api, error) { return connect(cfg.Kubeconfig, kinds) }
	}),
	cell.Provide(newConnection, Config.agentNamespace),
	cell.Invoke(checkConfig, register),
)

// checkConfig refuses to leave an API server unread that flags name.
func checkConfig(cfg Config, source objects.Config) error {
	if cfg.Kubeconfig != "" && source.Source != objects.SourceKubernetes {
		return errors.New("flag --kubeconfig needs --source=" + objects.SourceKubernetes)
	}
	return nil
}

// Config says which API server to read from.
type Config struct {
	Kubeconfig string
}

// Flags implements [cell.Flagger].
func (c Config) Flags(flags *pflag.FlagSet) {
	flags.String("kubeconfig", c.Kubeconfig, "file that names the API server; that of the cluster around the pod if empty")
}

// connector returns the API that some kinds are read from. It is called only if
// they are.
type connector func(kinds []*objects.Kind) (api, error)

type params struct {
	cell.In

	Config  objects.Config
	Reads   objects.Reads
	Connect connector
	DB      *statedb.DB
	Log     *slog.Logger
	Jobs    job.Group
	Tables  objects.Tables
}

// register adds a job for each kind. Their tables are initialized when all of
// the kinds that they hold have been listed, or are known to be absent.
func register(p params) error {
	if err := p.Config.Validate(); err != nil || p.Config.Source != objects.SourceKubernetes {
		return err
	}
	api, err := p.Connect(p.Reads)
	if err != nil {
		return err
	}
	for _, k := range p.Reads {
		p.Jobs.Add(job.OneShot("reflect-"+k.Resource, newReflector(p, api, k).run, job.WithShutdown()))
	}
	return nil
}

// newReflector returns a reflector whose table is initialized when it has listed
// the objects.
func newReflector(p params, api api, k *objects.Kind) *reflector {
	table := k.Store(&p.Tables).Table
	wtxn := p.DB.WriteTxn(table)
	defer wtxn.Abort()
	initialized := table.RegisterInitializer(wtxn, k.Source())
	wtxn.Commit()
	return reflectorOf(p, api, k, initialized)
}

func reflectorOf(p params, api api, k *objects.Kind, initialized func(statedb.WriteTxn)) *reflector {
	return &reflector{
		kind:        k,
		store:       k.Store(&p.Tables),
		api:         api,
		db:          p.DB,
		log:         p.Log,
		initialized: initialized,
		events:      make(chan event, maxBatch),
		queued:      make(chan struct{}, 1),
		status: &status{
			db: p.DB, table: p.Tables.Sources, log: p.Log, needed: k.Needed,
			row: tables.ObjectSource{Source: k.Source()},
		},
	}
}
