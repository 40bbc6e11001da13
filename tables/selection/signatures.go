// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"net/netip"
	"slices"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// signer completes members with their signatures, whose lists all share that have
// the same one.
type signer struct {
	signed map[string]*tables.ClassMember       // one with each signature
	known  func(bpf.Digest) *tables.ClassMember // one in the table
	buffer []byte
}

func (s *signer) sign(m *tables.ClassMember, selectors []tables.SelectorID, ports []tables.NamedPort) {
	slices.Sort(selectors)
	s.buffer = tables.AppendSignature(s.buffer[:0], selectors, ports)
	example := s.signed[string(s.buffer)]
	if example == nil {
		digest := tables.SignatureDigest(selectors, ports)
		if example = s.known(digest); example == nil {
			example = &tables.ClassMember{Selectors: slices.Clone(selectors), Ports: ports, Digest: digest}
		}
		if s.signed == nil {
			s.signed = map[string]*tables.ClassMember{}
		}
		s.signed[string(s.buffer)] = example
	}
	m.Selectors, m.Ports, m.Digest = example.Selectors, example.Ports, example.Digest
}

// ports returns the ports of a label set whose names some policy looks at on the
// side of the role, in order.
func (r *round) ports(set *tables.LabelSet) (ports []tables.NamedPort) {
	for _, p := range set.NamedPorts {
		if _, _, found := r.Selectors.Get(r.txn, tables.SelectorByID(tables.PortSelectorID(r.role, p.Name, p.Protocol))); found {
			ports = append(ports, p)
		}
	}
	slices.SortFunc(ports, tables.NamedPort.Compare)
	return slices.Compact(ports)
}

// containing returns the selectors that a prefix is meant by.
func (m *members) containing(txn statedb.ReadTxn, prefix netip.Prefix) (chosen []*tables.Selector) {
	if !prefix.IsValid() {
		return nil
	}
	for bits := prefix.Bits(); bits >= 0; bits-- {
		around := netip.PrefixFrom(prefix.Addr(), bits).Masked()
		for s := range m.Selectors.List(txn, tables.SelectorsByPrefix(around)) {
			if s.Contains(prefix) && !slices.Contains(chosen, s) {
				chosen = append(chosen, s)
			}
		}
	}
	return chosen
}

// affectedBySelector are those that the selector chooses or chose, and its own row.
func (m *members) affectedBySelector(txn statedb.ReadTxn, old, new *tables.Selector, affect func(memberKey)) {
	if old != nil && new != nil && old.Version == new.Version {
		return // which policies use a selector is no matter here
	}
	s := new
	if s == nil {
		s = old
	}
	affect(keyOfEvaluated(s))
	if old == nil || new == nil || !slices.Equal(old.Pods, new.Pods) {
		for _, s := range []*tables.Selector{old, new} {
			if s != nil {
				m.affectedByLabels(txn, s, affect)
			}
		}
	}
	for _, prefix := range redefined(old, new) {
		m.affectedAt(txn, prefix, affect)
	}
}

// affectedByLabels are those that a selector chooses by labels or names of ports.
// The entities that there always are need not be looked at: nobody is evaluated
// before they are there.
func (m *members) affectedByLabels(txn statedb.ReadTxn, s *tables.Selector, affect func(memberKey)) {
	if s.Peer.Kind == tables.PeerNodes {
		for n := range m.Places.Nodes.All(txn) {
			if s.ChoosesNode(n.Labels) {
				affect(memberKey{role: s.Role, node: n.Name})
			}
		}
		return
	}
	if s.Port.Name != "" {
		for set := range m.labels.with(tables.PortAnchor(s.Port.Name, s.Port.Protocol)) {
			affect(memberKey{role: s.Role, set: set.ID})
		}
		return
	}
	if s.Role == bpf.RoleSubject {
		m.affectedHere(txn, s, affect)
		return
	}
	for _, anchor := range s.Anchors() {
		for set := range m.labels.with(anchor) {
			if m.mayChoose(txn, s, set) {
				affect(memberKey{role: s.Role, set: set.ID})
			}
		}
	}
}

// affectedHere are the label sets of this node that a selector chooses: they are
// far fewer than those that it chooses anywhere.
func (m *members) affectedHere(txn statedb.ReadTxn, s *tables.Selector, affect func(memberKey)) {
	anchors := s.Anchors()
	for e := range m.Places.Endpoints.List(txn, tables.EndpointsHere()) {
		if slices.ContainsFunc(anchors, e.LabelSet.HasAnchor) && m.mayChoose(txn, s, e.LabelSet) {
			affect(memberKey{role: s.Role, set: e.LabelSet.ID})
		}
	}
}

// mayChoose reports whether a selector chooses a label set, or may by labels of its namespace
// that are not known.
func (m *members) mayChoose(txn statedb.ReadTxn, s *tables.Selector, set *tables.LabelSet) bool {
	namespace := m.namespace(txn, set.Namespace)
	return s.MatchesLabels(set, namespace) || namespace == nil && s.MayMatch(set)
}

// redefined are the prefixes for which it is not the same whether they are meant
// by one or the other of two values of a selector.
func redefined(old, new *tables.Selector) []netip.Prefix {
	if old == nil {
		return new.Prefixes
	}
	if new == nil {
		return old.Prefixes
	}
	if old.MatchesPods != new.MatchesPods || old.MatchesNodes != new.MatchesNodes {
		return slices.Concat(old.Prefixes, new.Prefixes)
	}
	return slices.Concat(difference(old.Prefixes, new.Prefixes), difference(old.Except, new.Except))
}

// difference returns what is in only one of two lists.
func difference[T comparable](a, b []T) (only []T) {
	count := make(map[T]int, len(a))
	for _, v := range a {
		count[v]++
	}
	for _, v := range b {
		if count[v]--; count[v] < 0 {
			only = append(only, v)
		}
	}
	for _, v := range a {
		if count[v] > 0 {
			only = append(only, v)
		}
	}
	return only
}

// affectedAt are the peers that are a prefix or told apart by one inside it.
func (m *members) affectedAt(txn statedb.ReadTxn, prefix netip.Prefix, affect func(memberKey)) {
	for p := range tables.PeerPrefixesInside(txn, m.Places.PeerPrefixes, prefix) {
		affect(memberKey{role: bpf.RolePeer, prefix: p.Prefix})
		if p.Pods {
			for member := range m.Output.List(txn, tables.ClassMembersByPrefix(tables.RolePrefix{Role: bpf.RolePeer, Prefix: p.Prefix})) {
				affect(keyOfMember(member))
			}
		}
	}
}
