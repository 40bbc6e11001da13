// SPDX-License-Identifier: Apache-2.0

package bpfmap

import (
	"cmp"
	"iter"
	"slices"

	"github.com/sluice-net/sluice/bpf"
)

// Change is what one key is to become. It is never from nothing to nothing.
type Change[K, V comparable] struct {
	Key K
	Old *V // in the map, nil if it has none
	New *V // desired, nil if none

	index int // in the round
}

// Op is one write to a map.
type Op[K, V comparable] struct {
	Key   K
	Value *V // nil: delete
	Old   *V // in the map before the round, nil if it had none

	change int // index of the change that it is of
}

// Set returns the operation that writes a value under the key of the change.
func (c Change[K, V]) Set(value V) Op[K, V] {
	return Op[K, V]{Key: c.Key, Value: &value, Old: c.Old, change: c.index}
}

// Apply returns the operation that makes the map have the new value, or nothing.
func (c Change[K, V]) Apply() Op[K, V] {
	return Op[K, V]{Key: c.Key, Value: c.New, Old: c.Old, change: c.index}
}

// Delete reports whether the operation deletes.
func (o Op[K, V]) Delete() bool { return o.Value == nil }

// Plan says how the writes of a change follow one another.
type Plan[K, V comparable] struct {
	// Order returns the operations of the changes in their order. kernel
	// returns what the map holds before them.
	Order func(changes []Change[K, V], kernel func(K) (V, bool)) []Op[K, V]

	// Group returns a set that knows which keys are tied to one another: an
	// operation that fails or waits holds back all later ones of keys tied to
	// its own. All keys it will meet are given. A nil Group ties none.
	Group func(keys []K) Group[K]

	// Close, if not nil, returns what to overwrite when entries were refused
	// for lack of room, so that nothing they were to forbid is allowed
	// meanwhile. entries are all entries of the map, with what it holds now as
	// Old and what is desired as New.
	Close func(refused []Change[K, V], entries iter.Seq[Change[K, V]]) []Op[K, V]

	// Squeezable reports whether a deletion may be made before the writes it
	// is to follow, when there is no other way to get room for those. A nil
	// Squeezable permits none.
	Squeezable func(Op[K, V]) bool
}

// Group is a set of keys.
type Group[K comparable] interface {
	Add(K)

	// Ties reports whether a key is tied to one in the set.
	Ties(K) bool
}

// PlanAny is the plan for maps in which the order of keys does not matter:
// writes, then deletions.
func PlanAny[K, V comparable]() Plan[K, V] {
	return Plan[K, V]{
		Order: func(changes []Change[K, V], _ func(K) (V, bool)) []Op[K, V] {
			writes, deletes := split(changes)
			return append(writes, deletes...)
		},
	}
}

// PlanPrefix is the plan for prefix maps in which each entry is a whole
// decision: new and changed ones longest prefix first, then deletions shortest
// first. Keys are tied whose prefixes overlap.
//
// In a full map, deletions may come before the writes that are to replace them,
// since otherwise a map that has room for all that is desired could stay as it
// is for ever.
func PlanPrefix[K, V comparable]() Plan[K, V] {
	return Plan[K, V]{
		Order: func(changes []Change[K, V], _ func(K) (V, bool)) []Op[K, V] {
			writes, deletes := split(changes)
			slices.SortStableFunc(writes, func(a, b Op[K, V]) int {
				return cmp.Compare(bpf.PrefixLen(b.Key), bpf.PrefixLen(a.Key))
			})
			slices.SortStableFunc(deletes, func(a, b Op[K, V]) int {
				return cmp.Compare(bpf.PrefixLen(a.Key), bpf.PrefixLen(b.Key))
			})
			return append(writes, deletes...)
		},
		Group:      func(keys []K) Group[K] { return newPrefixGroup(keys) },
		Squeezable: func(Op[K, V]) bool { return true },
	}
}

// split returns the operations that apply changes.
func split[K, V comparable](changes []Change[K, V]) (writes, deletes []Op[K, V]) {
	writes = make([]Op[K, V], 0, len(changes))
	for _, c := range changes {
		if c.New != nil {
			writes = append(writes, c.Apply())
		} else {
			deletes = append(deletes, c.Apply())
		}
	}
	return writes, deletes
}

// prefixGroup ties keys of a prefix map of which one covers the other. It looks
// only at the prefix lengths that occur, so that an address costs a few
// look-ups and not one for each bit.
type prefixGroup[K comparable] struct {
	lengths []int
	keys    map[K]struct{}
	covers  map[K]struct{} // prefixes that cover one of keys
}

func newPrefixGroup[K comparable](keys []K) *prefixGroup[K] {
	g := &prefixGroup[K]{keys: map[K]struct{}{}, covers: map[K]struct{}{}}
	seen := map[int]bool{}
	for _, key := range keys {
		if length := bpf.PrefixLen(key); !seen[length] {
			seen[length] = true
			g.lengths = append(g.lengths, length)
		}
	}
	slices.Sort(g.lengths)
	return g
}

func (g *prefixGroup[K]) Add(key K) {
	g.keys[key] = struct{}{}
	for cover := range g.coversOf(key) {
		g.covers[cover] = struct{}{}
	}
}

func (g *prefixGroup[K]) Ties(key K) bool {
	if _, ok := g.covers[key]; ok {
		return true
	}
	for cover := range g.coversOf(key) {
		if _, ok := g.keys[cover]; ok {
			return true
		}
	}
	return false
}

// coversOf yields the key and the prefixes of occurring lengths that cover it.
func (g *prefixGroup[K]) coversOf(key K) func(yield func(K) bool) {
	return func(yield func(K) bool) {
		for _, length := range g.lengths {
			if length > bpf.PrefixLen(key) || !yield(bpf.Truncated(key, length)) {
				return
			}
		}
	}
}
