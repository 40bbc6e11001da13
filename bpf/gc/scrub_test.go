// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf/ctmap"
)

// What has an address that is gone goes, on whichever side it is: live or not, of
// connections and translations, with those that only lead there.
func TestScrub(t *testing.T) {
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
				want := Pass{Scanned: 2, Scrubbed: 1, Translations: 2}
				if side == "egress" { // the connection does not say it
					want = Pass{Scanned: 4, Scrubbed: 2}
				}
				require.Equal(f, want, f.run(Filter{Addrs: []netip.Addr{other, addr}}), "%s, %s", name, side)
				require.True(f, f.connected(stays), "%s, %s", name, side)
				// The addresses of one pass are not those of the next.
				f.connect(flow, ctmap.Entry{Lifetime: f.now + long})
				require.Zero(f, f.run(Filter{Addrs: []netip.Addr{other}}).Scrubbed, "%s, %s", name, side)
				f.run(Filter{All: true})
			}
			// Behind a translation of replies is the pod.
			f.translate(replies(flow), flow.Source, 0)
			require.Equal(f, Pass{Scanned: 1, Scrubbed: 1}, f.run(Filter{Addrs: []netip.Addr{flow.Source.Addr()}}), name)
			// And that of another form of the same address.
			f.connect(flow, ctmap.Entry{Lifetime: f.now + long})
			mapped := netip.AddrFrom16(flow.Source.Addr().As16())
			require.Equal(f, Pass{Scanned: 1, Scrubbed: 1}, f.run(Filter{Addrs: []netip.Addr{mapped}}), name)
		}
	})
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
	require.ErrorContains(t, err, scrubMap)
	require.True(t, f.connected(flow), "nothing was done")
	require.Equal(t, Pass{Scanned: 1}, f.run(Filter{Addrs: addrs[1:10]}))
	require.Equal(t, Pass{Scanned: 1, Scrubbed: 1}, f.run(Filter{Addrs: addrs[:1<<15]}))
}
