// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/cilium/hive/cell"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// gateCell runs the checks of all modules before anything starts. It must come
// before every other cell: start hooks run in the order in which they are added,
// and this one is added before those of what the checks depend on.
var gateCell = cell.Module(
	"preflight",
	"Checks before the start",

	cell.ProvidePrivate(func() *gate { return &gate{} }),
	cell.Invoke(
		func(lc cell.Lifecycle, g *gate) { lc.Append(cell.Hook{OnStart: g.run}) },
		(*gate).fill,
	),
)

// gate runs the checks.
type gate struct {
	log    *slog.Logger
	health cell.Health
	checks []tables.Preflight
}

type checks struct {
	cell.In

	Log    *slog.Logger
	Health cell.Health
	Checks []tables.Preflight `group:"preflight"`
}

func (g *gate) fill(c checks) { g.log, g.health, g.checks = c.Log, c.Health, c.Checks }

// run returns everything that makes it impossible to start.
func (g *gate) run(ctx cell.HookContext) error {
	var refused error
	for _, check := range g.checks {
		if err := g.check(ctx, check); err != nil {
			refused = errors.Join(refused, fmt.Errorf("preflight %s: %w", check.Name, err))
		}
	}
	return refused
}

func (g *gate) check(ctx context.Context, check tables.Preflight) error {
	health := g.health.NewScope(check.Name)
	err := check.Check(ctx)
	var warning tables.Warning
	switch {
	case errors.As(err, &warning):
		g.log.Warn("The agent is limited here", "check", check.Name, "reason", warning.Reason)
		health.Degraded(warning.Reason, nil)
		return nil
	case err != nil:
		health.Degraded("The start is refused", err)
		return err
	default:
		health.OK("Passed")
		return nil
	}
}

type kernelParams struct {
	cell.In

	Config  bpf.Config
	Backend bpf.Backend `optional:"true"` // that of a test
}

// kernelPreflight refuses --bpf=kernel where the kernel cannot hold the maps,
// before anything else is touched, and says so in health when --bpf=auto has to
// make do without.
func kernelPreflight(p kernelParams) tables.PreflightOut {
	check := func(context.Context) error {
		if p.Backend != nil || p.Config.BPF == bpf.ModeMemory {
			return nil
		}
		err := bpf.Probe(p.Config.BPFFS)
		switch {
		case err == nil:
			return nil
		case p.Config.BPF == bpf.ModeAuto:
			return tables.Warning{Reason: "Maps are kept in memory, no packet is touched: " + err.Error()}
		default:
			return fmt.Errorf("--bpf=%s is not possible: %w", p.Config.BPF, err)
		}
	}
	return tables.PreflightOut{Preflight: tables.Preflight{Name: "kernel-maps", Check: check}}
}
