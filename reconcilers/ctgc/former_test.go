// SPDX-License-Identifier: Apache-2.0

package ctgc

import (
	"net/netip"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/gc"
	"github.com/sluice-net/sluice/tables"
)

// Endpoints that went while no agent ran are found by the maps that were left, also
// by entries of them that are gone by the time the endpoints are known.
func TestFormerEndpoints(t *testing.T) {
	inBubble(t, DefaultConfig, func(w *world) {
		pods, err := tables.NewPodEntryTable(w.db)
		require.NoError(t, err)
		sources, err := tables.NewSourceEntryTable(w.db)
		require.NoError(t, err)
		wtxn := w.db.WriteTxn(pods, sources)
		podsRead, sourcesRead := pods.RegisterInitializer(wtxn, "test"), sources.RegisterInitializer(wtxn, "test")
		wtxn.Commit()
		f, err := newFormer(&watcher{runner: w.runner, db: w.db, endpoints: w.endpoints, nodes: w.nodes}, pods, sources)
		require.NoError(t, err)
		health := &fakeHealth{}
		go f.run(w.t.Context(), health)

		addr := func(text string) bpf.Address { return bpf.AddressFrom(netip.MustParseAddr(text)) }
		wtxn = w.db.WriteTxn(pods, sources)
		for _, text := range []string{"10.0.0.1", "10.0.0.2", "fd00::2"} {
			insert(t, wtxn, pods, &tables.PodEntry{Key: bpf.PodKey{Addr: addr(text)}})
		}
		for _, text := range []string{"10.0.0.2", "10.0.9.1", "10.0.9.2"} {
			insert(t, wtxn, sources, &tables.SourceEntry{Key: bpf.SourceKey{Addr: addr(text)}})
		}
		podsRead(wtxn)
		sourcesRead(wtxn)
		wtxn.Commit()
		wtxn = w.db.WriteTxn(pods)
		_, _, err = pods.Delete(wtxn, &tables.PodEntry{Key: bpf.PodKey{Addr: addr("fd00::2")}})
		require.NoError(t, err)
		wtxn.Commit()
		w.set(ctmap.CT4TCP, 10)
		w.does(func(gc.Filter) []gc.Pass { return w.pass(0, clock()+1e6) })
		w.pod(1, "10.0.0.1", "10.0.9.1")
		w.know()
		w.wait(DefaultTiming.Coalesce)

		require.Equal(t, []string{ReasonStart, ReasonEndpointsGone}, w.reasons())
		var want []netip.Addr
		for _, text := range []string{"10.0.0.2", "10.0.9.2", "fd00::2"} {
			want = append(want, netip.MustParseAddr(text))
		}
		require.Equal(t, want, w.takeRuns()[1].filter.Addrs)
		_, text := health.last()
		require.Equal(t, "3 addresses were those of endpoints that had gone before the start", text)
	})
}

func insert[Row any](t *testing.T, wtxn statedb.WriteTxn, table statedb.RWTable[Row], row Row) {
	_, _, err := table.Insert(wtxn, row)
	require.NoError(t, err)
}
