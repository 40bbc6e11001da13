// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/datapath"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
	"github.com/sluice-net/sluice/bpf/gc"
	"github.com/sluice-net/sluice/bpf/natmap"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/testdata/await"
)

// ledgerAgent runs a reader that compares all the time, with a file and a state directory.
type ledgerAgent struct {
	*reader
	registry *prometheus.Registry
	stop     func() error
}

func runReader(t *testing.T, l *bpf.Ledger, out output, dir StateDir) *ledgerAgent {
	t.Helper()
	db := statedb.New()
	endpoints, err := tables.NewEndpointTable(db, tables.LocalNode{Name: "gateway-1"})
	require.NoError(t, err)
	nodes, err := tables.NewNodeTable(db)
	require.NoError(t, err)
	maps := func() *bpf.Ledger { return l }
	a := &ledgerAgent{registry: prometheus.NewRegistry()}
	m := newMetrics(maps)
	require.NoError(t, tables.RegisterMetrics(a.registry, m.all()...))
	a.reader = &reader{
		maps: maps, metrics: m, stateDir: dir, compareEvery: time.Millisecond,
		names:  names{db: db, endpoints: endpoints, nodes: nodes},
		queues: []*queue{newQueue("file", out, true, m)},
	}
	_, health := cell.NewSimpleHealth()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.run(ctx, health) }()
	a.stop = func() error {
		cancel()
		return <-done
	}
	return a
}

// TestEvicted: of more connections than fit into the maps each has one begin and one end, and those
// that the kernel has evicted say so.
func TestEvicted(t *testing.T) {
	newKernel(t, 1<<12) // skips without root
	const room, flows = 512, 3000
	spec, err := datapath.Spec()
	require.NoError(t, err)
	spec.Maps[bpf.LedgerMap].MaxEntries = 1 << 20
	require.NoError(t, spec.Variables[bpf.LedgerOn].Set(true))
	n, err := packettest.NewNodeWith(spec, map[string]uint32{natmap.Name4: room, natmap.Name6: room})
	require.NoError(t, err)
	defer n.Close()
	w := packettest.World4
	require.NoError(t, n.Select(w, n.Here(w.Egress)))
	l := &bpf.Ledger{
		Records: n.Map(bpf.LedgerMap), Missing: n.Map(bpf.MissingMap),
		NAT4: n.Map(natmap.Name4), NAT6: n.Map(natmap.Name6),
	}
	path := filepath.Join(t.TempDir(), "ledger.jsonl")
	a := runReader(t, l, newFile(path, 100, 2), "")
	send := func(first, last int) {
		for i := first; i < last; i++ {
			_, err := n.Run(packettest.Input{
				Program: "from_pod", Device: packettest.PodDevice,
				Packet: packettest.Build(
					packettest.Ethernet{Dst: n.MAC(packettest.PodDevice), Src: packettest.PodMAC},
					packettest.IPv4{Src: w.Pod, Dst: w.Server},
					packettest.UDP{Src: uint16(2000 + i), Dst: uint16(53)},
				),
			})
			require.NoError(t, err)
		}
	}
	c, err := gc.OpenWith(gc.Maps{
		CT4Any: n.Map(ctmap.CT4Any), NAT4: n.Map(natmap.Name4),
	}, gc.Extras{Ledger: l})
	require.NoError(t, err)
	defer c.Close()
	flush := func() {
		_, err := c.Run(t.Context(), gc.Filter{All: true})
		require.NoError(t, err)
	}
	want := map[uint64]string{} // why those ended that are in the map
	note := func() {
		require.NoError(t, walk[natmap.Key4, natmap.Entry4](l.NAT4, func(r bpf.LedgerRecord) {
			want[r.Began] = "flushed"
		}))
	}
	send(0, 100) // these all fit
	note()
	flush()
	send(100, flows)
	note()
	require.Less(t, len(want), room+100)
	flush()

	ended := 0
	await.True(t, func() bool {
		ended = 0
		for _, r := range lines(t, path) {
			if r.Event == End {
				ended++
			}
		}
		return ended >= flows
	})
	require.NoError(t, a.stop())
	begins, ends := map[uint64]int{}, map[uint64]int{}
	evicted := 0
	for _, r := range lines(t, path) {
		switch r.Event {
		case Begin:
			begins[r.ID]++
		case End:
			ends[r.ID]++
			require.Equal(t, w.Pod, r.PodAddress.Addr())
			if reason := want[r.ID]; reason != "" {
				require.Equal(t, reason, r.Reason)
				continue
			}
			require.Equal(t, EndEvicted, r.Reason)
			evicted++
		case Missing:
			t.Errorf("%d records are missing", r.Count)
		}
	}
	require.Len(t, begins, flows)
	require.Equal(t, begins, ends, "each has one of both")
	for id, n := range begins {
		require.Equal(t, 1, n, id)
	}
	require.Equal(t, flows-len(want), evicted)
	require.EqualValues(t, evicted, gathered(t, a.registry, "sluice_ledger_ends_found_total",
		map[string]string{"reason": EndEvicted}))
	require.Zero(t, gathered(t, a.registry, "sluice_ledger_open_translations", nil))
}

// TestEvictedWithoutAgent: what was evicted while no agent was running has an end too, which does
// not say that it was evicted: another program may have removed it.
func TestEvictedWithoutAgent(t *testing.T) {
	k := newKernel(t, 1<<16)
	k.withTranslations(1024)
	dir := StateDir(t.TempDir())
	state, path := filepath.Join(string(dir), StateFile), filepath.Join(t.TempDir(), "ledger.jsonl")
	a := runReader(t, &k.Ledger, newFile(path, 100, 2), dir)
	now := monotonic(time.Now()) / 1e9
	stays, evicted, ends := nth(1, now), nth6(2, now), nth(3, now)
	for _, r := range []bpf.LedgerRecord{stays, evicted, ends} {
		k.put(r)
		k.write(r, 1)
	}
	await.True(t, func() bool { return len(lines(t, path)) == 4 })
	require.NoError(t, a.stop())
	info, err := os.Stat(state)
	require.NoError(t, err)
	require.EqualValues(t, 0o600, info.Mode().Perm())

	k.drop(evicted)
	k.drop(ends)
	ends.Event = bpf.LedgerExpired
	k.write(ends, 1)
	a = runReader(t, &k.Ledger, newFile(path, 100, 2), dir)
	records := written(t, path, 7)
	require.Equal(t, []string{"start stopped", "end expired", "end unknown"}, events(records[4:]))
	require.Equal(t, records[2].ID, records[6].ID)
	require.Equal(t, records[2].Egress, records[6].Egress)
	require.NoFileExists(t, state)
	require.NoError(t, a.stop())

	// An agent that was killed may have known of others: that file is not used.
	k.drop(stays)
	goesOn := nth(4, 100)
	k.put(goesOn)
	require.NoError(t, k.SetReading(bpf.LedgerBeingRead, 7))
	a = runReader(t, &k.Ledger, newFile(path, 100, 2), dir)
	records = written(t, path, 9)[7:]
	require.Equal(t, []string{"start killed", "begin found"}, events(records))
	require.EqualValues(t, 7, records[0].Count)
	require.Equal(t, goesOn.Began, records[1].ID)
	require.NoFileExists(t, state)
	killed := records[0].Time

	// What has gone until it started has no other end; what goes on has none.
	answer, err := Search(path, Question{Egress: egress.Addr(), From: killed})
	require.NoError(t, err)
	require.Len(t, answer.Held, 2)
	for _, h := range answer.Held {
		switch h.ID {
		case goesOn.Began:
			require.True(t, h.Until.IsZero() && h.EndReason == "", h)
		default:
			require.Equal(t, killed, h.Until)
			require.Equal(t, EndUnknown, h.EndReason)
		}
	}
	require.NoError(t, a.stop())

	// If what was saved is gone, it is as if the agent was killed: it finds what goes on.
	require.NoError(t, os.Remove(state))
	a = runReader(t, &k.Ledger, newFile(path, 100, 2), dir)
	records = written(t, path, 11)[9:]
	require.Equal(t, []string{"start killed", "begin found"}, events(records))
	require.Zero(t, records[0].Count)
	require.NoError(t, a.stop())
	require.NoError(t, os.Remove(state))

	// A file that cannot be read is told, and does not stop the ledger.
	require.NoError(t, os.WriteFile(state, []byte("junk"), 0o600))
	restored, err := newOpenSet(&k.Ledger).restore(dir, true)
	require.False(t, restored)
	require.ErrorContains(t, err, "restore translations without end: ")
	require.NoFileExists(t, state)
	require.False(t, errors.Is(err, os.ErrNotExist))
}
