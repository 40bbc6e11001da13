// SPDX-License-Identifier: Apache-2.0

package verdicts

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
)

func TestLookup(t *testing.T) {
	const ruleset, peer = 1, 2
	in := bpf.DirectionIngress
	entries := map[bpf.PolicyKey]bpf.PolicyValue{
		{Ruleset: ruleset, Direction: in}:              {Set: 1},
		{Ruleset: ruleset, Class: peer, Direction: in}: {Set: 2},
	}
	verdicts := map[bpf.VerdictKey]bpf.VerdictValue{
		bpf.VerdictKeyOf(1, 0, 0, 0):     {Deny: 1, Default: 1},
		bpf.VerdictKeyOf(1, 6, 80, 16):   {Cookie: 1},
		bpf.VerdictKeyOf(2, 0, 0, 0):     {Deny: 1, Default: 1, Cookie: 2},
		bpf.VerdictKeyOf(2, 6, 0, 0):     {Cookie: 3},
		bpf.VerdictKeyOf(2, 6, 4096, 10): {Cookie: 4},
		bpf.VerdictKeyOf(2, 17, 53, 16):  {Cookie: 5, Deny: 1},
	}
	maps := Maps{
		Policy: func(k bpf.PolicyKey) (bpf.PolicyValue, bool) {
			v, found := entries[k]
			return v, found
		},
		Verdict: func(k bpf.VerdictKey) (bpf.VerdictValue, bool) {
			v, found := verdicts[k]
			return v, found
		},
	}
	for _, test := range []struct {
		name     string
		class    uint32
		protocol uint8
		port     uint16
		entry    uint32
		want     bpf.VerdictKey
	}{
		{"the default", 0, 6, 443, 0, bpf.VerdictKeyOf(1, 0, 0, 0)},
		{"a class without entry", 3, 6, 80, 0, bpf.VerdictKeyOf(1, 6, 80, 16)},
		{"the set of the class alone decides", peer, 6, 80, peer, bpf.VerdictKeyOf(2, 6, 0, 0)},
		{"the longest", peer, 6, 4100, peer, bpf.VerdictKeyOf(2, 6, 4096, 10)},
		{"a port", peer, 17, 53, peer, bpf.VerdictKeyOf(2, 17, 53, 16)},
		{"no port that is named", peer, 17, 54, peer, bpf.VerdictKeyOf(2, 0, 0, 0)},
		{"no protocol that is named", peer, 50, 0, peer, bpf.VerdictKeyOf(2, 0, 0, 0)},
	} {
		a, found := maps.Lookup(Question{ruleset, test.class, in, test.protocol, test.port})
		require.True(t, found, test.name)
		entry := bpf.PolicyKey{Ruleset: ruleset, Class: test.entry, Direction: in}
		require.Equal(t, entry, a.Entry, test.name)
		require.Equal(t, test.want, a.Key, test.name)
		require.Equal(t, verdicts[test.want], a.Verdict, test.name)
	}
	_, found := maps.Lookup(Question{Ruleset: ruleset, Direction: bpf.DirectionEgress})
	require.False(t, found)
	delete(verdicts, bpf.VerdictKeyOf(2, 0, 0, 0))
	_, found = maps.Lookup(Question{ruleset, peer, in, 50, 0})
	require.False(t, found, "a set is complete: what is said of any class does not count")
}

func TestAround(t *testing.T) {
	key := bpf.VerdictKeyOf(1, 6, 81, 16)
	around := slices.Collect(Around(key))
	require.Len(t, around, 18)
	require.Equal(t, key, around[0])
	for i, k := range around[1:] {
		require.Less(t, k.PrefixLen, around[i].PrefixLen)
	}
	require.Equal(t, bpf.VerdictKeyOf(1, 0, 0, 0), around[17])
	require.Len(t, slices.Collect(Around(around[17])), 1)
}

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
			size := 1 << (16 - p.Bits)
			if next != int(p.Port) || next%size != 0 {
				t.Fatalf("%d-%d: %v", first, last, prefixes)
			}
			next += size
		}
		if next != last+1 || len(prefixes) != fewest(first, last, 0, 65535) {
			t.Fatalf("%d-%d: %v", first, last, prefixes)
		}
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
