// SPDX-License-Identifier: Apache-2.0

// Package taint removes the taint sluice.net/agent-not-ready from this node, once all maps
// have been written, programs have been attached, and these hold pods that are not known
// yet: who makes nodes gives them the taint, so that no pod is started on one before it can
// be judged.
package taint

import (
	"log/slog"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/spf13/pflag"
	"k8s.io/client-go/dynamic"

	"github.com/sluice-net/sluice/tables"
)

// Cell removes the taint, if there is an API server to tell.
var Cell = cell.Module(
	"node-taint",
	"Taint of nodes whose agent is not ready",

	cell.Config(DefaultConfig),
	cell.Invoke(register),
)

// Key is that of the taint.
const Key = "sluice.net/agent-not-ready"

// Config says whether the taint is removed.
type Config struct{ RemoveTaint bool }

// DefaultConfig is the configuration without flags.
var DefaultConfig = Config{RemoveTaint: true}

// Flags implements [cell.Flagger].
func (c Config) Flags(flags *pflag.FlagSet) {
	flags.Bool("remove-taint", c.RemoveTaint,
		"Remove the taint "+Key+" from this node when its pods can be judged")
}

type params struct {
	cell.In

	Log       *slog.Logger
	DB        *statedb.DB
	Jobs      job.Group
	Config    Config
	Client    dynamic.Interface
	Nodes     statedb.Table[*tables.Node]
	LocalNode tables.LocalNode
	Holding   tables.Holding
}

func register(p params) {
	if p.Config.RemoveTaint && p.Client != nil {
		r := &remover{p}
		p.Jobs.Add(job.OneShot("remove-taint", r.run))
	}
}
