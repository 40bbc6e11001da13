// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"iter"
	"net/netip"
	"strconv"

	"github.com/cilium/statedb"
)

// PeerPrefix is a prefix whose addresses may be told from those around it by
// some selector of peers, or by being inside the cluster. What is neither a pod
// nor a node is, as a peer, the longest of these that it is in.
type PeerPrefix struct {
	Prefix  netip.Prefix `json:"prefix"`
	Cluster bool         `json:"cluster"` // is inside a prefix of the cluster
	Pods    bool         `json:"pods"`    // named by a selector that means pods or nodes there too
}

// TableHeader implements [statedb.TableWritable].
func (*PeerPrefix) TableHeader() []string { return []string{"Prefix", "Cluster", "Pods"} }

// TableRow implements [statedb.TableWritable].
func (p *PeerPrefix) TableRow() []string {
	return []string{p.Prefix.String(), strconv.FormatBool(p.Cluster), strconv.FormatBool(p.Pods)}
}

var (
	peerPrefixIndex = UniqueIndex("prefix", PrefixKeys,
		func(p *PeerPrefix) netip.Prefix { return p.Prefix })

	peerPrefixLongestIndex = statedb.NetIPPrefixIndex[*PeerPrefix]{
		Name:       "lpm",
		FromObject: func(p *PeerPrefix) iter.Seq[netip.Prefix] { return statedb.Just(p.Prefix) },
		Unique:     true,
	}

	peerPrefixPodsIndex = statedb.NetIPPrefixIndex[*PeerPrefix]{
		Name: "lpm-pods",
		FromObject: func(p *PeerPrefix) iter.Seq[netip.Prefix] {
			if !p.Pods {
				return func(func(netip.Prefix) bool) {}
			}
			return statedb.Just(p.Prefix)
		},
		Unique: true,
	}

	// PeerPrefixByPrefix queries one very prefix.
	PeerPrefixByPrefix = peerPrefixIndex.Query
)

// PeerPrefixLongest returns the longest prefix that a prefix is, or is inside of;
// nil while the table is not derived.
func PeerPrefixLongest(txn statedb.ReadTxn, table statedb.Table[*PeerPrefix], prefix netip.Prefix) *PeerPrefix {
	return longest(txn, table, peerPrefixLongestIndex.QueryPrefix(prefix), prefix, func(*PeerPrefix) bool { return true })
}

// PeerPrefixLongestForPods is [PeerPrefixLongest] of the prefixes that some
// selector of pods or nodes by address names; nil if there is none.
func PeerPrefixLongestForPods(txn statedb.ReadTxn, table statedb.Table[*PeerPrefix], prefix netip.Prefix) *PeerPrefix {
	return longest(txn, table, peerPrefixPodsIndex.QueryPrefix(prefix), prefix, func(p *PeerPrefix) bool { return p.Pods })
}

// longest has no prefix of IPv6 found for an address of IPv4: the index holds
// these as what they are mapped to. The index is good for addresses only: it does
// not find what is around a prefix that has others inside.
func longest(txn statedb.ReadTxn, table statedb.Table[*PeerPrefix], query statedb.Query[*PeerPrefix], of netip.Prefix, is func(*PeerPrefix) bool) *PeerPrefix {
	if of.IsSingleIP() {
		p, _, found := table.Get(txn, query)
		if !found || p.Prefix.Addr().Is4() != of.Addr().Is4() {
			return nil
		}
		return p
	}
	for bits := of.Bits(); bits >= 0; bits-- {
		p, _, found := table.Get(txn, PeerPrefixByPrefix(netip.PrefixFrom(of.Addr(), bits).Masked()))
		if found && is(p) {
			return p
		}
	}
	return nil
}

// NewPeerPrefixTable creates the table of the prefixes that peers are told apart by.
var NewPeerPrefixTable = Declare(
	"peer-prefixes", peerPrefixIndex, peerPrefixLongestIndex, peerPrefixPodsIndex,
)
