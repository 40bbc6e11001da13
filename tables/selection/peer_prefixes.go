// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

type prefixParams struct {
	cell.In

	Prefixes  statedb.RWTable[*tables.PeerPrefix]
	Selectors statedb.Table[*tables.Selector]
	Nodes     statedb.Table[*tables.Node]
	Cluster   tables.ClusterPrefixes
}

// world are the prefixes that all others are inside of.
var world = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}

// derivePeerPrefixes keeps the prefixes that peers are told apart by.
func derivePeerPrefixes(p derive.Params, params prefixParams) error {
	_, err := derive.Register(p, derive.Rule[netip.Prefix, *tables.PeerPrefix]{
		Output: params.Prefixes,
		Inputs: []derive.Input[netip.Prefix]{
			derive.FromChange(params.Selectors, func(_ statedb.ReadTxn, old, new *tables.Selector, affect func(netip.Prefix)) {
				for _, prefix := range changedPrefixes(old, new) {
					affect(prefix)
				}
			}),
			derive.FromIf(params.Nodes,
				func(old, new *tables.Node) bool { return !slices.Equal(old.PodCIDRs, new.PodCIDRs) },
				params.affectedByNode),
		},
		Seed: ordered(slices.Concat(world, params.Cluster)),
		Existing: func(txn statedb.ReadTxn, prefix netip.Prefix) iter.Seq2[*tables.PeerPrefix, statedb.Revision] {
			return params.Prefixes.List(txn, tables.PeerPrefixByPrefix(prefix))
		},
		Rows:  params.rows,
		Equal: func(a, b *tables.PeerPrefix) bool { return *a == *b },
	})
	return err
}

// changedPrefixes are those that only one of two values of a selector names, or
// all if they mean others than before by them.
func changedPrefixes(old, new *tables.Selector) []netip.Prefix {
	prefixesOf := func(s *tables.Selector) []netip.Prefix {
		if s == nil {
			return nil
		}
		return slices.Concat(s.Prefixes, s.Except)
	}
	before, now := prefixesOf(old), prefixesOf(new)
	if old == nil || new == nil || old.MatchesPods != new.MatchesPods || old.MatchesNodes != new.MatchesNodes {
		return slices.Concat(before, now)
	}
	count := map[netip.Prefix]int{}
	for _, p := range before {
		count[p]++
	}
	for _, p := range now {
		count[p]--
	}
	var changed []netip.Prefix
	for p, n := range count {
		if n != 0 {
			changed = append(changed, p)
		}
	}
	return changed
}

// affectedByNode are the prefixes of its pods, and what is inside them.
func (p *prefixParams) affectedByNode(txn statedb.ReadTxn, n *tables.Node, affect func(netip.Prefix)) {
	for _, prefix := range n.PodCIDRs {
		affect(prefix.Masked())
		for inside := range tables.PeerPrefixesInside(txn, p.Prefixes, prefix) {
			affect(inside.Prefix)
		}
	}
}

func (p *prefixParams) rows(txn statedb.ReadTxn, prefix netip.Prefix) []*tables.PeerPrefix {
	row := &tables.PeerPrefix{Prefix: prefix}
	named := slices.Contains(world, prefix) || slices.Contains(p.Cluster, prefix)
	for s := range p.Selectors.List(txn, tables.SelectorsByPrefix(prefix)) {
		named = true
		row.Pods = row.Pods || s.MatchesPods || s.MatchesNodes
	}
	row.Cluster = slices.ContainsFunc(p.Cluster, func(c netip.Prefix) bool { return c.Bits() <= prefix.Bits() && c.Contains(prefix.Addr()) })
	for bits := prefix.Bits(); bits >= 0 && !row.Cluster; bits-- {
		_, _, row.Cluster = p.Nodes.Get(txn, tables.NodesByPodCIDR(netip.PrefixFrom(prefix.Addr(), bits).Masked()))
	}
	if _, _, own := p.Nodes.Get(txn, tables.NodesByPodCIDR(prefix)); !named && !own {
		return nil
	}
	return []*tables.PeerPrefix{row}
}
