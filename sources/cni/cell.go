// SPDX-License-Identifier: Apache-2.0

// Package cni reads what the CNI plugin tells of pods' interfaces, and gives pods
// their addresses by it before their status has them:
//
//	sluice-cni ──► files in --cni-run-dir ──► cni-attachments ──► addresses of endpoints
//
// The files are the state: they are there from an interface's ADD to its DEL,
// with or without an agent.
package cni

import (
	"errors"
	"log/slog"
	"path/filepath"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/spf13/pflag"

	"github.com/sluice-net/sluice/sources/objects"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/dirwatch"
)

// Cell follows the files of the CNI plugin, if there is one.
var Cell = cell.Module(
	"cni",
	"Interfaces of pods told by the CNI plugin",

	cell.Config(DefaultConfig),
	cell.Provide(Config.plugin, source),
	cell.Invoke(register),
)

// Config says whether there is a CNI plugin, and where it tells of pods.
type Config struct {
	CNIPlugin bool   `mapstructure:"cni-plugin"`
	CNIRunDir string `mapstructure:"cni-run-dir"`
}

// DefaultConfig leaves the node's CNI configuration alone.
var DefaultConfig = Config{CNIRunDir: "/run/sluice/cni"}

// Flags implements [cell.Flagger].
func (c Config) Flags(flags *pflag.FlagSet) {
	flags.Bool("cni-plugin", c.CNIPlugin, "install the chained CNI plugin on this node, which tells the agent of pods before they start; false removes it")
	flags.String("cni-run-dir", c.CNIRunDir, "directory in which the CNI plugin tells of pods' interfaces: of a file system that is empty after a boot")
}

func (c Config) plugin() tables.CNIPlugin {
	return tables.CNIPlugin{Enabled: c.CNIPlugin, RunDir: c.CNIRunDir}
}

func source(p tables.CNIPlugin, attachments statedb.Table[*tables.CNIAttachment]) tables.SourceOut {
	out := tables.NewSourceOut("cni-plugin", attachments)
	out.Source.Tables[0].What = p.RunDir
	return out
}

type params struct {
	cell.In

	Config  tables.CNIPlugin
	Objects objects.Config
	DB      *statedb.DB
	Log     *slog.Logger
	Jobs    job.Group
	Tables  objects.Tables
}

func register(p params) error {
	switch {
	case !p.Config.Enabled:
		return nil
	case p.Objects.EndpointSource != objects.EndpointsKubernetes:
		return errors.New("flag --cni-plugin needs --endpoint-source=" + objects.EndpointsKubernetes +
			": what Cilium tells of a pod comes after its interface is made")
	case !filepath.IsAbs(p.Config.RunDir):
		return errors.New("flag --cni-run-dir: want an absolute path")
	}
	wtxn := p.DB.WriteTxn(p.Tables.CNIAttachments)
	initialized := p.Tables.CNIAttachments.RegisterInitializer(wtxn, "files-of-cni-plugin")
	wtxn.Commit()
	give, err := objects.GivePodsAddrs(p.DB, p.Tables, p.Tables.CNIAttachments,
		func(a *tables.CNIAttachment) []tables.Name { return []tables.Name{a.Pod} })
	if err != nil {
		return err
	}
	f := &follower{
		db: p.DB, log: p.Log, dir: p.Config.RunDir, watcher: dirwatch.New(),
		table: p.Tables.CNIAttachments, initialized: initialized,
	}
	p.Jobs.Add(
		job.OneShot("read-cni-attachments", f.run, job.WithShutdown()),
		job.OneShot("give-pods-addresses", give, job.WithShutdown()),
	)
	return nil
}
