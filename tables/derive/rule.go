// SPDX-License-Identifier: Apache-2.0

package derive

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"reflect"
	"slices"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
)

// Rule declares tables that are computed from others. Key is what the work is divided by.
type Rule[Key comparable] struct {
	Name    string              // that of the first output if empty
	Outputs []statedb.TableMeta // of which the rule is the only writer, but for status columns
	Inputs  []Input[Key]
	Seed    []Key // keys that exist whatever the inputs are

	// After are tables that are initialized before the rule starts, beside the inputs.
	After []statedb.TableMeta

	// Last tells the keys that are computed after all keys that were marked before them by
	// the same change or computation: they move to the end when they are marked again. Other
	// keys keep their place. Nil: there are none.
	Last func(Key) bool

	// Large tells the keys that take long to compute: they wait in the queue of changes that mark
	// many keys. Nil: there are none.
	Large func(Key) bool

	// Compute brings the outputs up to date for some keys, in their order. It reads inputs
	// from a snapshot, in which outputs are as they were before the transaction. What it
	// marks is computed later, in the order of its marks.
	Compute func(in statedb.ReadTxn, out statedb.WriteTxn, keys []Key, mark func(Key)) error
}

// Params are what [Register] needs of the application.
type Params struct {
	cell.In

	DB      *statedb.DB
	Jobs    job.Group
	Metrics *Metrics
}

// Register runs a rule for as long as the agent runs. To be called before the start.
func Register[Key comparable](p Params, rule Rule[Key]) error {
	r, err := newRunner(p.DB, rule, p.Metrics)
	if err != nil {
		return fmt.Errorf("register rule %s: %w", rule.Name, err)
	}
	p.Jobs.Add(job.OneShot("derive-"+r.Name, r.run, job.WithShutdown()))
	return nil
}

const (
	// maxKeys is how many keys of each queue one transaction computes at most, so that it
	// takes some tens of milliseconds.
	maxKeys = 1000

	// manyKeys are so many keys marked by one change that they wait in the queue of those.
	manyKeys = 200

	// snapshotAge is for how long a rule without work holds on to a snapshot, and with it
	// to all rows of the database as they were then.
	snapshotAge = time.Second
)

type runner[Key comparable] struct {
	Rule[Key]
	db          *statedb.DB
	initialized []func(statedb.WriteTxn) // nil after the first time
	former      statedb.ReadTxn          // up to which changes were told
	watches     []<-chan struct{}
	maxKeys     int // see the constants
	manyKeys    int
	stats       []*Stats    // of each output
	few, many   *queue[Key] // a key of which there is work in both may wait in both
}

// initializer is the part of [statedb.RWTable] that does not depend on rows.
type initializer interface {
	RegisterInitializer(txn statedb.WriteTxn, name string) func(statedb.WriteTxn)
}

func newRunner[Key comparable](
	db *statedb.DB, rule Rule[Key], metrics *Metrics,
) (*runner[Key], error) {
	var entries uint64
	rule.Name = cmp.Or(rule.Name, rule.Outputs[0].Name())
	r := &runner[Key]{
		Rule: rule, db: db, watches: make([]<-chan struct{}, len(rule.Inputs)),
		few: newQueue[Key](&entries), many: newQueue[Key](&entries), maxKeys: maxKeys, manyKeys: manyKeys,
	}
	for _, key := range rule.Seed {
		r.few.push(key)
	}
	var inputs []InputOf
	for _, in := range rule.Inputs {
		if err := in.observe(db); err != nil {
			return nil, err
		}
		of := InputOf{Table: in.meta().Name(), Feedback: in.isFeedback()}
		if !slices.Contains(inputs, of) { // a table may be an input twice
			inputs = append(inputs, of)
		}
	}
	wtxn := db.WriteTxn(rule.Outputs...)
	defer wtxn.Abort()
	for _, table := range rule.Outputs {
		t, ok := table.(initializer)
		if !ok {
			return nil, fmt.Errorf("table %s is not writable", table.Name())
		}
		r.initialized = append(r.initialized, t.RegisterInitializer(wtxn, rule.Name))
		r.stats = append(r.stats, metrics.add(table.Name(), inputs...))
	}
	wtxn.Commit()
	return r, nil
}

func (r *runner[Key]) run(ctx context.Context, health cell.Health) error {
	if !r.awaitInputs(ctx, health) {
		return nil
	}
	for {
		if err := r.work(ctx); err != nil {
			return fmt.Errorf("derive %s: %w", r.Name, err)
		}
		health.OK("Up to date")
		if !r.awaitChange(ctx) {
			return nil
		}
	}
}

// awaitInputs returns when all inputs are initialized but feedbacks, false if the agent
// stops. The channels have to be closed before the first snapshot is taken: a snapshot may
// have a table initialized while Next does not tell of its rows yet.
func (r *runner[Key]) awaitInputs(ctx context.Context, health cell.Health) bool {
	txn := r.db.ReadTxn()
	tables := slices.Clone(r.After)
	for _, in := range r.Inputs {
		if !in.isFeedback() {
			tables = append(tables, in.meta())
		}
	}
	for _, table := range tables {
		initialized, watch := table.Initialized(txn)
		if !initialized {
			health.OK("Waiting for table " + table.Name())
		}
		select {
		case <-watch:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// work computes until there is nothing left to compute.
func (r *runner[Key]) work(ctx context.Context) error {
	for ctx.Err() == nil {
		r.collect(r.db.ReadTxn())
		if r.few.len()+r.many.len() == 0 && r.initialized == nil {
			return nil
		}
		if err := r.transact(); err != nil {
			return err
		}
	}
	return nil
}

// collect marks the keys of all changes that a snapshot has.
func (r *runner[Key]) collect(now statedb.ReadTxn) {
	for i, in := range r.Inputs {
		r.watches[i] = in.changes(r.former, now, func(marks func(mark func(Key))) {
			r.enqueue(marks)
		})
	}
	r.former = now
}

// enqueue has the keys wait that one change marks.
func (r *runner[Key]) enqueue(marks func(mark func(Key))) {
	var keys []Key
	marks(func(key Key) { keys = append(keys, key) })
	for _, key := range keys {
		r.push(key, len(keys) > r.manyKeys)
	}
}

// push has a key wait in a queue. One that is computed last waits in the queue of many if
// any mark put it there, as there may be keys that it has to wait for.
func (r *runner[Key]) push(key Key, isOfMany bool) {
	isOfMany = isOfMany || r.Large != nil && r.Large(key)
	queue := r.few
	if isOfMany {
		queue = r.many
	}
	switch {
	case r.Last == nil || !r.Last(key):
		queue.add(key)
	case isOfMany || r.many.has(key):
		r.few.drop(key)
		r.many.push(key)
	default:
		r.few.push(key)
	}
}

// transact computes some keys of each queue in one transaction. Those of many do not
// overtake the others.
func (r *runner[Key]) transact() error {
	out := &transaction{r.db.WriteTxn(r.Outputs...), map[string]Counts{}}
	defer out.Abort()
	in := r.db.ReadTxn() // with the outputs locked, it has them as the transaction has
	r.collect(in)
	revisions, computed := r.revisions(out), 0
	for _, q := range []*queue[Key]{r.few, r.many} {
		before := uint64(math.MaxUint64)
		if q == r.many {
			before = r.few.oldest()
		}
		keys := q.take(r.maxKeys, before)
		if len(keys) == 0 {
			continue
		}
		var more []Key
		computed += len(keys)
		if err := r.Compute(in, out, keys, func(key Key) { more = append(more, key) }); err != nil {
			return err
		}
		for _, key := range more {
			r.push(key, q == r.many || len(more) > r.manyKeys)
		}
	}
	for _, stats := range r.stats {
		stats.add(out.of(stats.table, computed))
	}
	if r.initialized != nil && r.few.len()+r.many.len() == 0 {
		for _, done := range r.initialized {
			done(out)
		}
		r.initialized = nil
	} else if slices.Equal(revisions, r.revisions(out)) {
		return nil // a commit would wake readers
	}
	out.Commit()
	return nil
}

// revisions returns those of the outputs.
func (r *runner[Key]) revisions(txn statedb.ReadTxn) []statedb.Revision {
	revisions := make([]statedb.Revision, len(r.Outputs))
	for i, table := range r.Outputs {
		revisions[i] = table.Revision(txn)
	}
	return revisions
}

// awaitChange returns when an input has changed, false if the agent stops.
func (r *runner[Key]) awaitChange(ctx context.Context) bool {
	cases := []reflect.SelectCase{{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(ctx.Done())}}
	for _, watch := range r.watches {
		cases = append(cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(watch)})
	}
	timer := time.NewTimer(snapshotAge)
	defer timer.Stop()
	cases = append(cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(timer.C)})
	chosen, _, _ := reflect.Select(cases)
	return chosen != 0
}
