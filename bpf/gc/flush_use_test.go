// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf/gc/gctest"
)

// Each connection that is chosen is removed, also if packets refresh it at that moment.
func TestFlushWhileInUse(t *testing.T) {
	a := lossArm{flows: 64, family: 4, protocol: unix.IPPROTO_TCP, refreshes: 1}
	f := newFixtureOf(t, "", lossMapRoom, a.needs)
	g := newGateway(t, f, gctest.Options{
		Flows: a.flows, Family: a.family, Protocol: a.protocol, Translates: true,
	})
	var chosen, flushed, removed uint64
	var revived atomic.Uint64
	a.run(t, g, &revived, func() error {
		choose := func(Entry) bool { chosen++; return true }
		passes, err := f.Flush(t.Context(), choose, func(e Entry) {
			if e.CT != nil {
				removed++
			}
		})
		for _, p := range passes {
			flushed += p.Flushed
			revived.Add(p.Revived)
		}
		return err
	})
	t.Logf("%d connections chosen, %d refreshed at that moment", chosen, revived.Load())
	require.NotZero(t, chosen)
	require.Equal(t, flushed, removed)
	// A few are not there any more when the program looks at them, though the map has room.
	require.LessOrEqual(t, chosen-flushed, revived.Load())
}
