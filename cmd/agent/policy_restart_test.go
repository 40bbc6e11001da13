// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
)

// An agent that is started anew, and does not hear of some kind of objects yet,
// deletes nothing and changes no verdict: what is not known yet may be there.
func TestPolicyRestartWithSlowSource(t *testing.T) {
	for i, resource := range []string{
		"pods", "namespaces", "nodes", "services", "endpointslices", "networkpolicies", "ciliumnetworkpolicies", "ciliumclusterwidenetworkpolicies", "ciliumcidrgroups",
	} {
		t.Run(resource, func(t *testing.T) {
			t.Parallel()
			g := newPolicyGenerator(t, 2000+uint64(i))
			for range 5 {
				g.change()
			}
			require.NoError(t, g.agreesOnPolicies(t.Context()))
			g.look()
			before := g.memory.Sequence()
			require.NoError(t, g.hive.Stop(g.log, t.Context()))
			require.NoError(t, g.api.Slow(resource))
			g.construct()
			require.NoError(t, g.hive.Start(g.log, t.Context()))
			g.still()

			writes, _ := g.memory.Writes(before)
			require.Empty(t, slices.DeleteFunc(writes, func(w bpf.Write) bool { return w.Op != bpf.OpDelete }))
			require.NoError(t, g.api.Sync())
			require.NoError(t, g.settlePolicies(t.Context()))
		})
	}
}

// still waits until nothing is written any more, though something is waited for.
func (c *cluster) still() {
	var last uint64
	for same := 0; same < surelySettled; same++ {
		if revision := c.revision(c.base.DB.ReadTxn()); revision != last {
			last, same = revision, 0
		}
		time.Sleep(settledPause)
	}
}
