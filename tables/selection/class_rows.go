// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// finish computes the rows of the classes that the round concerns: what each
// stands for, and who is still in it that belongs elsewhere.
//
// Whoever changes class, with his member or alone, is looked at once, and again
// when the kernel or a desired table moves him: a class is not searched for them.
func (s *policyScope) finish(r *round) {
	resigned := map[uint32]bool{} // classes whose meaning may have changed
	for i := range r.order {
		s.compare(r, &r.order[i], resigned)
	}
	delete(resigned, 0)
	s.lookInside(r)
	s.lookAt(r)
	for number := range resigned {
		r.touch(number, netip.Prefix{})
	}
	s.touchLeftTowards(r, resigned)
	for _, number := range slices.Sorted(maps.Keys(r.touched)) {
		r.classRows[number] = s.classRow(r, number, r.touched[number])
	}
	s.takeLeaving(r)
}

// takeLeaving takes in what the rows of the round say of who is leaving.
func (s *policyScope) takeLeaving(r *round) {
	for number, row := range r.classRows {
		var was, is []tables.Leaver
		if former := tables.ClassRow(r.txn, s.Output, bpf.ClassKey{Role: s.role, Number: number}); former != nil {
			was = former.Leavers
		}
		if row != nil {
			is = row.Leavers
		}
		s.leaving.take(number, was, is)
	}
	if len(s.leaving) == 0 {
		s.leaving = leaving{} // a map does not shrink
	}
}

// touchLeftTowards touches the classes that are being left towards some which change
// their meaning: they differ otherwise from these.
func (s *policyScope) touchLeftTowards(r *round, resigned map[uint32]bool) {
	if len(resigned) == 0 {
		return
	}
	for row := range tables.Rare(r.txn, s.Output, tables.ClassRowsLeaving(s.role)) {
		if slices.ContainsFunc(row.Leavers, func(l tables.Leaver) bool { return resigned[l.To] }) {
			r.touch(row.Class, netip.Prefix{})
		}
	}
}

// compare finds out which classes members under a key have come to or left, and has
// their addresses looked at.
func (s *policyScope) compare(r *round, of *evaluation, resigned map[uint32]bool) {
	existing := slices.Clone(of.former)
	for _, m := range of.wanted {
		var old *tables.ClassMember
		if i := slices.IndexFunc(existing, func(e *tables.ClassMember) bool { return e.Key() == m.Key() }); i >= 0 {
			old = existing[i]
			existing = slices.Delete(existing, i, i+1)
		}
		if old != nil && old.Class == m.Class && old.Digest == m.Digest {
			continue
		}
		resigned[m.Class] = true
		if old == nil || old.Class != m.Class {
			s.lookAtMember(r, m)
			r.part(m)
		}
		if old != nil {
			resigned[old.Class] = true
		}
	}
	for _, old := range existing {
		resigned[old.Class] = true
		r.looks = append(r.looks, old.Prefix)
		r.part(old)
	}
	if len(existing) > 0 {
		for _, m := range of.wanted { // which the addresses of those that went have come to belong to
			s.lookAtMember(r, m)
		}
	}
}

// lookAtMember has the addresses of a member looked at, unless nobody is in any class.
func (s *policyScope) lookAtMember(r *round, m *tables.ClassMember) {
	if len(s.inside) > 0 {
		r.looks = append(r.looks, s.place.prefixes(r.txn, m)...)
	}
}

// part notes the prefix of a member that is nobody's.
func (r *round) part(m *tables.ClassMember) {
	if m.LabelSet == (tables.LabelSetID{}) && m.Node == "" {
		r.parted[m.Prefix] = true
	}
}

// lookInside notes what is stale inside prefixes that came, went or changed class, to be
// looked at.
func (s *policyScope) lookInside(r *round) {
	if len(r.parted) == 0 {
		return
	}
	for prefix := range s.stale {
		if r.isParted(prefix) {
			r.looks = append(r.looks, prefix)
		}
	}
}

// isParted reports whether a prefix is in one that came, went or changed class.
func (r *round) isParted(prefix netip.Prefix) bool {
	if len(r.parted) < prefix.Bits() {
		for around := range r.parted {
			if around.Bits() <= prefix.Bits() && around.Contains(prefix.Addr()) {
				return true
			}
		}
		return false
	}
	for bits := prefix.Bits(); bits >= 0; bits-- {
		if r.parted[netip.PrefixFrom(prefix.Addr(), bits).Masked()] {
			return true
		}
	}
	return false
}

func (r *round) touch(number uint32, prefix netip.Prefix) {
	r.touched[number] = append(r.touched[number], prefix)
}

// lookAt touches the classes that prefixes are in without belonging there, or are
// said to be leaving: those may be others, while a write is under way.
func (s *policyScope) lookAt(r *round) {
	seen := map[netip.Prefix]bool{}
	for _, prefix := range r.looks {
		if !prefix.IsValid() || seen[prefix] {
			continue
		}
		seen[prefix] = true
		at := s.standing(r, prefix)
		for _, number := range []uint32{at.kernel, at.desired} {
			if number != 0 && number != at.class {
				r.touch(number, prefix)
			}
		}
		for _, number := range s.leaving[prefix] {
			r.touch(number, prefix)
		}
	}
}

// standing is in which classes a prefix is, and in which it belongs.
type standing struct{ kernel, desired, class uint32 }

// standing returns how it is with a prefix when all members have their classes. Of
// what is in no class at all it does not matter where it belongs.
func (s *policyScope) standing(r *round, prefix netip.Prefix) standing {
	at, known := r.standings[prefix]
	if known {
		return at
	}
	at.kernel, at.desired = s.place.classes(r.txn, prefix)
	if at.kernel != 0 || at.desired != 0 {
		if m := s.memberAt(r, prefix); m != nil {
			at.class = m.Class
		}
	}
	r.standings[prefix] = at
	return at
}

// memberAt returns the member that a prefix belongs to, as it is wanted, or nil.
func (s *policyScope) memberAt(r *round, prefix netip.Prefix) *tables.ClassMember {
	key := s.keyOf(r.txn, prefix)
	m := &tables.ClassMember{Role: s.role, LabelSet: key.LabelSet, Node: key.Node, Prefix: key.Prefix}
	of := r.evaluated(keyOfMember(m))
	if of == nil {
		m, _, _ := s.Output.Get(r.txn, tables.ClassMemberByKey(key))
		return m
	}
	for _, m := range of.wanted {
		if m.Key() == key {
			return m
		}
	}
	return nil
}

// meaningOf returns a member of a class as it is wanted, or nil if it has none, and
// the row that there was of it.
func (s *policyScope) meaningOf(r *round, number uint32) (m, former *tables.ClassMember) {
	former = tables.ClassRow(r.txn, s.Output, bpf.ClassKey{Role: s.role, Number: number})
	if r.signed == nil {
		r.signed = map[uint32]*tables.ClassMember{}
		for i := range r.order {
			for _, m := range r.order[i].wanted {
				r.signed[m.Class] = m
			}
		}
	}
	if m := r.signed[number]; m != nil {
		return m, former
	}
	for m := range r.roster.of(number) {
		if r.evaluated(keyOfMember(m)) == nil {
			return m, former
		}
	}
	return nil, former
}

// classRow returns the row of a class, nil if there is none. Of those that may be
// leaving it, the given ones are looked at anew.
func (s *policyScope) classRow(r *round, number uint32, changed []netip.Prefix) *tables.ClassMember {
	m, former := s.meaningOf(r, number)
	row := &tables.ClassMember{Role: s.role, OfClass: true, Class: number}
	leavers := s.leavers(r, number, former, changed)
	switch {
	case m != nil:
		row.Selectors, row.Ports, row.Digest = m.Selectors, m.Ports, m.Digest
	case !s.used(number) && len(leavers) == 0:
		return nil
	case former != nil:
		row.Selectors, row.Ports, row.Digest = former.Selectors, former.Ports, former.Digest
	default: // it has ended, and somebody comes by a write that was under way, only to leave
		key := tables.MapEntryByKey[bpf.ClassKey, bpf.ClassValue](bpf.ClassKey{Role: s.role, Number: number})
		if e, _, found := s.ClassEntries.Get(r.txn, key); found {
			row.Digest = e.Value.Digest
		}
	}
	s.fillLeaving(r, row, leavers)
	return row
}

// leavers returns who is leaving a class, and where each belongs: as its row says,
// but those that are to be looked at anew.
func (s *policyScope) leavers(r *round, number uint32, former *tables.ClassMember, changed []netip.Prefix) map[netip.Prefix]uint32 {
	leavers := map[netip.Prefix]uint32{}
	if former != nil {
		for _, l := range former.Leavers {
			leavers[l.Prefix] = l.To
		}
	}
	for _, prefix := range changed {
		if !prefix.IsValid() {
			continue
		}
		_, was := leavers[prefix]
		if s.isInside(r, prefix, number, was) && s.standing(r, prefix).class != number {
			leavers[prefix] = s.standing(r, prefix).class
		} else {
			delete(leavers, prefix)
		}
	}
	return leavers
}

// isInside reports whether a prefix is in a class, or may yet come into it. Who was
// wanted there and is wanted elsewhere, or nowhere, may do so by a write that is under
// way: until the kernel is known to have him where he is wanted, or to refuse to. Of an
// address that is new and goes at once that is not known: no table has anything of it
// while its first write is under way. It is nobody's then, or of a pod that has just come,
// and the next write removes or replaces it.
func (s *policyScope) isInside(r *round, prefix netip.Prefix, number uint32, was bool) bool {
	kernel, desired := s.place.classes(r.txn, prefix)
	underWay := was && (desired != kernel || s.place.pending(r.txn, prefix)) && !s.place.failed(r.txn, prefix)
	return kernel == number || desired == number || underWay
}

// fillLeaving fills in who is leaving, and by what they differ from the class.
func (s *policyScope) fillLeaving(r *round, row *tables.ClassMember, leavers map[netip.Prefix]uint32) {
	if len(leavers) == 0 {
		return
	}
	differ := map[tables.SelectorID]bool{}
	seen := map[uint32]bool{}
	for _, prefix := range slices.SortedFunc(maps.Keys(leavers), netip.Prefix.Compare) {
		to := leavers[prefix]
		row.Leavers = append(row.Leavers, tables.Leaver{Prefix: prefix, To: to})
		if seen[to] {
			continue
		}
		seen[to] = true
		target := &tables.ClassMember{Role: s.role} // of those that no selector chooses, or nobody
		if m, former := s.meaningOf(r, to); m != nil {
			target = m
		} else if former != nil {
			target = former
		}
		for _, id := range distinction(row, target) {
			differ[id] = true
		}
	}
	row.Leaving = slices.Sorted(maps.Keys(differ))
}
