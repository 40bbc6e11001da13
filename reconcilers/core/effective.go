// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"math"
	"net/netip"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/reconcilers/mapsync"
	"github.com/sluice-net/sluice/tables"
)

// lookEffective asks whether each selector of a ruleset is effective. Else a ruleset could
// be entered that allows what a selector selects, while members that it selects are in
// classes without it: these were allowed, would be denied for a moment, and allowed again.
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

// effective is a look at selectors.
type effective struct {
	*params
	txn     statedb.ReadTxn
	answers map[uint32]string

	// Of what the kernel has otherwise than desired, the transaction that made the oldest.
	known             bool
	members, prefixes uint64
}

// missing says why a selector is not effective, empty if it is: it is evaluated, and what
// the kernel had before is as desired now, whether or not the selector selects it. What the
// kernel has not yet holds up nothing, but for the prefixes that the selector names.
func (e *effective) missing(selector uint32) string {
	match, _, found := e.Matches.Get(e.txn, tables.SelectorMatchByNumber(selector))
	if !found {
		return "it is not in " + e.Matches.Name()
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

// oldestMember looks at members that change. One that goes matters no more: no address is
// in it when its row goes.
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

// oldestPrefix looks at addresses and prefixes that change or go.
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
	m, _, found := p.IPCacheMirror.Get(txn, tables.MirrorByKey[bpf.IPCacheKey, bpf.IPCacheValue](key))
	if found && m.Present {
		return false
	}
	_, _, found = p.IPCache.Get(txn, tables.IPCacheByPrefix(prefix))
	return found
}

// changing calls found for desired entries that the kernel does not have, or not so: m is nil
// of those of which it has nothing. It returns how many these are.
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

// unsettled is changing for addresses and prefixes, and for those that go, too. It returns
// false if it misses some, as their rows have gone and the mirror does not say so yet.
func (p *params) unsettled(
	txn statedb.ReadTxn, found func(bpf.IPCacheKey, *tables.IPCacheMirror),
) (complete bool) {
	absent := changing(txn, p.IPCache, tables.IPCachePending, p.IPCacheMirror, found)
	entries := p.IPCache.NumObjects(txn) - absent
	undesired := tables.MirrorsUndesired[bpf.IPCacheKey, bpf.IPCacheValue]()
	for m := range p.IPCacheMirror.List(txn, undesired) {
		if _, _, wanted := p.IPCache.Get(txn, ipcacheByKey(m.Key)); !wanted {
			entries++
			found(m.Key, m)
		}
	}
	return entries == p.IPCacheMirror.NumObjects(txn)
}

// lookInside asks whether the kernel has all prefixes that selectors name inside a prefix.
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

// lookAround asks whether the kernel has all prefixes around a prefix as desired.
func (p *params) lookAround(txn statedb.ReadTxn) func(mapsync.Reference) string {
	var unsettled map[netip.Prefix]bool
	return func(r mapsync.Reference) string {
		if unsettled == nil {
			unsettled = map[netip.Prefix]bool{}
			p.unsettled(txn, func(key bpf.IPCacheKey, _ *tables.IPCacheMirror) {
				if prefix := key.Prefix(); !prefix.IsSingleIP() {
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
