// SPDX-License-Identifier: Apache-2.0

package addresses

import (
	"net/netip"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// resuming reports whether there are classes, from before the start, of which it is
// not known what they stand for. Peers keep their classes until that is over, for
// the subjects have the verdicts of before.
func (c *ipcacheParams) resuming(txn statedb.ReadTxn) bool {
	return !tables.ClassesKnown(txn, c.Members, bpf.RolePeer) || !tables.ClassesKnown(txn, c.Members, bpf.RoleSubject)
}

// resume fills in the class of what the kernel has in one: that class, unless its
// meaning is unknown and it is to be left for the class that continues it. It returns
// false of what is new.
func (c *ipcacheParams) resume(txn statedb.ReadTxn, row *tables.IPCache, member *tables.ClassMember) bool {
	class := c.classInKernel(txn, row)
	if class == 0 {
		return false
	}
	row.PeerClass = class
	if member == nil || member.Class == class {
		return true
	}
	row.WaitsFor = member.Class
	key := bpf.ClassKey{Role: bpf.RolePeer, Number: class}
	if of := tables.ClassRow(txn, c.Members, key); of == nil || !of.MeaningUnknown() {
		return true
	}
	continuing := tables.ClassContinuing(txn, c.Members, key, member.Digest)
	if continuing == nil {
		return true
	}
	row.WaitsFor = continuing.Class
	if tables.ClassIsCopied(txn, c.Readiness, bpf.ClassKey{Role: bpf.RolePeer, Number: continuing.Class}) {
		row.PeerClass, row.WaitsFor = continuing.Class, 0
		if member.Class != continuing.Class {
			row.WaitsFor = member.Class
		}
	}
	return true
}

// classInKernel returns the class that the kernel has an address or prefix in, what
// is nobody's also with what is around it; 0 if it has it in none.
func (c *ipcacheParams) classInKernel(txn statedb.ReadTxn, row *tables.IPCache) (class uint32) {
	if ofSomebody(row.Flags) && !row.Inherits && !c.inKernel(txn, row) {
		return 0
	}
	class, _ = tables.PeerClassInKernel(txn, c.Entries, row.Prefix)
	return class
}

// remains reports whether the kernel has an entry for a prefix that nothing names any
// more, and that must not go yet: what is in it would have the class of what is
// around it, before that one has the verdicts of now, or is where both belong. It
// goes over to there by itself.
func (c *ipcacheParams) remains(txn statedb.ReadTxn, prefix netip.Prefix, member *tables.ClassMember) bool {
	row := &tables.IPCache{Prefix: prefix}
	e, _, found := c.Entries.Get(txn, tables.MapEntryByKey[bpf.IPCacheKey, bpf.IPCacheValue](row.MapKey()))
	if !found || prefix.Bits() == 0 || ofSomebody(e.Value.Flags) {
		return false
	}
	resuming := c.resuming(txn)
	if c.begun(txn) {
		row, _, had := c.IPCache.Get(txn, tables.IPCacheByPrefix(prefix))
		if !had || !resuming && !row.Inherits {
			return false
		}
	}
	if resuming || member == nil {
		return true
	}
	around, found := tables.PeerClassInKernel(txn, c.Entries, netip.PrefixFrom(prefix.Addr(), prefix.Bits()-1).Masked())
	return found && (around != member.Class || e.Value.PeerClass != member.Class && !c.ready(txn, member))
}

func (c *ipcacheParams) begun(txn statedb.ReadTxn) bool {
	begun, _ := c.IPCache.Initialized(txn)
	return begun
}

// affectedByEntry is, at the start, all that the kernel has, and what it gets while
// classes of unknown meaning are left; afterwards what remains only until what is
// around it has the same class.
func (c *ipcache) affectedByEntry(txn statedb.ReadTxn, e *tables.IPCacheEntry, affect func(netip.Prefix)) {
	prefix := e.Key.Prefix()
	if !c.begun(txn) || c.resumes && c.resuming(txn) { // what was over in a round is over
		affect(prefix)
		return
	}
	if len(c.remaining) == 0 {
		return
	}
	for row := range tables.IPCacheWithin(txn, c.IPCache, prefix) {
		if row.Remains {
			affect(row.Prefix)
		}
	}
}

// followsKernel reports whether what the kernel gets may matter: see affectedByEntry.
func (c *ipcache) followsKernel(statedb.ReadTxn) bool { return c.resumes || len(c.remaining) > 0 }

// affectedByResumption are those who are to leave a class of unknown meaning, when
// there is one that continues it, and all who wait or remain when the last of these classes is known.
func (c *ipcacheParams) affectedByResumption(txn statedb.ReadTxn, old, new *tables.ClassMember, affect func(netip.Prefix)) {
	if new != nil && new.Continues != 0 && (old == nil || old.Continues == 0) {
		if of := tables.ClassRow(txn, c.Members, bpf.ClassKey{Role: new.Role, Number: new.Continues}); of != nil {
			for _, l := range of.Leavers {
				affect(l.Prefix)
			}
		}
	}
	waited := old != nil && old.MeaningUnknown() && !old.Stuck
	if !waited || new != nil && new.MeaningUnknown() && !new.Stuck || c.resuming(txn) {
		return
	}
	for row := range c.IPCache.All(txn) {
		if row.WaitsFor != 0 || row.Remains {
			affect(row.Prefix)
		}
	}
}
