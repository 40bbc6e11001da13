// SPDX-License-Identifier: Apache-2.0

package derive

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables/former"
	"github.com/sluice-net/sluice/tables/transform"
)

// Params are what [Register] needs of the application.
type Params struct {
	cell.In

	DB      *statedb.DB
	Jobs    job.Group
	Metrics *transform.Metrics
}

// Register has a rule kept up by a job. To be called before the start.
func Register[Key comparable, Out any](p Params, rule Rule[Key, Out]) (*transform.Stats, error) {
	var inputs []transform.InputOf
	for _, in := range rule.Inputs {
		if of := (transform.InputOf{Table: in.meta().Name(), Feedback: !in.awaited()}); !slices.Contains(inputs, of) {
			inputs = append(inputs, of) // a table may be an input twice
		}
	}
	r, err := newRunner(p.DB, rule, p.Metrics.Add(rule.Output.Name(), inputs...))
	if err != nil {
		return nil, fmt.Errorf("derive table %s: %w", rule.Output.Name(), err)
	}
	p.Jobs.Add(job.OneShot("derive-"+rule.Output.Name(), r.run, job.WithShutdown()))
	return r.stats, nil
}

// runner keeps one derived table.
type runner[Key comparable, Out any] struct {
	Rule[Key, Out]
	db          *statedb.DB
	stats       *transform.Stats
	primary     statedb.Indexer[Out]
	initialized func(statedb.WriteTxn) // nil after the first round
	watches     []<-chan struct{}      // of the inputs, as of the last round
	wait        waiter
	inVain      bool          // what Await asks for did not come in time
	first       affected[Key] // keys of the first round
	told        int           // changes of inputs since the last commit
}

func newRunner[Key comparable, Out any](db *statedb.DB, rule Rule[Key, Out], stats *transform.Stats) (*runner[Key, Out], error) {
	if rule.Plan == nil {
		rows := rule.Rows
		rule.Plan = func(txn statedb.ReadTxn, keys []Key) ([]Key, func(Key) []Out) {
			return keys, func(key Key) []Out { return rows(txn, key) }
		}
	}
	r := &runner[Key, Out]{
		Rule: rule, db: db, stats: stats, primary: rule.Output.PrimaryIndexer(),
		watches: make([]<-chan struct{}, len(rule.Inputs)), first: affected[Key]{list: rule.Seed},
	}
	wtxn := db.WriteTxn(rule.Output)
	r.initialized = rule.Output.RegisterInitializer(wtxn, "derive")
	wtxn.Commit()
	for _, in := range rule.Inputs {
		if err := in.observe(db); err != nil {
			return nil, fmt.Errorf("observe %s: %w", in.meta().Name(), err)
		}
	}
	return r, nil
}

func (r *runner[Key, Out]) run(ctx context.Context, health cell.Health) error {
	if !r.awaitInputs(ctx, health) {
		return nil
	}
	if r.Await != nil {
		r.takeIn(r.db.ReadTxn(), &r.first) // while it waits
	}
	reported := -1 // rows, in health
	for r.awaitMore(ctx) {
		watches, err := r.round()
		if err != nil {
			return fmt.Errorf("derive table %s: %w", r.Output.Name(), err)
		}
		if rows := r.Output.NumObjects(r.db.ReadTxn()); rows != reported {
			health.OK(fmt.Sprintf("%d rows", rows))
			reported = rows
		}
		if !r.awaitChange(ctx, watches) {
			return nil
		}
	}
	return nil
}

// awaitInputs returns when all inputs are initialized but those that follow from
// the output, false if that was not to be.
//
// That the channels are closed is seen before the first snapshot is taken:
// [statedb.Table.Initialized] may be true of a snapshot whose changes Next does
// not deliver yet, since a commit is visible a moment before it closes channels.
func (r *runner[Key, Out]) awaitInputs(ctx context.Context, health cell.Health) bool {
	tables := append([]statedb.TableMeta{}, r.After...)
	for _, in := range r.Inputs {
		if in.awaited() {
			tables = append(tables, in.meta())
		}
	}
	txn := r.db.ReadTxn()
	for _, t := range tables {
		_, watch := t.Initialized(txn)
		select {
		case <-watch:
			continue
		default:
		}
		health.OK("Waiting for table " + t.Name())
		select {
		case <-watch:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// overlookedFor is for how long changes that do not wake a rule are overlooked: until
// it has been told of a row that was deleted, StateDB keeps that.
const overlookedFor = time.Minute

// awaitChange returns when an input has changed; false if the agent stops.
func (r *runner[Key, Out]) awaitChange(ctx context.Context, watches []<-chan struct{}) bool {
	if !slices.ContainsFunc(r.Inputs, Input[Key].overlooks) {
		return r.wait.any(ctx, watches)
	}
	txn := r.db.ReadTxn()
	for i, in := range r.Inputs {
		if in.sleeps(txn) {
			watches[i] = nil // what it goes by wakes the rule
		}
	}
	return r.wait.anyFor(ctx, overlookedFor, watches)
}

// awaitMost is for how long a rule puts off a round at most.
const awaitMost = time.Second

// awaitMore returns when there is what Await asks for, or has not come in time;
// false if the agent stops.
func (r *runner[Key, Out]) awaitMore(ctx context.Context) bool {
	if r.Await == nil {
		return true
	}
	ready, changed := r.Await(r.db.ReadTxn())
	if !ready && !r.inVain {
		inTime, cancel := context.WithTimeout(ctx, awaitMost)
		defer cancel()
		for !ready && r.wait.any(inTime, changed) {
			ready, changed = r.Await(r.db.ReadTxn())
		}
	}
	r.inVain = !ready
	return ctx.Err() == nil
}

// round takes in the changes since the last one, and returns channels of which
// one closes when there are more. Most of what wakes a rule affects no key: that is
// found out without a transaction, unless it may depend on a table that is exclusive.
func (r *runner[Key, Out]) round() ([]<-chan struct{}, error) {
	keys := r.first
	if r.initialized == nil && len(r.Exclusive) == 0 {
		if r.takeIn(r.db.ReadTxn(), &keys); len(keys.list) == 0 {
			return r.watches, nil
		}
	}
	wtxn := r.db.WriteTxn(append([]statedb.TableMeta{r.Output}, r.Exclusive...)...)
	defer wtxn.Abort()
	r.takeIn(wtxn, &keys)
	changes, err := r.update(wtxn, keys.list)
	if err != nil {
		return nil, err
	}
	if r.initialized != nil {
		if r.Begin != nil && !r.Begin() {
			r.first = keys
			return r.watches, nil
		}
		r.initialized(wtxn)
		r.initialized, r.first = nil, affected[Key]{}
		changes++
	}
	if changes == 0 {
		return r.watches, nil
	}
	wtxn.Commit()
	work := max(changes, len(keys.list), r.told) // few rows may be long, and say much of many others
	r.told = 0
	return r.watches, former.Forget(r.db, r.Output, work)
}

// takeIn takes in the changes of all inputs that a snapshot has.
func (r *runner[Key, Out]) takeIn(txn statedb.ReadTxn, keys *affected[Key]) {
	affect := keys.add
	alone := !slices.ContainsFunc(r.Inputs, func(in Input[Key]) bool { return !in.isApart() && in.behind(txn) })
	for i, in := range r.Inputs {
		told, watch := in.changes(txn, alone, affect)
		r.told, r.watches[i] = r.told+told, watch
	}
}

// affected are keys, each once, in the order in which they came.
type affected[Key comparable] struct {
	list []Key
	seen map[Key]struct{}
}

func (a *affected[Key]) add(key Key) {
	if len(a.list) < few {
		if !slices.Contains(a.list, key) {
			a.list = append(a.list, key)
		}
		return
	}
	if a.seen == nil {
		a.seen = make(map[Key]struct{}, len(a.list))
		for _, key := range a.list {
			a.seen[key] = struct{}{}
		}
	}
	if _, ok := a.seen[key]; !ok {
		a.seen[key] = struct{}{}
		a.list = append(a.list, key)
	}
}

// update makes the rows under some keys what is wanted, and returns how many changed.
func (r *runner[Key, Out]) update(wtxn statedb.WriteTxn, keys []Key) (changes int, err error) {
	if len(keys) == 0 {
		return 0, nil
	}
	keys, rows := r.Plan(wtxn, keys)
	round := transform.Counts{Rounds: 1, Keys: len(keys)}
	empty := r.Output.NumObjects(wtxn) == 0 // as in the first round
	var unwanted []outputRow[Out]
	for _, key := range keys {
		wanted := rows(key)
		round.Rows += len(wanted)
		var existing outputRows[Out]
		if !empty {
			existing = r.existing(wtxn, key)
		}
		for _, row := range wanted {
			if len(existing.rows) > 0 {
				old := existing.find(r.primary.ObjectToKey(row))
				if old != nil {
					old.wanted = true
				}
				if old != nil && r.Equal(row, old.row) {
					continue
				}
			}
			round.Inserted++
			if _, _, err := r.Output.Insert(wtxn, row); err != nil {
				return 0, err
			}
		}
		for _, old := range existing.rows {
			if !old.wanted {
				unwanted = append(unwanted, old)
			}
		}
	}
	for _, old := range unwanted {
		// A row that moved from one key to another in this round stays.
		row, revision, found := r.Output.Get(wtxn, r.primary.QueryFromObject(old.row))
		if !found || revision != old.revision {
			continue
		}
		round.Deleted++
		if _, _, err := r.Output.Delete(wtxn, row); err != nil {
			return 0, err
		}
	}
	r.stats.Add(round)
	return round.Inserted + round.Deleted, nil
}
