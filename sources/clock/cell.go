// SPDX-License-Identifier: Apache-2.0

// Package clock keeps the time in a table, for rules of the operator.
//
//	time ──► clock
package clock

import (
	"context"
	"fmt"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
)

// Cell keeps the clock.
var Cell = cell.Module(
	"clock",
	"The time",

	tables.Own(tables.NewClockTable),
	cell.Provide(source),
	cell.Invoke(register),
)

func source(t statedb.RWTable[*tables.Clock]) tables.SourceOut {
	return tables.NewSourceOut("time", t)
}

func register(db *statedb.DB, jobs job.Group, clock statedb.RWTable[*tables.Clock]) error {
	// Rules have the time from the beginning.
	if err := set(db, clock); err != nil {
		return err
	}
	jobs.Add(job.Timer("set-clock", func(context.Context) error { return set(db, clock) },
		tables.ClockInterval))
	return nil
}

func set(db *statedb.DB, clock statedb.RWTable[*tables.Clock]) error {
	wtxn := db.WriteTxn(clock)
	defer wtxn.Abort()
	now := &tables.Clock{Now: time.Now().UTC().Truncate(time.Second)}
	if _, _, err := clock.Insert(wtxn, now); err != nil {
		return fmt.Errorf("set the clock: %w", err)
	}
	wtxn.Commit()
	return nil
}
