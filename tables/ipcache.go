// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"
	"slices"
	"strconv"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/bpf"
)

// IPCache is what is known of an address or prefix as a peer. An entry of
// sluice_ipcache: the longest prefix decides.
type IPCache struct {
	Prefix    netip.Prefix      `json:"prefix"`
	PeerClass uint32            `json:"peerClass"`
	Flags     bpf.IPCacheFlags  `json:"flags"`
	Tunnel    netip.Addr        `json:"tunnel,omitzero"`     // node to encapsulate to
	Origins   []string          `json:"origins"`             // the objects it is from, the deciding one first
	Conflicts []string          `json:"conflicts,omitempty"` // endpoints that claim the address and do not get it
	Status    reconciler.Status `json:"status"`
}

// Equal reports whether two rows want the same, whatever their status.
func (c *IPCache) Equal(o *IPCache) bool {
	return c.Prefix == o.Prefix && c.PeerClass == o.PeerClass && c.Flags == o.Flags && c.Tunnel == o.Tunnel &&
		slices.Equal(c.Origins, o.Origins) && slices.Equal(c.Conflicts, o.Conflicts)
}

// MapKey is the key in sluice_ipcache.
func (c *IPCache) MapKey() bpf.IPCacheKey { return bpf.IPCacheKeyFrom(c.Prefix) }

// MapValue is the value in sluice_ipcache.
func (c *IPCache) MapValue() bpf.IPCacheValue {
	return bpf.IPCacheValue{PeerClass: c.PeerClass, Flags: c.Flags, Tunnel: bpf.AddressFrom(c.Tunnel)}
}

// Clone returns a shallow copy.
func (c *IPCache) Clone() *IPCache { d := *c; return &d }

// SetStatus sets the reconciliation status.
func (c *IPCache) SetStatus(s reconciler.Status) *IPCache { c.Status = s; return c }

// GetStatus returns the reconciliation status.
func (c *IPCache) GetStatus() reconciler.Status { return c.Status }

// TableHeader implements [statedb.TableWritable].
func (*IPCache) TableHeader() []string {
	return []string{"Prefix", "PeerClass", "Flags", "Tunnel", "Origins", "Conflicts", "Status", "Error"}
}

// TableRow implements [statedb.TableWritable].
func (c *IPCache) TableRow() []string {
	return []string{
		c.Prefix.String(), strconv.FormatUint(uint64(c.PeerClass), 10), c.Flags.String(), addrColumn(c.Tunnel),
		listColumn(c.Origins, ", "), listColumn(c.Conflicts, ", "), c.Status.Kind.String(), orDash(c.Status.GetError()),
	}
}

var (
	ipcachePrefixIndex = statedb.Index[*IPCache, netip.Prefix]{
		Name:       "prefix",
		FromObject: func(c *IPCache) index.KeySet { return index.NewKeySet(index.NetIPPrefix(c.Prefix)) },
		FromKey:    index.NetIPPrefix,
		FromString: index.NetIPPrefixString,
		Unique:     true,
	}

	// IPCacheByPrefix queries what is known of one very prefix.
	IPCacheByPrefix = ipcachePrefixIndex.Query
)

// NewIPCacheTable creates the table of what is known of addresses.
func NewIPCacheTable(db *statedb.DB) (statedb.RWTable[*IPCache], error) {
	return statedb.NewTable(db, "ipcache", ipcachePrefixIndex)
}
