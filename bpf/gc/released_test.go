// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf/ctmap"
)

// What has an address that is gone goes, on whichever side it is: live or not, of
// connections and translations, with those that only lead there.
func TestReleased(t *testing.T) {
	eachMethod(t, func(f *fixture) {
		for name, flow := range connections {
			for side, addr := range map[string]netip.Addr{
				"source": flow.Source.Addr(), "destination": flow.Destination.Addr(), "egress": egress(flow).Addr(),
			} {
				stays := flow
				stays.Source = netip.AddrPortFrom(flow.Source.Addr().Next(), 7)
				stays.Destination = netip.AddrPortFrom(flow.Destination.Addr().Next(), 8)
				f.connect(stays, ctmap.Entry{Lifetime: f.now + long})
				f.connect(flow, ctmap.Entry{Lifetime: f.now + long})
				f.pair(flow, 0)
				other := netip.MustParseAddr("203.0.113.9")
				require.Equal(f, Pass{Scanned: 4}, f.run(Filter{Addrs: []netip.Addr{other}}), "%s, %s", name, side)
				want := Pass{Scanned: 2, Released: 1, Translations: 2}
				if side == "egress" { // the connection does not say it
					want = Pass{Scanned: 4, Released: 2}
				}
				require.Equal(f, want, f.run(Filter{Addrs: []netip.Addr{other, addr}}), "%s, %s", name, side)
				require.True(f, f.connected(stays), "%s, %s", name, side)
				// The addresses of one pass are not those of the next.
				f.connect(flow, ctmap.Entry{Lifetime: f.now + long})
				require.Zero(f, f.run(Filter{Addrs: []netip.Addr{other}}).Released, "%s, %s", name, side)
				f.run(Filter{All: true})
			}
			// Behind a translation of replies is the pod.
			f.translate(replies(flow), flow.Source, 0)
			gone := Filter{Addrs: []netip.Addr{flow.Source.Addr()}}
			require.Equal(f, Pass{Scanned: 1, Released: 1}, f.run(gone), name)
			// And that of another form of the same address.
			f.connect(flow, ctmap.Entry{Lifetime: f.now + long})
			mapped := netip.AddrFrom16(flow.Source.Addr().As16())
			require.Equal(f, Pass{Scanned: 1, Released: 1}, f.run(Filter{Addrs: []netip.Addr{mapped}}), name)
		}
	})
}

// What is to go now goes in one call, however much there is of it and whatever writes
// to the map meanwhile: there is no second request for it.
func TestNothingIsMissed(t *testing.T) {
	const flows, others, room = 30000, 10000, 1 << 17
	gone := netip.MustParseAddr("192.0.2.99")
	filters := map[string]Filter{"released": {Addrs: []netip.Addr{gone}}, "flush": {All: true}}
	for name, filter := range filters {
		for _, busy := range []bool{false, true} {
			if filter.All && busy {
				continue // there is no saying what is to be left
			}
			t.Run(fmt.Sprintf("%s, busy %v", name, busy), func(t *testing.T) {
				f := newFixtureOf(t, Iterator, room, func(name string) bool { return name == ctmap.CT4TCP })
				for i := range flows {
					flow := manyFlow(2 * i)
					flow.Destination = netip.AddrPortFrom(gone, 80)
					f.connect(flow, ctmap.Entry{Lifetime: f.now + long})
				}
				var done atomic.Bool
				ended := make(chan error, 1)
				go func() {
					for i := 0; busy && !done.Load(); i = (i + 1) % others {
						if err := f.CT4TCP.Put(ctmap.NewKey4(manyFlow(2*i)), ctmap.Entry{Lifetime: f.now + long}); err != nil {
							ended <- err
							return
						}
					}
					ended <- nil
				}()
				sum := f.run(filter)
				done.Store(true)
				require.NoError(t, <-ended)
				require.EqualValues(t, flows, sum.Released+sum.Flushed)
				for w := range f.dump() {
					require.NotEqual(t, gone, w.tuple.Destination.Addr())
				}
			})
		}
	}
}

func TestTooManyAddresses(t *testing.T) {
	f := newFixture(t, Iterator)
	flow := connections["IPv4 TCP"]
	f.connect(flow, ctmap.Entry{Lifetime: f.now + long})
	addrs := []netip.Addr{flow.Source.Addr()}
	for a := netip.MustParseAddr("11.0.0.0"); len(addrs) < 1<<16+1; a = a.Next() {
		addrs = append(addrs, a)
	}
	_, err := f.Run(t.Context(), Filter{Addrs: addrs})
	require.ErrorContains(t, err, releasedMap)
	require.True(t, f.connected(flow), "nothing was done")
	require.Equal(t, Pass{Scanned: 1}, f.run(Filter{Addrs: addrs[1:10]}))
	require.Equal(t, Pass{Scanned: 1, Released: 1}, f.run(Filter{Addrs: addrs[:1<<15]}))
}
