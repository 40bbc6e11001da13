// SPDX-License-Identifier: Apache-2.0

package addresses

import (
	"net/netip"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// remains reports whether the kernel has an entry for a prefix that nothing names any
// more, and that must not go yet: what is in it would have the class of what is
// around it, before that one has the verdicts of now, or is where both belong. It
// goes over to there by itself.
func (c *ipcacheParams) remains(txn statedb.ReadTxn, prefix netip.Prefix, member *tables.ClassMember) bool {
	row, _, had := c.IPCache.Get(txn, tables.IPCacheByPrefix(prefix))
	if !had || !row.Inherits {
		return false
	}
	key := tables.MapEntryByKey[bpf.IPCacheKey, bpf.IPCacheValue]((&tables.IPCache{Prefix: prefix}).MapKey())
	e, _, found := c.Entries.Get(txn, key)
	if !found || prefix.Bits() == 0 || ofSomebody(e.Value.Flags) {
		return false
	}
	if member == nil {
		return true
	}
	around, found := tables.PeerClassInKernel(txn, c.Entries, netip.PrefixFrom(prefix.Addr(), prefix.Bits()-1).Masked())
	return found && (around != member.Class || e.Value.PeerClass != member.Class && !c.ready(txn, member))
}

func (c *ipcacheParams) begun(txn statedb.ReadTxn) bool {
	begun, _ := c.IPCache.Initialized(txn)
	return begun
}

// affectedByEntry is what remains only until what is around it has the same class.
func (c *ipcache) affectedByEntry(txn statedb.ReadTxn, e *tables.IPCacheEntry, affect func(netip.Prefix)) {
	if len(c.remaining) == 0 {
		return
	}
	for row := range tables.IPCacheWithin(txn, c.IPCache, e.Key.Prefix()) {
		if row.Remains {
			affect(row.Prefix)
		}
	}
}

// somethingRemains reports whether what the kernel gets may matter: see affectedByEntry.
func (c *ipcache) somethingRemains(statedb.ReadTxn) bool { return len(c.remaining) > 0 }
