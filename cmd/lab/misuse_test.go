// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMisuse: that two nodes use an address by turns is found however often they do, and an address
// that moves is no misuse, though the last packets of its former node are late.
func TestMisuse(t *testing.T) {
	const lease = time.Second
	addr, nodes := netip.MustParseAddr("192.0.2.1"), map[string]string{"a": "node-a", "b": "node-b"}
	used := func(mac string, from, to, every time.Duration) (all []use) {
		for at := from; at < to; at += every {
			all = append(all, use{time.Unix(1, 0).Add(at), addr, mac, usePacket})
		}
		return all
	}
	merged := func(parts ...[]use) []use {
		all := slices.Concat(parts...)
		slices.SortStableFunc(all, func(x, y use) int { return x.at.Compare(y.at) })
		return all
	}
	for _, every := range []time.Duration{1, 10, 20, 29, 40} {
		every *= time.Millisecond
		all := merged(used("a", 0, lease, 2*every), used("b", every, lease, 2*every))
		require.ErrorContains(t, misuse(all, addr, lease, nodes), "though node-", every)
		require.NoError(t, misuse(all, netip.MustParseAddr("192.0.2.2"), lease, nodes))
	}

	// One packet of another node among many.
	among := used("b", lease/2, lease/2+1, lease)
	all := merged(used("a", 0, lease, time.Millisecond), among)
	require.ErrorContains(t, misuse(all, addr, lease, nodes), "though node-b")

	// It moves, and back after a lease, with the last packets of either node late.
	for _, every := range []time.Duration{1, 10, 29} {
		every *= time.Millisecond
		all = merged(used("a", 0, lease+onItsWay, every), used("b", lease, 2*lease+onItsWay, every),
			used("a", 2*lease, 3*lease, every))
		require.NoError(t, misuse(all, addr, lease, nodes))
	}
	require.ErrorContains(t, misuse(used("c", 0, lease, lease), addr, lease, nodes), "is no node")

	// As many as a long test has, by turns as fast as the address can move.
	all = nil
	for i := range 100 {
		from := time.Duration(i) * lease
		all = append(all, used([]string{"a", "b"}[i%2], from, from+lease, time.Millisecond)...)
	}
	require.Len(t, all, 100_000)
	require.NoError(t, misuse(all, addr, lease, nodes))
}
