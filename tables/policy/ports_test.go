// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
)

// fewest is how many prefixes a range takes, by splitting the space of all ports.
func fewest(first, last, low, high int) int {
	switch {
	case last < low || high < first:
		return 0
	case first <= low && high <= last:
		return 1
	}
	middle := (low + high) / 2
	return fewest(first, last, low, middle) + fewest(first, last, middle+1, high)
}

func TestPortPrefixes(t *testing.T) {
	check := func(first, last int) {
		next, prefixes := first, PortPrefixes(uint16(first), uint16(last))
		for _, p := range prefixes {
			require.Equal(t, next, int(p.Port), "%d-%d: %v", first, last, prefixes)
			size := 1 << (16 - p.Bits)
			require.Zero(t, int(p.Port)%size, "%d-%d: %v", first, last, prefixes)
			next += size
		}
		require.Equal(t, last+1, next, "%d-%d: %v", first, last, prefixes)
		require.Len(t, prefixes, fewest(first, last, 0, 65535), "%d-%d", first, last)
	}
	for first := range 130 {
		for last := first; last < 130; last++ {
			check(first, last)
			check(65535-last, 65535-first)
			check(first, 65535-last)
		}
	}
	check(0, 65535)
	check(32767, 32768)
	require.Equal(t, []PortPrefix{{8000, 10}, {8064, 12}, {8080, 16}}, PortPrefixes(8000, 8080))
}

func TestCovering(t *testing.T) {
	key := bpf.PolicyKeyOf(1, 2, bpf.DirectionIngress, 6, 81, 16)
	covers := slices.Collect(Covering(key))
	require.Len(t, covers, 18)
	require.Equal(t, key, covers[0])
	for i, c := range covers {
		require.True(t, c.Covers(key), "%s", c)
		if i > 0 {
			require.Less(t, c.PrefixLen, covers[i-1].PrefixLen)
			require.True(t, c.Covers(covers[i-1]))
		}
	}
	require.True(t, covers[17].AnyProtocol())
	require.Len(t, slices.Collect(Covering(covers[17])), 1)
}

func TestLookup(t *testing.T) {
	const subject, peer = 1, 2
	ingress := func(peer uint32, protocol uint8, port uint16, bits int) bpf.PolicyKey {
		return bpf.PolicyKeyOf(subject, peer, bpf.DirectionIngress, protocol, port, bits)
	}
	allow, deny := bpf.PolicyValue{Precedence: 1}, bpf.PolicyValue{Precedence: 2, Deny: 1}
	denied := bpf.PolicyValue{Deny: 1}
	entries := map[bpf.PolicyKey]bpf.PolicyValue{
		ingress(0, 0, 0, 0):        denied,
		ingress(0, 6, 80, 16):      deny,
		ingress(peer, 6, 0, 0):     allow,
		ingress(peer, 17, 53, 16):  deny,
		ingress(0, 17, 0, 0):       allow,
		ingress(peer, 132, 0, 0):   {Precedence: 1, Cookie: 1},
		ingress(0, 132, 0, 0):      {Precedence: 1, Cookie: 2, Deny: 1},
		ingress(peer, 6, 4096, 10): {Precedence: 1, Cookie: 3},
	}
	for _, test := range []struct {
		name     string
		peer     uint32
		protocol uint8
		port     uint16
		want     bpf.PolicyKey
	}{
		{"the default", 0, 6, 443, ingress(0, 0, 0, 0)},
		{"the default of a peer without entries", 3, 6, 443, ingress(0, 0, 0, 0)},
		{"an allow over the default", peer, 6, 443, ingress(peer, 6, 0, 0)},
		{"a denial of any peer over an allow", peer, 6, 80, ingress(0, 6, 80, 16)},
		{"a denial of the peer over an allow of any", peer, 17, 53, ingress(peer, 17, 53, 16)},
		{"an allow of any peer", peer, 17, 54, ingress(0, 17, 0, 0)},
		{"a denial of the same precedence", peer, 132, 1, ingress(0, 132, 0, 0)},
		{"the longest", peer, 6, 4100, ingress(peer, 6, 4096, 10)},
		{"a protocol that nobody names", peer, 50, 0, ingress(0, 0, 0, 0)},
	} {
		get := func(k bpf.PolicyKey) (v bpf.PolicyValue, found bool) { v, found = entries[k]; return }
		value, key, found := Lookup(get, subject, test.peer, bpf.DirectionIngress, test.protocol, test.port)
		require.True(t, found, test.name)
		require.Equal(t, test.want, key, test.name)
		require.Equal(t, entries[test.want], value, test.name)
		_, _, found = Lookup(get, subject, test.peer, bpf.DirectionEgress, test.protocol, test.port)
		require.False(t, found, test.name)
	}
}
