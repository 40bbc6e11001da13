// SPDX-License-Identifier: Apache-2.0

package tables

import "github.com/cilium/statedb"

// Desired is a table of entries wanted in the kernel, given by the module that
// derives it to the one reconciler that writes its status column, and nothing
// else in it.
type Desired[Row any] struct{ statedb.RWTable[Row] }

// NewDesired hands a table to its reconciler.
func NewDesired[Row any](table statedb.RWTable[Row]) Desired[Row] { return Desired[Row]{table} }
