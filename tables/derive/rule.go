// SPDX-License-Identifier: Apache-2.0

package derive

import (
	"iter"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables/former"
)

// Rule declares a derived table. Key is what the work is divided by: all rows
// of the output under one key are computed together.
type Rule[Key comparable, Out any] struct {
	// Output is the table that the rule owns. Others may only update columns
	// that Equal ignores, such as a reconciliation status.
	Output statedb.RWTable[Out]

	// Inputs are the tables that the rows are computed from.
	Inputs []Input[Key]

	// Exclusive are inputs that follow from the output themselves, and that nobody
	// changes during a round: what comes into them after it comes from rows that the
	// round has written, never from those that it has replaced.
	Exclusive []statedb.TableMeta

	// After are tables that have to be initialized before the rule starts,
	// though their changes affect no keys.
	After []statedb.TableMeta

	// Await, if not nil, puts off a round, though not for long: until it reports that
	// what is to follow in a moment is there, by which the round's work would have to
	// be done again. It is asked anew when one of the channels closes. What did not
	// come in time is not waited for again before Await has reported that it is there.
	Await func(txn statedb.ReadTxn) (ready bool, changed []<-chan struct{})

	// Begin, if not nil, is asked when the first round has been computed whether it may
	// be committed. If not, it is computed anew with the next change of an input.
	Begin func() bool

	// Seed are keys that exist whatever the inputs are; they are computed in
	// the first round.
	Seed []Key

	// Existing returns the rows that the output has under a key.
	Existing func(txn statedb.ReadTxn, key Key) iter.Seq2[Out, statedb.Revision]

	// Rows returns the rows wanted under a key. The snapshot includes what the
	// round has inserted so far; what it will delete is still there.
	Rows func(txn statedb.ReadTxn, key Key) []Out

	// Plan replaces Rows in a rule whose keys depend on each other, as when
	// they share allocated numbers. It is given the affected keys of a round,
	// may add others, and returns all of them with the function that tells
	// their rows; or none where Begin is to say that it is too early.
	Plan func(txn statedb.ReadTxn, keys []Key) ([]Key, func(Key) []Out)

	// Equal reports whether a wanted row says the same as the existing one of
	// the same primary key, which is then left as it is.
	Equal func(wanted, existing Out) bool
}

// Input is a table that a rule is computed from: see [From].
type Input[Key comparable] interface {
	meta() statedb.TableMeta
	// awaited reports whether the first round waits for the table.
	awaited() bool
	// overlooks reports whether there are changes that do not wake the rule.
	overlooks() bool
	// sleeps reports whether none does for now.
	sleeps(txn statedb.ReadTxn) bool
	// isApart reports whether its changes may affect something else when they are alone.
	isApart() bool
	// behind reports whether a snapshot has changes that have not been told.
	behind(txn statedb.ReadTxn) bool
	// join makes the rows that there are at first affect nothing.
	join()
	// observe starts to track the changes of the table.
	observe(db *statedb.DB) error
	// changes calls affect with the keys that the changes since the last call
	// affect, and returns how many changes there were and a channel that closes when
	// there are more. They are alone if no input has any that is not apart.
	changes(txn statedb.ReadTxn, alone bool, affect func(Key)) (told int, more <-chan struct{})
}

// From declares that each row of a table affects some keys. The function is
// called with the old and with the new value of a changed row, and may look up
// other rows in the snapshot.
func From[In any, Key comparable](table statedb.Table[In], affects func(txn statedb.ReadTxn, row In, affect func(Key))) Input[Key] {
	return &input[In, Key]{table: table, affects: affects}
}

// FromIf is [From] for a table of which only some changes matter: an update
// between two values that differs reports to be alike affects nothing.
// Inserting and deleting a row always does.
func FromIf[In any, Key comparable](table statedb.Table[In], differs func(old, new In) bool, affects func(txn statedb.ReadTxn, row In, affect func(Key))) Input[Key] {
	return &input[In, Key]{table: table, affects: affects, differs: differs}
}

// FromChange is [From] for a table of which it matters what a row was before and
// what it is now: the function is called once for each changed row, with the zero
// value where there is none; and again in the same round for a row that changes
// while that begins.
func FromChange[In any, Key comparable](table statedb.Table[In], affects func(txn statedb.ReadTxn, old, new In, affect func(Key))) Input[Key] {
	return &input[In, Key]{table: table, changed: affects}
}

// Where is an input that [From], [FromIf] or [FromChange] returned, for a table of
// which only some rows matter: others are as if they were not there, and cost no
// memory.
func Where[In any, Key comparable](matters func(row In) bool, in Input[Key]) Input[Key] {
	in.(*input[In, Key]).matters = matters
	return in
}

// Indexed is an input of which no other rows matter than those that an index of the
// table has, of which query is any: changes of other rows do not wake the rule, and are
// told with the next ones that do, or after a while.
func Indexed[In any, Key comparable](query statedb.Query[In], in Input[Key]) Input[Key] {
	in.(*input[In, Key]).index = &query
	return in
}

// While is an input whose changes affect something only while a function says so. What
// it goes by are other inputs, and what the rule has remembered by its last round.
// Otherwise changes do not wake the rule, and are told with the next ones that do, or
// after a while.
func While[Key comparable](matters func(txn statedb.ReadTxn) bool, in Input[Key]) Input[Key] {
	return while[Key]{in, matters}
}

type while[Key comparable] struct {
	Input[Key]
	matters func(statedb.ReadTxn) bool
}

func (while[Key]) overlooks() bool                   { return true }
func (w while[Key]) sleeps(txn statedb.ReadTxn) bool { return !w.matters(txn) }

// FromKey is [From] for rows whose keys follow from their primary keys alone: they
// need not be remembered. So does whether they matter, if only some do.
func FromKey[In any, Key comparable](table statedb.Table[In], affects func(txn statedb.ReadTxn, row In, affect func(Key))) Input[Key] {
	return &input[In, Key]{table: table, affects: affects, keyed: true}
}

// Initially has the rows that there are in the first round affect only what a
// function says, as that round computes all keys that any input names.
func Initially[In any, Key comparable](affects func(txn statedb.ReadTxn, row In, affect func(Key)), in Input[Key]) Input[Key] {
	in.(*input[In, Key]).initially = affects
	return in
}

// Joined is an input whose rows only add to what the keys of others come to: in the
// first round, which computes all of these, they need not be looked at.
func Joined[Key comparable](in Input[Key]) Input[Key] {
	in.join()
	return in
}

// Feedback is an input that itself follows from the output: it is not waited for
// before the first round, as that would be a circle.
func Feedback[Key comparable](in Input[Key]) Input[Key] { return feedback[Key]{in} }

type feedback[Key comparable] struct{ Input[Key] }

func (feedback[Key]) awaited() bool { return false }

// Apart is an input that [FromChange] returned, whose changes affect what a function says
// when no input has changed that is not apart: all that these say was so when the last
// round began is so now, and has been meanwhile.
func Apart[In any, Key comparable](alone func(txn statedb.ReadTxn, old, new In, affect func(Key)), in Input[Key]) Input[Key] {
	in.(*input[In, Key]).alone = alone
	return in
}

type input[In any, Key comparable] struct {
	table   statedb.Table[In]
	affects func(statedb.ReadTxn, In, func(Key))
	changed func(txn statedb.ReadTxn, old, new In, affect func(Key)) // in the place of affects
	differs func(old, new In) bool
	matters func(In) bool      // nil: all rows do
	keyed   bool               // the keys follow from the primary key
	index   *statedb.Query[In] // any of the index whose rows alone matter; nil: all do

	// initially replaces affects and changed in the first round.
	initially func(statedb.ReadTxn, In, func(Key))

	// alone replaces changed when no input has changed that is not apart; nil if nothing
	// does.
	alone func(txn statedb.ReadTxn, old, new In, affect func(Key))

	iterator statedb.ChangeIterator[In]
	revision statedb.Revision // of the table, up to which changes were told
	watch    <-chan struct{}  // closes when there are more; nil before the first round

	// seen has each row as affects was last called with it, nil if it is keyed: those
	// of the first round when remembered is closed.
	seen       *former.Rows[In]
	first      []In
	remembered chan struct{}
}

func (i *input[In, Key]) meta() statedb.TableMeta { return i.table }
func (i *input[In, Key]) awaited() bool           { return true }
func (i *input[In, Key]) overlooks() bool         { return i.index != nil }

func (i *input[In, Key]) sleeps(statedb.ReadTxn) bool { return false }
func (i *input[In, Key]) isApart() bool               { return i.alone != nil }

func (i *input[In, Key]) behind(txn statedb.ReadTxn) bool { return i.table.Revision(txn) != i.revision }

func (i *input[In, Key]) join() { i.initially = func(statedb.ReadTxn, In, func(Key)) {} }

func (i *input[In, Key]) observe(db *statedb.DB) (err error) {
	wtxn := db.WriteTxn(i.table)
	defer wtxn.Abort()
	i.iterator, err = i.table.Changes(wtxn)
	wtxn.Commit()
	if !i.keyed {
		i.seen = former.NewRows(i.table.PrimaryIndexer())
	}
	return err
}

func (i *input[In, Key]) changes(txn statedb.ReadTxn, alone bool, affect func(Key)) (told int, more <-chan struct{}) {
	// A commit is in snapshots a moment before it closes channels, and Next tells
	// nothing until then. What this round can see it has to be told, for it may be
	// undone before the next one, which would then know of nothing.
	revision := i.table.Revision(txn)
	isFirst := i.watch == nil
	if !isFirst {
		if revision == i.revision {
			return 0, i.wakes(txn)
		}
		<-i.watch
		i.expect(txn)
	}
	changes, _ := i.iterator.Next(txn)
	for change := range changes {
		told++
		gone := change.Deleted || i.matters != nil && !i.matters(change.Object)
		if isFirst && !i.keyed {
			i.takeFirst(txn, change.Object, gone, affect)
		} else {
			i.take(txn, change.Object, gone, alone, affect)
		}
	}
	// The channel was a closed one, to ask for what is left: nothing.
	_, watch := i.iterator.Next(txn)
	i.initially = nil
	i.revision, i.watch = revision, watch
	i.remember()
	return told, i.wakes(txn)
}

// wakes returns the channel that closes when there is more than the snapshot has.
func (i *input[In, Key]) wakes(txn statedb.ReadTxn) <-chan struct{} {
	if i.index == nil {
		return i.watch
	}
	_, watch := i.table.LowerBoundWatch(txn, *i.index)
	return watch
}

// many are so many rows at once that it is worth to see to them apart.
const many = 1024

// takeFirst takes in one change in the first round, before which there was nothing.
func (i *input[In, Key]) takeFirst(txn statedb.ReadTxn, row In, gone bool, affect func(Key)) {
	if gone {
		return
	}
	i.first = append(i.first, row)
	switch {
	case i.initially != nil:
		i.initially(txn, row, affect)
	case i.changed != nil:
		var none In
		i.changed(txn, none, row, affect)
	default:
		i.affects(txn, row, affect)
	}
}

// remember remembers the rows of the first round, which are not asked for before the
// next one: many of them while this one goes on.
func (i *input[In, Key]) remember() {
	rows := i.first
	if i.first = nil; len(rows) == 0 {
		return
	}
	fill := func() {
		i.seen.Reserve(len(rows))
		for _, row := range rows {
			i.seen.Swap(row)
		}
	}
	if len(rows) < many {
		fill()
		return
	}
	remembered := make(chan struct{})
	i.remembered = remembered
	go func() {
		defer close(remembered)
		fill()
	}()
}

// expect makes room for many rows that have come since the last round.
func (i *input[In, Key]) expect(txn statedb.ReadTxn) {
	if i.keyed {
		return
	}
	if i.remembered != nil {
		<-i.remembered
		i.remembered = nil
	}
	if rows := i.table.NumObjects(txn); i.matters == nil && rows > 2*i.seen.Len()+many {
		i.seen.Reserve(rows)
	}
}

// take takes in one change, alone or not; in the first round, of what is keyed.
func (i *input[In, Key]) take(txn statedb.ReadTxn, row In, gone, alone bool, affect func(Key)) {
	if i.keyed {
		switch {
		case i.matters != nil && !i.matters(row):
		case i.initially == nil:
			i.affects(txn, row, affect)
		case !gone:
			i.initially(txn, row, affect)
		}
		return
	}
	var old In
	var hadOld bool
	if gone {
		old, hadOld = i.seen.Forget(row)
		if !hadOld {
			return // it came and went between two rounds
		}
	} else {
		old, hadOld = i.seen.Swap(row)
	}
	if hadOld && !gone && i.differs != nil && !i.differs(old, row) {
		return
	}
	changed := i.changed
	if alone && i.isApart() {
		changed = i.alone
	}
	if changed != nil {
		var new In
		if !gone {
			new = row
		}
		changed(txn, old, new, affect)
		return
	}
	if hadOld {
		i.affects(txn, old, affect)
	}
	if !gone {
		i.affects(txn, row, affect)
	}
}
