// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The programs of pods judge by policies, those of the overlay and of other
// devices do not send to gateways, and all of them count what they drop.
func TestMapsOf(t *testing.T) {
	uses, err := MapsOf()
	require.NoError(t, err)
	require.Len(t, uses, 6)
	require.Subset(t, uses["from_pod"], []string{
		"sluice_egress", "sluice_gateways", "sluice_policy", "sluice_pods", "sluice_routes",
		"sluice_subjects", "sluice_peers", "sluice_verdicts",
	})
	require.Contains(t, uses["to_pod"], "sluice_policy")
	require.Contains(t, uses["to_netdev"], "sluice_exits")
	for name, maps := range uses {
		require.Contains(t, maps, MetricsMap, name)
		require.IsIncreasing(t, maps, name)
	}
}
