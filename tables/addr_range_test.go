// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"math"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func addrRange(first, last string) AddrRange {
	return AddrRange{First: netip.MustParseAddr(first), Last: netip.MustParseAddr(last)}
}

func TestCountAddrs(t *testing.T) {
	all6 := rangeOf(netip.MustParsePrefix("::/0"))
	for want, ranges := range map[int64][]AddrRange{
		0:             nil,
		1:             {addrRange("192.0.2.1", "192.0.2.1")},
		256 + 3:       {rangeOf(netip.MustParsePrefix("192.0.2.0/24")), addrRange("::1", "::3")},
		1 << 32:       {rangeOf(netip.MustParsePrefix("0.0.0.0/0"))},
		1 << 62:       {rangeOf(netip.MustParsePrefix("2001:db8::/66"))},
		math.MaxInt64: {all6, addrRange("192.0.2.1", "192.0.2.1")},
	} {
		require.Equal(t, want, CountAddrs(ranges), ranges)
	}
}

// Spans are in order, do not overlap, and have the addresses for which Contains is true.
func TestSpans(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	addr := func() netip.Addr {
		if rng.IntN(3) == 0 {
			return netip.AddrFrom16([16]byte{0x20, 15: byte(rng.IntN(64))})
		}
		return netip.AddrFrom4([4]byte{255, 255, 255, byte(192 + rng.IntN(64))})
	}
	prefix := func() netip.Prefix {
		a := addr()
		return netip.PrefixFrom(a, a.BitLen()-rng.IntN(6)).Masked()
	}
	for range 2000 {
		p := &EgressIPPool{}
		for range rng.IntN(4) {
			p.Prefixes = append(p.Prefixes, prefix())
			if a, b := addr(), addr(); a.Is4() == b.Is4() && !b.Less(a) {
				p.Ranges = append(p.Ranges, AddrRange{a, b})
			}
			p.Excluded = append(p.Excluded, prefix())
		}
		if rng.IntN(5) == 0 {
			p.Error = "wrong"
		}
		spans := p.Spans()
		for i, s := range spans {
			require.False(t, s.Last.Less(s.First), spans)
			if i > 0 {
				require.True(t, spans[i-1].Last.Less(s.First), spans)
			}
		}
		n := int64(0)
		for i := range 64 {
			for _, a := range []netip.Addr{
				netip.AddrFrom16([16]byte{0x20, 15: byte(i)}),
				netip.AddrFrom4([4]byte{255, 255, 255, byte(192 + i)}),
			} {
				in := false
				for _, s := range spans {
					in = in || s.Contains(a)
				}
				require.Equal(t, p.Contains(a), in, "%s: %+v", a, p)
				if in {
					n++
				}
			}
		}
		require.Equal(t, n, CountAddrs(spans))
	}
}

func TestNetworkAddrs(t *testing.T) {
	for name, c := range map[string]struct {
		prefixes []string
		ranges   []AddrRange
		want     []string
	}{
		"IPv4":        {prefixes: []string{"192.0.2.0/30"}, want: []string{"192.0.2.0", "192.0.2.3"}},
		"IPv6":        {prefixes: []string{"2001:db8::/126"}, want: []string{"2001:db8::"}},
		"all":         {prefixes: []string{"0.0.0.0/0"}, want: []string{"0.0.0.0", "255.255.255.255"}},
		"two of each": {prefixes: []string{"192.0.2.0/31", "2001:db8::/127"}},
		"one of each": {prefixes: []string{"192.0.2.0/32", "2001:db8::/128"}},
		"ranges": {
			ranges: []AddrRange{addrRange("192.0.2.0", "192.0.2.255"), addrRange("::", "::9")},
		},
		"a network and a range from its first address on": {
			prefixes: []string{"192.0.2.0/28"}, ranges: []AddrRange{addrRange("192.0.2.0", "192.0.2.1")},
			want: []string{"192.0.2.15"},
		},
		"a network and its last address": {
			prefixes: []string{"192.0.2.0/28", "192.0.2.15/32"}, want: []string{"192.0.2.0"},
		},
	} {
		p := &EgressIPPool{Ranges: c.ranges}
		for _, prefix := range c.prefixes {
			p.Prefixes = append(p.Prefixes, netip.MustParsePrefix(prefix))
		}
		require.ElementsMatch(t, c.want, stringsOf(p.NetworkAddrs()), name)
	}
}
