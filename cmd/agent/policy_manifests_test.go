// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables/policy/policytest"
)

// What random tests apply is read as it is meant: without mistakes.
func TestRandomManifests(t *testing.T) {
	c := newCluster(t, []string{"--node-name=" + policytest.LocalNode})
	require.NoError(t, c.api.Sync())
	require.NoError(t, c.hive.Start(c.log, t.Context()))
	g := policytest.NewGenerator(1)
	kinds := map[string]int{}
	for range 40 {
		for _, manifest := range g.World(5, 20) {
			require.NoError(t, c.api.Apply([]byte(manifest)), manifest)
		}
		require.NoError(t, c.quiet(t.Context()))
		for _, p := range c.world(c.base.DB.ReadTxn()).Policies {
			require.Empty(t, p.Errors, p.ID())
			require.Empty(t, p.Unsupported, p.ID())
			for _, rule := range p.Rules {
				for _, item := range append(rule.Ingress.Traffic, rule.Egress.Traffic...) {
					for _, peer := range item.Peers {
						kinds[string(peer.Kind)+string(peer.Entity)]++
					}
				}
			}
		}
	}
	require.Len(t, kinds, 16, "all kinds of peers, and most entities: %v", kinds)
}
