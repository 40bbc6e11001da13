// SPDX-License-Identifier: Apache-2.0

package addresses

import (
	"net/netip"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// egressFlags are those about egress policies.
const egressFlags = bpf.PodEgressSelected | bpf.PodEgressUnknown

// findSubjectClass fills in the class of a pod as the subject of network
// policies, and returns the member that the pod is of. A pod whose class is not ready stays in the one that it has, and one
// that has none yet is held; so is one of a namespace that is not known, if policies
// look at its labels.
func (l *localParams) findSubjectClass(txn statedb.ReadTxn, row, existing *tables.LocalEndpoint, owner *tables.Endpoint) (member *tables.ClassMember) {
	member = tables.MemberOf(txn, l.Members, bpf.RoleSubject, owner)
	if member == nil && l.Enforcement == tables.EnforcementNever {
		return nil
	}
	if member != nil && member.NamespaceUnknown {
		row.Flags |= bpf.PodPolicyUnknown
	}
	if member != nil {
		key := bpf.ClassKey{Role: bpf.RoleSubject, Number: member.Class}
		if tables.ClassIsReady(txn, l.Readiness, key, member.Digest) {
			row.SubjectClass = member.Class
			return member
		}
	}
	switch {
	case existing != nil && existing.Endpoint == row.Endpoint:
		row.SubjectClass = existing.SubjectClass
		row.Flags |= existing.Flags & bpf.PodPolicyUnknown
	default:
		row.Flags |= bpf.PodPolicyUnknown
	}
	if member != nil && (member.Class != row.SubjectClass || row.Flags&bpf.PodPolicyUnknown != 0) {
		row.WaitsFor = member.Class
	}
	return member
}

// affectedByReadiness are the pods that wait for the class.
func (l *localParams) affectedByReadiness(txn statedb.ReadTxn, r *tables.PolicyReadiness, affect func(netip.Addr)) {
	if r.Ready && r.Role == bpf.RoleSubject {
		l.affectedByClass(txn, r.Number, affect)
	}
}

func (l *localParams) affectedByClass(txn statedb.ReadTxn, class uint32, affect func(netip.Addr)) {
	for row := range l.Locals.List(txn, tables.LocalEndpointsWaitingFor(class)) {
		affect(row.Addr)
	}
}

// memberChanged affects the pods of a member that goes to another class, and
// those that wait for a class which changes its meaning.
func (l *localParams) memberChanged(txn statedb.ReadTxn, old, new *tables.ClassMember, affect func(netip.Addr)) {
	switch {
	case old == nil:
		l.affectedByMember(txn, new, affect)
	case new == nil || old.Class != new.Class || old.NamespaceUnknown != new.NamespaceUnknown:
		l.affectedByMember(txn, old, affect)
	case old.Digest != new.Digest && new.Role == bpf.RoleSubject:
		l.affectedByClass(txn, new.Class, affect)
	}
}

// affectedByRevocation adds the addresses to which something was forbidden: those
// that are in the class, and those that are about to leave it.
func (l *localParams) affectedByRevocation(txn statedb.ReadTxn, r *round, addrs []netip.Addr) []netip.Addr {
	seen := map[netip.Addr]bool{verdictsChanged: true}
	var all []netip.Addr
	add := func(addr netip.Addr) {
		if !seen[addr] {
			seen[addr] = true
			all = append(all, addr)
		}
	}
	for _, addr := range addrs {
		add(addr)
	}
	for class := range r.revoked {
		for row := range l.Locals.List(txn, tables.LocalEndpointsBySubjectClass(class)) {
			add(row.Addr)
		}
		for pod := range r.PodEntries.List(txn, tables.PodEntriesBySubjectClass(class)) {
			add(pod.Key.Addr.Addr())
		}
	}
	return all
}

// inUse reports whether pods are in a subject class, or about to be.
func (l *localParams) inUse(txn statedb.ReadTxn, class uint32) bool {
	if _, _, found := l.Locals.Get(txn, tables.LocalEndpointsBySubjectClass(class)); found {
		return true
	}
	_, _, found := l.Epochs.PodEntries.Get(txn, tables.PodEntriesBySubjectClass(class))
	return found
}

func (r *round) podInKernel(addr netip.Addr) *tables.PodEntry {
	key := bpf.PodKey{Addr: bpf.AddressFrom(addr)}
	pod, _, _ := r.PodEntries.Get(r.txn, tables.MapEntryByKey[bpf.PodKey, bpf.PodValue](key))
	return pod
}

// judgePolicy raises the epoch of a row, unless that is done, if connections
// that are alive with it may be forbidden now and were not before. What is alive
// without a verdict, as the class was not known, was not allowed.
func (r *round) judgePolicy(row, existing *tables.LocalEndpoint, pod *tables.PodEntry) {
	if existing == nil || existing.Endpoint != row.Endpoint || existing.Epoch != row.Epoch {
		return
	}
	unknown := existing.Flags&bpf.PodPolicyUnknown != 0
	revoked := r.revoked[existing.SubjectClass] || pod != nil && r.revoked[pod.Value.SubjectClass] ||
		!unknown && row.Flags&bpf.PodPolicyUnknown != 0
	if revoked || !unknown && r.flipRevokes(flip{existing.SubjectClass, row.SubjectClass}) {
		row.Epoch = r.next()
	}
}

// flipRevokes is [verdicts.flipRevokes], looked at once in a round.
func (r *round) flipRevokes(f flip) bool {
	revokes, known := r.flips[f]
	if !known {
		revokes = r.verdicts.flipRevokes(f)
		r.flips[f] = revokes
	}
	return revokes
}
