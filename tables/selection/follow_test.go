// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"net/netip"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// follow does what comes after the classes, as far as allowed says: it puts into the
// kernel what was desired, has addresses desired in the class that they belong to,
// and records what numbers stand for.
func (h *harness) follow(allowed func() bool) {
	h.followInKernel(h.db.ReadTxn(), allowed)
	h.followPeers(allowed)
	h.followSubjects(allowed)
	txn := h.db.ReadTxn()
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

func (h *harness) followInKernel(txn statedb.ReadTxn, allowed func() bool) {
	for e := range h.IPCacheEntries.All(txn) {
		if _, _, found := h.IPCache.Get(txn, tables.IPCacheByPrefix(e.Key.Prefix())); !found && allowed() {
			remove(h, h.IPCacheEntries, e)
		}
	}
	for c := range h.IPCache.All(txn) {
		if allowed() {
			put(h, h.IPCacheEntries, &tables.IPCacheEntry{Key: c.MapKey(), Value: c.MapValue()})
		}
	}
	for e := range h.PodEntries.All(txn) {
		if _, _, found := h.Locals.Get(txn, tables.LocalEndpointByAddr(e.Key.Addr.Addr())); !found && allowed() {
			remove(h, h.PodEntries, e)
		}
	}
	for l := range h.Locals.All(txn) {
		if allowed() {
			put(h, h.PodEntries, &tables.PodEntry{Key: l.MapKey(), Value: l.MapValue()})
		}
	}
}

// followPeers is a round of the ipcache, of which nobody else's is under way.
func (h *harness) followPeers(allowed func() bool) {
	txn := h.db.WriteTxn(h.IPCache)
	defer txn.Abort()
	wanted := map[netip.Prefix]*tables.IPCache{}
	for p := range h.prefixes.All(txn) {
		wanted[p.Prefix] = &tables.IPCache{Prefix: p.Prefix}
	}
	for e := range h.Endpoints.All(txn) {
		for _, a := range e.Addrs {
			wanted[single(a)] = &tables.IPCache{Prefix: single(a)}
		}
	}
	for n := range h.Nodes.All(txn) {
		for _, a := range n.InternalIPs {
			wanted[single(a)] = &tables.IPCache{Prefix: single(a)}
		}
	}
	for c := range h.IPCache.All(txn) {
		if wanted[c.Prefix] == nil && allowed() {
			_, _, err := h.IPCache.Delete(txn, c)
			require.NoError(h.t, err)
		}
	}
	for p, row := range wanted {
		if m := h.places.Member(txn, p); m != nil {
			row.PeerClass = m.Class
			if row.PeerClass != m.Class {
				row.WaitsFor = m.Class
			}
		}
		if allowed() {
			_, _, err := h.IPCache.Insert(txn, row)
			require.NoError(h.t, err)
		}
	}
	txn.Commit()
}

// followSubjects is a round of local-endpoints.
func (h *harness) followSubjects(allowed func() bool) {
	txn := h.db.WriteTxn(h.Locals)
	defer txn.Abort()
	wanted := map[netip.Addr]uint32{}
	for e := range h.Endpoints.All(txn) {
		m := tables.MemberOf(txn, h.members, bpf.RoleSubject, e)
		for _, a := range e.Addrs {
			if m != nil && e.Node == here {
				wanted[a] = m.Class
			}
		}
	}
	for l := range h.Locals.All(txn) {
		if _, found := wanted[l.Addr]; !found && allowed() {
			_, _, err := h.Locals.Delete(txn, l)
			require.NoError(h.t, err)
		}
	}
	for addr, class := range wanted {
		if allowed() {
			_, _, err := h.Locals.Insert(txn, &tables.LocalEndpoint{Addr: addr, SubjectClass: class})
			require.NoError(h.t, err)
		}
	}
	txn.Commit()
}

func always() bool { return true }
