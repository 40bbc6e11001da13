// SPDX-License-Identifier: Apache-2.0

package derive

import (
	"github.com/cilium/statedb"
)

// Input is a table that a rule is computed from.
type Input[Key comparable] interface {
	meta() statedb.TableMeta
	isFeedback() bool
	observe(db *statedb.DB) error
	// changes calls changed for each row that a snapshot has changed since the former one,
	// which is nil at first, and returns a channel that closes when there are more.
	changes(former, now statedb.ReadTxn, changed func(mark func(mark func(Key)))) <-chan struct{}
}

// From is an input of which each changed row marks keys: those of its former value and those of
// its present one. The function may look up other rows in the snapshot.
func From[Row comparable, Key comparable](
	table statedb.Table[Row], marks func(now statedb.ReadTxn, row Row, mark func(Key)),
) Input[Key] {
	return FromIf(table, func(_, _ Row) bool { return true }, marks)
}

// FromIf is [From] for a table of which only some updates matter: those between two values that
// differ as a function says. Inserting and deleting a row always does.
func FromIf[Row comparable, Key comparable](
	table statedb.Table[Row], differs func(old, new Row) bool,
	marks func(now statedb.ReadTxn, row Row, mark func(Key)),
) Input[Key] {
	var none Row
	return FromChange(table, func(now statedb.ReadTxn, old, new Row, mark func(Key)) {
		if old != none && new != none && !differs(old, new) {
			return
		}
		if old != none {
			marks(now, old, mark)
		}
		if new != none {
			marks(now, new, mark)
		}
	})
}

// FromChange is [From] for a table of which it matters what a row was and what it is: the
// function is called once for each changed row, with the zero value where there is none.
func FromChange[Row any, Key comparable](
	table statedb.Table[Row], marks func(now statedb.ReadTxn, old, new Row, mark func(Key)),
) Input[Key] {
	return &input[Row, Key]{table: table, marks: marks}
}

// OnChange is an input of which it matters only that something has changed: the function is
// called once for all changes of a snapshot.
func OnChange[Row any, Key comparable](
	table statedb.Table[Row], marks func(now statedb.ReadTxn, mark func(Key)),
) Input[Key] {
	return &onChange[Row, Key]{table: table, marks: marks}
}

// Feedback is an input that follows from the rule's own outputs: the first transaction does
// not wait for it.
func Feedback[Key comparable](in Input[Key]) Input[Key] { return feedback[Key]{in} }

type feedback[Key comparable] struct{ Input[Key] }

func (feedback[Key]) isFeedback() bool { return true }

// Later is an input whose rows of the first snapshot mark nothing: what they say is taken in
// with the keys that other inputs mark then.
func Later[Key comparable](in Input[Key]) Input[Key] { return later[Key]{in} }

type later[Key comparable] struct{ Input[Key] }

func (l later[Key]) changes(
	former, now statedb.ReadTxn, changed func(func(func(Key))),
) <-chan struct{} {
	if former == nil {
		changed = func(func(func(Key))) {}
	}
	return l.Input.changes(former, now, changed)
}

type input[Row any, Key comparable] struct {
	table statedb.Table[Row]
	marks func(now statedb.ReadTxn, old, new Row, mark func(Key))
	rows  *changes[Row]
}

func (i *input[Row, Key]) meta() statedb.TableMeta { return i.table }
func (i *input[Row, Key]) isFeedback() bool        { return false }

func (i *input[Row, Key]) observe(db *statedb.DB) (err error) {
	i.rows, err = newChanges(db, i.table)
	return err
}

func (i *input[Row, Key]) changes(
	former, now statedb.ReadTxn, changed func(func(func(Key))),
) <-chan struct{} {
	return i.rows.next(former, now, func(old, new Row) {
		changed(func(mark func(Key)) { i.marks(now, old, new, mark) })
	})
}

type onChange[Row any, Key comparable] struct {
	table statedb.Table[Row]
	marks func(now statedb.ReadTxn, mark func(Key))
}

func (o *onChange[Row, Key]) meta() statedb.TableMeta      { return o.table }
func (o *onChange[Row, Key]) isFeedback() bool             { return false }
func (o *onChange[Row, Key]) observe(db *statedb.DB) error { return nil }

func (o *onChange[Row, Key]) changes(
	former, now statedb.ReadTxn, changed func(func(func(Key))),
) <-chan struct{} {
	_, watch := o.table.AllWatch(now)
	if former == nil || o.table.Revision(former) != o.table.Revision(now) {
		changed(func(mark func(Key)) { o.marks(now, mark) })
	}
	return watch
}
