// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// verdict is the group that an address is sent to, from first principles: for
// each policy in order, the longest of its prefixes that has the address; among
// the policies for which that is a destination, the longest wins.
func verdict(contenders []contender, addr netip.Addr) uint32 {
	group, best := bpf.GroupExcluded, -1
	for _, c := range contenders {
		destination, excluded := -1, -1
		for _, p := range c.policy.Destinations {
			if p.Contains(addr) {
				destination = max(destination, p.Bits())
			}
		}
		for _, p := range c.policy.Excluded {
			if p.Contains(addr) {
				excluded = max(excluded, p.Bits())
			}
		}
		if destination > excluded && destination > best {
			group, best = c.group, destination
		}
	}
	return group
}

// lookup is the kernel's longest-prefix match over the rules.
func lookup(rules []*tables.EgressRule, addr netip.Addr) uint32 {
	group, best := bpf.GroupExcluded, -1
	for _, r := range rules {
		if r.Destination.Contains(addr) && r.Destination.Bits() > best {
			group, best = r.Group, r.Destination.Bits()
		}
	}
	return group
}

func TestRulesAgainstFirstPrinciples(t *testing.T) {
	for seed := range uint64(2000) {
		random := rand.New(rand.NewPCG(seed, 0))
		// A small space of addresses, so that prefixes nest and coincide.
		prefix := func() netip.Prefix {
			addr := netip.AddrFrom4([4]byte{10, 0, 0, byte(random.IntN(16))})
			return netip.PrefixFrom(addr, 28+random.IntN(5)).Masked()
		}
		prefixes := func(n int) (out []netip.Prefix) {
			for range n {
				out = append(out, prefix())
			}
			return out
		}
		var contenders []contender
		for i := range 1 + random.IntN(4) {
			contenders = append(contenders, contender{
				policy: &tables.EgressPolicy{
					Name:         fmt.Sprintf("policy-%d", i),
					Destinations: prefixes(1 + random.IntN(3)),
					Excluded:     prefixes(random.IntN(3)),
				},
				group: uint32(i + 1),
			})
		}
		var rules []*tables.EgressRule
		for _, c := range contenders {
			for _, p := range slices.Concat(c.policy.Destinations, c.policy.Excluded) {
				rules = append(rules, decide(contenders, 1, p))
			}
		}
		for last := range 16 {
			addr := netip.AddrFrom4([4]byte{10, 0, 0, byte(last)})
			require.Equal(t, verdict(contenders, addr), lookup(rules, addr), "seed %d, %s", seed, addr)
		}
	}
}

func TestOverrides(t *testing.T) {
	policy := func(name string, destinations, excluded []string) *tables.EgressPolicy {
		p := &tables.EgressPolicy{Name: name}
		for _, d := range destinations {
			p.Destinations = append(p.Destinations, netip.MustParsePrefix(d))
		}
		for _, e := range excluded {
			p.Excluded = append(p.Excluded, netip.MustParsePrefix(e))
		}
		return p
	}
	contenders := []contender{
		{policy("old", []string{"0.0.0.0/0", "192.0.2.0/24"}, []string{"192.0.2.128/25"}), "", 1},
		{policy("new", []string{"192.0.2.0/24"}, nil), "", 2},
		{policy("newest", []string{"192.0.2.0/24", "198.51.100.0/24"}, nil), "", 3},
	}
	for _, test := range []struct {
		prefix    string
		group     uint32
		policy    string
		overrides []string
	}{
		{"0.0.0.0/0", 1, "old", nil},
		{"192.0.2.0/24", 1, "old", []string{"new", "newest"}},
		{"192.0.2.128/25", 2, "new", nil},     // excluded by the old one only
		{"198.51.100.0/24", 3, "newest", nil}, // longer than the old one's
	} {
		rule := decide(contenders, 1, netip.MustParsePrefix(test.prefix))
		require.Equal(t, test.group, rule.Group, test.prefix)
		require.Equal(t, test.policy, rule.Policy, test.prefix)
		require.Equal(t, test.overrides, rule.Overrides, test.prefix)
	}
}
