// SPDX-License-Identifier: Apache-2.0

package rulesets

import (
	"fmt"
	"math"
	"net/netip"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/reconcilers/mapsync"
	"github.com/sluice-net/sluice/tables"
)

// lookEffective checks whether each selector of a ruleset is effective. Otherwise a subject could
// enter a ruleset that allows what a selector selects, while selected members are still in classes
// without the selector: these were allowed, would be denied for a moment, and allowed again.
func (p *params) lookEffective(txn statedb.ReadTxn) func(mapsync.Reference) string {
	e := effective{params: p, txn: txn, answers: map[uint32]string{}}
	return func(r mapsync.Reference) string {
		ruleset, _, found := p.Rulesets.Get(txn, tables.RulesetByNumber(r.Number))
		if !found {
			return "it is not in " + p.Rulesets.Name()
		}
		for _, selector := range ruleset.Selectors() {
			answer, known := e.answers[selector]
			if !known {
				answer = e.missing(selector)
				e.answers[selector] = answer
			}
			if answer != "" {
				return fmt.Sprintf("selector %d: %s", selector, answer)
			}
		}
		return ""
	}
}

// effective evaluates selectors on one snapshot.
type effective struct {
	*params
	txn     statedb.ReadTxn
	answers map[uint32]string

	// The transaction that made the oldest entry which the kernel does not have as desired.
	known             bool
	members, prefixes uint64
}

// missing says why a selector is not effective, empty if it is. It is effective if all members are
// evaluated and what the kernel had before is as desired now, whether or not the selector selects
// it. Entries that the kernel does not have yet do not delay it, except prefixes that the selector
// names.
func (e *effective) missing(selector uint32) string {
	match, _, _ := e.Matches.Get(e.txn, tables.SelectorMatchByNumber(selector))
	if !match.IsComplete() {
		return "it is not evaluated"
	}
	if !e.known {
		e.known, e.members, e.prefixes = true, e.oldestMember(e.txn), e.oldestPrefix(e.txn)
	}
	if e.members < match.Made {
		return e.Members.Name()
	}
	s, _, found := e.Selectors.Get(e.txn, tables.SelectorByNumber(selector))
	if !found {
		return "it is not in " + e.Selectors.Name()
	}
	named := s.Prefixes()
	if len(named) > 0 && e.prefixes < match.Made {
		return e.IPCache.Name()
	}
	for _, p := range named {
		if e.isNew(e.txn, p) {
			return p.String()
		}
	}
	return ""
}

// oldestMember checks members that change. A member that goes does not matter: it has no address
// when its row goes.
func (p *params) oldestMember(txn statedb.ReadTxn) uint64 {
	oldest := uint64(math.MaxUint64)
	found := func(_ bpf.PeerKey, m *tables.PeerMirror) {
		if m != nil && m.Present {
			oldest = min(oldest, m.Made)
		}
	}
	changing(txn, p.Members, tables.MembersPending, p.PeerMirror, found)
	return oldest
}

// oldestPrefix checks addresses and prefixes that change or go.
func (p *params) oldestPrefix(txn statedb.ReadTxn) uint64 {
	oldest := uint64(math.MaxUint64)
	complete := p.unsettled(txn, func(_ bpf.IPCacheKey, m *tables.IPCacheMirror) {
		if m != nil && m.Present {
			oldest = min(oldest, m.Made)
		}
	})
	if !complete {
		return 0
	}
	return oldest
}

// isNew reports whether a prefix is desired and not in the kernel.
func (p *params) isNew(txn statedb.ReadTxn, prefix netip.Prefix) bool {
	key := bpf.IPCacheKeyFrom(prefix)
	m, _, found := p.IPCacheMirror.Get(
		txn, tables.MirrorByKey[bpf.IPCacheKey, bpf.IPCacheValue](key),
	)
	if found && m.Present {
		return false
	}
	_, _, found = p.IPCache.Get(txn, tables.IPCacheByPrefix(prefix))
	return found
}

// changing calls found for each desired entry that the kernel does not have with this value. m is
// nil if the kernel has no entry. It returns the number of those.
func changing[R mapsync.Row[K, V], K, V tables.MapPart](
	txn statedb.ReadTxn, desired tables.Desired[R], pending func(bool) statedb.Query[R],
	mirror statedb.RWTable[*tables.Mirror[K, V]], found func(key K, m *tables.Mirror[K, V]),
) (absent int) {
	for row := range desired.List(txn, pending(true)) {
		key := row.MapKey()
		m, _, has := mirror.Get(txn, tables.MirrorByKey[K, V](key))
		switch {
		case !has:
			absent++
			found(key, nil)
		case !m.Present, m.Busy, m.Value != row.MapValue():
			found(key, m)
		}
	}
	return absent
}

// unsettled is changing for addresses and prefixes, including those that go. It returns false if
// some rows have gone and the mirror does not say so yet.
func (p *params) unsettled(
	txn statedb.ReadTxn, found func(bpf.IPCacheKey, *tables.IPCacheMirror),
) (complete bool) {
	absent := changing(txn, p.IPCache, tables.IPCachePending, p.IPCacheMirror, found)
	entries := p.IPCache.NumObjects(txn) - absent
	for m := range p.IPCacheMirror.List(txn, tables.IPCacheMirrorsUndesired(true)) {
		if _, _, wanted := p.IPCache.Get(txn, ipcacheByKey(m.Key)); !wanted {
			entries++
			found(m.Key, m)
		}
	}
	return entries == p.IPCacheMirror.NumObjects(txn)
}

// isRefused reports whether the kernel refused a prefix.
func (p *params) isRefused(txn statedb.ReadTxn, prefix netip.Prefix) bool {
	row, _, found := p.IPCache.Get(txn, tables.IPCacheByPrefix(prefix))
	return found && row.Status.Kind == reconciler.StatusKindError
}

// lookInside checks whether the kernel has all prefixes inside a prefix that selectors name.
func (p *params) lookInside(txn statedb.ReadTxn) func(mapsync.Reference) string {
	return func(r mapsync.Reference) string {
		for inside := range tables.PeerPrefixesInside(txn, p.PeerPrefixes, r.Prefix) {
			if inside.Prefix != r.Prefix && len(inside.Named) > 0 && p.isNew(txn, inside.Prefix) {
				return inside.Prefix.String()
			}
		}
		return ""
	}
}

// lookAround checks whether the kernel has all prefixes around a prefix as desired, except those
// that it refused and has no value of: these may wait for the room that a deletion makes.
func (p *params) lookAround(txn statedb.ReadTxn) func(mapsync.Reference) string {
	var unsettled map[netip.Prefix]bool
	return func(r mapsync.Reference) string {
		if unsettled == nil {
			unsettled = map[netip.Prefix]bool{}
			p.unsettled(txn, func(key bpf.IPCacheKey, m *tables.IPCacheMirror) {
				prefix := key.Prefix()
				if !prefix.IsSingleIP() && (m != nil || !p.isRefused(txn, prefix)) {
					unsettled[prefix] = true
				}
			})
		}
		for bits := r.Prefix.Bits() - 1; bits >= 0 && len(unsettled) > 0; bits-- {
			if around := netip.PrefixFrom(r.Prefix.Addr(), bits).Masked(); unsettled[around] {
				return around.String()
			}
		}
		return ""
	}
}
