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
	"github.com/sluice-net/sluice/tables/core"
)

// selectorChanged marks the members that a selector selects or selected, the prefixes that
// it tells apart in another way than before, and behind all of these the selector.
func (r *rule) selectorChanged(txn statedb.ReadTxn, old, new *core.Selector, mark func(key)) {
	number := cmp.Or(new, old).Number
	if old == nil || new == nil || !sameMembers(old, new) {
		if old != nil {
			for class := range r.Classes.List(txn, core.ClassesBySelector(number)) {
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
	// A prefix comes into force behind what is excepted from it.
	prefixes := changedPrefixes(old, new)
	slices.SortStableFunc(prefixes, func(a, b netip.Prefix) int { return cmp.Compare(b.Bits(), a.Bits()) })
	for _, prefix := range prefixes {
		mark(prefixKey(prefix, number))
	}
	mark(selectorKey(number))
}

// sameMembers reports whether two values of a selector select the same members by what
// these are, not by their prefixes.
func sameMembers(a, b *core.Selector) bool {
	sameKinds := a.MatchesPods == b.MatchesPods && a.MatchesNodes == b.MatchesNodes
	return slices.Equal(a.Pods, b.Pods) && a.Entity == b.Entity && a.Family == b.Family &&
		(a.Family == 0 || sameKinds)
}

// candidates yields all members that a selector may select by what they are.
func (r *rule) candidates(txn statedb.ReadTxn, s *core.Selector) iter.Seq[*core.Member] {
	anchors := s.Anchors()
	if len(anchors) == 0 && s.Family == 0 && s.Entity == "" && s.Peers[0].Kind != tables.PeerNodes {
		return func(func(*core.Member) bool) {} // by prefixes alone
	}
	members := r.Members.All(txn)
	if len(anchors) == 1 {
		if namespace, is := strings.CutPrefix(anchors[0], tables.NamespaceAnchor("")); is {
			members = r.Members.List(txn, core.MembersByNamespace(namespace))
		}
	}
	return func(yield func(*core.Member) bool) {
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

func (r *rule) namespaceOf(txn statedb.ReadTxn, m *core.Member) *tables.Namespace {
	if m.Namespace == "" {
		return nil
	}
	n, _, _ := r.Namespaces.Get(txn, tables.NamespaceByName(m.Namespace))
	return n
}

// selects reports whether a selector selects a member by what it is, not by its prefixes.
func (r *rule) selects(
	txn statedb.ReadTxn, s *core.Selector, m *core.Member, namespace *tables.Namespace,
) bool {
	switch s.Peers[0].Kind {
	case tables.PeerCIDR:
		return s.Family == m.Family && reaches(s, m.Scope)
	case tables.PeerEntity:
		return r.isEntity(m, s.Entity)
	case tables.PeerNodes:
		if m.Scope != core.ScopeNode {
			return false
		}
		n, _, found := r.Nodes.Get(txn, tables.NodeByName(m.Node))
		return found && s.MatchesNode(n)
	}
	return m.Scope == core.ScopePods && s.MatchesLabels(m.Labels, namespace)
}

// reaches reports whether prefixes of a selector select addresses of a scope. An address of
// the cluster that no pod has counts as one of a pod.
func reaches(s *core.Selector, scope core.Scope) bool {
	switch scope {
	case core.ScopePods, core.ScopeCluster:
		return s.MatchesPods
	case core.ScopeNode:
		return s.MatchesNodes
	}
	return true
}

func (r *rule) isEntity(m *core.Member, entity tables.PolicyEntity) bool {
	switch entity {
	case tables.EntityWorld:
		return m.Scope == core.ScopeWorld
	case tables.EntityWorldIPv4:
		return m.Scope == core.ScopeWorld && m.Family == bpf.FamilyIPv4
	case tables.EntityWorldIPv6:
		return m.Scope == core.ScopeWorld && m.Family == bpf.FamilyIPv6
	case tables.EntityCluster:
		return m.Scope != core.ScopeWorld
	case tables.EntityHost:
		return m.Scope == core.ScopeNode && m.Node == r.LocalNode.Name
	case tables.EntityRemoteNode:
		return m.Scope == core.ScopeNode && m.Node != r.LocalNode.Name
	}
	return false
}

// changedPrefixes returns the prefixes that a selector names of which not the same is true
// by two values of it, whether it is named or what it selects.
func changedPrefixes(old, new *core.Selector) []netip.Prefix {
	switch {
	case old == nil:
		return slices.Clone(new.Prefixes())
	case new == nil:
		return slices.Clone(old.Prefixes())
	}
	all := slices.Concat(old.Prefixes(), new.Prefixes())
	slices.SortFunc(all, netip.Prefix.Compare)
	all = slices.Compact(all)
	if old.MatchesPods != new.MatchesPods || old.MatchesNodes != new.MatchesNodes {
		return all
	}
	blocks := changedBlocks(old.Blocks, new.Blocks)
	return slices.DeleteFunc(all, func(p netip.Prefix) bool {
		return old.Names(p) == new.Names(p) && !isInside(p, blocks)
	})
}

// changedBlocks returns the prefixes of the blocks that only one of two lists has.
func changedBlocks(old, new []core.Block) map[netip.Prefix]bool {
	changed := map[netip.Prefix]bool{}
	compare := func(b core.Block, p netip.Prefix) int { return b.Prefix.Compare(p) }
	only := func(a, b []core.Block) {
		for _, block := range a {
			at, same := slices.BinarySearchFunc(b, block.Prefix, compare)
			for same && !slices.Equal(b[at].Except, block.Except) {
				at++
				same = at < len(b) && b[at].Prefix == block.Prefix
			}
			if !same {
				changed[block.Prefix] = true
			}
		}
	}
	only(old, new)
	only(new, old)
	return changed
}

func isInside(p netip.Prefix, blocks map[netip.Prefix]bool) bool {
	for bits := p.Bits(); bits >= 0 && len(blocks) > 0; bits-- {
		if blocks[netip.PrefixFrom(p.Addr(), bits).Masked()] {
			return true
		}
	}
	return false
}
