// SPDX-License-Identifier: Apache-2.0

package derive

import (
	"context"

	"github.com/cilium/statedb"
)

// Stepper runs a rule by hand, for tests. Its inputs need not be initialized.
type Stepper[Key comparable] struct{ r *runner[Key] }

// NewStepper returns a stepper that has run nothing yet.
func NewStepper[Key comparable](db *statedb.DB, rule Rule[Key]) (*Stepper[Key], error) {
	r, err := newRunner(db, rule, NewMetrics())
	return &Stepper[Key]{r}, err
}

// Limit has each transaction compute so many keys of each queue at most, and so many keys
// marked at once count as many, so that a test can look at each piece of the work.
func (s *Stepper[Key]) Limit(keys, many int) { s.r.maxKeys, s.r.manyKeys = keys, many }

// Step runs one transaction. It reports whether there is more to compute.
func (s *Stepper[Key]) Step() (more bool, err error) {
	if err := s.r.transact(); err != nil {
		return false, err
	}
	return s.r.few.len()+s.r.many.len() > 0, nil
}

// Work runs transactions until there is nothing left to compute.
func (s *Stepper[Key]) Work(ctx context.Context) error { return s.r.work(ctx) }
