// SPDX-License-Identifier: Apache-2.0

package bpfmap

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// Gate says whether a write may be made now, and else why not and what it waits for.
type Gate[K, V tables.MapPart] func(op Op[K, V]) (waitFor any, reason string)

// Config describes the reconciliation of one map.
type Config[Row any, K, V tables.MapPart] struct {
	Map     bpf.Map[K, V]
	Desired statedb.RWTable[Row]                    // what the map shall hold
	Entries statedb.RWTable[*tables.MapEntry[K, V]] // what it holds: the mirror, of which this is the only writer

	// MapKey returns the key of a row. It must be a function of the row's
	// primary key, and no two rows may have the same.
	MapKey   func(Row) K
	MapValue func(Row) V

	// The status of a row. A row that is new, or whose value has changed, has to
	// be [reconciler.StatusPending]; it becomes Done when the map has it, Error
	// when the map refused it, and stays Pending, with a reason in Error, while
	// it waits for another entry. WithStatus returns a copy.
	WithStatus func(Row, reconciler.Status) Row
	GetStatus  func(Row) reconciler.Status

	Plan Plan[K, V]

	// Gate, if not nil, returns the gate of a round, which looks at one snapshot. It
	// says whether a write may be made now: an empty reason means yes. Otherwise it
	// is looked at again when a row of Opener changes that has waitFor. Whatever else
	// it decides by, such a change follows, unless that is undone before the row is
	// derived anew: then the gate opens with nothing told. So it is also looked at by
	// itself, with growing delays.
	Gate   func(txn statedb.ReadTxn) Gate[K, V]
	Opener Opener

	// Held are tables that nobody changes from the snapshot of a gate until the
	// writes that it let through are in the mirror. Who looks at the mirror to
	// change one of them so never misses what the gate relied on.
	Held []statedb.TableMeta

	// Vacate, if not nil, says whether what the map has under the key of a write
	// that has to wait must not stay meanwhile. It is deleted then.
	Vacate func(op Op[K, V]) bool

	// Independent says that there is no Gate, and that neither a gate of another
	// map nor anything else relies on an entry in the mirror of this one to be in
	// the map still: what is about to change or to go is not announced there. The
	// rounds of all others exclude one another: the snapshot of a gate shows
	// everything that was written to them before, and nothing is written to them
	// until its own writes show.
	Independent bool
}

func (c *Config[Row, K, V]) validate() error {
	switch {
	case c.Map == nil, c.Desired == nil, c.Entries == nil:
		return errors.New("a map, its desired table and its mirror are needed")
	case c.MapKey == nil, c.MapValue == nil, c.WithStatus == nil, c.GetStatus == nil:
		return errors.New("accessors of the row are missing")
	case c.Plan.Order == nil:
		return errors.New("the plan has no order")
	case c.Gate != nil && c.Independent:
		return errors.New("a map with a gate is not independent")
	case c.Gate != nil && c.Opener == nil:
		return errors.New("a gate needs a table that opens it")
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

// Register has a map reconciled for as long as the agent runs. The mirror is
// initialized once the map has been read, and the map's row of bpf-maps once
// the map was made to agree with the desired table a first time.
func Register[Row any, K, V tables.MapPart](p Params, cfg Config[Row, K, V]) error {
	if err := cfg.validate(); err != nil {
		return fmt.Errorf("register map reconciler: %w", err)
	}
	l, err := newLoop(p.DB, p.Log, p.Control, cfg)
	if err != nil {
		return fmt.Errorf("register reconciler of map %s: %w", l.name, err)
	}
	p.Jobs.Add(job.OneShot("reconcile-"+l.name, l.run, job.WithShutdown()))
	return nil
}
