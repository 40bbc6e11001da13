// SPDX-License-Identifier: Apache-2.0

package members

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
)

// seen are the definitions of all numbers that there have been.
type seen struct {
	members, classes map[uint32]bpf.Digest
	gone             map[uint32]bool // numbers of both
}

func newSeen() seen {
	return seen{map[uint32]bpf.Digest{}, map[uint32]bpf.Digest{}, map[uint32]bool{}}
}

// checkStep checks what a transaction has done with objects.
func (h *harness) checkStep(before, now statedb.ReadTxn) {
	h.Helper()
	members, classes := map[uint32]bpf.Digest{}, map[uint32]bpf.Digest{}
	for m := range h.Members.All(now) {
		require.Equal(h, m.Digest, m.MemberDef.Digest(), "member %d has changed", m.Number)
		members[m.Number] = m.Digest
		_, _, found := h.Classes.Get(now, tables.ClassByNumber(m.Class))
		require.True(h, found, "member %d is of class %d", m.Number, m.Class)
		_, _, entered := h.IPCache.Get(now, tables.IPCacheByMember(m.Number))
		require.Equal(h, entered, !m.Undesired, "member %d", m.Number)
	}
	for c := range h.Classes.All(now) {
		require.Equal(h, c.Digest, tables.ClassDigest(c.Selectors, c.Ports, c.Precision),
			"class %d has changed", c.Number)
		classes[c.Number] = c.Digest
		_, _, entered := h.Members.Get(now, tables.MembersByClass(c.Number))
		require.Equal(h, entered, !c.Undesired, "class %d", c.Number)
	}
	for row := range h.IPCache.All(now) {
		require.Contains(h, members, row.Member, row.TableRow())
	}
	for p := range h.PeerPrefixes.All(now) {
		row, _, found := h.IPCache.Get(now, tables.IPCacheByPrefix(p.Prefix))
		require.True(h, found, "no row of %s", p.Prefix)
		if m, _, _ := h.Members.Get(now, tables.MemberByNumber(row.Member)); row.Inherits {
			require.Equal(h, p.Outside, m.CIDRs, "%s comes behind", p.Prefix)
		}
	}
	h.checkNumbers(h.seen.members, members)
	h.checkNumbers(h.seen.classes, classes)
	for m := range h.Members.All(before) {
		if _, is := members[m.Number]; !is {
			require.True(h, m.Undesired, "member %d ended in the transaction that marked it", m.Number)
			h.seen.gone[m.Number] = true
		}
	}
	for c := range h.Classes.All(before) {
		if _, is := classes[c.Number]; !is {
			require.True(h, c.Undesired, "class %d ended in the transaction that marked it", c.Number)
			h.seen.gone[c.Number] = true
		}
	}
	for m := range h.inputs.IPCacheMirror.All(now) {
		for _, v := range m.Values() {
			require.Contains(h, members, v.Member, "the kernel may have %s -> %s", m.Key, v)
		}
	}
	for m := range h.inputs.PeerMirror.All(now) {
		for _, v := range m.Values() {
			require.Contains(h, classes, v.Class, "the kernel may have %s -> %s", m.Key, v)
		}
	}
	for match := range h.Matches.All(now) {
		was, _, _ := h.Matches.Get(before, tables.SelectorMatchByNumber(match.Selector))
		if match.IsComplete() && !was.IsComplete() {
			h.checkMatch(now, match)
		}
	}
}

func (h *harness) isInCluster(txn statedb.ReadTxn, prefix netip.Prefix) bool {
	contains := func(p netip.Prefix) bool { return p.Bits() <= prefix.Bits() && p.Contains(prefix.Addr()) }
	is := contains(clusterCIDR)
	for n := range h.inputs.Nodes.All(txn) {
		is = is || slices.ContainsFunc(n.PodCIDRs, contains)
	}
	return is
}

func (h *harness) checkNumbers(seen, now map[uint32]bpf.Digest) {
	h.Helper()
	for n, digest := range now {
		require.False(h, h.seen.gone[n], "number %d is used again", n)
		if former, known := seen[n]; known {
			require.Equal(h, former, digest, "number %d stands for something else", n)
		}
	}
	maps.Copy(seen, now)
}

// checkMatch checks that all members and addresses that a selector selects, by what they
// are in the tables, are in classes that it selects, in the transaction that says so.
func (h *harness) checkMatch(now statedb.ReadTxn, match *tables.SelectorMatch) {
	h.Helper()
	s, _, found := h.inputs.Selectors.Get(now, tables.SelectorByNumber(match.Selector))
	require.True(h, found)
	r := &rule{ruleTables: h.ruleTables}
	for m := range h.Members.All(now) {
		require.LessOrEqual(h, m.Made, match.Made+1) // a transaction calls compute once for each queue
		class, _, _ := h.Classes.Get(now, tables.ClassByNumber(m.Class))
		if !h.changed[m.Node] && !h.changed[m.Namespace] && r.selects(now, s, m, r.namespaceOf(now, m)) {
			require.True(h, class.Omits(s) || class.Selects(s.Number),
				"%q selects %s, which is not in such a class", s.Text, m.MemberDef.String())
		}
	}
	for row := range h.IPCache.All(now) {
		require.LessOrEqual(h, row.Made, match.Made+1)
		m, _, _ := h.Members.Get(now, tables.MemberByNumber(row.Member))
		outside := m.Scope == tables.ScopeWorld || m.Scope == tables.ScopeCluster
		if outside && h.isInCluster(now, row.Prefix) != (m.Scope == tables.ScopeCluster) {
			continue // what the address is, not what selects it, has changed
		}
		class, _, _ := h.Classes.Get(now, tables.ClassByNumber(m.Class))
		if s.Contains(row.Prefix) && reaches(s, m.Scope) {
			require.True(h, class.Omits(s) || class.Selects(s.Number),
				"%q selects %s, which is not in such a class", s.Text, row.Prefix)
		}
	}
}

// kernel writes entries as reconcilers do: it announces, looks once more, writes, confirms.
type kernel struct {
	*harness
	*rand.Rand
	ipcache *writing[bpf.IPCacheKey, bpf.IPCacheValue]
	peers   *writing[bpf.PeerKey, bpf.PeerValue]
}

// writing is one write under way.
type writing[K, V tables.MapPart] struct {
	table   tablestest.Table[*tables.Mirror[K, V]]
	desired func(statedb.ReadTxn, K) (V, bool)
	mirror  *tables.Mirror[K, V] // announced, nil if none
}

func newKernel(h *harness, r *rand.Rand) *kernel {
	return &kernel{
		h, r,
		&writing[bpf.IPCacheKey, bpf.IPCacheValue]{table: h.inputs.IPCacheMirror,
			desired: func(txn statedb.ReadTxn, k bpf.IPCacheKey) (v bpf.IPCacheValue, is bool) {
				row, _, is := h.IPCache.Get(txn, tables.IPCacheByPrefix(k.Prefix()))
				if is {
					v = row.MapValue()
				}
				return v, is
			}},
		&writing[bpf.PeerKey, bpf.PeerValue]{table: h.inputs.PeerMirror,
			desired: func(txn statedb.ReadTxn, k bpf.PeerKey) (v bpf.PeerValue, is bool) {
				row, _, is := h.Members.Get(txn, tables.MemberByNumber(k.Member))
				if is {
					v = row.MapValue()
				}
				return v, is
			}},
	}
}

// some runs some steps of both reconcilers.
func (k *kernel) some() {
	txn := k.db.ReadTxn()
	for range k.IntN(20) {
		if rows := statedb.Collect(k.IPCache.All(txn)); len(rows) > 0 && k.IntN(2) == 0 {
			step(k.harness, k.ipcache, rows[k.IntN(len(rows))].MapKey())
		} else if rows := statedb.Collect(k.Members.All(txn)); len(rows) > 0 {
			step(k.harness, k.peers, rows[k.IntN(len(rows))].MapKey())
		}
		if rows := statedb.Collect(k.inputs.IPCacheMirror.All(txn)); len(rows) > 0 && k.IntN(2) == 0 {
			step(k.harness, k.ipcache, rows[k.IntN(len(rows))].Key)
		}
		if rows := statedb.Collect(k.inputs.PeerMirror.All(txn)); len(rows) > 0 && k.IntN(2) == 0 {
			step(k.harness, k.peers, rows[k.IntN(len(rows))].Key)
		}
	}
}

// step goes on with the write under way, or announces one of a key.
func step[K, V tables.MapPart](h *harness, w *writing[K, V], key K) {
	if w.mirror == nil {
		mirror, _, found := w.table.Get(h.db.ReadTxn(), tables.MirrorByKey[K, V](key))
		next := tables.Mirror[K, V]{Key: key}
		if found {
			next = *mirror
		}
		value, is := w.desired(h.db.ReadTxn(), key)
		if !found && !is {
			return
		}
		next.Busy, next.Writing, next.Deleting = true, value, !is
		w.mirror = &next
		w.table.Put(w.mirror)
		return
	}
	// In one go, so that the second look is the last.
	next := *w.mirror
	w.mirror = nil
	next.Busy, next.Deleting = false, false
	if value, is := w.desired(h.db.ReadTxn(), next.Key); is && any(value) == any(next.Writing) {
		next.Value, next.Present = value, true
	} else if !is {
		next.Present = false
	}
	if !next.Present {
		w.table.Remove(&next)
		return
	}
	w.table.Put(&next)
}

// all has the kernel get all that is desired, and all that is not ends.
func (k *kernel) all() {
	for range 4 {
		txn := k.db.ReadTxn()
		k.everything(txn)
		k.settle()
	}
	txn := k.db.ReadTxn()
	for m := range k.Members.All(txn) {
		require.False(k, m.Undesired, "member %d does not end", m.Number)
	}
	for c := range k.Classes.All(txn) {
		require.False(k, c.Undesired, "class %d does not end", c.Number)
	}
}

func (k *kernel) everything(txn statedb.ReadTxn) {
	for pass := range 2 {
		for row := range k.IPCache.All(txn) {
			step(k.harness, k.ipcache, row.MapKey())
			step(k.harness, k.ipcache, row.MapKey())
		}
		for m := range k.inputs.IPCacheMirror.All(txn) {
			step(k.harness, k.ipcache, m.Key)
			step(k.harness, k.ipcache, m.Key)
		}
		for m := range k.Members.All(txn) {
			step(k.harness, k.peers, m.MapKey())
			step(k.harness, k.peers, m.MapKey())
		}
		for m := range k.inputs.PeerMirror.All(txn) {
			step(k.harness, k.peers, m.Key)
			step(k.harness, k.peers, m.Key)
		}
		_ = pass
	}
}
