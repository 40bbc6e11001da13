// SPDX-License-Identifier: Apache-2.0

package bpfmap

import (
	"cmp"
	"iter"
	"slices"
)

// Precedence describes a map of verdicts, of which several may apply to a
// packet: it asks the map with a few keys, each look-up finds the longest entry
// that covers it, and of those found the one of the highest precedence decides.
type Precedence[K, V comparable] struct {
	// Of returns the precedence of a value. Values of equal precedence have
	// equal verdicts; those of the lowest need not, if they are under no more than
	// one key of a unit, which covers all others.
	Of func(V) int

	// Denies reports whether a value forbids.
	Denies func(V) bool

	// Length returns how long a key is: the longer of two that cover a packet
	// is found.
	Length func(K) int

	// Covers yields all keys that cover what a key covers, longest first and
	// beginning with the key itself.
	Covers func(K) iter.Seq[K]

	// Overlaps reports whether some packet is looked up by a key that is
	// covered by a, and by one that is covered by b.
	Overlaps func(a, b K) bool

	// Forbid returns a value of the precedence of an entry that denies for the
	// reason of a denial.
	Forbid func(entry, denial V) V

	// Unit returns what the order of writes is kept in: keys that may decide
	// about the same packet are of one unit.
	Unit func(K) any
}

// PlanPrecedence is the plan for maps of verdicts. First every key of the old
// and of the new state is raised to the value of the higher precedence of the
// two states, highest precedence first, then longest; then each is lowered to
// its new value or deleted, from the lowest of these precedences up, then
// shortest first.
//
// When there is no room for a denial, the entries by which its packets would be
// allowed are made to deny: more is denied than desired until there is room.
func PlanPrecedence[K, V comparable](p Precedence[K, V]) Plan[K, V] {
	return Plan[K, V]{
		Order:      p.order,
		Group:      func([]K) Group[K] { return unitGroup[K]{p.Unit, map[any]struct{}{}} },
		Close:      p.close,
		Squeezable: func(op Op[K, V]) bool { return op.Old != nil && !p.Denies(*op.Old) },
	}
}

// step is one write with the precedence and length that it is sorted by.
type step[K, V comparable] struct {
	op         Op[K, V]
	precedence int
	length     int
}

func (p Precedence[K, V]) order(changes []Change[K, V], kernel func(K) (V, bool)) []Op[K, V] {
	changed := make(map[K]Change[K, V], len(changes))
	for _, c := range changes {
		changed[c.Key] = c
	}
	wanted := func(key K) (V, bool) {
		c, ok := changed[key]
		if !ok {
			return kernel(key)
		}
		if c.New == nil {
			var none V
			return none, false
		}
		return *c.New, true
	}

	var raise, lower []step[K, V]
	for _, c := range changes {
		before, after := p.decides(c.Key, kernel), p.decides(c.Key, wanted)
		high := after // of both never nil, as the key is in one of the states
		if before != nil && (after == nil || p.Of(*before) > p.Of(*after)) {
			high = before
		}
		if c.Old == nil || *c.Old != *high {
			raise = append(raise, step[K, V]{c.Set(*high), p.Of(*high), p.Length(c.Key)})
		}
		if c.New == nil || *high != *c.New {
			lower = append(lower, step[K, V]{c.Apply(), p.Of(*high), p.Length(c.Key)})
		}
	}
	slices.SortStableFunc(raise, func(a, b step[K, V]) int {
		return cmp.Or(cmp.Compare(b.precedence, a.precedence), cmp.Compare(b.length, a.length))
	})
	slices.SortStableFunc(lower, func(a, b step[K, V]) int {
		return cmp.Or(cmp.Compare(a.precedence, b.precedence), cmp.Compare(a.length, b.length))
	})

	ops := make([]Op[K, V], 0, len(raise)+len(lower))
	for _, s := range slices.Concat(raise, lower) {
		ops = append(ops, s.op)
	}
	return ops
}

// decides returns the value that a look-up of a key finds, nil if none.
func (p Precedence[K, V]) decides(key K, state func(K) (V, bool)) *V {
	for cover := range p.Covers(key) {
		if v, ok := state(cover); ok {
			return &v
		}
	}
	return nil
}

// close makes deny what would allow packets of denials that were refused.
func (p Precedence[K, V]) close(refused []Change[K, V], entries iter.Seq[Change[K, V]]) []Op[K, V] {
	denials := map[any][]Change[K, V]{}
	for _, c := range refused {
		if c.New != nil && p.Denies(*c.New) {
			unit := p.Unit(c.Key)
			denials[unit] = append(denials[unit], c)
		}
	}
	if len(denials) == 0 {
		return nil
	}
	var ops []Op[K, V]
	for e := range entries {
		if p.Denies(*e.Old) {
			continue
		}
		for _, denial := range denials[p.Unit(e.Key)] {
			beats := e.New != nil && !p.Denies(*e.New) && p.Of(*e.New) > p.Of(*denial.New)
			if !beats && p.Overlaps(e.Key, denial.Key) {
				ops = append(ops, e.Set(p.Forbid(*e.Old, *denial.New)))
				break
			}
		}
	}
	return ops
}

// unitGroup ties all keys of a unit.
type unitGroup[K comparable] struct {
	unit  func(K) any
	units map[any]struct{}
}

func (g unitGroup[K]) Add(key K) { g.units[g.unit(key)] = struct{}{} }

func (g unitGroup[K]) Ties(key K) bool {
	_, ok := g.units[g.unit(key)]
	return ok
}
