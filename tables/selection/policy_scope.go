// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// policyScope is what is particular to the classes of network policies, those of
// peers and those of subjects. Beside the members there is a row for each class.
//
// A number keeps its meaning as far as rules in force look at it, for the
// addresses in it change one by one while its verdicts change for all at once:
// where all members of a class come to be chosen otherwise by such rules, all go
// elsewhere, and the class stays as it is until the last has left. A selector that
// is evaluated may come into force at any moment, and counts like one that is: so
// a number changes its meaning only by selectors that are new, or that nobody
// names any more.
type policyScope struct {
	*members
	role  bpf.Role
	place place

	// inside counts the kernel's entries and the desired rows in each class.
	inside map[uint32]int
	stale  map[netip.Prefix]struct{} // see keyOf

	leaving leaving
}

// place is what peers and subjects differ in: who they are, and where they are
// put into classes.
type place interface {
	// signatures returns the members under a key, without classes yet.
	signatures(r *round, key memberKey) []*tables.ClassMember
	// complete reports whether the members that an endpoint has, or had, are all there.
	complete(txn statedb.ReadTxn, e *tables.Endpoint) bool
	// key returns the key of the member that a prefix belongs to.
	key(txn statedb.ReadTxn, prefix netip.Prefix) tables.MemberKey
	// isStale reports whether a prefix that belongs to the member with a key is stale.
	isStale(txn statedb.ReadTxn, prefix netip.Prefix, key tables.MemberKey) bool
	// heirs yields the prefixes inside one that are, or soon will be, in the class of what
	// the kernel has around them.
	heirs(txn statedb.ReadTxn, prefix netip.Prefix) iter.Seq[netip.Prefix]
	// classes returns the class that the kernel has a prefix in and the one that is desired.
	classes(txn statedb.ReadTxn, prefix netip.Prefix) (kernel, desired uint32)
	// named reports whether the kernel has verdicts for a class.
	named(txn statedb.ReadTxn, number uint32) bool
	// pending reports whether a write of the class that is or was desired may be under way.
	pending(txn statedb.ReadTxn, prefix netip.Prefix) bool
	// failed reports whether the kernel does not take the class that is desired of a prefix.
	failed(txn statedb.ReadTxn, prefix netip.Prefix) bool
	// prefixes returns the addresses and prefixes of a member.
	prefixes(txn statedb.ReadTxn, m *tables.ClassMember) []netip.Prefix
}

func (s *policyScope) signatures(r *round, key memberKey) []*tables.ClassMember {
	return s.place.signatures(r, key)
}

func (s *policyScope) size(txn statedb.ReadTxn, m *tables.ClassMember) int {
	return len(s.place.prefixes(txn, m))
}

// evaluated reports whether all prefixes of a selector are told apart already.
func (s *policyScope) evaluated(txn statedb.ReadTxn, selector *tables.Selector) bool {
	inside := selector.MatchesPods || selector.MatchesNodes
	for _, prefix := range slices.Concat(selector.Prefixes, selector.Except) {
		p, _, found := s.Places.PeerPrefixes.Get(txn, tables.PeerPrefixByPrefix(prefix))
		if !found || inside && !p.Pods {
			return false
		}
	}
	return true
}

// mayKeep reports whether rules in force choose a member as they do those that
// the class has stood for.
func (s *policyScope) mayKeep(r *round, number uint32, m *tables.ClassMember) bool {
	row := tables.ClassRow(r.txn, s.Output, bpf.ClassKey{Role: s.role, Number: number})
	if row == nil {
		return false
	}
	for _, id := range distinction(row, m) {
		if r.inForce(id) || s.known(r, id) {
			return false
		}
	}
	return true
}

// known reports whether a selector was evaluated before and is still wanted.
func (s *policyScope) known(r *round, id tables.SelectorID) bool {
	_, _, wanted := s.Selectors.Get(r.txn, tables.SelectorByID(id))
	return wanted && tables.SelectorIsEvaluated(r.txn, s.Output, s.role, id)
}

// distinction returns the selectors by which two signatures differ, also those of
// names of ports.
func distinction(a, b *tables.ClassMember) []tables.SelectorID {
	ids := difference(a.Selectors, b.Selectors)
	for _, p := range difference(a.Ports, b.Ports) {
		ids = append(ids, tables.PortSelectorID(a.Role, p.Name, p.Protocol))
	}
	return ids
}

// inForce reports whether a rule that is in force names a selector.
func (r *round) inForce(id tables.SelectorID) bool {
	is, known := r.force[id]
	if !known {
		for p := range tables.EnforcedPoliciesBySelector(r.txn, r.Rules, id) {
			is = is || p.NamesInForce(id)
		}
		if r.force == nil {
			r.force = map[tables.SelectorID]bool{}
		}
		r.force[id] = is
	}
	return is
}

// free reports whether a number has neither a row nor anyone in it, nor verdicts, and
// is not known as one that may be entered.
func (s *policyScope) free(txn statedb.ReadTxn, number uint32) bool {
	key := bpf.ClassKey{Role: s.role, Number: number}
	_, _, known := s.Readiness.Get(txn, tables.PolicyReadinessByKey(key))
	return !known && tables.ClassRow(txn, s.Output, key) == nil && !s.used(number) && !s.place.named(txn, number)
}

// reusable is a class of which nothing is left: who comes must not take it for what it
// was, while its verdicts go.
func (s *policyScope) reusable(r *round, number uint32) bool { return s.free(r.txn, number) }

// settled reports whether the kernel and the desired table have a prefix nowhere
// but where it belongs.
func (s *policyScope) settled(txn statedb.ReadTxn, prefix netip.Prefix) bool {
	kernel, desired := s.place.classes(txn, prefix)
	return s.belongs(txn, prefix, kernel, desired)
}

// belongs reports whether a prefix belongs into all of some classes that are not 0.
func (s *policyScope) belongs(txn statedb.ReadTxn, prefix netip.Prefix, kernel, desired uint32) bool {
	if kernel == 0 && desired == 0 {
		delete(s.stale, prefix)
		return true
	}
	m, _, found := s.Output.Get(txn, tables.ClassMemberByKey(s.keyOf(txn, prefix)))
	return found && (kernel == 0 || kernel == m.Class) && (desired == 0 || desired == m.Class)
}

// joinable is always so: who joins a class waits for its verdicts, which wait for
// nobody, so that no circle can come of it.
func (*policyScope) joinable(*round, uint32, bpf.Digest) bool { return true }
