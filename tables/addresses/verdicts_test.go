// SPDX-License-Identifier: Apache-2.0

package addresses

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// A peer that goes where others have gone before, by the same verdicts and to nobody's
// loss, is not looked at again.
func TestPeersGoTheSameWay(t *testing.T) {
	v := newVerdicts()
	all := func(uint32) bool { return true }
	affected := false
	affect := func(netip.Addr) { affected = true }
	entry := func(peer, precedence uint32, deny uint8) {
		key := bpf.PolicyKeyOf(1, peer, bpf.DirectionIngress, 0, 0, 0)
		v.policyChanged(nil, nil, &tables.PolicyMapEntry{Key: key, Value: bpf.PolicyValue{Precedence: precedence, Deny: deny}}, affect)
	}
	addr := netip.MustParseAddr("10.0.0.1")
	comes := func() {
		addr = addr.Next()
		v.peerChanged(nil, nil, &tables.IPCacheEntry{Key: bpf.IPCacheKeyFrom(single(addr)), Value: bpf.IPCacheValue{PeerClass: 2}}, affect)
	}
	// round returns whether there is one for a change, and the subjects that lose by it.
	round := func(change func()) (bool, map[uint32]bool) {
		affected = false
		change()
		return affected, v.turn(all)
	}
	round(func() { entry(bpf.AnyPeerClass, 1, 0) })

	is, losers := round(comes)
	require.True(t, is)
	require.Empty(t, losers)
	is, _ = round(comes)
	require.False(t, is)

	is, losers = round(func() { entry(2, bpf.PrecedenceDeny, 1); comes() })
	require.True(t, is)
	require.Equal(t, map[uint32]bool{1: true}, losers)
	for range 2 {
		is, losers = round(comes)
		require.True(t, is)
		require.Equal(t, map[uint32]bool{1: true}, losers)
	}
}
