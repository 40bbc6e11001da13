// SPDX-License-Identifier: Apache-2.0

// Package cni keeps the chained plugin sluice-cni in the node's CNI configuration:
//
//	the first configuration of others, in --cni-conf-dir ──► 0-sluice.conflist
//	sluice-cni beside the agent ──► --cni-bin-dir
//
// It changes no file of others. Its own is replaced in one step, after the binary that
// it names is there; so at each moment the runtime finds a configuration that works,
// with the plugin or without. It is made again when the CNI changes its file, and goes
// with that.
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
	"github.com/fsnotify/fsnotify"
	"github.com/spf13/pflag"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/cniconf"
)

// Cell installs the plugin, or removes it.
var Cell = cell.Module(
	"cni-config",
	"CNI plugin in the configuration of the node",

	cell.Config(DefaultConfig),
	cell.ProvidePrivate(tables.NewCNIConfigTable),
	cell.Provide(statedb.RWTable[*tables.CNIConfig].ToTable),
	cell.Invoke(register),
)

// Config says where the plugin is installed.
type Config struct {
	CNIConfDir string        `mapstructure:"cni-conf-dir"`
	CNIBinDir  string        `mapstructure:"cni-bin-dir"`
	CNITimeout time.Duration `mapstructure:"cni-timeout"`
}

// DefaultConfig has the directories that containerd and CRI-O look at by default.
var DefaultConfig = Config{CNIConfDir: "/etc/cni/net.d", CNIBinDir: "/opt/cni/bin", CNITimeout: 30 * time.Second}

// Flags implements [cell.Flagger].
func (c Config) Flags(flags *pflag.FlagSet) {
	flags.String("cni-conf-dir", c.CNIConfDir, "directory of the node's CNI configurations, as the container runtime has it")
	flags.String("cni-bin-dir", c.CNIBinDir, "directory of the node's CNI plugins, as the container runtime has it")
	flags.Duration("cni-timeout", c.CNITimeout, "for how long the CNI plugin waits for an agent on a node that had none since it booted, before the kubelet has to try again")
}

// Socket is that of the agent's API.
type Socket string

type params struct {
	cell.In

	Config Config
	Plugin tables.CNIPlugin
	BPF    bpf.Config
	Socket Socket
	DB     *statedb.DB
	Log    *slog.Logger
	Jobs   job.Group
	Table  statedb.RWTable[*tables.CNIConfig]
}

func register(p params) error {
	paths := Paths{ConfDir: p.Config.CNIConfDir, BinDir: p.Config.CNIBinDir}
	k := &keeper{
		db: p.DB, log: p.Log, table: p.Table,
		installer: installer{Paths: paths, disk: realDisk{}, plugin: cniconf.Config{
			Socket: string(p.Socket), RunDir: p.Plugin.RunDir, BPFFS: p.BPF.BPFFS,
			Timeout: cniconf.Duration(p.Config.CNITimeout),
		}},
	}
	if !p.Plugin.Enabled {
		p.Jobs.Add(job.OneShot("remove-cni-plugin", k.runRemoved))
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
	p.Jobs.Add(job.OneShot("install-cni-plugin", k.run))
	return nil
}

// Times of the keeper. Others may not write their file at once, or in turn with the
// agent: so it writes seldom.
const (
	settleTime = 50 * time.Millisecond
	resyncTime = time.Minute
	retryTime  = 2 * time.Second
)

// keeper runs the installer when it has to.
type keeper struct {
	installer
	db    *statedb.DB
	log   *slog.Logger
	table statedb.RWTable[*tables.CNIConfig]
}

func (k *keeper) run(ctx context.Context, health cell.Health) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", k.ConfDir, err)
	}
	defer w.Close()
	for {
		next := resyncTime
		// A directory that is not there yet, or another one by now, is watched when it is.
		watchErr := w.Add(k.ConfDir)
		row := k.install()
		if watchErr != nil && row.Error == "" {
			row.State, row.Error = tables.CNIBroken, fmt.Sprintf("watch %s: %v", k.ConfDir, watchErr)
		}
		switch {
		case row.Error != "":
			next = retryTime
			health.Degraded("New pods may start without the CNI plugin", errors.New(row.Error))
		case row.State == tables.CNIWaiting:
			health.OK("Waits for a CNI configuration in " + k.ConfDir)
		default:
			health.OK("Made from " + row.MadeFrom)
		}
		if err := k.tell(row); err != nil {
			return err
		}
		if !await(ctx, w, next) {
			return nil
		}
	}
}

// await returns when something changed and settled, or the time is over. It returns
// false when the context ends.
func await(ctx context.Context, w *fsnotify.Watcher, next time.Duration) bool {
	timer := time.NewTimer(next)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return true
		case ev := <-w.Events:
			if filepath.Ext(ev.Name) != ".new" { // the agent's own
				timer.Reset(settleTime)
			}
		case <-w.Errors:
			timer.Reset(settleTime)
		}
	}
}

// runRemoved removes what an agent with the plugin has installed.
func (k *keeper) runRemoved(_ context.Context, health cell.Health) error {
	row := &tables.CNIConfig{File: k.file(), State: tables.CNIRemoved}
	removed, err := uninstall(k.disk, k.Paths, k.plugin.Socket, k.plugin.RunDir)
	if err != nil && !errors.Is(err, os.ErrPermission) { // an agent without privileges has installed none
		row.State, row.Error = tables.CNIBroken, err.Error()
		health.Degraded("Cannot remove the CNI plugin", err)
	}
	for _, path := range removed {
		k.log.Info("Removed the CNI plugin", "file", path)
	}
	return k.tell(row)
}

// tell writes the row, and logs it, unless it says nothing new.
func (k *keeper) tell(row *tables.CNIConfig) error {
	wtxn := k.db.WriteTxn(k.table)
	defer wtxn.Abort()
	old, hadOld, err := k.table.Insert(wtxn, row)
	if err != nil || hadOld && *old == *row {
		return err
	}
	switch {
	case row.Error != "":
		k.log.Warn("The CNI plugin is not installed as it should be", "file", row.File, "state", row.State, "error", row.Error)
	case row.State == tables.CNIInstalled:
		k.log.Info("The CNI plugin is installed", "file", row.File, "made-from", row.MadeFrom, "network", row.Network)
	}
	wtxn.Commit()
	return nil
}
