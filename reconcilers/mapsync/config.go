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

// Row stands for one entry of a map. The rule that derives it sets [reconciler.StatusPending] when
// the row is new or changes its value. The status becomes Done when the map has the value, and
// Error when the map refused it. While the row waits for what it refers to it stays Pending, with a
// reason in Error.
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

	// PublishIntent says that the mirror announces writes before they happen, because the life of
	// some objects depends on this mirror.
	PublishIntent bool

	// Refers, if not nil, returns what must be complete in the kernel before the row is written.
	// kernel is what the map has under the key, nil for nothing. What that value refers to is
	// complete already.
	Refers func(row R, kernel *V) []Reference

	// DeleteWhileBlocked, if not nil, reports whether to delete the entry while the row waits,
	// because its present value is worse than none.
	DeleteWhileBlocked func(row R, kernel V) bool

	// Releases, if not nil, is Refers for a deletion.
	Releases func(key K) []Reference

	// Owner, if not nil, returns the number of an object with which the row shares its turns: an
	// object with many rows does not hold up others. 0 is none.
	Owner func(R) uint32

	// Made, if not nil, returns the number of the transaction that gave the row its value.
	Made func(R) uint64

	// DeleteAfter is how long an entry stays after it is no longer desired. If it is desired again
	// meanwhile, it is not deleted.
	DeleteAfter time.Duration

	// Revises reports whether a write changes verdicts that connections have cached. After such a
	// write, and before the round is confirmed, the loop calls Raise. nil is no entry.
	Revises func(old, new *V) bool
	Raise   func()

	// Flushes reports whether the connections of a key's address must be removed. The loop calls
	// Flush with these keys a [Grace] period after the write.
	Flushes func(old, new *V) bool
	Flush   func([]K)
}

func (c *Config[R, K, V]) validate() error {
	switch {
	case c.Map == nil, c.Desired.RWTable == nil, c.Mirror == nil, c.ByKey == nil, c.WithStatus == nil:
		return errors.New("a map, its desired table, its mirror and accessors are needed")
	case (c.Revises == nil) != (c.Raise == nil), (c.Flushes == nil) != (c.Flush == nil):
		return errors.New("one of Raise and Revises, or of Flush and Flushes, is missing")
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

// Register starts the reconciler of a map. It writes nothing before the desired table is
// initialized. It initializes the map's row of bpf-maps once it has tried everything that was
// desired at the start.
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
