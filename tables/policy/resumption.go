// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// After a start there may be classes of which it is not known what they stand for,
// see [tables.ClassMember.MeaningUnknown]. Traffic goes over from the verdicts of
// before to those of now in three steps, so that what both say of it holds all the
// time, even though its subject, its peer and the policies have all changed:
//
//   - While there are peer classes of unknown meaning, the entries of all subjects
//     stay as they are, those of any peer too: with part of them from before and part
//     from now, there would be verdicts that were never meant. Peers that are to be
//     told apart go to classes that continue theirs, with copies of its entries. No
//     pod joins another subject class meanwhile.
//   - When the last is known, the entries of the subjects that are known become those
//     of now. So do those of the new subject classes, which nobody is in yet.
//   - Pods in subject classes of unknown meaning go over, each in one step.
//
// A class that the kernel lets nobody leave, as all these writes fail, is stuck and
// does not count: its peers have the entries of before until they can be moved. What
// was to be the same before and after may be dropped or allowed for them meanwhile.
// Where there is no room for copies, nobody moves and everything stays as it is.

// asBefore reports whether the entries of a subject are to stay as in the kernel.
func (t *Tables) asBefore(txn statedb.ReadTxn, subject *tables.ClassMember) bool {
	return subject.MeaningUnknown() || !tables.ClassesKnown(txn, t.Members, bpf.RolePeer)
}

// asInKernel returns the kernel's entries of a pair, or of the peer class that the
// one of the pair continues. These stay for as long as somebody wants copies.
func (t *Tables) asInKernel(txn statedb.ReadTxn, pair tables.PolicyPair, peer uint32) []*tables.PolicyEntry {
	of := pair
	of.Peer = peer
	var entries []*tables.PolicyEntry
	for e := range t.Kernel.List(txn, tables.PolicyMapEntriesOfPair(of)) {
		key := e.Key
		key.Peer = pair.Peer
		entries = append(entries, &tables.PolicyEntry{Key: key, Value: e.Value, Reconciled: tables.Pending()})
	}
	slices.SortFunc(entries, func(a, b *tables.PolicyEntry) int { return compareKeys(a.Key, b.Key) })
	return entries
}

// becomesKnown calls f with the pairs whose entries no longer stay as they were.
func (p *pairs) becomesKnown(txn statedb.ReadTxn, old, new *tables.ClassMember, f func(tables.PolicyPair)) {
	if isUnknown(new) || !isUnknown(old) || old.Role != bpf.RolePeer || !tables.ClassesKnown(txn, p.Members, bpf.RolePeer) {
		return
	}
	for subject := range p.Members.List(txn, tables.ClassRowsOfRole(bpf.RoleSubject)) {
		p.ofNumber(txn, bpf.RoleSubject, subject.Class, f)
	}
	for policy := range p.Rules.All(txn) {
		for _, r := range policy.Rules {
			p.ofRule(txn, r, f)
		}
	}
}

// isUnknown reports whether a row, that may be nil, is one that is waited for.
func isUnknown(row *tables.ClassMember) bool {
	return row != nil && row.MeaningUnknown() && !row.Stuck
}

// ofContinuing calls f with the pairs of a class that continues another one which
// have a copy of an entry.
func (p *pairs) ofContinuing(txn statedb.ReadTxn, row *tables.ClassMember, f func(tables.PolicyPair)) {
	if row.Role != bpf.RolePeer || row.Continues == 0 {
		return
	}
	for e := range p.Kernel.List(txn, tables.PolicyMapEntriesByPeer(row.Continues)) {
		pair := tables.PairOf(e.Key)
		pair.Peer = row.Class
		f(pair)
	}
}

// whileUnknown corrects the row of a class as long as there are classes of unknown
// meaning. That a class is ready then says nothing of the entries of now.
func (r *readiness) whileUnknown(txn statedb.ReadTxn, class *tables.ClassMember, row *tables.PolicyReadiness) {
	peersKnown := tables.ClassesKnown(txn, r.Members, bpf.RolePeer)
	switch {
	case class.MeaningUnknown():
		row.Ready = false
	case class.Role == bpf.RoleSubject:
		row.Ready = row.Ready && peersKnown
	case !peersKnown || !tables.ClassesKnown(txn, r.Members, bpf.RoleSubject):
		row.Copied = row.Ready && class.Continues != 0
		row.Ready = false
	}
}

// affectedByKnown are all classes, when the last of a role is known.
func (r *readiness) affectedByKnown(txn statedb.ReadTxn, affect func(bpf.ClassKey)) {
	for _, role := range []bpf.Role{bpf.RolePeer, bpf.RoleSubject} {
		for row := range r.Members.List(txn, tables.ClassRowsOfRole(role)) {
			affect(bpf.ClassKey{Role: role, Number: row.Class})
		}
	}
}
