// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"iter"
	"slices"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

var directions = [...]bpf.Direction{bpf.DirectionEgress, bpf.DirectionIngress} // in order

// pairs tells which pairs of classes a change may concern: all whose entries it
// changes, and few others.
type pairs struct {
	Tables
	Entries statedb.Table[*tables.PolicyEntry]

	kernel []*tables.PolicyMapEntry // of the pair that is being looked at
}

// bySubject calls f with the pairs of a subject class that a rule says something
// about, as the other classes are.
func (p *pairs) bySubject(txn statedb.ReadTxn, r *tables.EnforcedRule, subject uint32, f func(tables.PolicyPair)) {
	pair := tables.PolicyPair{Subject: subject, Direction: r.Direction}
	if r.DefaultDeny || r.AnyPeer {
		f(pair)
	}
	if r.AnyPeer && r.Direction == bpf.DirectionEgress && hasNamedPort(r) {
		for peer := range p.Members.List(txn, tables.ClassRowsOfRole(bpf.RolePeer)) {
			if resolves(r, peer.Ports) {
				pair.Peer = peer.Class
				f(pair)
			}
		}
	}
	for _, id := range r.Peers {
		for peer := range p.Members.List(txn, tables.ClassRowsBySelector(id)) {
			pair.Peer = peer.Class
			f(pair)
		}
	}
}

// resolves reports whether one of the names of ports of a rule has a number.
func resolves(r *tables.EnforcedRule, ports []tables.NamedPort) bool {
	return slices.ContainsFunc(r.Ports, func(p tables.PolicyPort) bool {
		return p.Name != "" && slices.ContainsFunc(ports, func(n tables.NamedPort) bool {
			return n.Name == p.Name && n.Protocol == p.Protocol
		})
	})
}

// ofRule calls f with the pairs that a rule says something about.
func (p *pairs) ofRule(txn statedb.ReadTxn, r *tables.EnforcedRule, f func(tables.PolicyPair)) {
	for subject := range p.Members.List(txn, tables.ClassRowsBySelector(r.Subject)) {
		p.bySubject(txn, r, subject.Class, f)
	}
}

// byPolicy calls f with the pairs that a change of policy-rules concerns.
func (p *pairs) byPolicy(txn statedb.ReadTxn, old, new *tables.EnforcedPolicy, f func(tables.PolicyPair)) {
	for before, now := range tables.ChangedRules(old, new) {
		p.byRule(txn, before, now, f)
	}
}

// byRule calls f with the pairs that the change of a rule in force concerns.
// Classes that the former rule was about, but that have changed in the same moment,
// are found by their entries.
func (p *pairs) byRule(txn statedb.ReadTxn, old, new *tables.EnforcedRule, f func(tables.PolicyPair)) {
	if old != nil && new != nil && old.SameVerdicts(new) {
		return
	}
	was, is := old, new
	var kept *tables.EnforcedRule
	if old != nil && new != nil && old.SameButPeers(new) {
		was, is, kept = old.Without(new), new.Without(old), new
	}
	if was != nil {
		p.ofRule(txn, was, f)
		p.byEntries(txn, was, kept, f)
	}
	if is != nil {
		p.ofRule(txn, is, f)
	}
}

// byEntries calls f with the pairs that have an entry of a rule, but for those with
// peers that the rule in its place is about just as well. There need not be one.
func (p *pairs) byEntries(txn statedb.ReadTxn, r, kept *tables.EnforcedRule, f func(tables.PolicyPair)) {
	for e := range p.Entries.List(txn, tables.PolicyEntriesByPolicy(r.Policy)) {
		if !slices.Contains(e.Rules, r.RuleID) {
			continue
		}
		if kept != nil {
			peer := tables.ClassRow(txn, p.Members, bpf.ClassKey{Role: bpf.RolePeer, Number: e.Key.Peer})
			if peer != nil && slices.ContainsFunc(peer.Selectors, kept.NamesPeer) {
				continue
			}
		}
		f(e.Pair())
	}
}

// byClass calls f with the pairs that a change of class-members concerns: none if
// the row is not of a class.
func (p *pairs) byClass(txn statedb.ReadTxn, old, new *tables.ClassMember, f func(tables.PolicyPair)) {
	row := new
	if row == nil {
		row = old
	}
	if !row.OfClass || row.Role != bpf.RoleSubject && row.Role != bpf.RolePeer {
		return
	}
	if old == nil || new == nil || old.Ended() != new.Ended() {
		p.ofNumber(txn, row.Role, row.Class, f)
	}
	ids, names := signatureChange(old, new)
	if old != nil && new != nil {
		p.byLoss(txn, old, new, f)
	}
	if row.Role == bpf.RoleSubject {
		p.bySubjectChange(txn, row.Class, ids, names, f)
	} else {
		p.byPeerChange(txn, row.Class, ids, names, f)
	}
}

// byFirstClass calls f with the pairs of a class that there is in the first round.
// Those that rules say something about are all found by their subjects.
func (p *pairs) byFirstClass(txn statedb.ReadTxn, row *tables.ClassMember, f func(tables.PolicyPair)) {
	if row.Role == bpf.RoleSubject {
		p.byClass(txn, nil, row, f)
		return
	}
	p.ofNumber(txn, row.Role, row.Class, f)
}

// ofNumber calls f with all pairs of a class that have entries, and with those
// that have some whatever the rules are.
func (p *pairs) ofNumber(txn statedb.ReadTxn, role bpf.Role, class uint32, f func(tables.PolicyPair)) {
	if role == bpf.RolePeer {
		for e := range p.Entries.List(txn, tables.PolicyEntriesByPeer(class)) {
			f(e.Pair())
		}
		for e := range p.Kernel.List(txn, tables.PolicyMapEntriesByPeer(class)) {
			f(tables.PairOf(e.Key))
		}
		return
	}
	for _, d := range directions {
		f(tables.PolicyPair{Subject: class, Direction: d})
	}
	for e := range p.Entries.Prefix(txn, tables.PolicyEntriesOfSubject(class)) {
		f(e.Pair())
	}
	for e := range p.Kernel.Prefix(txn, tables.PolicyMapEntriesOfSubject(class)) {
		f(tables.PairOf(e.Key))
	}
}

// byLoss calls f with the pairs that have an entry on account of a selector that a
// class has lost: the other class may have lost its own in the same moment.
func (p *pairs) byLoss(txn statedb.ReadTxn, old, new *tables.ClassMember, f func(tables.PolicyPair)) {
	rulesOf, lost := p.ofRole(new.Role), map[tables.RuleID]struct{}{}
	for _, id := range old.Selectors {
		if _, kept := slices.BinarySearch(new.Selectors, id); kept {
			continue
		}
		for r := range rulesOf(txn, id) {
			lost[r.RuleID] = struct{}{}
		}
	}
	if len(lost) == 0 {
		return
	}
	entries := p.Entries.List(txn, tables.PolicyEntriesByPeer(new.Class))
	if new.Role == bpf.RoleSubject {
		entries = p.Entries.Prefix(txn, tables.PolicyEntriesOfSubject(new.Class))
	}
	for e := range entries {
		if slices.ContainsFunc(e.Rules, func(id tables.RuleID) bool { _, found := lost[id]; return found }) {
			f(e.Pair())
		}
	}
}

// ofRole returns what tells the rules in force that name a selector of a role.
func (p *pairs) ofRole(role bpf.Role) func(statedb.ReadTxn, tables.SelectorID) iter.Seq[*tables.EnforcedRule] {
	return func(txn statedb.ReadTxn, id tables.SelectorID) iter.Seq[*tables.EnforcedRule] {
		if role == bpf.RoleSubject {
			return tables.EnforcedRulesBySubject(txn, p.Rules, id)
		}
		return tables.EnforcedRulesByPeer(txn, p.Rules, id)
	}
}

func (p *pairs) bySubjectChange(txn statedb.ReadTxn, subject uint32, ids []tables.SelectorID, names []portName, f func(tables.PolicyPair)) {
	for _, id := range ids {
		for r := range tables.EnforcedRulesBySubject(txn, p.Rules, id) {
			p.bySubject(txn, r, subject, f)
		}
	}
	row := tables.ClassRow(txn, p.Members, bpf.ClassKey{Role: bpf.RoleSubject, Number: subject})
	if row == nil {
		return
	}
	for r := range p.naming(txn, bpf.DirectionIngress, names) {
		if _, chosen := slices.BinarySearch(row.Selectors, r.Subject); chosen {
			p.bySubject(txn, r, subject, f)
		}
	}
}

func (p *pairs) byPeerChange(txn statedb.ReadTxn, peer uint32, ids []tables.SelectorID, names []portName, f func(tables.PolicyPair)) {
	// Many rules are of one subject: its classes are looked up once.
	type subjects struct {
		selector  tables.SelectorID
		direction bpf.Direction
	}
	seen := map[subjects]struct{}{}
	concerned := func(r *tables.EnforcedRule) {
		of := subjects{r.Subject, r.Direction}
		if _, ok := seen[of]; ok {
			return
		}
		seen[of] = struct{}{}
		for subject := range p.Members.List(txn, tables.ClassRowsBySelector(r.Subject)) {
			f(tables.PolicyPair{Subject: subject.Class, Direction: r.Direction, Peer: peer})
		}
	}
	for _, id := range ids {
		for r := range tables.EnforcedRulesByPeer(txn, p.Rules, id) {
			concerned(r)
		}
	}
	for r := range p.naming(txn, bpf.DirectionEgress, names) {
		concerned(r)
	}
}

// portName is a name that has, or had, a number.
type portName struct {
	name     string
	protocol uint8
}

// naming yields the rules in force of a direction that name one of some ports.
func (p *pairs) naming(txn statedb.ReadTxn, direction bpf.Direction, names []portName) iter.Seq[*tables.EnforcedRule] {
	return func(yield func(*tables.EnforcedRule) bool) {
		for _, n := range names {
			for r := range tables.EnforcedRulesByPort(txn, p.Rules, direction, n.name, n.protocol) {
				if !yield(r) {
					return
				}
			}
		}
	}
}

// signatureChange returns in what the signatures of two rows of a class differ.
// Either may be nil.
func signatureChange(old, new *tables.ClassMember) (ids []tables.SelectorID, names []portName) {
	if old == nil {
		old = &tables.ClassMember{}
	}
	if new == nil {
		new = &tables.ClassMember{}
	}
	ids = differing(old.Selectors, new.Selectors)
	for _, n := range differing(old.Ports, new.Ports) {
		names = append(names, portName{n.Name, n.Protocol})
	}
	return ids, names
}

// differing returns what is in one of two lists only.
func differing[T comparable](a, b []T) (only []T) {
	if slices.Equal(a, b) {
		return nil
	}
	in := make(map[T]struct{}, len(a))
	for _, x := range a {
		in[x] = struct{}{}
	}
	for _, x := range b {
		if _, both := in[x]; both {
			delete(in, x)
		} else {
			only = append(only, x)
		}
	}
	for _, x := range a {
		if _, gone := in[x]; gone {
			only = append(only, x)
		}
	}
	return only
}
