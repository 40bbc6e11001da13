// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// At the start the kernel has addresses in classes, and verdicts on these. What
// these classes stood for is not asked: policies, labels and groups may have
// changed since, and an agent that was killed may have left addresses half way.
// What counts is who is in them. A class whose addresses all have one signature now
// stands for that one, whatever it was, and its verdicts are changed in place.
//
// Those of a class whose addresses have several signatures must first be parted.
// Its meaning is unknown, and its verdicts stay, until all have left but those of
// its members, if it has some: in one step each goes from the verdicts of before to
// those of before in another class, which is for those of this signature from this
// class (ClassMember.Continues), and when all peers are where they can be told
// apart, the subjects get the verdicts of now. Nothing that verdicts of before and
// of now both say is otherwise in between.
//
// The digests in sluice_classes are not needed for that. They would not do either:
// while addresses are leaving a class, it is recorded for what it was, so that after
// a kill those that came last would be taken for what they are not.

// resume gives signatures their numbers at the start, when no class has a row: that
// which the kernel has most of their addresses in. So as few as can be have to leave.
func (s *policyScope) resume(r *round) {
	for range s.Output.List(r.txn, tables.ClassRowsOfRole(s.role)) {
		return
	}
	r.resuming = true
	inside := s.inKernel(r)
	var claims []claim
	signatures := map[uint32]int{}
	for digest, counts := range inside {
		for number, n := range counts {
			signatures[number]++
			if digest != (bpf.Digest{}) {
				claims = append(claims, claim{digest, number, n})
			}
		}
	}
	if s.role == bpf.RoleSubject {
		// Subjects leave for the classes of the others, which must not wait to be
		// left themselves: nobody stays in a class that has to be parted.
		claims = slices.DeleteFunc(claims, func(c claim) bool { return signatures[c.number] > 1 })
	}
	r.settle(claims)
	// What is recorded for a signature is not joined when others are in it.
	for _, digest := range slices.SortedFunc(maps.Keys(inside), func(a, b bpf.Digest) int { return slices.Compare(a[:], b[:]) }) {
		if r.joined[digest] == 0 && digest != (bpf.Digest{}) {
			r.joined[digest] = r.fresh()
		}
	}
}

// claim is a number that a signature might continue, with how many are in it already.
type claim struct {
	digest bpf.Digest
	number uint32
	inside int
}

// settle gives numbers to those with the most inside.
func (r *round) settle(claims []claim) {
	slices.SortFunc(claims, func(a, b claim) int {
		return cmp.Or(cmp.Compare(b.inside, a.inside), cmp.Compare(a.number, b.number), slices.Compare(a.digest[:], b.digest[:]))
	})
	taken := map[uint32]bool{}
	for _, c := range claims {
		if r.joined[c.digest] == 0 && !taken[c.number] {
			r.joined[c.digest], taken[c.number] = c.number, true
		}
	}
}

// inKernel counts for each signature in which classes the kernel has how many of its
// addresses.
func (s *policyScope) inKernel(r *round) map[bpf.Digest]map[uint32]int {
	inside := map[bpf.Digest]map[uint32]int{}
	seen := map[netip.Prefix]bool{}
	count := func(prefix netip.Prefix, number uint32) {
		if number == 0 || seen[prefix] {
			return
		}
		seen[prefix] = true
		if m := s.memberAt(r, prefix); m != nil {
			if inside[m.Digest] == nil {
				inside[m.Digest] = map[uint32]int{}
			}
			inside[m.Digest][number]++
		}
	}
	for prefix, number := range s.place.kernel(r.txn) {
		count(prefix, number)
	}
	for i := range r.order {
		for _, m := range r.order[i].wanted {
			if inside[m.Digest] == nil {
				inside[m.Digest] = map[uint32]int{}
			}
			if m.Prefix.IsValid() && m.LabelSet == (tables.LabelSetID{}) && m.Node == "" {
				// It may be in a class with what is around it.
				kernel, _ := s.place.classes(r.txn, m.Prefix)
				count(m.Prefix, kernel)
			}
		}
	}
	return inside
}

// resumeMeaning has a class without members stand for the signature that all in it
// have, who are members of another class.
func (s *policyScope) resumeMeaning(r *round, row *tables.ClassMember, leavers map[netip.Prefix]uint32) {
	var common *tables.ClassMember
	for prefix := range leavers {
		m := s.memberAt(r, prefix)
		if m == nil || common != nil && m.Digest != common.Digest {
			return
		}
		common = m
	}
	if common != nil {
		row.Selectors, row.Ports, row.Digest = common.Selectors, common.Ports, common.Digest
	}
}

// keepUnknown makes the row of a class one of unknown meaning, if it is one and is
// not yet left by those who do not belong there. Until rules are in force any may
// become one: these will be about classes as they are then, and not wait for any.
// After that it is one that has ended, which somebody comes to by a write that was
// under way, only to leave at once: nobody waits for that.
func (s *policyScope) keepUnknown(r *round, row, former *tables.ClassMember) {
	ended := former == nil && len(row.Selectors) == 0 && !r.beginning
	unknown := ended || former != nil && former.MeaningUnknown() || (former == nil && r.resuming || r.beginning) && s.used(row.Class)
	if !unknown || len(row.Selectors) > 0 && len(row.Leaving) == 0 {
		return
	}
	row.Selectors, row.Ports, row.Digest = nil, nil, bpf.Digest{}
	if e, _, found := s.ClassEntries.Get(r.txn, tables.MapEntryByKey[bpf.ClassKey, bpf.ClassValue](bpf.ClassKey{Role: s.role, Number: row.Class})); found {
		row.Digest = e.Value.Digest
	}
	// Else a single address whose write fails would keep all others from what the
	// policies say now. It stays with the verdicts of before until it succeeds.
	row.Stuck = ended || former != nil && former.Stuck || len(row.Leavers) > 0 &&
		!slices.ContainsFunc(row.Leavers, func(l tables.Leaver) bool { return !s.place.failed(r.txn, l.Prefix) })
}

// continueClasses makes the classes for those who have to leave one of unknown
// meaning. Where a new class is made for their signature anyway, it is that one.
func (s *policyScope) continueClasses(r *round) {
	if s.role != bpf.RolePeer {
		return
	}
	for _, number := range slices.Sorted(maps.Keys(r.classRows)) {
		row := r.classRows[number]
		if row == nil || !row.MeaningUnknown() || row.Stuck {
			continue
		}
		seen := map[bpf.Digest]bool{}
		for _, l := range row.Leavers {
			m := s.memberAt(r, l.Prefix)
			if m == nil || seen[m.Digest] || m.Digest == (bpf.Digest{}) {
				continue
			}
			seen[m.Digest] = true
			s.continueClass(r, number, m)
		}
	}
}

func (s *policyScope) continueClass(r *round, number uint32, m *tables.ClassMember) {
	if tables.ClassContinuing(r.txn, s.Output, bpf.ClassKey{Role: s.role, Number: number}, m.Digest) != nil {
		return
	}
	own := r.classRows[m.Class]
	isNew := tables.ClassRow(r.txn, s.Output, bpf.ClassKey{Role: s.role, Number: m.Class}) == nil
	if own != nil && isNew && own.Continues == 0 && !s.used(m.Class) {
		own.Continues = number
		return
	}
	fresh := r.fresh()
	r.classRows[fresh] = &tables.ClassMember{
		Role: s.role, OfClass: true, Class: fresh, Continues: number,
		Selectors: m.Selectors, Ports: m.Ports, Digest: m.Digest,
	}
}

// continues reports whether the class of a row goes on without anyone in it, for
// those who are to come from the class that it continues.
func (s *policyScope) continues(r *round, row *tables.ClassMember) bool {
	if row.Continues == 0 {
		return false
	}
	of, known := r.classRows[row.Continues]
	if !known {
		of = tables.ClassRow(r.txn, s.Output, bpf.ClassKey{Role: s.role, Number: row.Continues})
	}
	return of != nil && of.MeaningUnknown() && !of.Stuck
}

// touchContinuing touches the classes that continue one, when that changes.
func (s *policyScope) touchContinuing(r *round) {
	for number := range maps.Clone(r.touched) {
		for row := range s.Output.List(r.txn, tables.ClassRowsContinuing(bpf.ClassKey{Role: s.role, Number: number})) {
			r.touch(row.Class, netip.Prefix{})
		}
	}
}

// isPending reports whether what is desired of a row is yet to be tried.
func isPending(s reconciler.Status) bool { return s.Kind == reconciler.StatusKindPending }

// isFailed reports whether what is desired of a row was tried in vain.
func isFailed(s reconciler.Status) bool { return s.Kind == reconciler.StatusKindError }
