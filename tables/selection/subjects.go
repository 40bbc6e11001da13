// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"iter"
	"net/netip"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// subjectPlace is what is particular to subjects: the label sets of this node's
// pods. Where policies are not enforced there are none.
type subjectPlace struct{ *members }

func (s *subjectPlace) signatures(r *round, key memberKey) []*tables.ClassMember {
	if !s.isHere(r, key.set) {
		return nil
	}
	set := tables.LabelSetByID(r.txn, s.Places.Endpoints, key.set)
	if set == nil {
		return nil
	}
	var selectors []tables.SelectorID
	for _, selector := range r.chooser.choosing(r.txn, set) {
		selectors = append(selectors, selector.ID)
	}
	var ports []tables.NamedPort
	if len(selectors) > 0 {
		ports = r.ports(set)
	}
	m := &tables.ClassMember{Role: bpf.RoleSubject, LabelSet: set.ID, NamespaceUnknown: r.chooser.unknown}
	r.signer.sign(m, selectors, ports)
	return []*tables.ClassMember{m}
}

// isHere is [subjectPlace.here] for a round, which may ask of all label sets.
func (s *subjectPlace) isHere(r *round, id tables.LabelSetID) bool {
	if r.few {
		return s.here(r.txn, id)
	}
	if r.here == nil {
		r.here = map[tables.LabelSetID]struct{}{}
		for e := range s.Places.Endpoints.List(r.txn, tables.EndpointsHere()) {
			r.here[e.LabelSet.ID] = struct{}{}
		}
	}
	_, is := r.here[id]
	return is && s.Enforcement != tables.EnforcementNever
}

// here reports whether a pod of this node that policies are enforced on has a label
// set. Most often that has but a few pods, and is soon told.
func (s *subjectPlace) here(txn statedb.ReadTxn, id tables.LabelSetID) bool {
	if s.Enforcement == tables.EnforcementNever {
		return false
	}
	looked := 0
	for e := range s.Places.Endpoints.List(txn, tables.EndpointsByLabelSet(id)) {
		if e.Node == s.Places.LocalNode.Name {
			return true
		}
		if looked++; looked == few {
			return s.hereOfMany(txn, id)
		}
	}
	return false
}

// hereOfMany is here for a label set that may have many more pods than this node.
func (s *subjectPlace) hereOfMany(txn statedb.ReadTxn, id tables.LabelSetID) bool {
	for e := range s.Places.Endpoints.List(txn, tables.EndpointsHere()) {
		if e.LabelSet.ID == id {
			return true
		}
	}
	return false
}

func (s *subjectPlace) complete(txn statedb.ReadTxn, e *tables.Endpoint) bool {
	if e.Node != s.Places.LocalNode.Name {
		return true
	}
	return (tables.MemberOf(txn, s.Output, bpf.RoleSubject, e) != nil) == s.here(txn, e.LabelSet.ID)
}

func (s *subjectPlace) key(txn statedb.ReadTxn, prefix netip.Prefix) tables.MemberKey {
	key := tables.MemberKey{Role: bpf.RoleSubject}
	owner, _ := tables.AddrOwner(txn, s.Places.Endpoints, prefix.Addr())
	if owner != nil && owner.Node == s.Places.LocalNode.Name {
		key.LabelSet = owner.LabelSet.ID
	}
	return key
}

// isStale is never so: a pod's address that is not here any more belongs to no class.
func (*subjectPlace) isStale(statedb.ReadTxn, netip.Prefix, tables.MemberKey) bool { return false }

// heirs are none: each pod is in a class by itself.
func (*subjectPlace) heirs(statedb.ReadTxn, netip.Prefix) iter.Seq[netip.Prefix] {
	return func(func(netip.Prefix) bool) {}
}

func (s *subjectPlace) classes(txn statedb.ReadTxn, prefix netip.Prefix) (kernel, desired uint32) {
	key := bpf.PodKey{Addr: bpf.AddressFrom(prefix.Addr())}
	if e, _, found := s.PodEntries.Get(txn, tables.MapEntryByKey[bpf.PodKey, bpf.PodValue](key)); found {
		kernel = e.Value.SubjectClass
	}
	if e, _, found := s.Locals.Get(txn, tables.LocalEndpointByAddr(prefix.Addr())); found {
		desired = e.SubjectClass
	}
	return kernel, desired
}

func (s *subjectPlace) pending(txn statedb.ReadTxn, prefix netip.Prefix) bool {
	e, _, found := s.Locals.Get(txn, tables.LocalEndpointByAddr(prefix.Addr()))
	return found && isPending(e.Status)
}

func (s *subjectPlace) failed(txn statedb.ReadTxn, prefix netip.Prefix) bool {
	e, _, found := s.Locals.Get(txn, tables.LocalEndpointByAddr(prefix.Addr()))
	return found && isFailed(e.Status)
}

func (s *subjectPlace) named(txn statedb.ReadTxn, number uint32) bool {
	for range s.PolicyEntries.Prefix(txn, tables.PolicyMapEntriesOfSubject(number)) {
		return true
	}
	return false
}

func (s *subjectPlace) prefixes(txn statedb.ReadTxn, m *tables.ClassMember) (prefixes []netip.Prefix) {
	for e := range s.Places.Endpoints.List(txn, tables.EndpointsHere()) {
		if e.LabelSet.ID == m.LabelSet {
			for _, addr := range e.Addrs {
				prefixes = append(prefixes, single(addr))
			}
		}
	}
	return prefixes
}
