// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
)

// IPCache is an address or prefix as a peer. An entry of sluice_ipcache: the longest prefix
// decides.
type IPCache struct {
	Prefix netip.Prefix     `json:"prefix"`
	Member uint32           `json:"member"`
	Flags  bpf.IPCacheFlags `json:"flags"`
	Tunnel netip.Addr       `json:"tunnel,omitzero"` // node to encapsulate to; invalid: none

	// Inherits is set for a prefix that only selectors name: flags and tunnel are those of
	// the prefix around it.
	Inherits bool `json:"inherits,omitempty"`

	Origins   []string `json:"origins"`             // the objects, such as "pod default/web-1"
	Conflicts []string `json:"conflicts,omitempty"` // other pods that claim the address

	// Made is the number of the transaction that gave the prefix its member: see
	// [SelectorMatch].
	Made uint64 `json:"made"`

	Reconciled `yaml:",inline"`
}

// Equal reports whether two rows want the same, whatever their status.
func (c *IPCache) Equal(o *IPCache) bool {
	return c.Prefix == o.Prefix && c.Member == o.Member && c.Flags == o.Flags &&
		c.Tunnel == o.Tunnel && c.Inherits == o.Inherits && c.Made == o.Made &&
		slices.Equal(c.Origins, o.Origins) && slices.Equal(c.Conflicts, o.Conflicts)
}

// IsOutside reports whether the row is of an address or prefix without a pod or node.
func (c *IPCache) IsOutside() bool {
	return c.Inherits || c.Flags&(bpf.IPCachePod|bpf.IPCacheNode|bpf.IPCacheHost) == 0
}

// MapKey is the key in sluice_ipcache.
func (c *IPCache) MapKey() bpf.IPCacheKey { return bpf.IPCacheKeyFrom(c.Prefix) }

// MapValue is the value in sluice_ipcache.
func (c *IPCache) MapValue() bpf.IPCacheValue {
	return bpf.IPCacheValue{Member: c.Member, Flags: c.Flags, Tunnel: bpf.AddressFrom(c.Tunnel)}
}

// TableHeader implements [statedb.TableWritable].
func (*IPCache) TableHeader() []string {
	return []string{
		"Prefix", "Member", "Flags", "Tunnel", "Origins", "Conflicts", "Status", "Error",
	}
}

// TableRow implements [statedb.TableWritable].
func (c *IPCache) TableRow() []string {
	tunnel := ""
	if c.Tunnel.IsValid() {
		tunnel = c.Tunnel.String()
	}
	return []string{
		c.Prefix.String(), number(c.Member), c.Flags.String(), orDash(tunnel),
		listColumn(c.Origins, ", "), listColumn(c.Conflicts, ", "),
		c.Status.Kind.String(), orDash(c.Status.GetError()),
	}
}

var (
	ipcachePrefix = UniqueIndex("prefix", ShortPrefixKeys,
		func(c *IPCache) netip.Prefix { return c.Prefix })
	ipcacheMember = Index("member", Uint32Keys,
		func(c *IPCache) uint32 { return c.Member })
	ipcachePending = FlagIndex("pending", func(c *IPCache) bool { return !isDone(c.Status) })
	// Pods and nodes, which are many, have members by their labels.
	ipcacheWithin = statedb.NetIPPrefixIndex[*IPCache]{
		Name: "within", Unique: true,
		FromObject: func(c *IPCache) iter.Seq[netip.Prefix] {
			return func(yield func(netip.Prefix) bool) {
				if c.IsOutside() {
					yield(c.Prefix)
				}
			}
		},
	}

	// IPCacheByPrefix queries the row of exactly this prefix.
	IPCacheByPrefix = ipcachePrefix.Query

	// IPCacheByMember queries the addresses and prefixes of a member.
	IPCacheByMember = ipcacheMember.Query

	// IPCachePending queries, by true, what the kernel does not have yet.
	IPCachePending = ipcachePending.Query
)

// IPCacheWithin yields the addresses and prefixes in a prefix without a pod or node.
func IPCacheWithin(
	txn statedb.ReadTxn, table statedb.Table[*IPCache], prefix netip.Prefix,
) iter.Seq[*IPCache] {
	rows := table.Prefix(txn, ipcacheWithin.QueryPrefix(prefix))
	return Inside(prefix, rows,
		func(c *IPCache) netip.Addr { return c.Prefix.Addr() })
}

// NewIPCacheTable creates the table of what is known of addresses.
var NewIPCacheTable = Declare(
	"ipcache", ipcachePrefix, ipcacheMember, ipcachePending, ipcacheWithin,
)

// PeerPrefix is a prefix that selectors in use name, or that bounds the cluster. An address belongs
// to the longest one around it.
type PeerPrefix struct {
	Prefix  netip.Prefix `json:"prefix"`
	Cluster bool         `json:"cluster"` // is inside a prefix of the cluster

	// Named are the numbers of the selectors in use that name the prefix in a block or as an
	// exception, in order.
	Named []uint32 `json:"named,omitempty"`

	// The numbers of the selectors in use that select addresses here, in order: addresses without a
	// pod or node, pods, and nodes.
	Outside []uint32 `json:"outside,omitempty"`
	Pods    []uint32 `json:"pods,omitempty"`
	Nodes   []uint32 `json:"nodes,omitempty"`
}

// Equal reports whether two rows say the same.
func (p *PeerPrefix) Equal(o *PeerPrefix) bool {
	return p.Prefix == o.Prefix && p.Cluster == o.Cluster && slices.Equal(p.Named, o.Named) &&
		slices.Equal(p.Outside, o.Outside) &&
		slices.Equal(p.Pods, o.Pods) &&
		slices.Equal(p.Nodes, o.Nodes)
}

// TableHeader implements [statedb.TableWritable].
func (*PeerPrefix) TableHeader() []string {
	return []string{"Prefix", "Cluster", "Outside", "Pods", "Nodes"}
}

// TableRow implements [statedb.TableWritable].
func (p *PeerPrefix) TableRow() []string {
	list := func(numbers []uint32) string {
		return orDash(strings.Trim(fmt.Sprint(numbers), "[]"))
	}
	return []string{
		p.Prefix.String(), fmt.Sprint(p.Cluster), list(p.Outside), list(p.Pods), list(p.Nodes),
	}
}

var (
	peerPrefixPrefix = UniqueIndex("prefix", ShortPrefixKeys,
		func(p *PeerPrefix) netip.Prefix { return p.Prefix })
	peerPrefixLongest = statedb.NetIPPrefixIndex[*PeerPrefix]{
		Name: "lpm", Unique: true,
		FromObject: func(p *PeerPrefix) iter.Seq[netip.Prefix] { return statedb.Just(p.Prefix) },
	}

	// PeerPrefixByPrefix queries exactly this prefix.
	PeerPrefixByPrefix = peerPrefixPrefix.Query
)

// PeerPrefixesInside yields a prefix and those inside it that are in the table.
func PeerPrefixesInside(
	txn statedb.ReadTxn, table statedb.Table[*PeerPrefix], prefix netip.Prefix,
) iter.Seq[*PeerPrefix] {
	rows := Inside(prefix, table.LowerBound(txn, PeerPrefixByPrefix(prefix)),
		func(p *PeerPrefix) netip.Addr { return p.Prefix.Addr() })
	return func(yield func(*PeerPrefix) bool) {
		for p := range rows {
			if p.Prefix.Bits() >= prefix.Bits() && !yield(p) {
				return
			}
		}
	}
}

// NewPeerPrefixTable creates the table of peer prefixes.
var NewPeerPrefixTable = Declare("peer-prefixes", peerPrefixPrefix, peerPrefixLongest)

// SelectorMatch says that a selector in use has been evaluated for all members, or for some so far.
//
// A subject may enter a ruleset that names the selector when the kernel has the result: all members
// and prefixes that the kernel had before the transaction Made are as desired now.
type SelectorMatch struct {
	Selector uint32 `json:"selector"` // number of the selector
	Made     uint64 `json:"made"`     // number of the transaction that evaluated it

	// After is the number of the last member for which it is evaluated, while others are left.
	After uint32 `json:"after,omitempty"`
}

// IsComplete reports whether the selector is evaluated for all members. No row is not complete.
func (m *SelectorMatch) IsComplete() bool { return m != nil && m.After == 0 }

// TableHeader implements [statedb.TableWritable].
func (*SelectorMatch) TableHeader() []string { return []string{"Selector", "Made", "After"} }

// TableRow implements [statedb.TableWritable].
func (m *SelectorMatch) TableRow() []string {
	return []string{number(m.Selector), fmt.Sprint(m.Made), number(m.After)}
}

var (
	selectorMatchNumber = UniqueIndex("selector", Uint32Keys,
		func(m *SelectorMatch) uint32 { return m.Selector })

	// SelectorMatchByNumber queries how far a selector is evaluated.
	SelectorMatchByNumber = selectorMatchNumber.Query
)

// NewSelectorMatchTable creates the table of evaluated selectors.
var NewSelectorMatchTable = Declare("selector-matches", selectorMatchNumber)
