// SPDX-License-Identifier: Apache-2.0

package bpfmap

import (
	"errors"
	"iter"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// A batch of writes is one system call, which is bounded as the thread is in
// the kernel all that time. After a failure batches are small: what follows the
// failed write has to be looked at again.
const maxBatch = 4096

// fate is what became of a change in a round.
type fate uint8

const (
	fateDone    fate = iota
	fateFailed       // err
	fateWaiting      // for waitFor, because of reason
	fateHeld         // behind one that failed, waits or is held
)

// outcome is the result of one change.
type outcome[V comparable] struct {
	fate    fate
	err     error
	waitFor any
	reason  string
	kernel  *V // what the map holds now, nil if nothing
}

// execution makes the writes of one round.
type execution[K, V tables.MapPart] struct {
	target bpf.Map[K, V]
	plan   Plan[K, V]
	gate   Gate[K, V] // of the round, nil if there is none
	vacate func(Op[K, V]) bool
	count  func(op bpf.Op, done int, err error)

	changes  []Change[K, V]
	outcomes []outcome[V]      // of changes
	before   func(K) (V, bool) // what the map held before the round
	all      iter.Seq2[K, V]   // all of that
	extra    map[K]V           // entries of no change that Close has written

	blocked Group[K]   // keys of what did not happen; nil if there are none
	refused []Op[K, V] // for lack of room
	held    []Op[K, V]
	vacated []Op[K, V] // that wait, and what the map has must not stay meanwhile
	faults  int        // what did not happen, for any other cause than room
	deleted int        // entries

	squeezed int // entries deleted before their time

	index map[K]int // of changes, for close
}

// run makes the writes in their order, but for those that must not be made.
func (x *execution[K, V]) run(ops []Op[K, V]) {
	var (
		at     []int // of the batch's operations in ops
		keys   []K
		values []V
		limit  = maxBatch
	)
	for next := 0; next < len(ops); {
		at, keys, values = at[:0], keys[:0], values[:0]
		for ; next < len(ops) && len(at) < limit; next++ {
			op := &ops[next]
			if len(at) > 0 && op.Delete() != ops[at[0]].Delete() {
				break
			}
			if !x.admit(op) {
				continue
			}
			at, keys = append(at, next), append(keys, op.Key)
			if !op.Delete() {
				values = append(values, *op.Value)
			}
		}
		if len(at) == 0 {
			continue
		}
		done, err := x.write(ops[at[0]].Delete(), keys, values)
		for _, i := range at[:done] {
			x.succeed(&ops[i])
		}
		limit = min(4*limit, maxBatch)
		if err != nil {
			failed := at[done]
			x.fail(&ops[failed], err)
			next, limit = failed+1, 1
		}
	}
	x.close()
	x.empty()
}

// empty deletes what must not stay while its successor waits.
func (x *execution[K, V]) empty() {
	for i := range x.vacated {
		op := &x.vacated[i]
		out := &x.outcomes[op.change]
		if _, err := x.write(true, []K{op.Key}, nil); err != nil {
			out.fate, out.err = fateFailed, err
			continue
		}
		x.deleted++
		out.kernel = nil
	}
}

func (x *execution[K, V]) write(deletes bool, keys []K, values []V) (done int, err error) {
	op := bpf.OpUpdate
	if deletes {
		op = bpf.OpDelete
		done, err = x.target.Delete(keys)
	} else {
		done, err = x.target.Update(keys, values)
	}
	x.count(op, done, err)
	return done, err
}

// admit reports whether an operation may be made, and if not, keeps why.
func (x *execution[K, V]) admit(op *Op[K, V]) bool {
	out := &x.outcomes[op.change]
	if out.fate != fateDone {
		return false // an earlier operation of the change did not happen
	}
	if x.blocked != nil && x.blocked.Ties(op.Key) {
		out.fate = fateHeld
		x.held = append(x.held, *op)
		x.blocked.Add(op.Key)
		return false
	}
	if x.gate != nil {
		if waitFor, reason := x.gate(*op); reason != "" {
			out.fate, out.waitFor, out.reason = fateWaiting, waitFor, reason
			x.faults++
			x.block(op.Key)
			if x.vacate != nil && out.kernel != nil && x.vacate(*op) {
				x.vacated = append(x.vacated, *op)
			}
			return false
		}
	}
	return true
}

// block holds back what is tied to a key.
func (x *execution[K, V]) block(key K) {
	if x.plan.Group == nil {
		return
	}
	if x.blocked == nil {
		keys := make([]K, len(x.changes))
		for i, c := range x.changes {
			keys[i] = c.Key
		}
		x.blocked = x.plan.Group(keys)
	}
	x.blocked.Add(key)
}

func (x *execution[K, V]) succeed(op *Op[K, V]) {
	out := &x.outcomes[op.change]
	if op.Delete() && out.kernel != nil {
		x.deleted++
	}
	out.kernel = op.Value
}

func (x *execution[K, V]) fail(op *Op[K, V], err error) {
	out := &x.outcomes[op.change]
	out.fate, out.err = fateFailed, err
	x.block(op.Key)
	if !errors.Is(err, bpf.ErrMapFull) {
		x.faults++
		return
	}
	x.refused = append(x.refused, *op)
}

// close overwrites what would allow what refused entries were to forbid.
func (x *execution[K, V]) close() {
	if x.plan.Close == nil || len(x.refused) == 0 {
		return
	}
	x.index = make(map[K]int, len(x.changes))
	for i, c := range x.changes {
		x.index[c.Key] = i
	}
	refused := make([]Change[K, V], len(x.refused))
	for i, op := range x.refused {
		refused[i] = x.changes[op.change]
	}
	for _, op := range x.plan.Close(refused, x.entries) {
		x.overwrite(&op)
	}
}

// entries yields what the map holds at this moment and what is desired of it.
func (x *execution[K, V]) entries(yield func(Change[K, V]) bool) {
	for i, c := range x.changes {
		c.Old = x.outcomes[i].kernel
		if c.Old != nil && !yield(c) {
			return
		}
	}
	for key, value := range x.all {
		if _, ok := x.index[key]; !ok && !yield(Change[K, V]{Key: key, Old: &value, New: &value}) {
			return
		}
	}
}

// overwrite makes a write that closes what a refused entry leaves open. Should
// it fail, then the refused entry's next attempt makes it again.
func (x *execution[K, V]) overwrite(op *Op[K, V]) {
	if done, _ := x.write(false, []K{op.Key}, []V{*op.Value}); done == 0 {
		return
	}
	i, ok := x.index[op.Key]
	if !ok {
		if x.extra == nil {
			x.extra = map[K]V{}
		}
		x.extra[op.Key] = *op.Value
		return
	}
	out := &x.outcomes[i]
	out.kernel = op.Value
	if out.fate == fateDone {
		out.fate = fateHeld
	}
}

// squeeze makes room for refused entries that have been retried often enough, by
// deletions that were to follow them: one for each, and the entry at once after
// it. Only when nothing but room is missing, and no deletion was made that
// gives it.
func (x *execution[K, V]) squeeze(patient func(change int) bool) {
	if x.plan.Squeezable == nil || x.faults > 0 || x.deleted > 0 {
		return
	}
	last := len(x.held) - 1
	for i := range x.refused {
		op := &x.refused[i]
		if !patient(op.change) {
			continue
		}
		for last >= 0 && (!x.held[last].Delete() || !x.plan.Squeezable(x.held[last])) {
			last--
		}
		if last < 0 || !x.exchange(&x.held[last], op) {
			return
		}
		last--
	}
}

// exchange deletes one entry and writes another, and reports whether it did.
func (x *execution[K, V]) exchange(victim, op *Op[K, V]) bool {
	if done, _ := x.write(true, []K{victim.Key}, nil); done == 0 {
		return false
	}
	x.succeed(victim)
	x.outcomes[victim.change].fate = fateDone
	x.squeezed++
	if done, _ := x.write(false, []K{op.Key}, []V{*op.Value}); done == 0 {
		return false
	}
	x.succeed(op)
	x.outcomes[op.change].fate = fateDone
	return true
}
