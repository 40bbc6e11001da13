// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// settlement keeps, for some owners, on how many pairs of classes the kernel is
// not yet seen to say what is wanted. A pair that was settled once is done with.
//
// Changes are noted by add and touch while the inputs of a rule are gone through;
// check then looks at the pairs that changed, and at no others.
type settlement[Owner comparable] struct {
	owners  map[tables.PolicyPair][]Owner
	open    map[Owner]int
	touched map[tables.PolicyPair]struct{}

	// byClass has the pairs of owners by class. It is made when it is asked for and
	// kept until the next check: what is added meanwhile is touched anyway.
	byClass map[bpf.ClassKey][]tables.PolicyPair
}

func newSettlement[Owner comparable]() *settlement[Owner] {
	return &settlement[Owner]{
		owners: map[tables.PolicyPair][]Owner{}, open: map[Owner]int{}, touched: map[tables.PolicyPair]struct{}{},
	}
}

// add has an owner wait for a pair, which is to be looked at.
func (s *settlement[Owner]) add(pair tables.PolicyPair, owner Owner) {
	s.touched[pair] = struct{}{}
	if !slices.Contains(s.owners[pair], owner) {
		s.owners[pair] = append(s.owners[pair], owner)
		s.open[owner]++
	}
}

// touch has a pair looked at, and calls affected with those who wait for it.
func (s *settlement[Owner]) touch(pair tables.PolicyPair, affected func(Owner)) {
	owners := s.owners[pair]
	if len(owners) == 0 {
		return
	}
	s.touched[pair] = struct{}{}
	for _, owner := range owners {
		affected(owner)
	}
}

// touchClass is touch for all pairs with a class that has come to stand for
// something else, or is gone. A rule may have gone with it that tells of the pair no
// more. Who is leaving it is no matter.
func (s *settlement[Owner]) touchClass(old, new *tables.ClassMember, affected func(Owner)) {
	if old == nil || new != nil && old.Digest == new.Digest && slices.Equal(old.Selectors, new.Selectors) &&
		slices.Equal(old.Ports, new.Ports) {
		return
	}
	for _, pair := range s.ofClass(bpf.ClassKey{Role: old.Role, Number: old.Class}) {
		s.touch(pair, affected)
	}
}

// ofClass returns the pairs with a class that somebody waits for.
func (s *settlement[Owner]) ofClass(class bpf.ClassKey) []tables.PolicyPair {
	if s.byClass == nil {
		s.byClass = map[bpf.ClassKey][]tables.PolicyPair{}
		for pair := range s.owners {
			for _, key := range classesOf(pair) {
				s.byClass[key] = append(s.byClass[key], pair)
			}
		}
	}
	return s.byClass[class]
}

// empty reports whether nobody waits for anything.
func (s *settlement[Owner]) empty() bool { return len(s.owners) == 0 }

// check looks at the pairs that were added or touched.
func (s *settlement[Owner]) check(settled func(tables.PolicyPair) bool) {
	for pair := range s.touched {
		if !settled(pair) {
			continue
		}
		for _, owner := range s.owners[pair] {
			s.done(owner)
		}
		delete(s.owners, pair)
	}
	s.checked()
}

// checkEach is check for what is settled for some owners and not for others.
func (s *settlement[Owner]) checkEach(settled func(tables.PolicyPair, Owner) bool) {
	for pair := range s.touched {
		waiting := slices.DeleteFunc(s.owners[pair], func(owner Owner) bool {
			if !settled(pair, owner) {
				return false
			}
			s.done(owner)
			return true
		})
		if s.owners[pair] = waiting; len(waiting) == 0 {
			delete(s.owners, pair)
		}
	}
	s.checked()
}

// checked has nothing left to look at.
func (s *settlement[Owner]) checked() {
	clear(s.touched)
	s.byClass = nil
}

func (s *settlement[Owner]) done(owner Owner) {
	if s.open[owner]--; s.open[owner] == 0 {
		delete(s.open, owner)
	}
}

// waits reports whether an owner waits for some pair.
func (s *settlement[Owner]) waits(owner Owner) bool { return s.open[owner] > 0 }

// programmed reports whether the kernel has just the entries of a pair that are
// in policy-entries. Both tables have those of a pair in the same order.
func (p *pairs) programmed(txn statedb.ReadTxn, pair tables.PolicyPair) bool {
	p.kernel = p.kernel[:0]
	for m := range p.Kernel.List(txn, tables.PolicyMapEntriesOfPair(pair)) {
		p.kernel = append(p.kernel, m)
	}
	rest := p.kernel
	for e := range p.Entries.Prefix(txn, tables.PolicyEntriesOfPair(pair)) {
		if len(rest) == 0 || rest[0].Key != e.Key || rest[0].Value != e.Value {
			return false
		}
		rest = rest[1:]
	}
	return len(rest) == 0
}

// derived reports whether policy-entries has of a pair what is wanted of it.
func (p *pairs) derived(txn statedb.ReadTxn, c *Computer, pair tables.PolicyPair) bool {
	wanted := c.Entries(txn, pair)
	for e := range p.Entries.Prefix(txn, tables.PolicyEntriesOfPair(pair)) {
		if len(wanted) == 0 || !wanted[0].Equal(e) {
			return false
		}
		wanted = wanted[1:]
	}
	return len(wanted) == 0
}

// settled reports whether the kernel says of a pair just what is wanted.
func (p *pairs) settled(txn statedb.ReadTxn, c *Computer, pair tables.PolicyPair) bool {
	return p.programmed(txn, pair) && p.derived(txn, c, pair)
}
