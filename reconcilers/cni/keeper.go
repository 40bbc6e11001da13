// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/dirwatch"
)

// Times of the keeper. Others may not write their file at once, or in turn with the
// agent: so it writes rarely.
const (
	settleTime = 50 * time.Millisecond
	resyncTime = time.Minute
	retryTime  = 10 * time.Second
)

// keeper runs the installer when it has to.
type keeper struct {
	installer
	db      *statedb.DB
	log     *slog.Logger
	table   statedb.RWTable[*tables.CNIConfig]
	holding func(context.Context) bool // waits until new pods are held
	locals  statedb.Table[*tables.LocalEndpoint]
	watcher dirwatch.Watcher
}

func (k *keeper) run(ctx context.Context, health cell.Health) error {
	defer k.watcher.Close()
	if !exists(k.file()) {
		health.OK("Installs the CNI plugin when new pods are held")
		if err := k.tell(&tables.CNIConfig{File: k.file(), State: tables.CNIPending}); err != nil {
			return err
		}
		// Before, no pod would start, and none at all if the agent cannot work.
		if !k.holding(ctx) {
			return nil
		}
	}
	for {
		next := resyncTime
		// A directory that is not there yet, or another one by now, is watched when it is.
		unwatched := k.watcher.Watch(k.ConfDir)
		row := k.install()
		var pods <-chan struct{}
		if row.State == tables.CNIWaiting {
			if pods = k.awaitPods(); pods == nil {
				row.Error = fmt.Sprintf("pods run on this node, and %s has no CNI configuration: "+
					"--cni-conf-dir has to be where the container runtime has its own", k.ConfDir)
			}
		}
		if unwatched != nil {
			next = dirwatch.PollTime
		}
		switch {
		case row.Error != "":
			next = min(next, retryTime)
			health.Degraded("New pods may start without the CNI plugin", errors.New(row.Error))
		case unwatched != nil:
			health.Degraded("Cannot watch the node's CNI configurations: they are read each second",
				unwatched)
		case row.State == tables.CNIWaiting:
			health.OK("Waits for a CNI configuration in " + k.ConfDir)
		default:
			health.OK("Made from " + row.MadeFrom)
		}
		if err := k.tell(row); err != nil {
			return err
		}
		if !k.await(ctx, pods, next) {
			return nil
		}
	}
}

// awaitPods returns what closes when pods come, nil if there are some.
func (k *keeper) awaitPods() <-chan struct{} {
	txn := k.db.ReadTxn()
	if _, changed := k.locals.AllWatch(txn); k.locals.NumObjects(txn) == 0 {
		return changed
	}
	return nil
}

// await returns when something changed and settled, pods came, or the time is over. It
// returns false when the context ends.
func (k *keeper) await(ctx context.Context, pods <-chan struct{}, next time.Duration) bool {
	timer := time.NewTimer(next)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return true
		case <-pods:
			return true
		case ev := <-k.watcher.Events():
			if filepath.Ext(ev.Name) != ".new" { // the agent's own
				timer.Reset(settleTime)
			}
		case <-k.watcher.Errors():
			timer.Reset(settleTime)
		}
	}
}

// runRemoved removes what an agent with the plugin has installed.
func (k *keeper) runRemoved(ctx context.Context, health cell.Health) error {
	for {
		row := &tables.CNIConfig{File: k.file(), State: tables.CNIRemoved}
		removed, err := uninstall(k.disk, k.Paths, k.plugin.Socket, k.plugin.RunDir)
		for _, path := range removed {
			k.log.Info("Removed the CNI plugin", "file", path)
		}
		if err == nil {
			health.OK("The CNI plugin is not installed")
			return k.tell(row)
		}
		left := slices.DeleteFunc([]string{k.file(), k.Binary()},
			func(path string) bool { return !exists(path) })
		if len(left) > 0 {
			err = fmt.Errorf("%w; still there: %s", err, strings.Join(left, ", "))
		}
		row.State, row.Error = tables.CNIBroken, err.Error()
		health.Degraded("Cannot remove the CNI plugin", err)
		if err := k.tell(row); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retryTime):
		}
	}
}

// tell writes the row, and logs it, unless it says nothing new.
func (k *keeper) tell(row *tables.CNIConfig) error {
	wtxn := k.db.WriteTxn(k.table)
	defer wtxn.Abort()
	old, hadOld, err := k.table.Insert(wtxn, row)
	if err != nil || hadOld && reflect.DeepEqual(old, row) {
		return err
	}
	switch {
	case row.Error != "":
		k.log.Warn("The CNI plugin is not installed as it should be",
			"file", row.File, "state", row.State, "error", row.Error)
	case row.State == tables.CNIInstalled:
		k.log.Info("The CNI plugin is installed",
			"file", row.File, "made-from", row.MadeFrom, "network", row.Network)
	}
	wtxn.Commit()
	return nil
}
