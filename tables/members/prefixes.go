// SPDX-License-Identifier: Apache-2.0

package members

import (
	"net/netip"
	"slices"

	"github.com/sluice-net/sluice/tables"
)

// peerPrefix brings the row of a prefix in peer-prefixes up to date.
//
// A row is only removed when it equals the row around it, so nothing changes for the addresses
// inside. The prefix's own row of ipcache changes with it, so the kernel never has a prefix without
// its exceptions.
func (t *transaction) peerPrefix(prefix netip.Prefix) {
	old, _, found := t.PeerPrefixes.Get(t.out, tables.PeerPrefixByPrefix(prefix))
	parent := &tables.PeerPrefix{}
	if prefix.Bits() > 0 {
		parent = t.around(netip.PrefixFrom(prefix.Addr(), prefix.Bits()-1).Masked())
	}
	before := parent
	row := &tables.PeerPrefix{Prefix: prefix, Named: t.named(prefix)}
	if found {
		before = old
	}
	_, _, ofPods := t.Nodes.Get(t.in, tables.NodesByPodCIDR(prefix))
	own := ofPods || slices.Contains(t.Cluster, prefix)
	row.Cluster = parent.Cluster || own
	t.fill(row, slices.Concat(selectorsAt(parent), selectorsAt(before), row.Named))
	if t.waitsForInside(row, before) {
		t.mark(prefixKey(prefix))
		t.expectSelectors(row)
		return
	}

	switch {
	case !own && len(row.Named) == 0 && prefix.Bits() > 0 && isSame(row, parent):
		if found {
			remove(t, t.PeerPrefixes, old)
		}
	case !found || !old.Equal(row):
		insert(t, t.PeerPrefixes, row)
	}
	t.address(prefix)
	if isSame(row, before) {
		return
	}
	if !prefix.IsSingleIP() {
		t.mark(insideKey(prefix, prefix))
	}
	t.expectSelectors(row)
}

// waitsForInside marks the prefixes inside a prefix that have to be computed before it, and reports
// whether there are any: of the selectors that begin to name it, or that no longer select it. Their
// keys may come later, if the prefix waits for another selector, too. So no packet is judged without
// an exception, or between two blocks that both select it.
func (t *transaction) waitsForInside(row, before *tables.PeerPrefix) (waits bool) {
	has := func(list []uint32, n uint32) bool {
		_, found := slices.BinarySearch(list, n)
		return found
	}
	for _, n := range slices.Concat(selectorsAt(before), row.Named) {
		selects := has(row.Outside, n) || has(row.Pods, n) || has(row.Nodes, n)
		if selects && has(before.Named, n) == has(row.Named, n) {
			continue
		}
		s, _, used := t.Selectors.Get(t.in, tables.SelectorByNumber(n))
		if !used {
			continue
		}
		all := s.Prefixes()
		at, _ := slices.BinarySearchFunc(all, row.Prefix, netip.Prefix.Compare)
		for ; at < len(all) && row.Prefix.Contains(all[at].Addr()); at++ {
			p, _, found := t.PeerPrefixes.Get(t.out, tables.PeerPrefixByPrefix(all[at]))
			if all[at] != row.Prefix && !(found && has(p.Named, n)) {
				t.mark(prefixKey(all[at]))
				waits = true
			}
		}
	}
	return waits
}

// named returns the selectors in use that name a prefix, in order.
func (t *transaction) named(prefix netip.Prefix) (named []uint32) {
	for s := range tables.ListIfAny(t.in, t.Selectors, tables.SelectorsByPrefix(prefix)) {
		named = append(named, s.Number)
	}
	slices.Sort(named)
	return named
}

func selectorsAt(p *tables.PeerPrefix) []uint32 { return slices.Concat(p.Outside, p.Pods, p.Nodes) }

// fill fills in which selectors select the addresses of a prefix, among those that select the
// prefix around it, have selected it so far, or name it. The row around it may be updated later.
func (t *transaction) fill(row *tables.PeerPrefix, numbers []uint32) {
	slices.Sort(numbers)
	for _, n := range slices.Compact(numbers) {
		s, _, used := t.Selectors.Get(t.in, tables.SelectorByNumber(n))
		if !used || !s.Contains(row.Prefix) {
			continue
		}
		outside := tables.ScopeWorld
		if row.Cluster {
			outside = tables.ScopeCluster
		}
		if reaches(s, outside) {
			row.Outside = append(row.Outside, n)
		}
		if reaches(s, tables.ScopePods) {
			row.Pods = append(row.Pods, n)
		}
		if reaches(s, tables.ScopeNode) {
			row.Nodes = append(row.Nodes, n)
		}
	}
	// Lists may be long, and mostly are the same.
	if slices.Equal(row.Pods, row.Outside) {
		row.Pods = row.Outside
	}
	if slices.Equal(row.Nodes, row.Pods) {
		row.Nodes = row.Pods
	}
}

// isSame reports whether two rows have the same content for the addresses inside.
func isSame(a, b *tables.PeerPrefix) bool {
	return a.Cluster == b.Cluster && slices.Equal(a.Outside, b.Outside) &&
		slices.Equal(a.Pods, b.Pods) && slices.Equal(a.Nodes, b.Nodes)
}

// inside marks the prefixes inside a prefix, and the addresses inside that are in a member with
// other selectors than the longest prefix around them has, from one of them on. It marks the rest
// if they are many. A prefix may have come inside since, with the same selectors.
func (t *transaction) inside(prefix, from netip.Prefix) {
	t.expectSelectors(t.around(prefix))
	rows := t.IPCache.LowerBound(t.out, tables.IPCacheByPrefix(from))
	addrOf := func(row *tables.IPCache) netip.Addr { return row.Prefix.Addr() }
	for row := range tables.Inside(prefix, rows, addrOf) {
		if t.isFull() {
			t.mark(insideKey(prefix, row.Prefix))
			return
		}
		t.work++
		if row.Prefix.Bits() <= prefix.Bits() {
			continue
		}
		if _, _, named := t.PeerPrefixes.Get(t.out, tables.PeerPrefixByPrefix(row.Prefix)); named {
			t.mark(prefixKey(row.Prefix))
		} else if !t.isUpToDate(row, t.around(row.Prefix)) {
			t.mark(addressKey(row.Prefix))
		}
	}
}

// isUpToDate reports whether an address or prefix is in a member with the selectors of the prefix
// around it.
func (t *transaction) isUpToDate(row *tables.IPCache, around *tables.PeerPrefix) bool {
	m, _, found := t.Members.Get(t.out, tables.MemberByNumber(row.Member))
	if !found {
		return false
	}
	selectors := around.Outside
	switch m.Scope {
	case tables.ScopePods:
		selectors = around.Pods
	case tables.ScopeNode:
		selectors = around.Nodes
	case tables.ScopeRefused:
		return true
	case tables.ScopeCluster, tables.ScopeWorld:
		if around.Cluster != (m.Scope == tables.ScopeCluster) {
			return false
		}
	}
	return slices.Equal(m.CIDRs, selectors)
}

// expectSelectors marks the selectors that select addresses of a prefix and are not evaluated yet:
// they are evaluated after these addresses.
func (t *transaction) expectSelectors(p *tables.PeerPrefix) {
	for _, list := range [][]uint32{p.Outside, p.Pods, p.Nodes} {
		for _, n := range list {
			if !t.match(n).IsComplete() {
				t.later[n] = true
			}
		}
	}
}
