// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"net/netip"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// target returns the class that a prefix may be put into: while there are classes of
// unknown meaning, only one that continues the kernel's.
func (h *harness) target(txn statedb.ReadTxn, p netip.Prefix, m *tables.ClassMember) uint32 {
	kernel, _ := (&peerPlace{&members{memberParams: h.params()}}).classes(txn, p)
	if kernel == 0 || tables.ClassesKnown(txn, h.members, bpf.RolePeer) && tables.ClassesKnown(txn, h.members, bpf.RoleSubject) {
		return m.Class
	}
	key := bpf.ClassKey{Role: bpf.RolePeer, Number: kernel}
	row := tables.ClassRow(txn, h.members, key)
	if row == nil || !row.MeaningUnknown() || m.Class == kernel {
		return kernel
	}
	if continuing := tables.ClassContinuing(txn, h.members, key, m.Digest); continuing != nil {
		return continuing.Class
	}
	return kernel
}

// follow does what comes after the classes, as far as allowed says: it puts
// addresses into the class that they belong to, first in the desired tables, then
// in the kernel, and records what numbers stand for.
func (h *harness) follow(allowed func() bool) {
	txn := h.db.ReadTxn()
	wanted := map[netip.Prefix]*tables.IPCache{}
	for p := range h.prefixes.All(txn) {
		wanted[p.Prefix] = &tables.IPCache{Prefix: p.Prefix}
	}
	subjects := map[netip.Addr]uint32{}
	for e := range h.Endpoints.All(txn) {
		for _, a := range e.Addrs {
			wanted[single(a)] = &tables.IPCache{Prefix: single(a)}
			if m := tables.MemberOf(txn, h.members, bpf.RoleSubject, e); m != nil && e.Node == here {
				subjects[a] = m.Class
			}
		}
	}
	for n := range h.Nodes.All(txn) {
		for _, a := range n.InternalIPs {
			wanted[single(a)] = &tables.IPCache{Prefix: single(a)}
		}
	}
	for p, row := range wanted {
		if m := h.places.Member(txn, p); m != nil {
			row.PeerClass = h.target(txn, p, m)
			if row.PeerClass != m.Class {
				row.WaitsFor = m.Class
			}
		}
	}
	h.followPeers(txn, wanted, allowed)
	h.followSubjects(txn, subjects, allowed)
	for c := range h.classes.All(txn) {
		row := tables.ClassRow(txn, h.members, c.ClassKey)
		if allowed() && (row == nil || len(row.Leaving) == 0) {
			put(h, h.ClassEntries, &tables.ClassEntry{Key: c.ClassKey, Value: c.MapValue()})
		}
	}
	for e := range h.ClassEntries.All(txn) {
		if _, _, found := h.classes.Get(txn, tables.ClassByKey(e.Key)); !found && allowed() {
			remove(h, h.ClassEntries, e)
		}
	}
}

func (h *harness) followPeers(txn statedb.ReadTxn, wanted map[netip.Prefix]*tables.IPCache, allowed func() bool) {
	for e := range h.IPCacheEntries.All(txn) {
		if c, _, found := h.IPCache.Get(txn, tables.IPCacheByPrefix(e.Key.Prefix())); !allowed() {
			continue
		} else if !found {
			remove(h, h.IPCacheEntries, e)
		} else {
			put(h, h.IPCacheEntries, &tables.IPCacheEntry{Key: c.MapKey(), Value: c.MapValue()})
		}
	}
	for c := range h.IPCache.All(txn) {
		if _, found := wanted[c.Prefix]; !found && allowed() {
			remove(h, h.IPCache, c)
		}
		if allowed() {
			put(h, h.IPCacheEntries, &tables.IPCacheEntry{Key: c.MapKey(), Value: c.MapValue()})
		}
	}
	for _, row := range wanted {
		if allowed() {
			put(h, h.IPCache, row)
		}
	}
}

func (h *harness) followSubjects(txn statedb.ReadTxn, wanted map[netip.Addr]uint32, allowed func() bool) {
	for e := range h.PodEntries.All(txn) {
		if _, _, found := h.Locals.Get(txn, tables.LocalEndpointByAddr(e.Key.Addr.Addr())); !found && allowed() {
			remove(h, h.PodEntries, e)
		}
	}
	for l := range h.Locals.All(txn) {
		if _, found := wanted[l.Addr]; !found && allowed() {
			remove(h, h.Locals, l)
			continue
		}
		if allowed() {
			put(h, h.PodEntries, &tables.PodEntry{Key: l.MapKey(), Value: l.MapValue()})
		}
	}
	for addr, class := range wanted {
		if allowed() {
			put(h, h.Locals, &tables.LocalEndpoint{Addr: addr, SubjectClass: class})
		}
	}
}

func always() bool { return true }
