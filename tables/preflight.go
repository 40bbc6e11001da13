// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"context"

	"github.com/cilium/hive/cell"
)

// Preflight is a check that runs before anything starts: it refuses a
// configuration that cannot work. A module adds one by providing a [PreflightOut].
type Preflight struct {
	// Name says what is checked, in kebab case.
	Name string
	// Check returns why the agent cannot work here, or a [Warning] if it can
	// but not fully. The context ends when the start is given up.
	Check func(context.Context) error
}

// PreflightOut adds a check to those of other modules.
type PreflightOut struct {
	cell.Out

	Preflight Preflight `group:"preflight"`
}

// Warning is what a [Preflight] returns when the agent can run, but degraded:
// it shows in the health of the agent and does not refuse the start.
type Warning struct{ Reason string }

func (w Warning) Error() string { return w.Reason }
