// SPDX-License-Identifier: Apache-2.0

package mapsync

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// Grace is longer than a packet takes from its first lookup to its last.
const Grace = 100 * time.Millisecond

// Row is a row that stands for one entry of a map. What derives it gives it
// [reconciler.StatusPending] when it is new or wants something else. It becomes Done when
// the map has it, Error when the map refused it, and stays Pending, with a reason in Error,
// while it waits for what it refers to.
type Row[K, V tables.MapPart] interface {
	comparable
	MapKey() K // a function of the row's primary key, and of no other row
	MapValue() V
	GetStatus() reconciler.Status
}

// Config describes the reconciliation of one map.
type Config[R Row[K, V], K, V tables.MapPart] struct {
	Map     bpf.Map[K, V]
	Desired tables.Desired[R]
	Mirror  statedb.RWTable[*tables.Mirror[K, V]]

	ByKey      func(K) statedb.Query[R]     // of Desired
	WithStatus func(R, reconciler.Status) R // returns a copy

	// Announce says that something lives while this mirror refers to it: writes are
	// announced before they happen.
	Announce bool

	// Refers, if not nil, returns what has to be complete in the kernel before the row is
	// written. kernel is what the map has under the key, nil for nothing: what that refers
	// to need not be asked again.
	Refers func(row R, kernel *V) []Reference

	// Vacate, if not nil, says whether what the map has under the key is removed while the
	// row waits: it is worse than nothing.
	Vacate func(row R, kernel V) bool

	// Releases, if not nil, is Refers for a deletion.
	Releases func(key K) []Reference

	// Made, if not nil, returns the number of the transaction that gave the row its value.
	Made func(R) uint64

	// DeleteAfter is how long an entry stays that is not desired any more. If it is desired
	// again meanwhile, it was never away.
	DeleteAfter time.Duration

	// Raise is called after the writes of a round, and before they are confirmed, if Revises
	// is true of one: it changes what verdicts that connections keep stand for. nil is no
	// entry.
	Revises func(old, new *V) bool
	Raise   func()

	// Flush is called with the keys of writes of which Flushes is true, a [Grace] period
	// after them: connections of these addresses have to be removed.
	Flushes func(old, new *V) bool
	Flush   func([]K)
}

func (c *Config[R, K, V]) validate() error {
	switch {
	case c.Map == nil, c.Desired.RWTable == nil, c.Mirror == nil, c.ByKey == nil, c.WithStatus == nil:
		return errors.New("a map, its desired table, its mirror and accessors are needed")
	case (c.Revises == nil) != (c.Raise == nil), (c.Flushes == nil) != (c.Flush == nil):
		return errors.New("raising goes with Revises, and flushing with Flushes")
	}
	return nil
}

// Params are what every reconciler needs beside its Config.
type Params struct {
	cell.In

	Log     *slog.Logger
	DB      *statedb.DB
	Jobs    job.Group
	Control *Control
}

// Register has a map reconciled for as long as the agent runs. Nothing is written before
// the desired table is initialized. The map's row of bpf-maps is initialized once everything
// that was desired at the start was tried.
func Register[R Row[K, V], K, V tables.MapPart](p Params, cfg Config[R, K, V]) error {
	if err := cfg.validate(); err != nil {
		return fmt.Errorf("register map reconciler: %w", err)
	}
	l, err := newLoop(p.DB, p.Log, p.Control, cfg)
	if err != nil {
		return fmt.Errorf("register reconciler of map %s: %w", cfg.Map.Spec().Name, err)
	}
	p.Jobs.Add(job.OneShot("reconcile-"+l.name, l.run, job.WithShutdown()))
	return nil
}
