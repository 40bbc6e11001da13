// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

func elected(n int) []tables.GatewayChoice {
	gateways := make([]tables.GatewayChoice, n)
	for i := range gateways {
		gateways[i].Node = fmt.Sprintf("node-%d", i)
	}
	return gateways
}

// Every gateway gets a share, and a gateway that is lost moves only its own.
func TestSpreadMovesOnlyTheShareOfTheLost(t *testing.T) {
	for _, n := range []int{1, 2, 3, 8, 64} {
		gateways := elected(n)
		before := spread(gateways)
		share := make([]int, n)
		for _, chosen := range before {
			share[chosen]++
		}
		if n <= 8 {
			require.Greater(t, slices.Min(share), bpf.GatewayBuckets/n/2, "%d gateways: %v", n, share)
		}
		for lost := range gateways {
			remaining := slices.Clone(gateways)
			remaining[lost].Node = ""
			after := spread(remaining)
			for bucket := range before {
				switch {
				case before[bucket] != lost:
					require.Equal(t, before[bucket], after[bucket])
				case n == 1:
					require.Equal(t, -1, after[bucket])
				default:
					require.NotEqual(t, lost, after[bucket])
				}
			}
		}
	}
}

// The order of the list is no matter: what counts is who the gateways are.
func TestSpreadIsByGatewayNotByPlace(t *testing.T) {
	gateways := elected(5)
	before := spread(gateways)
	reversed := slices.Clone(gateways)
	slices.Reverse(reversed)
	after := spread(reversed)
	for bucket := range before {
		require.Equal(t, gateways[before[bucket]].Node, reversed[after[bucket]].Node)
	}
}
