// SPDX-License-Identifier: Apache-2.0

package members

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// selectorChanged marks the members that a selector selects or selected, the prefixes that it
// begins or ceases to name, and after all of these the selector. While a selector is in use, only
// the pods of services and the prefixes of groups and services can change: all these prefixes have
// the same exceptions.
func (r *rule) selectorChanged(txn statedb.ReadTxn, old, new *tables.Selector, mark func(key)) {
	number := cmp.Or(new, old).Number
	if old == nil || new == nil || !slices.Equal(old.Pods, new.Pods) {
		if old != nil {
			for class := range r.Classes.List(txn, tables.ClassesBySelector(number)) {
				r.markClass(txn, class.Number, mark)
			}
		}
		if new != nil {
			for m := range r.candidates(txn, new) {
				if r.selects(txn, new, m, r.namespaceOf(txn, m)) {
					mark(memberKey(m.Number))
				}
			}
		}
	}
	for _, prefix := range changedPrefixes(old, new) {
		mark(prefixKey(prefix, number))
	}
	mark(selectorKey(number))
}

// changedPrefixes returns the prefixes that only one of two values of a selector names, including
// exceptions. The longest come first, so that a prefix comes after its exceptions.
func changedPrefixes(old, new *tables.Selector) (changed []netip.Prefix) {
	only := func(a, b *tables.Selector) {
		if a == nil {
			return
		}
		for _, p := range a.Prefixes() {
			if b == nil || !b.Names(p) {
				changed = append(changed, p)
			}
		}
	}
	only(old, new)
	only(new, old)
	slices.SortStableFunc(changed,
		func(a, b netip.Prefix) int { return cmp.Compare(b.Bits(), a.Bits()) })
	return changed
}

// candidates yields all members that a selector may select by labels, entity or node.
func (r *rule) candidates(txn statedb.ReadTxn, s *tables.Selector) iter.Seq[*tables.Member] {
	anchors := s.Anchors()
	if len(anchors) == 0 && s.Family == 0 && s.Entity == "" && s.Peers[0].Kind != tables.PeerNodes {
		return func(func(*tables.Member) bool) {} // prefixes select addresses, not members
	}
	members := r.Members.All(txn)
	if len(anchors) == 1 {
		if namespace, is := strings.CutPrefix(anchors[0], tables.NamespaceAnchor("")); is {
			members = r.Members.Prefix(txn, tables.MembersOfNamespace(namespace))
		}
	}
	return func(yield func(*tables.Member) bool) {
		for m := range members {
			if len(anchors) > 0 && (m.Labels == nil || !slices.ContainsFunc(anchors, m.Labels.HasAnchor)) {
				continue
			}
			if !yield(m) {
				return
			}
		}
	}
}

func (r *rule) namespaceOf(txn statedb.ReadTxn, m *tables.Member) *tables.Namespace {
	if m.Namespace == "" {
		return nil
	}
	n, _, _ := r.Namespaces.Get(txn, tables.NamespaceByName(m.Namespace))
	return n
}

// selects reports whether a selector selects a member by labels, entity or node, not by prefixes.
func (r *rule) selects(
	txn statedb.ReadTxn, s *tables.Selector, m *tables.Member, namespace *tables.Namespace,
) bool {
	switch s.Peers[0].Kind {
	case tables.PeerCIDR:
		return s.Family == m.Family && reaches(s, m.Scope)
	case tables.PeerEntity:
		return r.isEntity(m, s.Entity)
	case tables.PeerNodes:
		if m.Scope != tables.ScopeNode {
			return false
		}
		n, _, found := r.Nodes.Get(txn, tables.NodeByName(m.Node))
		return found && s.MatchesNode(n)
	}
	return m.Scope == tables.ScopePods && s.MatchesLabels(m.Labels, namespace)
}

// reaches reports whether prefixes of a selector select addresses of a scope. An address of the
// cluster without a pod counts as one of a pod.
func reaches(s *tables.Selector, scope tables.Scope) bool {
	switch scope {
	case tables.ScopePods, tables.ScopeCluster:
		return s.MatchesPods
	case tables.ScopeNode:
		return s.MatchesNodes
	}
	return true
}

func (r *rule) isEntity(m *tables.Member, entity tables.PolicyEntity) bool {
	switch entity {
	case tables.EntityWorld:
		return m.Scope == tables.ScopeWorld
	case tables.EntityWorldIPv4:
		return m.Scope == tables.ScopeWorld && m.Family == bpf.FamilyIPv4
	case tables.EntityWorldIPv6:
		return m.Scope == tables.ScopeWorld && m.Family == bpf.FamilyIPv6
	case tables.EntityCluster:
		return m.Scope != tables.ScopeWorld
	case tables.EntityHost:
		return m.Scope == tables.ScopeNode && m.Node == r.LocalNode.Name
	case tables.EntityRemoteNode:
		return m.Scope == tables.ScopeNode && m.Node != r.LocalNode.Name
	}
	return false
}
