// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/natmap"
)

const (
	long  = 100 // seconds, longer than any grace
	grace = 2   // seconds: NAT_GRACE of bpf/programs/translation.h
)

// An expired connection goes with both of its translations, a live one stays with them.
func TestExpired(t *testing.T) {
	eachMethod(t, func(f *fixture) {
		for name, flow := range connections {
			f.connect(flow, ctmap.Entry{Lifetime: f.now - long})
			f.pair(flow, long)
			require.Equal(f, Pass{Scanned: 1, Expired: 1, Translations: 2}, f.run(Filter{Expired: true}), name)
			require.False(f, f.connected(flow), name)
			require.False(f, f.translated(flow), name)
			require.False(f, f.translated(replies(flow)), name)

			f.connect(flow, ctmap.Entry{Lifetime: f.now + long})
			f.pair(flow, long)
			require.Equal(f, Pass{Scanned: 3}, f.run(Filter{Expired: true, Orphans: true}), name)
			require.Equal(f, Pass{Scanned: 1, Flushed: 1, Translations: 2}, f.run(Filter{All: true}), name)
		}
	})
}

// A connection's last second is its own: it has expired in the next.
func TestLastSecond(t *testing.T) {
	eachMethod(t, func(f *fixture) {
		for name, flow := range connections {
			f.connect(flow, ctmap.Entry{Lifetime: 1000})
			require.Equal(f, Pass{Scanned: 1}, f.run(Filter{Expired: true, Now: 1000}), name)
			require.Equal(f, Pass{Scanned: 1}, f.run(Filter{Now: 2000}), name)
			require.Equal(f, Pass{Scanned: 1, Expired: 1}, f.run(Filter{Expired: true, Now: 1001}), name)
		}
	})
}

// What is not the original direction of a pod's connection has no translations: those
// that look like its own are another's.
func TestOthersLeaveTranslationsAlone(t *testing.T) {
	kinds := map[string]ctmap.TupleFlags{
		"service": ctmap.Service, "related": ctmap.Related, "in": ctmap.In, "in, related": ctmap.In | ctmap.Related,
	}
	eachMethod(t, func(f *fixture) {
		for name, flow := range connections {
			for kind, flags := range kinds {
				f.connect(flow, ctmap.Entry{Lifetime: f.now + long})
				f.pair(flow, long)
				other := flow
				other.Flags = flags
				f.connect(other, ctmap.Entry{Lifetime: f.now - long})
				require.Equal(f, Pass{Scanned: 4, Expired: 1}, f.run(Filter{Expired: true, Orphans: true}), "%s, %s", name, kind)
				require.True(f, f.connected(flow) && f.translated(flow) && f.translated(replies(flow)), "%s, %s", name, kind)
				f.run(Filter{All: true})
			}
		}
	})
}

// A port that has become another flow's is not taken from it.
func TestTakenOver(t *testing.T) {
	eachMethod(t, func(f *fixture) {
		for name, flow := range connections {
			other := flow
			other.Source = netip.AddrPortFrom(flow.Source.Addr(), flow.Source.Port()+100)
			f.connect(flow, ctmap.Entry{Lifetime: f.now - long})
			f.connect(other, ctmap.Entry{Lifetime: f.now + long})
			f.translate(flow, egress(flow), long)
			f.translate(other, egress(flow), long)
			f.translate(replies(flow), other.Source, long)
			require.Equal(f, Pass{Scanned: 4, Expired: 1, Translations: 1}, f.run(Filter{Expired: true, Orphans: true}), name)
			require.False(f, f.translated(flow), name)
			require.True(f, f.translated(other) && f.translated(replies(flow)), name)
			f.run(Filter{All: true})
		}
	})
}

// A translation that was used a moment ago outlives its connection: the flow is
// about to be tracked again. Later it goes as one without connection.
func TestJustUsed(t *testing.T) {
	eachMethod(t, func(f *fixture) {
		for name, flow := range connections {
			f.connect(flow, ctmap.Entry{Lifetime: f.now - long})
			f.pair(flow, 0)
			both := Filter{Expired: true, Orphans: true, Now: f.now + grace}
			require.Equal(f, Pass{Scanned: 3, Expired: 1, Kept: 3}, f.run(both), name)
			require.Equal(f, Pass{Scanned: 2, Kept: 2}, f.run(both), name)
			both.Now++
			require.Equal(f, Pass{Scanned: 2, Orphans: 2}, f.run(both), name)
		}
	})
}

func TestOrphans(t *testing.T) {
	only := Filter{Orphans: true}
	eachMethod(t, func(f *fixture) {
		for name, flow := range connections {
			for what, records := range map[string]func(idle, needsCT uint32) (n uint64){
				"out": func(idle, needsCT uint32) uint64 {
					f.translateNeeding(flow, egress(flow), f.now-idle, needsCT)
					return 1
				},
				"in": func(idle, needsCT uint32) uint64 {
					f.translateNeeding(replies(flow), flow.Source, f.now-idle, needsCT)
					return 1
				},
				"both": func(idle, needsCT uint32) uint64 {
					f.translateNeeding(flow, egress(flow), f.now-idle, needsCT)
					f.translateNeeding(replies(flow), flow.Source, f.now-idle, needsCT)
					return 2
				},
				"of other ports": func(idle, needsCT uint32) uint64 {
					f.translateNeeding(flow, netip.AddrPortFrom(egress(flow).Addr(), 9), f.now-idle, needsCT)
					f.translateNeeding(replies(flow), flow.Source, f.now-idle, needsCT)
					return 2
				},
			} {
				n := records(long, 1)
				require.Equal(f, Pass{Scanned: n, Orphans: n}, f.run(only), "%s, %s", name, what)
				f.requireEmpty()

				records(0, 1)
				young := Filter{Orphans: true, Now: f.now + grace}
				require.Equal(f, Pass{Scanned: n, Kept: n}, f.run(young), "%s, %s: within the grace", name, what)
				young.Now++
				require.Equal(f, Pass{Scanned: n, Orphans: n}, f.run(young), "%s, %s: past the grace", name, what)

				records(long, 0)
				require.Equal(f, Pass{Scanned: n}, f.run(only), "%s, %s: needs none", name, what)

				records(long, 1)
				f.connect(flow, ctmap.Entry{Lifetime: f.now - long})
				require.Equal(f, Pass{Scanned: n + 1}, f.run(only), "%s, %s: expired, but present", name, what)
				records(long, 1)
				f.connect(flow, ctmap.Entry{})
				require.Equal(f, Pass{Scanned: n + 1, Condemned: 1, Translations: f.pairOf(what)}.orphans(n), f.run(only), "%s, %s: condemned", name, what)
				f.run(Filter{All: true})
			}
		}
	})
}

// pairOf returns how many of the records of TestOrphans go with their connection,
// once that is removed.
func (f *fixture) pairOf(what string) uint64 {
	return map[string]uint64{"out": 1, "in": 0, "both": 2, "of other ports": 1}[what]
}

// orphans has those of n records be orphans that do not go with a connection; then
// the connection's are not seen in their own map any more.
func (p Pass) orphans(n uint64) Pass {
	p.Orphans = n - p.Translations
	p.Scanned -= p.Translations
	return p
}

// A pod's UDP connection stays for late replies, others do not.
func TestReplyGrace(t *testing.T) {
	eachMethod(t, func(f *fixture) {
		for name, flow := range connections {
			f.connect(flow, ctmap.Entry{Lifetime: f.now})
			f.pair(flow, long)
			filter := Filter{Expired: true, Orphans: true, Now: f.now + 60, ReplyGrace: time.Minute}
			want := Pass{Scanned: 1, Expired: 1, Translations: 2}
			if flow.Protocol == unix.IPPROTO_UDP {
				require.Equal(f, Pass{Scanned: 3, Kept: 1}, f.run(filter), name)
				flow.Flags = ctmap.In
				f.connect(flow, ctmap.Entry{Lifetime: f.now})
				require.Equal(f, Pass{Scanned: 4, Kept: 1, Expired: 1}, f.run(filter), name)
				filter.Now++
			}
			require.Equal(f, want, f.run(filter), name)
		}
	})
}

// A grace that ends after the clock's seconds do has no end.
func TestLongestReplyGrace(t *testing.T) {
	eachMethod(t, func(f *fixture) {
		for _, name := range []string{"IPv4 UDP", "IPv6 UDP"} {
			flow := connections[name]
			f.connect(flow, ctmap.Entry{Lifetime: f.now - 1})
			filter := Filter{Expired: true, ReplyGrace: math.MaxUint32 * time.Second}
			require.Equal(f, Pass{Scanned: 1, Kept: 1}, f.run(filter), name)
			require.True(f, f.connected(flow), name)
			f.run(Filter{All: true})
		}
	})
}

// An IPv6 key may have IPv4-mapped addresses. It goes as one of its own map, and what
// is IPv4 and has the same numbers stays.
func TestMappedAddresses(t *testing.T) {
	mapped := func(a netip.AddrPort) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr().As16()), a.Port())
	}
	eachMethod(t, func(f *fixture) {
		for _, name := range []string{"IPv4 TCP", "IPv4 UDP"} {
			v4 := connections[name]
			v6 := v4
			v6.Source, v6.Destination = mapped(v4.Source), mapped(v4.Destination)
			translations := func() {
				f.translate(v6, mapped(egress(v4)), long)
				back := replies(v4)
				back.Source, back.Destination = mapped(back.Source), mapped(back.Destination)
				f.translate(back, v6.Source, long)
			}
			var told []string
			filter := Filter{Expired: true, Orphans: true, Removed: func(e Entry) { told = append(told, e.Map) }}

			f.connect(v4, ctmap.Entry{Lifetime: f.now + long})
			f.pair(v4, long)
			f.connect(v6, ctmap.Entry{Lifetime: f.now - long})
			translations()
			require.Equal(f, Pass{Scanned: 4, Expired: 1, Translations: 2}, f.run(filter), name)
			require.ElementsMatch(f, []string{natmap.Name6, natmap.Name6, ctmap.CTName(true, v6.Protocol)}, told, name)
			translations()
			told = nil
			require.Equal(f, Pass{Scanned: 5, Orphans: 2}, f.run(filter), "%s: the connection of IPv4 is not theirs", name)
			require.Equal(f, []string{natmap.Name6, natmap.Name6}, told, name)
			require.True(f, f.connected(v4) && f.translated(v4) && f.translated(replies(v4)), name)
			f.run(Filter{All: true})
		}
	})
}

// An entry that was condemned and not deleted goes: a connection at once, as only passes
// remove any; a translation when it has stayed condemned for a while. Until then it is
// counted as kept, so that there is a next pass.
func TestCondemned(t *testing.T) {
	t.Parallel()
	eachMethod(t, func(f *fixture) {
		f.TB.(*testing.T).Parallel() // as it waits
		var told []Entry
		look := Filter{Removed: func(e Entry) { told = append(told, e) }}
		for _, flow := range connections {
			f.connect(flow, ctmap.Entry{})
			f.translateNeeding(flow, egress(flow), 0, 1)
			f.translateNeeding(replies(flow), flow.Source, 0, 0)
		}
		n := uint64(len(connections))
		require.Equal(f, Pass{Scanned: 3 * n, Condemned: n, Kept: 2 * n}, f.run(look))
		require.Equal(f, Pass{Scanned: 2 * n, Kept: 2 * n}, f.run(look))
		time.Sleep(grace*time.Second + 100*time.Millisecond)
		other := connections["IPv4 TCP"] // another has been made and condemned in its place
		f.translateMade(other, egress(other), 1, 0, 1)
		require.Equal(f, Pass{Scanned: 2 * n, Condemned: 2*n - 1, Kept: 1}, f.run(look))
		require.True(f, f.translated(other))
		left := len(f.dump())
		require.Len(f, told, int(3*n)-left, "each is told of once")
		for _, e := range told {
			require.Equal(f, Condemned, e.Reason)
		}
		f.flush()
	})
}

func TestNextExpiry(t *testing.T) {
	eachMethod(t, func(f *fixture) {
		for name, flow := range connections {
			for i, lifetime := range []uint32{900, 1005, 1003, 1009} {
				flow.Source = netip.AddrPortFrom(flow.Source.Addr(), uint16(i))
				f.connect(flow, ctmap.Entry{Lifetime: lifetime})
			}
			passes, err := f.Run(f.Context(), Filter{Expired: true, Now: 1000})
			require.NoError(f, err)
			for _, p := range passes {
				if p.Map == ctmap.CTName(flow.Is6(), flow.Protocol) {
					require.Equal(f, uint32(1003), p.NextExpiry, name)
				} else {
					require.Zero(f, p.NextExpiry, p.Map)
				}
			}
			f.run(Filter{All: true})
		}
	})
}

// A set need not have all maps.
func TestMissingMaps(t *testing.T) {
	for _, method := range []Method{"", Iterator, Keys} {
		for missing := range mapCount {
			f := newFixtureOf(t, method, 100, func(name string) bool { return name != names[missing] })
			for name, flow := range connections {
				if m, _ := f.ct(flow); m == nil {
					continue
				}
				f.connect(flow, ctmap.Entry{Lifetime: f.now - long})
				want := Pass{Scanned: 1, Expired: 1}
				if m, _ := f.nat(flow); m != nil {
					f.pair(flow, long)
					want.Translations = 2
				}
				require.Equal(t, want, f.run(Filter{Expired: true, Orphans: true}), "%s without %s, %s", method, names[missing], name)
			}
			f.requireEmpty()
			counts, err := f.Count()
			require.NoError(t, err)
			require.Len(t, counts.Entries, mapCount-1)
			require.NotContains(t, counts.Entries, names[missing])
		}
		f := newFixtureOf(t, method, 100, func(string) bool { return false })
		require.Zero(t, f.run(Filter{All: true}))
	}
}

// Translations whose map of connections does not exist are without connection.
func TestOrphansWithoutMap(t *testing.T) {
	for _, method := range []Method{Iterator, Keys} {
		f := newFixtureOf(t, method, 100, func(name string) bool { return name != ctmap.CT4TCP })
		f.pair(connections["IPv4 TCP"], long)
		require.Equal(t, Pass{Scanned: 2, Orphans: 2}, f.run(Filter{Orphans: true}), method)
	}
}
