// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"bytes"
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// partition gives numbers to the classes of one role by refinement: a class
// keeps its number while its meaning changes, and when it is split, the part
// with the most endpoints keeps it. So as few addresses as possible change
// their class.
//
// A number may change its meaning only when the kernel has nobody in it that
// ought to have left: the reconciler of sluice_classes waits for that. Those
// who wait must never wait for each other, in a circle. Hence who changes class
// goes to a new number or to one that waits for nobody, see [round.target]: the
// youngest edge of a circle would have to lead to a class that already waits.
// The price is that for a moment two numbers may stand for one signature; they
// are merged when both are in the kernel.
type partition struct {
	memberParams
	role bpf.Role
}

// undecided is the class of a member that has to join one.
const undecided = math.MaxUint32

// round is the computation of the classes of some label sets.
type round struct {
	*partition
	txn statedb.ReadTxn

	order   []tables.LabelSetID // of wanted
	wanted  map[tables.LabelSetID][]*tables.ClassMember
	meaning map[uint32]bpf.Digest // of the classes that were divided
	joined  map[bpf.Digest]uint32 // class that members with a signature join
	next    uint32                // lowest number that may be free
}

func (p *partition) plan(txn statedb.ReadTxn, keys []memberKey) ([]memberKey, func(memberKey) []*tables.ClassMember) {
	r := &round{
		partition: p, txn: txn, next: 1,
		wanted:  map[tables.LabelSetID][]*tables.ClassMember{},
		meaning: map[uint32]bpf.Digest{}, joined: map[bpf.Digest]uint32{},
	}
	divided := map[uint32]bool{}
	var planned []memberKey
	for _, key := range keys {
		if key.selector != 0 {
			planned = append(planned, key)
		} else {
			r.evaluate(key.set, divided)
		}
	}
	for _, number := range slices.Sorted(maps.Keys(divided)) {
		r.divide(number)
	}
	r.merge()
	r.join()
	r.remember()
	for _, id := range r.order {
		planned = append(planned, memberKey{set: id})
	}
	return planned, r.rows
}

func (r *round) rows(key memberKey) []*tables.ClassMember {
	if key.selector == 0 {
		return r.wanted[key.set]
	}
	if _, _, found := r.Selectors.Get(r.txn, tables.SelectorByID(key.selector)); !found {
		return nil
	}
	return []*tables.ClassMember{{Role: r.role, Evaluated: key.selector}}
}

// evaluate finds the signatures of a label set. Members whose signature is as
// before keep their class for now; the classes of the others are to be divided.
func (r *round) evaluate(id tables.LabelSetID, divided map[uint32]bool) {
	if _, done := r.wanted[id]; done {
		return
	}
	members := r.signatures(r.txn, id)
	for _, m := range members {
		m.Class = undecided
		old, _, found := r.Members.Get(r.txn, tables.ClassMemberByKey(m.Key()))
		switch {
		case found && old.Digest == m.Digest:
			m.Class = old.Class
		case found && old.Class != 0:
			divided[old.Class] = true
		}
	}
	r.wanted[id] = members
	r.order = append(r.order, id)
}

// divide lets the part of a class with the most endpoints keep its number,
// unless no selector chooses it, and makes the members of the other parts undecided.
func (r *round) divide(number uint32) {
	type part struct {
		members   []*tables.ClassMember
		endpoints int
	}
	parts := map[bpf.Digest]*part{}
	var former bpf.Digest
	for m := range r.Members.List(r.txn, tables.ClassMembersByClass(bpf.ClassKey{Role: r.role, Number: number})) {
		former = m.Digest
		if m = r.current(m); m == nil {
			continue
		}
		if parts[m.Digest] == nil {
			parts[m.Digest] = &part{}
		}
		p := parts[m.Digest]
		p.members = append(p.members, m)
		p.endpoints += r.endpoints(m)
	}
	r.meaning[number] = former
	digests := slices.SortedFunc(maps.Keys(parts), func(a, b bpf.Digest) int {
		return cmp.Or(
			cmp.Compare(parts[b].endpoints, parts[a].endpoints),
			-compareBool(a == former, b == former),
			bytes.Compare(a[:], b[:]))
	})
	digests = slices.DeleteFunc(digests, func(d bpf.Digest) bool {
		if d == (bpf.Digest{}) {
			r.assign(parts[d].members, 0)
		}
		return d == (bpf.Digest{})
	})
	for i, d := range digests {
		if i == 0 {
			r.meaning[number] = d
			r.assign(parts[d].members, number)
		} else {
			r.assign(parts[d].members, undecided)
		}
	}
}

// current returns a member as it is wanted, nil if it is no more.
func (r *round) current(m *tables.ClassMember) *tables.ClassMember {
	members, evaluated := r.wanted[m.LabelSet]
	if !evaluated {
		return m
	}
	i := slices.IndexFunc(members, func(w *tables.ClassMember) bool { return w.Node == m.Node })
	if i < 0 {
		return nil
	}
	return members[i]
}

// assign gives members a class. A member that is still the table's own row is
// left alone if it has the class, else it becomes wanted anew.
func (r *round) assign(members []*tables.ClassMember, class uint32) {
	for _, m := range members {
		if _, evaluated := r.wanted[m.LabelSet]; !evaluated {
			if m.Class == class {
				continue
			}
			// Should the snapshot have a newer signature of it than was
			// noticed, the member just leaves.
			r.evaluate(m.LabelSet, map[uint32]bool{})
		}
		if w := r.current(m); w != nil && w.Digest == m.Digest {
			w.Class = class
		}
	}
}

// endpoints counts the endpoints of a member.
func (r *round) endpoints(m *tables.ClassMember) (n int) {
	for e := range r.Endpoints.List(r.txn, tables.EndpointsByLabelSet(m.LabelSet)) {
		if m.Node == "" || m.Node == e.Node {
			n++
		}
	}
	return n
}

// merge moves members of a class to another that stands for the same, if the
// kernel knows both by that meaning.
func (r *round) merge() {
	settled := map[bpf.Digest][]uint32{}
	for _, id := range r.order {
		for _, m := range r.wanted[id] {
			if m.Class == undecided || m.Class == 0 {
				continue
			}
			numbers, known := settled[m.Digest]
			if !known {
				numbers = slices.DeleteFunc(r.numbersOf(r.txn, m.Digest), func(n uint32) bool { return !r.waitsForNobody(n, m.Digest) })
				settled[m.Digest] = numbers
			}
			if slices.Contains(numbers, m.Class) {
				m.Class = r.largest(numbers)
			}
		}
	}
}

func (r *round) largest(numbers []uint32) uint32 {
	if len(numbers) == 1 {
		return numbers[0]
	}
	size := func(number uint32) (n int) {
		for m := range r.Members.List(r.txn, tables.ClassMembersByClass(bpf.ClassKey{Role: r.role, Number: number})) {
			n += r.endpoints(m)
		}
		return n
	}
	return slices.MaxFunc(numbers, func(a, b uint32) int { return cmp.Or(cmp.Compare(size(a), size(b)), cmp.Compare(b, a)) })
}

// join finds a class for the undecided members.
func (r *round) join() {
	for _, id := range r.order {
		for _, m := range r.wanted[id] {
			if m.Class != undecided {
				continue
			}
			if m.Digest == (bpf.Digest{}) {
				m.Class = 0
				continue
			}
			number, found := r.joined[m.Digest]
			if !found {
				number = r.target(m.Digest)
				r.joined[m.Digest] = number
			}
			m.Class = number
		}
	}
}

// remember notes the classes that members leave.
func (r *round) remember() {
	placement := tables.Placement{Endpoints: r.Endpoints, Members: r.Members, SourceEntries: r.SourceEntries}
	for _, id := range r.order {
		for _, m := range r.wanted[id] {
			old, _, found := r.Members.Get(r.txn, tables.ClassMemberByKey(m.Key()))
			switch {
			case !found:
			case old.Class == m.Class:
				m.Former = old.Former
			default:
				for _, number := range append(slices.Clone(old.Former), old.Class) {
					if number != 0 && number != m.Class && placement.Has(r.txn, m, number) && !slices.Contains(m.Former, number) {
						m.Former = append(m.Former, number)
					}
				}
			}
		}
	}
}

// target returns the class that members with a signature join: one that stands
// for it and waits for nobody, else the number that the kernel's maps knew it
// by before a restart, else a new number.
func (r *round) target(digest bpf.Digest) uint32 {
	candidates := r.numbersOf(r.txn, digest)
	if m, _, found := r.Members.Get(r.txn, tables.ClassMembersByDigest(tables.RoleDigest{Role: r.role, Digest: digest})); found {
		candidates = append(candidates, m.Class) // the kernel need not know it yet
	}
	for _, number := range candidates {
		if meaning, divided := r.meaning[number]; (!divided || meaning == digest) && r.waitsForNobody(number, digest) {
			return number
		}
	}
	for e := range r.ClassEntries.List(r.txn, tables.ClassEntriesByDigest(tables.RoleDigest{Role: r.role, Digest: digest})) {
		if _, _, used := r.Members.Get(r.txn, tables.ClassMembersByClass(e.Key)); !used && r.waitsForNobody(e.Key.Number, digest) {
			return e.Key.Number
		}
	}
	for {
		number := r.next
		r.next++
		if r.free(number) {
			return number
		}
	}
}

// numbersOf returns the classes that the kernel knows by a signature and that
// have members with it, in order.
func (p *partition) numbersOf(txn statedb.ReadTxn, digest bpf.Digest) (numbers []uint32) {
	for e := range p.ClassEntries.List(txn, tables.ClassEntriesByDigest(tables.RoleDigest{Role: p.role, Digest: digest})) {
		m, _, found := p.Members.Get(txn, tables.ClassMembersByClass(e.Key))
		if found && m.Digest == digest {
			numbers = append(numbers, e.Key.Number)
		}
	}
	slices.Sort(numbers)
	return numbers
}

// waitsForNobody reports whether a class stands for a signature without a
// change of meaning under way.
func (r *round) waitsForNobody(number uint32, digest bpf.Digest) bool {
	key := bpf.ClassKey{Role: r.role, Number: number}
	if c, _, found := r.Classes.Get(r.txn, tables.ClassByKey(key)); found && c.Digest != digest {
		return false
	}
	e, _, found := r.ClassEntries.Get(r.txn, tables.MapEntryByKey[bpf.ClassKey, bpf.ClassValue](key))
	return !found || e.Value.Digest == digest
}

// free reports whether neither a table nor the kernel has the number in use.
// Numbers that maps name without sluice_classes knowing them are in use.
func (r *round) free(number uint32) bool {
	key := bpf.ClassKey{Role: r.role, Number: number}
	if _, _, used := r.Members.Get(r.txn, tables.ClassMembersByClass(key)); used {
		return false
	}
	if _, _, used := r.Classes.Get(r.txn, tables.ClassByKey(key)); used {
		return false
	}
	if _, _, used := r.ClassEntries.Get(r.txn, tables.MapEntryByKey[bpf.ClassKey, bpf.ClassValue](key)); used {
		return false
	}
	if _, _, used := r.SourceEntries.Get(r.txn, tables.SourceEntriesByClass(number)); used {
		return false
	}
	_, _, used := r.EgressEntries.Get(r.txn, tables.EgressEntriesByClass(number))
	return !used
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	default:
		return -1
	}
}
