// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/natmap"
)

// grace is how many seconds a translation has, after its last use, for its
// connection to be tracked: NAT_GRACE of bpf/programs/translation.h.
const grace = 2

// session is a pass through one map by system calls. A lifetime cannot be compared
// and exchanged from here. So an entry is taken out, looked at, and put back if it
// was used meanwhile: it is away for that moment, and for good should the agent be
// killed in it.
type session struct {
	maps  [mapCount]*ebpf.Map
	f     Filter
	now   uint32
	addrs map[netip.Addr]bool
	p     *Pass
}

func passUserSpace(ctx context.Context, maps [mapCount]*ebpf.Map, index int, f Filter) (Pass, error) {
	p := Pass{Map: names[index], Method: UserSpace}
	s := session{maps: maps, f: f, now: f.Now, addrs: map[netip.Addr]bool{}, p: &p}
	for _, a := range f.Addrs {
		s.addrs[a.Unmap()] = true
	}
	if s.now == 0 {
		var err error
		if s.now, err = Now(); err != nil {
			return p, err
		}
	}
	begun := time.Now()
	var err error
	switch m := maps[index]; index {
	case indexCT4TCP, indexCT4Any:
		err = eachEntry(ctx, m, &p, func(k ctmap.Key4, v ctmap.Entry) error { return collectConnection(s, m, k, k.Tuple(), v) })
	case indexCT6TCP, indexCT6Any:
		err = eachEntry(ctx, m, &p, func(k ctmap.Key6, v ctmap.Entry) error { return collectConnection(s, m, k, k.Tuple(), v) })
	case indexNAT4:
		err = eachEntry(ctx, m, &p, func(k natmap.Key4, v natmap.Entry4) error { return s.collectTranslation(k.Tuple(), v.Translation()) })
	case indexNAT6:
		err = eachEntry(ctx, m, &p, func(k natmap.Key6, v natmap.Entry6) error { return s.collectTranslation(k.Tuple(), v.Translation()) })
	}
	p.Duration = time.Since(begun)
	return p, err
}

// batch is how many entries are read at once: more than a bucket of the kernel's
// hash table ever has.
const batch = 1024

// eachEntry calls a function for all entries of a map.
func eachEntry[K, V any](ctx context.Context, m *ebpf.Map, p *Pass, do func(K, V) error) error {
	var cursor ebpf.MapBatchCursor
	keys, values := make([]K, batch), make([]V, batch)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		begun := time.Now()
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		p.LongestRun = max(p.LongestRun, time.Since(begun))
		last := errors.Is(err, ebpf.ErrKeyNotExist)
		if errors.Is(err, unix.ENOSPC) { // a bucket has more
			keys, values = make([]K, 2*len(keys)), make([]V, 2*len(values))
			continue
		}
		if err != nil && !last {
			return fmt.Errorf("read entries: %w", err)
		}
		for i := range n {
			p.Scanned++
			if err := do(keys[i], values[i]); err != nil {
				return err
			}
		}
		if last {
			return nil
		}
	}
}

func (s session) scrubs(addrs ...netip.Addr) bool {
	for _, a := range addrs {
		if s.addrs[a.Unmap()] {
			return true
		}
	}
	return false
}

func (s session) judgeConnection(t ctmap.Tuple, e *ctmap.Entry) Reason {
	switch {
	case s.f.chosen != nil:
		if e.Lifetime != 0 && s.f.chosen(connection(t, *e, "")) {
			return Flushed
		}
		return ""
	case e.Lifetime == 0:
		return Condemned
	case s.f.All:
		return Flushed
	case s.scrubs(t.Source.Addr(), t.Destination.Addr()):
		return Scrubbed
	case !s.f.Expired || e.Lifetime >= s.now:
		return ""
	case t.Protocol == unix.IPPROTO_UDP && t.Flags == ctmap.Out && uint64(e.Lifetime)+uint64(s.f.ReplyGrace/time.Second) >= uint64(s.now):
		s.p.Kept++
		return ""
	}
	return Expired
}

func collectConnection[K any](s session, m *ebpf.Map, key K, t ctmap.Tuple, e ctmap.Entry) error {
	reason := s.judgeConnection(t, &e)
	if reason == "" {
		if s.p.NextExpiry == 0 || e.Lifetime < s.p.NextExpiry {
			s.p.NextExpiry = e.Lifetime
		}
		if s.f.Survivor != nil {
			s.f.Survivor(connection(t, e, ""))
		}
		return nil
	}
	var final ctmap.Entry
	err := m.LookupAndDelete(&key, &final)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("delete connection %s: %w", t, err)
	}
	if revived(reason, e.Lifetime, final.Lifetime) {
		s.p.Revived++
		if err := m.Update(&key, &final, ebpf.UpdateNoExist); err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
			return fmt.Errorf("put back connection %s, which was used meanwhile: %w", t, err)
		}
		return nil
	}
	s.count(reason, 1)
	if s.f.Removed != nil {
		s.f.Removed(connection(t, final, reason))
	}
	if t.Flags == ctmap.Out {
		return s.removeTranslations(t, reason)
	}
	return nil
}

// revived reports whether an entry was used between the look at it and its removal,
// given its lifetime, or when it was used, then and now: unless it was to go anyway.
// One that somebody has condemned meanwhile is as good as absent.
func revived(reason Reason, read, final uint32) bool {
	switch reason {
	case Expired, Orphan, Condemned:
		return final != read && final != 0
	}
	return false
}

// count counts entries that are removed.
func (s session) count(reason Reason, n uint64) {
	switch reason {
	case Expired:
		s.p.Expired += n
	case Orphan:
		s.p.Orphans += n
	case Scrubbed:
		s.p.Scrubbed += n
	case Flushed:
		s.p.Flushed += n
	case Condemned:
		s.p.Condemned += n
	}
}

// removeTranslations removes the translations of a connection that is gone.
func (s session) removeTranslations(flow ctmap.Tuple, reason Reason) error {
	to, ok, err := s.findTranslation(flow)
	if err != nil || !ok || to.Used == 0 || s.justUsed(to, reason) {
		return err
	}
	n, err := s.removeTranslation(flow, to, reason)
	if err != nil || n == 0 {
		return err
	}
	s.p.Translations += n
	replies := ctmap.Tuple{Source: flow.Destination, Destination: to.To, Protocol: flow.Protocol, Flags: ctmap.In}
	owner, ok, err := s.findTranslation(replies)
	if err != nil || !ok || owner.Used == 0 || owner.To != flow.Source || s.justUsed(owner, reason) {
		return err
	}
	n, err = s.removeTranslation(replies, owner, reason)
	s.p.Translations += n
	return err
}

// justUsed reports, and counts, that a translation stays although its connection
// has expired: the next pass finds it without connection.
func (s session) justUsed(to natmap.Translation, reason Reason) bool {
	used := reason == Expired && to.Used+grace >= s.now
	if used {
		s.p.Kept++
	}
	return used
}

// nat returns the map of translations of a tuple, which may not exist, and its key.
func (s session) nat(t ctmap.Tuple) (*ebpf.Map, any) {
	if t.Is6() {
		return s.maps[indexNAT6], natmap.NewKey6(t)
	}
	return s.maps[indexNAT4], natmap.NewKey4(t)
}

func (s session) findTranslation(t ctmap.Tuple) (to natmap.Translation, ok bool, err error) {
	m, key := s.nat(t)
	if m == nil {
		return to, false, nil
	}
	if t.Is6() {
		var e natmap.Entry6
		err = m.Lookup(key, &e)
		to = e.Translation()
	} else {
		var e natmap.Entry4
		err = m.Lookup(key, &e)
		to = e.Translation()
	}
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return to, false, nil
	}
	if err != nil {
		return to, false, fmt.Errorf("look up translation %s: %w", t, err)
	}
	return to, true, nil
}

// removeTranslation removes a translation, unless it was used since it was read.
func (s session) removeTranslation(t ctmap.Tuple, read natmap.Translation, reason Reason) (removed uint64, err error) {
	m, key := s.nat(t)
	var (
		entry4 natmap.Entry4
		entry6 natmap.Entry6
		value  any = &entry4
	)
	if t.Is6() {
		value = &entry6
	}
	err = m.LookupAndDelete(key, value)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("delete translation %s: %w", t, err)
	}
	final := entry4.Translation()
	if t.Is6() {
		final = entry6.Translation()
	}
	if revived(reason, read.Used, final.Used) {
		s.p.Revived++
		if err := m.Update(key, value, ebpf.UpdateNoExist); err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
			return 0, fmt.Errorf("put back translation %s, which was used meanwhile: %w", t, err)
		}
		return 0, nil
	}
	if s.f.Removed != nil {
		s.f.Removed(translation(t, final, reason))
	}
	return 1, nil
}

func (s session) collectTranslation(t ctmap.Tuple, to natmap.Translation) error {
	reason, err := s.judgeTranslation(t, to)
	if err != nil {
		return err
	}
	if reason == "" {
		if s.f.Survivor != nil {
			s.f.Survivor(translation(t, to, ""))
		}
		return nil
	}
	n, err := s.removeTranslation(t, to, reason)
	s.count(reason, n)
	return err
}

func (s session) judgeTranslation(t ctmap.Tuple, to natmap.Translation) (Reason, error) {
	switch {
	case to.Used == 0:
		return Condemned, nil
	case s.f.All:
		return Flushed, nil
	case s.scrubs(t.Source.Addr(), t.Destination.Addr(), to.To.Addr()):
		return Scrubbed, nil
	case !s.f.Orphans || to.NeedsCT == 0:
		return "", nil
	}
	flow := ctmap.Tuple{Source: t.Source, Destination: t.Destination, Protocol: t.Protocol}
	if t.Flags&ctmap.In != 0 {
		flow.Source, flow.Destination = to.To, t.Source
	}
	known, err := s.hasConnection(flow)
	if err != nil || known {
		return "", err
	}
	if to.Used+grace >= s.now {
		s.p.Kept++
		return "", nil
	}
	return Orphan, nil
}

// hasConnection reports whether a flow has an entry, which may have expired.
func (s session) hasConnection(flow ctmap.Tuple) (bool, error) {
	var e ctmap.Entry
	tcp := flow.Protocol == unix.IPPROTO_TCP
	var (
		m   *ebpf.Map
		key any
	)
	if flow.Is6() {
		m, key = s.maps[indexCT6Any], ctmap.NewKey6(flow)
		if tcp {
			m = s.maps[indexCT6TCP]
		}
	} else {
		m, key = s.maps[indexCT4Any], ctmap.NewKey4(flow)
		if tcp {
			m = s.maps[indexCT4TCP]
		}
	}
	if m == nil {
		return false, nil
	}
	err := m.Lookup(key, &e)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look up connection %s: %w", flow, err)
	}
	return e.Lifetime != 0, nil
}
