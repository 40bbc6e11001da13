// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf/ctmap"
)

// world makes random entries, whose addresses and ports are so few that they
// often belong together.
type world struct {
	*rand.Rand
	*fixture
}

func (w world) addr(ipv6 bool, kind, n int) netip.Addr {
	if ipv6 {
		return netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, byte(kind), 15: byte(w.IntN(n) + 1)})
	}
	return netip.AddrFrom4([4]byte{10, byte(kind), 0, byte(w.IntN(n) + 1)})
}

const (
	kindPod = iota
	kindServer
	kindEgress
)

func (w world) port(n int) uint16 { return uint16(1000 + w.IntN(n)) }

// flow is one of a pod.
func (w world) flow() ctmap.Tuple {
	ipv6 := w.IntN(2) == 0
	t := ctmap.Tuple{
		Source:      netip.AddrPortFrom(w.addr(ipv6, kindPod, 12), w.port(30)),
		Destination: netip.AddrPortFrom(w.addr(ipv6, kindServer, 3), w.port(2)),
		Protocol:    []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_ICMP}[w.IntN(3)],
	}
	if t.Protocol == unix.IPPROTO_ICMP {
		t.Destination = netip.AddrPortFrom(t.Destination.Addr(), 0)
		if ipv6 {
			t.Protocol = unix.IPPROTO_ICMPV6
		}
	}
	return t
}

// about returns a time around now, or 0.
func (w world) about() uint32 {
	if w.IntN(20) == 0 {
		return 0
	}
	return w.now - 40 + uint32(w.IntN(60))
}

func (w world) fill(n int) {
	for range n {
		t := w.flow()
		to := netip.AddrPortFrom(w.addr(t.Is6(), kindEgress, 2), w.port(60))
		back := ctmap.Tuple{Source: t.Destination, Destination: to, Protocol: t.Protocol, Flags: ctmap.In}
		needs := uint32(min(w.IntN(10), 1))
		what := w.IntN(8)
		if what < 6 {
			ct := t
			if w.IntN(4) == 0 {
				ct.Flags = []ctmap.TupleFlags{ctmap.In, ctmap.Related, ctmap.Service, ctmap.Related | ctmap.In}[w.IntN(4)]
			}
			w.connect(ct, ctmap.Entry{
				Lifetime: w.about(), Packets: w.Uint64(), Bytes: w.Uint64(), Generation: w.Uint32(),
				Cookie: w.Uint32(), Flags: ctmap.SeenNonSYN, Created: w.Uint32(),
			})
		}
		if what != 1 && what != 2 {
			w.translateMade(t, to, w.Uint64(), w.about(), needs)
		}
		if what != 3 && what != 1 {
			w.translateMade(back, t.Source, w.Uint64(), w.about(), needs)
		}
		if what == 4 { // the port has become another's
			w.translateMade(back, netip.AddrPortFrom(w.addr(t.Is6(), kindPod, 12), w.port(30)), w.Uint64(), w.about(), needs)
		}
	}
}

func (w world) filter() Filter {
	f := Filter{Now: w.now, Expired: w.IntN(4) > 0, Orphans: w.IntN(3) > 0, All: w.IntN(12) == 0}
	if w.IntN(3) == 0 {
		f.ReplyGrace = 15 * time.Second
	}
	if w.IntN(3) == 0 {
		for range w.IntN(3) + 1 {
			f.Addrs = append(f.Addrs, w.addr(w.IntN(2) == 0, w.IntN(3), 12))
		}
	}
	return f
}

// texts are entries as text, sorted.
func texts(entries []Entry) []string {
	all := make([]string, 0, len(entries))
	for _, e := range entries {
		s := fmt.Sprintf("%s %s %s", e.Map, e.Tuple, e.Reason)
		if e.CT != nil {
			s += fmt.Sprintf(" %+v", *e.CT)
		} else {
			s += fmt.Sprintf(" %+v", *e.NAT)
		}
		all = append(all, s)
	}
	slices.Sort(all)
	return all
}

func (c contents) list() []Entry {
	var all []Entry
	for _, e := range c {
		all = append(all, e)
	}
	return all
}

// Whatever is in the maps and whatever is asked for: what is removed, with its
// final value and the reason, and what stays, is that of the naive oracle. Two passes
// do it, or where the iterator was interrupted often, and has passed over entries
// beside those that it removed, hardly ever three.
func TestRandomContents(t *testing.T) {
	eachMethod(t, func(f *fixture) {
		seed := uint64(time.Now().UnixNano())
		f.Logf("seed %d", seed)
		w := world{rand.New(rand.NewPCG(seed, 0)), f}
		removed := map[Reason]int{}
		for range 12 {
			f.flush()
			w.fill(1500)
			filter := w.filter()
			before := f.dump()
			stays, gone := before.collected(filter)

			var told, survivors []Entry
			filter.Removed = func(e Entry) { told = append(told, e) }
			sum := f.run(filter)
			filter.Survivor = func(e Entry) { survivors = append(survivors, e) }
			sum.add(f.run(filter))
			if len(told) != len(gone) {
				survivors = nil
				sum.add(f.run(filter))
			}

			require.Equal(f, texts(stays.list()), texts(f.dump().list()), "%+v", filter)
			require.Equal(f, texts(gone), texts(told), "%+v", filter)
			maps.DeleteFunc(stays, func(_ where, e Entry) bool { return e.NAT != nil && e.NAT.Used == 0 }) // as good as absent
			require.Equal(f, texts(stays.list()), texts(survivors), "%+v", filter)
			require.EqualValues(f, len(gone), sum.Removed())
			for _, e := range gone {
				removed[e.Reason]++
			}
		}
		f.Logf("removed %v", removed)
	})
}
