// SPDX-License-Identifier: Apache-2.0

// Package compat says whether the agent can enforce anything beside the other
// datapaths on the node, of which some bypass its hooks or do the same work:
//
//	pins of others in bpffs ─┐
//	Cilium's agent ──────────┼──► preflight (refuses the start), health
//	devices ─────────────────┘
//
// It looks at what is pinned, not at all that the kernel has loaded: nodes may
// share a kernel, as in kind, and loaded objects tell nothing of whose they are.
package compat

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// Cell refuses the start beside datapaths with which nothing can be enforced,
// and shows in health those that appear later.
var Cell = cell.Module(
	"compat",
	"Other datapaths on the node",

	cell.ProvidePrivate(newNode),
	cell.Provide(preflight),
	cell.Invoke(register),
)

func newNode(cfg bpf.Config) *node {
	return &node{
		bpffs:        []string{bpf.DefaultConfig.BPFFS, cfg.BPFFS},
		ciliumSocket: "/var/run/cilium/cilium.sock",
	}
}

// preflight refuses to write maps that would have no effect, or a wrong one.
// Doubts do not refuse; the job shows them.
func preflight(cfg bpf.Config, n *node) tables.PreflightOut {
	return tables.PreflightOut{Preflight: tables.Preflight{
		Name: "other-datapaths",
		Check: func(ctx context.Context) error {
			if !enforces(cfg) {
				return nil
			}
			if refused := n.judge(ctx).refused; len(refused) > 0 {
				return fmt.Errorf("%s; with --bpf=%s the agent runs without enforcing", strings.Join(refused, "; "), bpf.ModeMemory)
			}
			return nil
		},
	}}
}

// enforces reports whether the agent will write to maps of the kernel.
func enforces(cfg bpf.Config) bool {
	return cfg.BPF == bpf.ModeKernel || cfg.BPF == bpf.ModeAuto && bpf.Probe(cfg.BPFFS) == nil
}

type params struct {
	cell.In

	Log     *slog.Logger
	DB      *statedb.DB
	Jobs    job.Group
	Node    *node
	Devices statedb.Table[*tables.Device]
}

func register(p params) {
	w := &watcher{log: p.Log, db: p.DB, devices: p.Devices, node: p.Node, interval: interval}
	p.Jobs.Add(job.OneShot("watch-node", w.run))
}
