// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// What another node's buckets bring here is spread over this node's own items,
// but for those that cannot send.
func TestOwnShare(t *testing.T) {
	addr := func(last byte) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, last}) }
	item := func(node string, last byte) (tables.GatewayChoice, *tables.EgressGateway) {
		choice := tables.GatewayChoice{Node: node, Spec: tables.GatewaySpec{EgressIP: addr(last)}}
		return choice, &tables.EgressGateway{Node: node, EgressIPv4: addr(last), IfIndex: uint32(last), Device: "eth0"}
	}
	first, firstRow := item("here", 1)
	second, secondRow := item("here", 2)
	broken, brokenRow := item("here", 3)
	*brokenRow = tables.EgressGateway{Node: "here", Reason: "no interface has the egress IP"}
	other, _ := item("there", 4)
	otherRow := &tables.EgressGateway{Node: "there"}

	share := func(choices []tables.GatewayChoice, candidates ...*tables.EgressGateway) map[netip.Addr]int {
		own := ownShare(choices, candidates)
		buckets := map[netip.Addr]int{}
		for bucket := range bpf.GatewayBuckets {
			row := &tables.EgressGateway{Node: "there"}
			own(bucket, row)
			require.Equal(t, "there", row.Node, "the gateway of the bucket stays")
			buckets[row.EgressIPv4]++
		}
		return buckets
	}
	both := share([]tables.GatewayChoice{first, other, broken, second}, firstRow, otherRow, brokenRow, secondRow)
	require.Len(t, both, 2)
	require.Greater(t, both[addr(1)], bpf.GatewayBuckets/4)
	require.Greater(t, both[addr(2)], bpf.GatewayBuckets/4)
	require.Equal(t, map[netip.Addr]int{addr(1): bpf.GatewayBuckets}, share([]tables.GatewayChoice{other, first}, otherRow, firstRow))
	require.Equal(t, map[netip.Addr]int{{}: bpf.GatewayBuckets}, share([]tables.GatewayChoice{other, broken}, otherRow, brokenRow))
}
