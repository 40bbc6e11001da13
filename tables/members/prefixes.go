// SPDX-License-Identifier: Apache-2.0

package members

import (
	"net/netip"
	"slices"

	"github.com/sluice-net/sluice/tables"
)

// peerPrefix brings the row of a prefix in peer-prefixes up to date, after a selector may have
// begun or ceased to name it.
//
// A row is only removed when it equals the row around it, so nothing changes for the addresses
// inside. The prefix's own row of ipcache changes with it, so the kernel never has a prefix without
// its exceptions.
func (t *transaction) peerPrefix(prefix netip.Prefix, selector uint32) {
	old, _, found := t.PeerPrefixes.Get(t.out, tables.PeerPrefixByPrefix(prefix))
	parent := &tables.PeerPrefix{}
	if prefix.Bits() > 0 {
		parent = t.around(netip.PrefixFrom(prefix.Addr(), prefix.Bits()-1).Masked())
	}
	before := parent
	row := &tables.PeerPrefix{Prefix: prefix}
	if found {
		before, row.Named = old, old.Named
	}
	row.Named = t.named(prefix, row.Named, selector)
	_, _, ofPods := t.Nodes.Get(t.in, tables.NodesByPodCIDR(prefix))
	own := ofPods || slices.Contains(t.Cluster, prefix)
	row.Cluster = parent.Cluster || own
	t.fill(row, slices.Concat(selectorsAt(parent), selectorsAt(before), row.Named))

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
	for inside := range tables.PeerPrefixesInside(t.out, t.PeerPrefixes, prefix) {
		if inside.Prefix != prefix {
			t.mark(prefixKey(inside.Prefix, 0))
		}
	}
	t.markInside(before, row)
	t.expectSelectors(before, row)
}

// named returns the selectors that name a prefix. selector is one that may have begun or ceased to.
func (t *transaction) named(prefix netip.Prefix, former []uint32, selector uint32) []uint32 {
	s, _, used := t.Selectors.Get(t.in, tables.SelectorByNumber(selector))
	names := used && s.Names(prefix)
	at, named := slices.BinarySearch(former, selector)
	switch {
	case names && !named:
		return slices.Insert(slices.Clone(former), at, selector)
	case named && !names:
		return slices.Delete(slices.Clone(former), at, at+1)
	}
	return former
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
}

// isSame reports whether two rows have the same content for the addresses inside.
func isSame(a, b *tables.PeerPrefix) bool {
	return a.Cluster == b.Cluster && slices.Equal(a.Outside, b.Outside) &&
		slices.Equal(a.Pods, b.Pods) && slices.Equal(a.Nodes, b.Nodes)
}

// markInside marks the addresses that belong to a prefix, if it has changed for them.
func (t *transaction) markInside(before, now *tables.PeerPrefix) {
	outside := before.Cluster != now.Cluster || !slices.Equal(before.Outside, now.Outside)
	pods := !slices.Equal(before.Pods, now.Pods)
	nodes := !slices.Equal(before.Nodes, now.Nodes)
	rows := tables.IPCacheWithin(t.out, t.IPCache, now.Prefix)
	if pods || nodes {
		rows = tables.IPCacheInside(t.out, t.IPCache, now.Prefix)
	}
	for row := range rows {
		changed := pods
		switch {
		case row.Inherits:
			changed = false // it has a row of peer-prefixes of its own
		case row.IsOutside():
			changed = outside
		case isOfNode(row):
			changed = nodes
		}
		if changed && t.around(row.Prefix).Prefix.Bits() <= now.Prefix.Bits() {
			t.mark(addressKey(row.Prefix))
		}
	}
}

// expectSelectors marks the selectors that newly select addresses of a prefix: they are evaluated
// after these addresses.
func (t *transaction) expectSelectors(before, now *tables.PeerPrefix) {
	came := func(before, now []uint32) {
		for _, n := range now {
			if _, had := slices.BinarySearch(before, n); had || t.later[n] {
				continue
			}
			if _, _, evaluated := t.Matches.Get(t.out, tables.SelectorMatchByNumber(n)); !evaluated {
				t.later[n] = true
			}
		}
	}
	came(before.Outside, now.Outside)
	came(before.Pods, now.Pods)
	came(before.Nodes, now.Nodes)
}
