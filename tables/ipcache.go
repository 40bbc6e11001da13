// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"iter"
	"net/netip"
	"slices"
	"strconv"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
)

// IPCache is what is known of an address or prefix as a peer. An entry of
// sluice_ipcache: the longest prefix decides.
//
// PeerClass is the class that it belongs to, if that is ready. Else it is what
// the address has had so far, and WaitsFor is that class.
type IPCache struct {
	Prefix    netip.Prefix     `json:"prefix"`
	PeerClass uint32           `json:"peerClass"`
	WaitsFor  uint32           `json:"waitsFor,omitempty"`
	Flags     bpf.IPCacheFlags `json:"flags"`
	Tunnel    netip.Addr       `json:"tunnel,omitzero"`     // node to encapsulate to
	Inherits  bool             `json:"inherits,omitempty"`  // no object says anything of it: flags and tunnel are those of the prefix that it is in
	Remains   bool             `json:"remains,omitempty"`   // nothing names it any more, and it stays until what is around it has its class
	Origins   []string         `json:"origins"`             // the objects it is from, the deciding one first
	Conflicts []string         `json:"conflicts,omitempty"` // endpoints that claim the address and do not get it

	Reconciled `yaml:",inline"`
}

// Equal reports whether two rows want the same, whatever their status.
func (c *IPCache) Equal(o *IPCache) bool {
	return c.Prefix == o.Prefix && c.PeerClass == o.PeerClass && c.WaitsFor == o.WaitsFor && c.Flags == o.Flags &&
		c.Tunnel == o.Tunnel && c.Inherits == o.Inherits && c.Remains == o.Remains && slices.Equal(c.Origins, o.Origins) && slices.Equal(c.Conflicts, o.Conflicts)
}

// IsOutside reports whether the row is of an address or prefix that is neither of pods
// nor of nodes.
func (c *IPCache) IsOutside() bool {
	return c.Inherits || c.Flags&(bpf.IPCachePod|bpf.IPCacheNode|bpf.IPCacheHost) == 0
}

// MapKey is the key in sluice_ipcache.
func (c *IPCache) MapKey() bpf.IPCacheKey { return bpf.IPCacheKeyFrom(c.Prefix) }

// MapValue is the value in sluice_ipcache.
func (c *IPCache) MapValue() bpf.IPCacheValue {
	return bpf.IPCacheValue{PeerClass: c.PeerClass, Flags: c.Flags, Tunnel: bpf.AddressFrom(c.Tunnel)}
}

// TableHeader implements [statedb.TableWritable].
func (*IPCache) TableHeader() []string {
	return []string{"Prefix", "PeerClass", "WaitsFor", "Flags", "Tunnel", "Origins", "Conflicts", "Status", "Error"}
}

// TableRow implements [statedb.TableWritable].
func (c *IPCache) TableRow() []string {
	return []string{
		c.Prefix.String(), strconv.FormatUint(uint64(c.PeerClass), 10), numberColumn(c.WaitsFor), c.Flags.String(), addrColumn(c.Tunnel),
		listColumn(c.Origins, ", "), listColumn(c.Conflicts, ", "), c.Status.Kind.String(), orDash(c.Status.GetError()),
	}
}

var (
	ipcachePrefixIndex = UniqueIndex("prefix", ShortPrefixKeys,
		func(c *IPCache) netip.Prefix { return c.Prefix })

	ipcacheWaitsForIndex = IndexIf("waits-for", Uint32Keys,
		func(c *IPCache) (uint32, bool) { return c.WaitsFor, c.WaitsFor != 0 })

	// Pods and nodes have members of their own, and are many.
	ipcacheWithinIndex = statedb.NetIPPrefixIndex[*IPCache]{
		Name: "within",
		FromObject: func(c *IPCache) iter.Seq[netip.Prefix] {
			return func(yield func(netip.Prefix) bool) {
				if c.IsOutside() {
					yield(c.Prefix)
				}
			}
		},
		Unique: true,
	}

	// IPCacheByPrefix queries what is known of one very prefix.
	IPCacheByPrefix = ipcachePrefixIndex.Query

	// IPCacheWaitingFor queries what is to be in a peer class when that is ready.
	IPCacheWaitingFor = ipcacheWaitsForIndex.Query
)

// IPCacheWithin yields the addresses and prefixes in a prefix that are neither of pods
// nor of nodes. If there are none, StateDB goes on with all that is beside it.
func IPCacheWithin(txn statedb.ReadTxn, table statedb.Table[*IPCache], prefix netip.Prefix) iter.Seq[*IPCache] {
	rows := table.Prefix(txn, ipcacheWithinIndex.QueryPrefix(prefix))
	return Inside(prefix, rows, func(c *IPCache) []netip.Addr { return []netip.Addr{c.Prefix.Addr()} })
}

// PeerClassInKernel returns the class that the kernel finds for an address or
// prefix, its own or that of what is around it.
func PeerClassInKernel(txn statedb.ReadTxn, entries statedb.Table[*IPCacheEntry], prefix netip.Prefix) (class uint32, found bool) {
	if entries.NumObjects(txn) == 0 {
		return 0, false // as at the start on a new node, when all are asked for
	}
	for bits := prefix.Bits(); bits >= 0; bits-- {
		key := bpf.IPCacheKeyFrom(netip.PrefixFrom(prefix.Addr(), bits).Masked())
		if e, _, found := entries.Get(txn, MapEntryByKey[bpf.IPCacheKey, bpf.IPCacheValue](key)); found {
			return e.Value.PeerClass, true
		}
	}
	return 0, false
}

// numberColumn renders a number of which 0 is none.
func numberColumn(n uint32) string {
	if n == 0 {
		return "-"
	}
	return strconv.FormatUint(uint64(n), 10)
}

// NewIPCacheTable creates the table of what is known of addresses.
var NewIPCacheTable = Declare(
	"ipcache", ipcachePrefixIndex, ipcacheWaitsForIndex, ipcacheWithinIndex,
)
