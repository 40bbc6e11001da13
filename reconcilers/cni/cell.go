// SPDX-License-Identifier: Apache-2.0

// Package cni keeps the chained plugin sluice-cni in the node's CNI configuration:
//
//	the first configuration of others, in --cni-conf-dir ──► 0-sluice.conflist
//	sluice-cni beside the agent ──► --cni-bin-dir
//
// It changes no file of others. Its own is replaced in one step, after the binary that
// it names is there; so at each moment the runtime finds a configuration that works,
// with the plugin or without. It is made again when the CNI changes its file, and goes
// with that. A node that has none gets it when the agent can answer the plugin.
package cni

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/spf13/pflag"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/cniconf"
	"github.com/sluice-net/sluice/tables/dirwatch"
)

// Cell installs the plugin, or removes it.
var Cell = cell.Module(
	"cni-config",
	"CNI plugin in the configuration of the node",

	cell.Config(DefaultConfig),
	tables.Own(tables.NewCNIConfigTable),
	cell.Invoke(register),
)

// Config says where the plugin is installed.
type Config struct {
	CNIConfDir string        `mapstructure:"cni-conf-dir"`
	CNIBinDir  string        `mapstructure:"cni-bin-dir"`
	CNITimeout time.Duration `mapstructure:"cni-timeout"`
}

// DefaultConfig has the directories that containerd and CRI-O look at by default.
var DefaultConfig = Config{CNIConfDir: "/etc/cni/net.d", CNIBinDir: "/opt/cni/bin",
	CNITimeout: 30 * time.Second}

// Flags implements [cell.Flagger].
func (c Config) Flags(flags *pflag.FlagSet) {
	flags.String("cni-conf-dir", c.CNIConfDir,
		"directory of the node's CNI configurations, as the container runtime has it")
	flags.String("cni-bin-dir", c.CNIBinDir,
		"directory of the node's CNI plugins, as the container runtime has it")
	flags.Duration("cni-timeout", c.CNITimeout, "for how long the CNI plugin waits for an agent on a node that had none since it booted, before the kubelet has to try again")
}

// Socket is that of the agent's API.
type Socket string

type params struct {
	cell.In

	Config  Config
	Plugin  tables.CNIPlugin
	BPF     bpf.Config
	Maps    *bpf.Maps
	Socket  Socket
	DB      *statedb.DB
	Log     *slog.Logger
	Jobs    job.Group
	Table   statedb.RWTable[*tables.CNIConfig]
	Holding tables.Holding
	Locals  statedb.Table[*tables.LocalEndpoint]
}

func register(p params) error {
	paths := Paths{ConfDir: p.Config.CNIConfDir, BinDir: p.Config.CNIBinDir}
	k := &keeper{
		db: p.DB, log: p.Log, table: p.Table, holding: p.Holding.Await, locals: p.Locals,
		watcher: dirwatch.New(),
		installer: installer{Paths: paths, disk: realDisk{}, plugin: cniconf.Config{
			Socket: string(p.Socket), RunDir: p.Plugin.RunDir, BPFFS: p.BPF.BPFFS,
			Timeout: cniconf.Duration(p.Config.CNITimeout),
		}},
	}
	// An agent with maps in memory enforces nothing on this node. It installs no plugin, by
	// which no pod would start without it, and removes none of another agent's.
	enforcing := func(do job.OneShotFunc) job.OneShotFunc {
		return func(ctx context.Context, health cell.Health) error {
			if backend := p.Maps.Backend(); backend == nil || backend.Name() != "kernel" {
				health.OK("Leaves CNI configurations alone, as the maps are not in the kernel")
				return nil
			}
			return do(ctx, health)
		}
	}
	if !p.Plugin.Enabled {
		p.Jobs.Add(job.OneShot("remove-cni-plugin", enforcing(k.runRemoved)))
		return nil
	}
	if p.Socket == "" {
		return errors.New("flag --cni-plugin needs --socket, on which the plugin asks the agent")
	}
	if err := k.plugin.Check(); err != nil {
		return fmt.Errorf("flag --cni-plugin: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the CNI plugin beside the agent: %w", err)
	}
	k.source = filepath.Join(filepath.Dir(self), cniconf.Type)
	p.Jobs.Add(job.OneShot("install-cni-plugin", enforcing(k.run)))
	return nil
}
