// SPDX-License-Identifier: Apache-2.0

package verdicts

import (
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// computeAny writes what a ruleset says of any class. A direction for whose verdicts there
// is no room is closed from the beginning. A single verdict always has room: there are few
// such sets.
func (t *transaction) computeAny(r *tables.Ruleset) {
	for _, d := range directions {
		says := t.view(r)[d].any
		if t.entry(r, bpf.AnyClass, d) != nil || t.hasRoom(r, says) || len(says.verdicts) == 1 {
			t.putEntry(r, bpf.AnyClass, d, says)
			continue
		}
		t.putEntry(r, bpf.AnyClass, d, refused)
		t.close(r, d)
	}
}

// computePair writes what a ruleset says specially of a class, unless it is there, and
// reports whether there is room for it. If not, it closes the direction. Of a closed
// direction it writes nothing, unless that is being opened.
func (t *transaction) computePair(r *tables.Ruleset, c *tables.Class, opens bool) (hasRoom bool) {
	v := t.view(r)
	hasRoom = true
	for _, d := range directions {
		if t.any(r, d).Closed != 0 && !opens || t.entry(r, c.Number, d) != nil {
			continue
		}
		says := v[d].of(c)
		switch {
		case says.digest == v[d].any.digest:
		case t.hasRoom(r, says):
			t.putEntry(r, c.Number, d, says)
		default:
			t.close(r, d)
			hasRoom = false
		}
	}
	return hasRoom
}

// any returns the entry of any class. A ruleset whose turn has not come yet gets it.
func (t *transaction) any(r *tables.Ruleset, d bpf.Direction) *tables.PolicyEntry {
	if e := t.entry(r, bpf.AnyClass, d); e != nil {
		return e
	}
	t.computeAny(r)
	return t.entry(r, bpf.AnyClass, d)
}

// entry returns the entry of a pair, nil if there is none.
func (t *transaction) entry(r *tables.Ruleset, class uint32, d bpf.Direction) *tables.PolicyEntry {
	key := bpf.PolicyKey{Ruleset: r.Number, Class: class, Direction: d}
	e, _, _ := t.Entries.Get(t.out, tables.PolicyEntryByKey(key))
	return e
}

// hasRoom reports whether the maps have room for an entry of a ruleset and its set.
func (t *transaction) hasRoom(r *tables.Ruleset, says *content) bool {
	verdicts := len(says.verdicts)
	if _, _, found := t.Sets.Get(t.out, tables.VerdictSetByDigest(says.digest)); found {
		verdicts = 0
	}
	return t.usage.fits(r.Namespace(), 1, verdicts)
}

// putEntry writes the entry of a pair, with its set, unless it is there: then it says the
// same.
func (t *transaction) putEntry(r *tables.Ruleset, class uint32, d bpf.Direction, says *content) {
	if t.entry(r, class, d) != nil {
		return
	}
	namespace := r.Namespace()
	put(t, t.Entries, &tables.PolicyEntry{
		Ruleset: r.Number, Class: class, Direction: d, Namespace: namespace,
		Set: t.set(namespace, says), Reconciled: tables.Pending(),
	})
	t.usage.add(namespace, 1, 0, 0)
}

// close has a direction of a ruleset deny all classes without an entry of their own.
func (t *transaction) close(r *tables.Ruleset, d bpf.Direction) {
	if e := t.any(r, d); e.Closed == 0 {
		closed := tables.WithStatus(e, reconciler.StatusPending())
		closed.Closed = t.set(e.Namespace, refused)
		put(t, t.Entries, closed)
		t.usage.add(e.Namespace, 0, 0, 1)
	}
}

// open ends that directions of a ruleset are closed. All classes have their entries.
func (t *transaction) open(r *tables.Ruleset) {
	for _, d := range directions {
		e, says := t.any(r, d), t.view(r)[d].any
		if e.Closed == 0 || !t.hasRoom(r, says) {
			continue
		}
		opened := tables.WithStatus(e, reconciler.StatusPending())
		opened.Set, opened.Closed = t.set(e.Namespace, says), 0
		put(t, t.Entries, opened)
		t.usage.add(e.Namespace, 0, 0, -1)
		t.release(e.Set)
		t.release(e.Closed)
	}
}

// set returns the number of the set with a content, which is made for a namespace if there
// is none.
func (t *transaction) set(namespace string, says *content) uint32 {
	if s, _, found := t.Sets.Get(t.out, tables.VerdictSetByDigest(says.digest)); found {
		return s.Number
	}
	t.lastSet++
	put(t, t.Sets, &tables.VerdictSet{
		Number: t.lastSet, Digest: says.digest, Entries: len(says.verdicts), Namespace: namespace,
	})
	for _, v := range says.verdicts {
		v.Key.Set, v.Status = t.lastSet, reconciler.StatusPending()
		put(t, t.Verdicts, &v)
	}
	t.usage.add(namespace, 0, len(says.verdicts), 0)
	return t.lastSet
}

func (t *transaction) removeEntry(e *tables.PolicyEntry) {
	remove(t, t.Entries, e)
	t.usage.add(e.Namespace, -1, 0, 0)
	t.release(e.Set)
	if e.Closed != 0 {
		t.usage.add(e.Namespace, 0, 0, -1)
		t.release(e.Closed)
	}
}

// release deletes a set if no entry refers to it.
func (t *transaction) release(number uint32) {
	if _, _, found := t.Entries.Get(t.out, tables.PolicyEntriesBySet(number)); found {
		return
	}
	set, _, found := t.Sets.Get(t.out, tables.VerdictSetByNumber(number))
	if !found {
		return
	}
	remove(t, t.Sets, set)
	t.usage.add(set.Namespace, 0, -set.Entries, 0)
	for _, v := range statedb.Collect(t.Verdicts.Prefix(t.out, tables.VerdictsOfSet(number))) {
		remove(t, t.Verdicts, v)
	}
}
