// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"log/slog"
	"time"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/cmd/health"
)

// envPrefix begins the environment variables that set flags: SLUICE_NODE_NAME
// is --node-name.
const envPrefix = "SLUICE_"

const (
	startTimeout = 5 * time.Minute
	stopTimeout  = time.Minute

	// logThreshold is how long a start or stop hook takes before it is worth a line.
	logThreshold = 100 * time.Millisecond
)

// New returns a hive of the given modules and of what they all need. [Cell] is
// the agent; tests put something else in place of what touches the outside.
//
// Each module gets a logger, a health scope and a job group of its own, and
// its name shows as the writer of its tables.
func New(cells ...cell.Cell) *hive.Hive {
	return newHive(append([]cell.Cell{
		gateCell, // first, so that its start hook is the first to run
		infrastructure,
		configCell,
	}, cells...)...)
}

// infrastructure is what the modules of agent and operator need.
var infrastructure = cell.Group(
	statedb.Cell,
	job.Cell,
	health.Cell,
	metricsCell,
	cell.Config(DefaultLogConfig),
)

func newHive(cells ...cell.Cell) *hive.Hive {
	return hive.NewWithOptions(hive.Options{
		EnvPrefix:    envPrefix,
		StartTimeout: startTimeout,
		StopTimeout:  stopTimeout,
		LogThreshold: logThreshold,
		ModulePrivateProviders: cell.ModulePrivateProviders{
			health.ForModule,
			newJobGroup,
		},
		ModuleDecorators: cell.ModuleDecorators{
			func(db *statedb.DB, id cell.ModuleID) *statedb.DB { return db.NewHandle(string(id)) },
		},
	}, cells...)
}

func newJobGroup(r job.Registry, h cell.Health, log *slog.Logger, m job.Metrics) job.Group {
	return r.NewGroup(h, job.WithLogger(log), job.WithMetrics(m))
}
