// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"net/netip"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

// placed is what the kernel or a desired table says of where a prefix is.
type placed struct {
	prefix  netip.Prefix
	class   uint32
	desired bool
	pending bool // a write may be under way, of this or of what was desired before
	failed  bool // the kernel does not take it
	settled bool // a desired row that says that the prefix is where it belonged when that was computed
	outside bool // a desired row of what is neither of a pod nor of a node
}

// desiredPeer is what a row of the ipcache says, which changes when the class does
// that the prefix belongs to.
func desiredPeer(c *tables.IPCache) placed {
	return placed{
		prefix: c.Prefix, class: c.PeerClass, desired: true, pending: isPending(c.Status), failed: isFailed(c.Status),
		settled: c.WaitsFor == 0 && !c.Remains, outside: c.IsOutside(),
	}
}

func peerInKernel(e *tables.IPCacheEntry) placed {
	return placed{prefix: e.Key.Prefix(), class: e.Value.PeerClass}
}

func desiredSubject(e *tables.LocalEndpoint) placed {
	return placed{prefix: single(e.Addr), class: e.SubjectClass, desired: true, pending: isPending(e.Status), failed: isFailed(e.Status)}
}

func subjectInKernel(e *tables.PodEntry) placed {
	return placed{prefix: single(e.Key.Addr.Addr()), class: e.Value.SubjectClass}
}

// placement is what a change of where prefixes of a role are affects, alone or with
// changes of where they belong.
func placement[Row any](s *policyScope, table statedb.Table[*Row], placedBy func(*Row) placed) derive.Input[memberKey] {
	changed := func(alone bool) func(statedb.ReadTxn, *Row, *Row, func(memberKey)) {
		return func(txn statedb.ReadTxn, old, new *Row, affect func(memberKey)) {
			var was, is placed
			if old != nil {
				was = placedBy(old)
			}
			if new != nil {
				is = placedBy(new)
			}
			pending := was.pending
			was.pending = is.pending
			switch {
			case was != is || !was.desired:
				s.affectedByPlacement(txn, was, is, alone, affect)
			case pending != is.pending:
				s.affectedAsLeaver(is.prefix, affect)
			}
		}
	}
	return derive.Apart(changed(true), derive.FromChange(table, changed(false)))
}

// affectedByPlacement are the rows of the classes that the kernel or a desired
// table has, or had, a prefix in, if someone leaves them; and the prefix if it does
// not belong there. What the kernel has may have been another class meanwhile, in a
// snapshot before its change was noticed. What a row says of where the prefix belongs is
// so if nothing else has changed since: it may have belonged there for a moment only.
func (s *policyScope) affectedByPlacement(txn statedb.ReadTxn, was, is placed, alone bool, affect func(memberKey)) {
	prefix := is.prefix
	if !prefix.IsValid() {
		prefix = was.prefix
	}
	if was.failed == is.failed {
		s.affectedAsMover(txn, prefix, affect)
	} else {
		s.affectedAsLeaver(prefix, affect)
	}
	if was.class != is.class {
		s.count(txn, was.class, -1, prefix, affect)
		s.count(txn, is.class, 1, prefix, affect)
		if !was.desired && !is.desired {
			s.affectedAsHeirs(txn, prefix, affect)
		}
	}
	switch {
	case is.settled && alone:
		if is.outside { // else the row may be of who had it, and only its status another
			delete(s.stale, prefix)
		}
		return
	case is.settled && s.belongs(txn, prefix, 0, is.class):
		return
	}
	kernel, desired := s.place.classes(txn, prefix)
	if kernel == desired && kernel != 0 && !was.desired && !is.desired {
		return // it was looked at when that came to be desired
	}
	if !s.belongs(txn, prefix, kernel, desired) {
		affect(addressKey(s.role, prefix))
	}
}

// affectedAsHeirs are those that are in another class in the kernel with a prefix around
// them, as far as they are said to be leaving one or do not belong there.
func (s *policyScope) affectedAsHeirs(txn statedb.ReadTxn, prefix netip.Prefix, affect func(memberKey)) {
	for heir := range s.place.heirs(txn, prefix) {
		s.affectedAsMover(txn, heir, affect)
		if !s.settled(txn, heir) {
			affect(addressKey(s.role, heir))
		}
	}
}

// count adds to how many entries and desired rows are in a class. Of a class
// without members, the first and the last of them affect the row.
func (s *policyScope) count(txn statedb.ReadTxn, class uint32, n int, prefix netip.Prefix, affect func(memberKey)) {
	if class == 0 {
		return
	}
	was := s.inside[class]
	s.inside[class] = was + n
	if was+n == 0 {
		delete(s.inside, class)
	}
	if (was == 0 || was+n == 0) && !s.isPeopled(txn, class) {
		affect(classKey(s.role, class, prefix))
	}
}

// used reports whether the kernel or the desired table has someone in a class.
func (s *policyScope) used(class uint32) bool { return s.inside[class] > 0 }

// isPeopled reports whether a class has a row and members.
func (s *policyScope) isPeopled(txn statedb.ReadTxn, class uint32) bool {
	row := tables.ClassRow(txn, s.Output, bpf.ClassKey{Role: s.role, Number: class})
	return row != nil && s.partitions[s.role].roster.any(class) != nil
}

// affectedAsLeaver are the classes that a prefix is said to be leaving. It may
// have been in one without an entry of its own, with what is around it.
func (s *policyScope) affectedAsLeaver(prefix netip.Prefix, affect func(memberKey)) {
	for _, class := range s.leaving[prefix] {
		affect(classKey(s.role, class, prefix))
	}
}

// affectedAsMover are the classes that a prefix is said to be leaving, when it is
// somewhere else than before. One that the kernel still has it in stays as it is.
func (s *policyScope) affectedAsMover(txn statedb.ReadTxn, prefix netip.Prefix, affect func(memberKey)) {
	s.affectedAsLeaver(prefix, func(key memberKey) {
		if kernel, _ := s.place.classes(txn, prefix); kernel != uint32(key.number) {
			affect(key)
		}
	})
}

// isPending reports whether what is desired of a row is yet to be tried.
func isPending(s reconciler.Status) bool { return s.Kind == reconciler.StatusKindPending }

// isFailed reports whether what is desired of a row was tried in vain.
func isFailed(s reconciler.Status) bool { return s.Kind == reconciler.StatusKindError }
