// SPDX-License-Identifier: Apache-2.0

package members

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// selectorChanged marks the prefixes that a selector begins or ceases to name, and after all of
// these the selector, whose key looks for the members that it selects or selected. While a
// selector is in use, only the pods of services and the prefixes of groups and services can
// change: all these prefixes have the same exceptions.
func (r *rule) selectorChanged(_ statedb.ReadTxn, old, new *tables.Selector, mark func(key)) {
	number := cmp.Or(new, old).Number
	changed := changedPrefixes(old, new)
	for _, prefix := range changed {
		mark(prefixKey(prefix))
	}
	for _, prefix := range changed {
		// What is inside may be as if the selector named the prefix, although its own key was
		// never computed while it did.
		if new == nil || !new.Names(prefix) {
			mark(insideKey(prefix, prefix))
		}
	}
	mark(selectorKey(number))
	if old != nil && new != nil && !slices.Equal(old.Pods, new.Pods) {
		mark(key{kind: ofMembers, number: number})
	}
}

// selector has a selector evaluated that comes into use. If it is not in use, it has its members
// leave the classes with it, some at a time, and then removes the note that it was evaluated.
func (t *transaction) selector(k key) {
	if t.later[k.number] {
		return
	}
	match := t.match(k.number)
	s, _, used := t.Selectors.Get(t.in, tables.SelectorByNumber(k.number))
	switch {
	case used && match == nil:
		t.expect(s, 0)
	case used && !match.IsComplete():
		t.expect(s, match.After)
	case !used:
		if rest, more := t.leaveClasses(k); more {
			t.mark(rest)
		} else if match != nil {
			remove(t, t.Matches, match)
			t.ended = true
		}
	}
}

// match says how far a selector is evaluated, nil if it is for no member.
func (t *transaction) match(selector uint32) *tables.SelectorMatch {
	match, _, _ := t.Matches.Get(t.out, tables.SelectorMatchByNumber(selector))
	return match
}

// leaveClasses marks the members of classes with a selector that is not in use. It returns what is
// left to do.
func (t *transaction) leaveClasses(k key) (rest key, more bool) {
	for class := range t.Classes.List(t.out, tables.ClassesBySelector(k.number)) {
		if class.Number <= k.after {
			continue
		}
		if t.isFull() {
			return k, true
		}
		t.work++
		k.after = class.Number
		if !t.marked[class.Number] {
			t.marked[class.Number] = true
			t.markClass(class.Number)
		}
	}
	return k, false
}

func (t *transaction) markClass(class uint32) {
	for m := range t.Members.List(t.out, tables.MembersByClass(class)) {
		t.work++
		t.mark(memberKey(m.Number))
	}
}

// members marks the members that a selector selects or selected, some at a time, after the pods
// have changed that it selects.
func (t *transaction) members(k key) {
	s, _, used := t.Selectors.Get(t.in, tables.SelectorByNumber(k.number))
	if !used {
		return
	}
	for m, _ := range t.Members.LowerBound(t.out, tables.MemberByNumber(k.after+1)) {
		if t.isFull() {
			t.mark(k)
			return
		}
		t.work++
		k.after = m.Number
		class, _, _ := t.Classes.Get(t.out, tables.ClassByNumber(m.Class))
		_, byPrefix := slices.BinarySearch(m.CIDRs, s.Number)
		is := byPrefix || t.selects(t.in, s, m, t.namespaceOf(t.in, m))
		if !class.Omits(s) && class.Selects(s.Number) != is {
			t.mark(memberKey(m.Number))
		}
	}
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
