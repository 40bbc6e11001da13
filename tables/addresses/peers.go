// SPDX-License-Identifier: Apache-2.0

package addresses

import (
	"net/netip"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// classify fills in the class of an address or prefix as a peer. What belongs
// to a class that is not ready stays where it is: in the class that its row has,
// or else in the one in which the kernel has it, by itself or with what is
// around it. So it goes over to its class in one write.
//
// It returns false of a pod or node that is new: of whom it is not even known yet
// where he belongs, which will be in a moment, nothing is written before.
func (c *ipcache) classify(txn statedb.ReadTxn, row *tables.IPCache, member *tables.ClassMember) bool {
	if member != nil && c.ready(txn, member) {
		row.PeerClass = member.Class
		return true
	}
	if existing, _, found := c.IPCache.Get(txn, tables.IPCacheByPrefix(row.Prefix)); found {
		row.PeerClass = existing.PeerClass
		if row.MapValue() == existing.MapValue() {
			row.Status = existing.Status // to wait is nothing to be written
		}
	} else if member == nil && !row.Inherits && ofSomebody(row.Flags) && !c.inKernel(txn, row) {
		return false
	} else if class, found := tables.PeerClassInKernel(txn, c.Entries, row.Prefix); found {
		row.PeerClass = class
	} else if around := c.Places.MemberOutside(txn, row.Prefix); around != nil && c.ready(txn, around) {
		row.PeerClass = around.Class
	}
	if member != nil && member.Class != row.PeerClass {
		row.WaitsFor = member.Class
	}
	return true
}

func (c *ipcacheParams) inKernel(txn statedb.ReadTxn, row *tables.IPCache) bool {
	_, _, found := c.Entries.Get(txn, tables.MapEntryByKey[bpf.IPCacheKey, bpf.IPCacheValue](row.MapKey()))
	return found
}

// ofSomebody reports whether flags are of an address of a pod or a node.
func ofSomebody(flags bpf.IPCacheFlags) bool {
	return flags&(bpf.IPCachePod|bpf.IPCacheNode|bpf.IPCacheHost) != 0
}

func (c *ipcacheParams) ready(txn statedb.ReadTxn, m *tables.ClassMember) bool {
	return tables.ClassIsReady(txn, c.Readiness, bpf.ClassKey{Role: bpf.RolePeer, Number: m.Class}, m.Digest)
}

// manyLeave are so many that it is worth to wait a moment for where they go.
const manyLeave = 1000

// classesReady reports whether the classes can be entered that many are to go to, so
// that each address goes to its own at once: they are ready a moment after they are
// known.
func (c *ipcacheParams) classesReady(txn statedb.ReadTxn) (ready bool, changed []<-chan struct{}) {
	for _, class := range c.classesOfMany(txn) {
		if !c.ready(txn, class) {
			_, membersChanged := c.Members.ListWatch(txn, tables.ClassRowsOfRole(bpf.RolePeer))
			_, readinessChanged := c.Readiness.AllWatch(txn)
			return false, []<-chan struct{}{membersChanged, readinessChanged}
		}
	}
	return true, nil
}

// classesOfMany returns the classes that many are to go to: at the start all, unless
// they may be ready only when others have been left, and afterwards those that many
// leave another one for.
func (c *ipcacheParams) classesOfMany(txn statedb.ReadTxn) (classes []*tables.ClassMember) {
	if !c.begun(txn) {
		if _, _, leaving := c.Members.Get(txn, tables.ClassRowsLeaving(bpf.RolePeer)); !leaving {
			classes = statedb.Collect(c.Members.List(txn, tables.ClassRowsOfRole(bpf.RolePeer)))
		}
		return classes
	}
	seen := map[uint32]bool{}
	for row := range c.Members.List(txn, tables.ClassRowsLeaving(bpf.RolePeer)) {
		if len(row.Leavers) < manyLeave {
			continue
		}
		for _, l := range row.Leavers {
			if seen[l.To] {
				continue
			}
			seen[l.To] = true
			if class := tables.ClassRow(txn, c.Members, bpf.ClassKey{Role: bpf.RolePeer, Number: l.To}); class != nil {
				classes = append(classes, class)
			}
		}
	}
	return classes
}

// affectedByReadiness are those that wait for the class. Who is in it stays,
// whatever becomes of its readiness.
func (c *ipcacheParams) affectedByReadiness(txn statedb.ReadTxn, r *tables.PolicyReadiness, affect func(netip.Prefix)) {
	if r.Ready && r.Role == bpf.RolePeer {
		c.affectedByClass(txn, r.Number, affect)
	}
}

func (c *ipcacheParams) affectedByClass(txn statedb.ReadTxn, class uint32, affect func(netip.Prefix)) {
	for row := range c.IPCache.List(txn, tables.IPCacheWaitingFor(class)) {
		affect(row.Prefix)
	}
}

// memberChanged affects all of a member that goes to another class, and of one
// whose class changes its meaning those that wait for it: it may be that by which
// it is ready again.
func (c *ipcacheParams) memberChanged(txn statedb.ReadTxn, old, new *tables.ClassMember, affect func(netip.Prefix)) {
	switch {
	case old == nil:
		c.affectedByMember(txn, new, affect)
	case new == nil || old.Class != new.Class:
		c.affectedByMember(txn, old, affect)
	case old.Digest != new.Digest && new.Role == bpf.RolePeer:
		c.affectedByClass(txn, new.Class, affect)
	}
}

// affectedByMember are the addresses of pods with a label set, of a node, or
// what is nobody's in a prefix. Where members are by prefix, what is in the
// prefix is affected whether or not there is a longer one: one that was there
// may be gone.
func (c *ipcacheParams) affectedByMember(txn statedb.ReadTxn, m *tables.ClassMember, affect func(netip.Prefix)) {
	if m.Role != bpf.RolePeer || m.Evaluated != 0 || m.OfClass {
		return
	}
	inside := func(prefix netip.Prefix) {
		if !m.Prefix.IsValid() || m.Prefix.Bits() <= prefix.Bits() && m.Prefix.Contains(prefix.Addr()) {
			affect(prefix)
		}
	}
	switch {
	case m.LabelSet != tables.LabelSetID{}:
		for e := range c.Endpoints.List(txn, tables.EndpointsByLabelSet(m.LabelSet)) {
			for _, addr := range e.Addrs {
				inside(single(addr))
			}
		}
	case m.Node != "":
		for _, prefix := range c.Places.NodePrefixes(txn, m.Node) {
			inside(prefix)
		}
	case m.Prefix.IsValid():
		affect(m.Prefix)
		for row := range tables.IPCacheWithin(txn, c.IPCache, m.Prefix) {
			affect(row.Prefix)
		}
	}
}

// heirs are the prefixes that inherit what is known of a prefix that they are in.
func (c *ipcacheParams) heirs(txn statedb.ReadTxn, prefix netip.Prefix, affect func(netip.Prefix)) {
	if prefix.IsSingleIP() {
		return
	}
	for row := range tables.IPCacheWithin(txn, c.IPCache, prefix) {
		if row.Inherits {
			affect(row.Prefix)
		}
	}
}
