// SPDX-License-Identifier: Apache-2.0

package pools

import (
	"math"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

func policy(name string, destinations ...string) *tables.EgressPolicy {
	p := &tables.EgressPolicy{Name: name, Gateways: []tables.GatewaySpec{{Pool: "p"}}}
	for _, d := range destinations {
		p.Destinations = append(p.Destinations, netip.MustParsePrefix(d))
	}
	return p
}

func allocated(of ...string) (allocations []tables.PoolAllocation) {
	for i := 0; i < len(of); i += 2 {
		allocations = append(allocations,
			tables.PoolAllocation{Addr: netip.MustParseAddr(of[i]), Policy: of[i+1]})
	}
	return allocations
}

// A policy gets the lowest address that is free, of its family if there is one, and keeps it.
func TestAssignAddresses(t *testing.T) {
	p := &tables.EgressIPPool{
		Name: "p", PortsPerBlock: 256, Object: &tables.PoolObject{ResourceVersion: "1"},
		Prefixes: []netip.Prefix{
			netip.MustParsePrefix("192.0.2.0/30"), netip.MustParsePrefix("2001:db8::/127"),
		},
		Excluded: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/32")},
	}
	older := &tables.EgressIPPool{Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.3/32")}}
	named := map[netip.Addr]bool{
		netip.MustParseAddr("192.0.2.1"): true, netip.MustParseAddr("198.51.100.1"): true,
	}
	status := func(policies ...*tables.EgressPolicy) *tables.EgressIPPoolStatus {
		u := uses{named: named, wants: map[string][]*tables.EgressPolicy{"p": policies}}
		s := row(p, []*tables.EgressIPPool{older}, nil, nil, u, begin)
		p.Allocations = s.Allocations
		return s
	}
	six := policy("six", "2001:db8:1::/48")
	s := status(six, policy("a", "0.0.0.0/0", "::/0"))
	require.Equal(t, allocated("192.0.2.2", "a", "2001:db8::", "six"), s.Allocations)
	require.Equal(t, tables.PoolAddresses{Total: 4, Used: 3}, s.Addresses)

	// The pool has no IPv4 address left, and then none at all.
	s = status(policy("b", "0.0.0.0/0"), policy("c", "0.0.0.0/0"), six, policy("a"))
	require.Equal(t, allocated("192.0.2.2", "a", "2001:db8::", "six", "2001:db8::1", "b"),
		s.Allocations)
	require.Equal(t, []tables.Problem{{
		Reason: "NoFreeAddress", Condition: "AddressesAssigned",
		Message: "The pool has no free address for 1 policies: c",
	}}, s.Problems)
	require.Equal(t, tables.PoolAddresses{Total: 4, Used: 4}, s.Addresses)

	// What a policy leaves is another one's, and what is excluded is given up.
	p.Excluded = append(p.Excluded, netip.MustParsePrefix("2001:db8::/128"))
	s = status(policy("b", "0.0.0.0/0"), policy("c", "0.0.0.0/0"), six)
	require.Equal(t, allocated("192.0.2.2", "c", "2001:db8::1", "b"), s.Allocations)

	// A pool with a mistake gives nothing more, and what it has given stays.
	p.Error = "spec.exclude: wrong"
	s = status(policy("b"), policy("c"), six)
	require.Equal(t, allocated("192.0.2.2", "c", "2001:db8::1", "b"), s.Allocations)

	// An item of the addresses is misspelled, and then corrected: policies have what they had.
	p.Error, p.Prefixes = "", p.Prefixes[1:]
	p.Errors = []tables.FieldError{{Field: "spec.cidrs[0]", Reason: "wrong"}}
	s = status(policy("b"), policy("c"), policy("d"), six)
	require.Equal(t, allocated("192.0.2.2", "c", "2001:db8::1", "b"), s.Allocations)
	p.Errors, older.Error = nil, "spec.exclude: wrong"
	s = status(policy("b"), policy("c"), six)
	require.Equal(t, allocated("192.0.2.2", "c", "2001:db8::1", "b"), s.Allocations)
	older.Error = ""
	s = status(policy("b"), policy("c"), six)
	require.Equal(t, allocated("2001:db8::1", "b"), s.Allocations, "it is the pool's no more")
}

// A policy gets no address of a network and none of a Node, also if it had to go without. What
// policies name or have already stays theirs.
func TestReservedAddresses(t *testing.T) {
	addr := netip.MustParseAddr
	p := &tables.EgressIPPool{
		Name: "p", PortsPerBlock: 256, Object: &tables.PoolObject{ResourceVersion: "1"},
		Prefixes: []netip.Prefix{
			netip.MustParsePrefix("192.0.2.0/29"), netip.MustParsePrefix("2001:db8::/126"),
		},
		Ranges: []tables.AddrRange{{First: addr("198.51.100.0"), Last: addr("198.51.100.1")}},
	}
	u := uses{
		named: map[netip.Addr]bool{},
		internal: map[netip.Addr]string{
			addr("192.0.2.1"): "node-1", addr("192.0.2.2"): "node-2", addr("192.0.2.5"): "node-3",
			addr("192.0.2.7"): "node-4", addr("2001:db8::1"): "node-1", addr("203.0.113.1"): "node-1",
		},
	}
	status := func(policies ...*tables.EgressPolicy) *tables.EgressIPPoolStatus {
		u.wants = map[string][]*tables.EgressPolicy{"p": policies}
		s := row(p, nil, nil, nil, u, begin)
		p.Allocations = s.Allocations
		return s
	}
	total := func(s *tables.EgressIPPoolStatus) [2]int64 {
		return [2]int64{s.Addresses.Used, s.Addresses.Total}
	}
	four, six := []string{"0.0.0.0/0"}, []string{"2001:db8:1::/48"}
	require.Equal(t, [2]int64{0, 3 + 2 + 2}, total(status()))
	all := []*tables.EgressPolicy{
		policy("a", four...), policy("b", six...), policy("c", four...), policy("d", four...),
		policy("e", four...), policy("f", four...), policy("g", six...), policy("h", four...),
	}
	s := status(all...)
	require.Equal(t, allocated(
		"192.0.2.3", "a", "192.0.2.4", "c", "192.0.2.6", "d", "198.51.100.0", "e", "198.51.100.1", "f",
		"2001:db8::2", "b", "2001:db8::3", "g"), s.Allocations)
	require.Equal(t, [2]int64{7, 7}, total(s))
	require.Len(t, s.Problems, 1)
	require.Contains(t, s.Problems[0].Message, "no free address for 1 policies: h")

	// What policies name is theirs, and counts.
	u.named = map[netip.Addr]bool{addr("192.0.2.0"): true, addr("192.0.2.1"): true}
	require.Equal(t, [2]int64{9, 9}, total(status(all...)))

	// A Node comes with an address that a policy has, which it keeps until the pool has it no more.
	u.named = nil
	u.internal[addr("192.0.2.3")] = "node-5"
	s = status(all[:1]...)
	require.Equal(t, allocated("192.0.2.3", "a"), s.Allocations)
	require.Equal(t, [2]int64{1, 7}, total(s))
	p.Excluded = []netip.Prefix{netip.MustParsePrefix("192.0.2.3/32")}
	s = status(all[:1]...)
	require.Equal(t, allocated("192.0.2.4", "a"), s.Allocations)
	require.Equal(t, [2]int64{1, 6}, total(s))

	// A fixed pool gives no addresses, so that all of them are for policies to name.
	p.Fixed = true
	require.Equal(t, [2]int64{0, 8 - 1 + 4 + 2}, total(status()))

	// More addresses than can be counted.
	p.Fixed, p.Prefixes = false, []netip.Prefix{netip.MustParsePrefix("::/0")}
	require.Equal(t, [2]int64{0, math.MaxInt64}, total(status()))
}
