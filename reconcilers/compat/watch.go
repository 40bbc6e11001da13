// SPDX-License-Identifier: Apache-2.0

package compat

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"strings"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
)

// interval is how often the node is looked at. Its devices are followed.
const interval = time.Minute

// watcher shows in health what keeps the agent from enforcing.
type watcher struct {
	log      *slog.Logger
	db       *statedb.DB
	devices  statedb.Table[*tables.Device]
	node     *node
	interval time.Duration
}

func (w *watcher) run(ctx context.Context, health cell.Health) error {
	ticker := time.NewTicker(w.interval)
	defer ticker.Stop()
	found, before := w.node.judge(ctx), "unknown"
	for {
		devices, changed := w.devices.AllWatch(w.db.ReadTxn())
		reasons := append(append(netkit(devices), found.refused...), found.doubtful...)
		if now := strings.Join(reasons, "; "); now != before {
			w.report(health, now)
			before = now
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-ticker.C:
			found = w.node.judge(ctx)
		}
	}
}

func (w *watcher) report(health cell.Health, reason string) {
	if reason == "" {
		health.OK("No other datapath bypasses the hooks")
		return
	}
	w.log.Warn("Another datapath is in the way", "reason", reason)
	health.Degraded(reason, nil)
}

// netkit returns why netkit devices, if there are any, are in the way.
func netkit(devices iter.Seq2[*tables.Device, statedb.Revision]) (reasons []string) {
	const named = 3
	var names []string
	for d := range devices {
		if d.Type == "netkit" {
			names = append(names, d.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	list := strings.Join(names[:min(named, len(names))], ", ")
	if more := len(names) - named; more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	return []string{"Pods use netkit devices, which bypass the hooks: have the CNI make veths (found " + list + ")"}
}
