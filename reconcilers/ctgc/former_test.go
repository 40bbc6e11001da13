// SPDX-License-Identifier: Apache-2.0

package ctgc

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/gc"
)

// What pods have left that went while no agent ran is removed at the start.
func TestFormerEndpoints(t *testing.T) {
	inBubble(t, DefaultConfig, func(w *world) {
		gone, stays := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.1")
		w.former = []netip.Addr{stays, gone}
		w.set(ctmap.CT4TCP, 10)
		w.does(func(gc.Filter) []gc.Pass { return w.pass(0, clock()+1e6) })
		w.pod(1, stays.String())
		w.know()
		w.wait(DefaultTiming.Coalesce)
		require.Equal(t, []string{ReasonStart, ReasonEndpointsGone}, w.reasons())
		require.Equal(t, []netip.Addr{gone}, w.takeRuns()[1].filter.Addrs)
	})
}
