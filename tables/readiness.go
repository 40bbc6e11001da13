// SPDX-License-Identifier: Apache-2.0

package tables

import "github.com/cilium/hive/cell"

// Readiness is a condition of the agent being ready, beside every table being
// initialized. A module adds one by providing a [ReadinessOut].
type Readiness struct {
	// Name says what must be ready, in kebab case.
	Name string
	// Ready reports whether it is and, if not, what it waits for. It is called
	// on every probe and from any goroutine.
	Ready func() (ok bool, reason string)
}

// ReadinessOut adds a condition to those of other modules.
type ReadinessOut struct {
	cell.Out

	Readiness Readiness `group:"ready"`
}
