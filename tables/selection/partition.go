// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"bytes"
	"cmp"
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
// ought to have left: it is recorded only then. Those
// who wait must never wait for each other, in a circle. Hence who changes class
// goes to a new number or to one that waits for nobody, see [round.target]: the
// youngest edge of a circle would have to lead to a class that already waits.
// The price is that for a moment two numbers may stand for one signature; they
// are merged when both are in the kernel.
type partition struct {
	*members
	role    bpf.Role
	scope   scope
	roster  *roster
	chooser *chooser

	// double are signatures that more than one number may stand for. After a round all
	// are in it that more than one number stands for of those that the kernel knows.
	double map[bpf.Digest]struct{}
}

// scope is what the partitions differ in.
type scope interface {
	// signatures returns the members under a key, without classes yet.
	signatures(r *round, key memberKey) []*tables.ClassMember
	// size counts those that change their class with a member.
	size(txn statedb.ReadTxn, m *tables.ClassMember) int
	// evaluated reports whether a selector is taken into account in all members.
	evaluated(txn statedb.ReadTxn, s *tables.Selector) bool
	// joinable reports whether members may join a class that has some with the signature.
	joinable(r *round, number uint32, digest bpf.Digest) bool
	// mayKeep reports whether a class may keep its number with a member's signature.
	mayKeep(r *round, number uint32, m *tables.ClassMember) bool
	// reusable reports whether a class that the kernel knows may have members again.
	reusable(r *round, number uint32) bool
	// free reports whether nothing but what all roles look at has a number in use.
	free(txn statedb.ReadTxn, number uint32) bool
	// finish does what follows when all classes are known.
	finish(r *round)
}

// undecided is the class of a member that has to join one.
const undecided = math.MaxUint32

// evaluate finds the signatures under a key. Members whose signature is as
// before keep their class for now; the classes of the others are to be divided. A
// key without members, before and now, is no part of the round: so are most label
// sets under roles that few are chosen under.
func (r *round) evaluate(key memberKey, divided map[uint32]bool) {
	if r.evaluated(key) != nil {
		return
	}
	wanted, existing := r.scope.signatures(r, key), r.before(key)
	if len(wanted) == 0 && len(existing) == 0 {
		return
	}
	for _, m := range wanted {
		m.Class = undecided
		old := predecessor(m, existing)
		if old == nil {
			continue
		}
		if old.Digest == m.Digest {
			m.Class = old.Class
		} else if old.Class != 0 {
			divided[old.Class] = true
		}
		r.parts[old.Class] = append(r.parts[old.Class], m)
		r.former[old.Class] = old.Digest
	}
	r.at.set(key, len(r.order))
	r.order = append(r.order, evaluation{key, existing, wanted})
}

// before returns the members that there were under a key.
func (r *round) before(key memberKey) []*tables.ClassMember {
	if r.empty {
		return nil
	}
	return statedb.Collect(r.existing(r.txn, key))
}

// predecessor returns the member that had the addresses of m before, most of
// them at least: the one of the same key, else of the longest prefix around it,
// else one inside it. nil if there was none.
func predecessor(m *tables.ClassMember, existing []*tables.ClassMember) (best *tables.ClassMember) {
	rank := func(old *tables.ClassMember) int {
		switch {
		case old.Prefix == m.Prefix:
			return 1000
		case !old.Prefix.IsValid():
			return 1
		case m.Prefix.IsValid() && old.Prefix.Bits() < m.Prefix.Bits() && old.Prefix.Contains(m.Prefix.Addr()):
			return 2 + old.Prefix.Bits()
		case !m.Prefix.IsValid() || m.Prefix.Contains(old.Prefix.Addr()):
			return 0
		}
		return -1
	}
	highest := -1
	for _, old := range existing {
		if n := rank(old); old.Node == m.Node && n > highest {
			best, highest = old, n
		}
	}
	return best
}

// divide lets the part of a class with the most endpoints keep its number,
// unless no selector chooses it, and makes the members of the other parts
// undecided. Of the members that are as before no more is looked at than is
// needed to tell whether they are the greater part.
func (r *round) divide(number uint32) {
	sizes := map[bpf.Digest]int{}
	former := r.former[number]
	var candidates []bpf.Digest
	for _, m := range r.parts[number] {
		if _, known := sizes[m.Digest]; !known && m.Digest != former && m.Digest != (bpf.Digest{}) && r.scope.mayKeep(r, number, m) {
			candidates = append(candidates, m.Digest)
		}
		sizes[m.Digest] += r.scope.size(r.txn, m)
	}
	slices.SortFunc(candidates, func(a, b bpf.Digest) int {
		return cmp.Or(cmp.Compare(sizes[b], sizes[a]), bytes.Compare(a[:], b[:]))
	})
	_, stays := sizes[former]
	size := sizes[former]
	var rest []*tables.ClassMember
	for m := range r.roster.of(number) {
		if len(candidates) == 0 || stays && size >= sizes[candidates[0]] {
			break
		}
		if r.evaluated(keyOfMember(m)) == nil {
			stays = true
			size += r.scope.size(r.txn, m)
			rest = append(rest, m)
		}
	}
	r.meaning[number] = former
	if len(candidates) > 0 && !(stays && size >= sizes[candidates[0]]) {
		r.meaning[number] = candidates[0]
		for _, m := range rest {
			// Should the snapshot have a newer signature of it than was
			// noticed, the member just leaves.
			r.evaluate(keyOfMember(m), map[uint32]bool{})
		}
	}
	for _, m := range r.parts[number] {
		switch m.Digest {
		case r.meaning[number]:
			m.Class = number
		case bpf.Digest{}:
			m.Class = 0
		default:
			m.Class = undecided
		}
	}
}

// evaluateDoubles evaluates the members of the classes that can be merged now. As
// long as one of them waits for somebody, a change of what it is to stand for is to
// come, and has a round look again.
func (r *round) evaluateDoubles() {
	for _, digest := range r.meaning {
		r.double[digest] = struct{}{} // a class may have come to stand for it
	}
	for digest := range r.double {
		numbers := r.standingFor(digest)
		if len(numbers) < 2 {
			delete(r.double, digest)
			continue
		}
		if slices.ContainsFunc(numbers, func(n uint32) bool { return !r.waitsForNobody(n, digest) }) {
			continue
		}
		for _, number := range numbers {
			for m := range r.roster.of(number) {
				r.evaluate(keyOfMember(m), map[uint32]bool{}) // as in divide
			}
		}
	}
}

// noteDoubles notes the signatures that members have joined a class of while another
// one stands for the same.
func (r *round) noteDoubles() {
	for digest := range r.joined {
		if len(r.standingFor(digest)) > 1 {
			r.double[digest] = struct{}{}
		}
	}
}

// merge moves members of a class to another that stands for the same, if the
// kernel knows both by that meaning. Members that are yet to join one go there, too.
func (r *round) merge() {
	settled := map[bpf.Digest][]uint32{}
	for i := range r.order {
		for _, m := range r.order[i].wanted {
			if m.Class == undecided || m.Class == 0 {
				continue
			}
			numbers, known := settled[m.Digest]
			if !known {
				numbers = slices.DeleteFunc(r.standingFor(m.Digest), func(n uint32) bool { return !r.waitsForNobody(n, m.Digest) })
				settled[m.Digest] = numbers
			}
			if len(numbers) < 2 || !slices.Contains(numbers, m.Class) {
				continue
			}
			if _, known := r.joined[m.Digest]; !known {
				r.joined[m.Digest] = r.largest(numbers) // members are counted once
			}
			m.Class = r.joined[m.Digest]
		}
	}
}

func (r *round) largest(numbers []uint32) uint32 {
	size := func(number uint32) (n int) {
		for m := range r.roster.of(number) {
			n += r.scope.size(r.txn, m)
		}
		return n
	}
	return slices.MaxFunc(numbers, func(a, b uint32) int { return cmp.Or(cmp.Compare(size(a), size(b)), cmp.Compare(b, a)) })
}

// join finds a class for the undecided members.
func (r *round) join() {
	for i := range r.order {
		for _, m := range r.order[i].wanted {
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

// target returns the class that members with a signature join: one that stands
// for it and waits for nobody, else a number that is known to have stood for it, else a
// new one.
func (r *round) target(digest bpf.Digest) uint32 {
	candidates := r.standingFor(digest)
	if m := r.memberWith(r.txn, digest); m != nil {
		candidates = append(candidates, m.Class) // the kernel need not know it yet
	}
	for _, number := range candidates {
		if r.standsFor(number, digest) && r.scope.joinable(r, number, digest) {
			return number
		}
	}
	for _, number := range r.knownBy(r.txn, digest) {
		if r.roster.any(number) == nil && r.waitsForNobody(number, digest) && r.scope.reusable(r, number) {
			return number
		}
	}
	return r.fresh()
}

// fresh returns a number that is in no use.
func (r *round) fresh() uint32 {
	for {
		number := r.next
		r.next++
		if r.free(number) {
			return number
		}
	}
}

// knownBy returns the numbers that the kernel knows by a signature, in order.
func (p *partition) knownBy(txn statedb.ReadTxn, digest bpf.Digest) (numbers []uint32) {
	for e := range p.ClassEntries.List(txn, tables.ClassEntriesByDigest(tables.RoleDigest{Role: p.role, Digest: digest})) {
		numbers = append(numbers, e.Key.Number)
	}
	slices.Sort(numbers)
	return numbers
}

// isDouble reports whether the kernel knows more than one number by a signature.
func (p *partition) isDouble(txn statedb.ReadTxn, digest bpf.Digest) bool {
	known := 0
	for range p.ClassEntries.List(txn, tables.ClassEntriesByDigest(tables.RoleDigest{Role: p.role, Digest: digest})) {
		if known++; known == 2 {
			return true
		}
	}
	return false
}

// memberWith returns a member with a signature that is not empty, nil if there is
// none. The members of a class have one signature, whether or not its row says which.
func (p *partition) memberWith(txn statedb.ReadTxn, digest bpf.Digest) *tables.ClassMember {
	among := func(query statedb.Query[*tables.ClassMember]) *tables.ClassMember {
		for m := range tables.Rare(txn, p.Output, query) {
			if m.IsClass() {
				m = p.roster.any(m.Class)
			}
			if m != nil && m.Digest == digest {
				return m
			}
		}
		return nil
	}
	return cmp.Or(among(tables.ClassMembersByDigest(tables.RoleDigest{Role: p.role, Digest: digest})), among(tables.ClassRowsEnded(p.role)))
}

// standingFor returns the classes that the kernel knows by a signature and that stand
// for it after this round, in order.
func (r *round) standingFor(digest bpf.Digest) []uint32 {
	return slices.DeleteFunc(r.knownBy(r.txn, digest), func(n uint32) bool { return !r.standsFor(n, digest) })
}

// standsFor reports whether a class that had members, or has come to have some, stands
// for a signature after this round.
func (r *round) standsFor(number uint32, digest bpf.Digest) bool {
	if meaning, divided := r.meaning[number]; divided {
		return meaning == digest
	}
	m := r.roster.any(number)
	return m != nil && m.Digest == digest
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
// Numbers that maps name and that are not recorded are in use.
func (r *round) free(number uint32) bool {
	key := bpf.ClassKey{Role: r.role, Number: number}
	if r.roster.any(number) != nil {
		return false
	}
	if _, _, used := r.Classes.Get(r.txn, tables.ClassByKey(key)); used {
		return false
	}
	if _, _, used := r.ClassEntries.Get(r.txn, tables.MapEntryByKey[bpf.ClassKey, bpf.ClassValue](key)); used {
		return false
	}
	return r.scope.free(r.txn, number)
}
