// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/natmap"
)

// where is the place of an entry.
type where struct {
	name  string
	tuple ctmap.Tuple
}

// contents are the entries of a set of maps.
type contents map[where]Entry

// dump reads all maps.
func (f *fixture) dump() contents {
	f.Helper()
	all := contents{}
	connect := func(t ctmap.Tuple, e ctmap.Entry) error {
		c := connection(t, e, "")
		all[where{c.Map, t}] = c
		return nil
	}
	translate := func(t ctmap.Tuple, to natmap.Translation) error {
		c := translation(t, to, "")
		all[where{c.Map, t}] = c
		return nil
	}
	for i, m := range f.maps[:mapCount] {
		if m == nil {
			continue
		}
		var err error
		switch i {
		case indexCT4TCP, indexCT4Any:
			err = eachEntry(f.Context(), m, &Pass{}, func(k ctmap.Key4, e ctmap.Entry) error { return connect(k.Tuple(), e) })
		case indexCT6TCP, indexCT6Any:
			err = eachEntry(f.Context(), m, &Pass{}, func(k ctmap.Key6, e ctmap.Entry) error { return connect(k.Tuple(), e) })
		case indexNAT4:
			err = eachEntry(f.Context(), m, &Pass{}, func(k natmap.Key4, e natmap.Entry4) error { return translate(k.Tuple(), e.Translation()) })
		case indexNAT6:
			err = eachEntry(f.Context(), m, &Pass{}, func(k natmap.Key6, e natmap.Entry6) error { return translate(k.Tuple(), e.Translation()) })
		}
		require.NoError(f, err)
	}
	return all
}

// collected is what a pass makes of the contents by the naive reading of the
// rules: what stays, and what goes with the reason.
func (c contents) collected(f Filter) (stays contents, gone []Entry) {
	stays = maps.Clone(c)
	remove := func(w where, reason Reason) {
		e := stays[w]
		e.Reason = reason
		gone = append(gone, e)
		delete(stays, w)
	}
	released := func(addrs ...netip.Addr) bool {
		return slices.ContainsFunc(addrs, func(a netip.Addr) bool { return slices.Contains(f.Addrs, a) })
	}
	nat := func(t ctmap.Tuple) where { return where{natName(t), t} }
	for w, e := range c {
		if e.CT == nil {
			continue
		}
		stay := e.CT.Lifetime
		if w.tuple.Protocol == unix.IPPROTO_UDP && w.tuple.Flags == ctmap.Out {
			stay += uint32(f.ReplyGrace / time.Second)
		}
		var reason Reason
		switch {
		case e.CT.Lifetime == 0:
			reason = Condemned
		case f.All:
			reason = Flushed
		case released(w.tuple.Source.Addr(), w.tuple.Destination.Addr()):
			reason = Released
		case f.Expired && stay < f.Now:
			reason = Expired
		default:
			continue
		}
		remove(w, reason)
		justUsed := func(t natmap.Translation) bool { return reason == Expired && t.Used+2 >= f.Now }
		out, ok := stays[nat(w.tuple)]
		if w.tuple.Flags != ctmap.Out || !ok || out.NAT.Used == 0 || justUsed(*out.NAT) {
			continue
		}
		remove(nat(w.tuple), reason)
		replies := nat(ctmap.Tuple{Source: w.tuple.Destination, Destination: out.NAT.To, Protocol: w.tuple.Protocol, Flags: ctmap.In})
		in, ok := stays[replies]
		if ok && in.NAT.Used != 0 && in.NAT.To == w.tuple.Source && !justUsed(*in.NAT) {
			remove(replies, reason)
		}
	}
	for w, e := range stays {
		if e.NAT == nil {
			continue
		}
		flow := w.tuple
		if flow.Flags == ctmap.In {
			flow = ctmap.Tuple{Source: e.NAT.To, Destination: flow.Source, Protocol: flow.Protocol}
		}
		ct, known := stays[where{ctmap.CTName(flow.Is6(), flow.Protocol), flow}]
		switch {
		case e.NAT.Used == 0:
			if f.All { // else a pass waits whether it stays so
				remove(w, Condemned)
			}
		case f.All:
			remove(w, Flushed)
		case released(w.tuple.Source.Addr(), w.tuple.Destination.Addr(), e.NAT.To.Addr()):
			remove(w, Released)
		case f.Orphans && e.NAT.NeedsCT != 0 && e.NAT.Used+2 < f.Now && (!known || ct.CT.Lifetime == 0):
			remove(w, Orphan)
		}
	}
	return stays, gone
}

func natName(t ctmap.Tuple) string {
	if t.Is6() {
		return natmap.Name6
	}
	return natmap.Name4
}
