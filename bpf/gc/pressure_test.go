// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/ctmap/percluster"
)

// requireSameCount requires that the entries of the maps are as many to the
// kernel's counters, to a pass, and to who reads them.
func (f *fixture) requireSameCount() contents {
	f.Helper()
	all := f.dump()
	read := map[string]int{}
	for i := range f.maps[:mapCount] {
		if f.maps[i] != nil {
			read[names[i]] = 0
		}
	}
	for w := range all {
		read[w.name]++
	}
	counts, err := f.Count()
	require.NoError(f, err)
	require.Equal(f, read, counts.Entries)
	counts, err = Count(f.Maps)
	require.NoError(f, err)
	require.Equal(f, read, counts.Entries)
	passes, err := f.Run(f.Context(), Filter{})
	require.NoError(f, err)
	scanned := map[string]int{}
	for _, p := range passes {
		scanned[p.Map] = int(p.Scanned)
	}
	require.Equal(f, read, scanned)
	return all
}

// The ways to count agree, and are within what there can be while entries come
// and go.
func TestCounts(t *testing.T) {
	const steady, coming = 2000, 500
	eachMethod(t, func(f *fixture) {
		f.requireSameCount()
		for i := range steady {
			f.connect(manyFlow(i), ctmap.Entry{Lifetime: f.now + 1000})
			f.pair(manyFlow(i), 0)
		}
		f.requireSameCount()

		var done atomic.Bool
		ended := make(chan error, 1)
		go func() {
			ended <- func() error {
				for !done.Load() {
					for i := range coming {
						m, key := f.ct(manyFlow(steady + i))
						if err := m.Put(key, ctmap.Entry{Lifetime: f.now + 1000}); err != nil {
							return err
						}
					}
					for i := range coming {
						m, key := f.ct(manyFlow(steady + i))
						if err := m.Delete(key); err != nil {
							return err
						}
					}
				}
				return nil
			}()
		}()
		inBounds := func(n int, how string) {
			f.Helper()
			require.GreaterOrEqual(f, n, steady, how)
			require.LessOrEqual(f, n, steady+coming, how)
		}
		for range 50 {
			counts, err := f.Count()
			require.NoError(f, err)
			// The counters of the CPUs are not read at the same moment.
			require.InDelta(f, steady+coming/2, counts.Entries[ctmap.CT4TCP]+counts.Entries[ctmap.CT6Any], coming/2+2)
			sum := f.run(Filter{Expired: true})
			inBounds(int(sum.Scanned)-2*steady, "a pass")
		}
		done.Store(true)
		require.NoError(f, <-ended)
		f.requireSameCount()
	})
}

// A map that is full takes new connections, as the kernel evicts others. Their
// translations have no connection then, and go within two passes; those of what
// is left do not.
func TestEvicted(t *testing.T) {
	eachMethod(t, func(f *fixture) {
		const flows, room = 4000, 1024
		full := newMap(f, ctmap.CT4TCP, 14, uintptr(f.CT4Any.ValueSize()), room)
		set := f.Maps
		set.CT4TCP = full
		c, err := Open(set)
		require.NoError(f, err)
		c.always = f.always
		g := &fixture{f.TB, set, c, f.now}
		defer c.Close()
		for i := range flows {
			g.connect(manyFlow(2*i), ctmap.Entry{Lifetime: f.now + 1000})
			g.pair(manyFlow(2*i), long)
		}
		before := g.requireSameCount()
		connected := len(before) - 2*flows
		require.LessOrEqual(f, connected, room)
		require.Greater(f, connected, room/2)

		orphans := uint64(0)
		for range 2 {
			orphans += g.run(Filter{Expired: true, Orphans: true}).Orphans
		}
		require.EqualValues(f, 2*(flows-connected), orphans)
		after := g.requireSameCount()
		require.Len(f, after, 3*connected)
		for w, e := range after {
			if e.CT != nil {
				require.True(f, g.translated(w.tuple) && g.translated(replies(w.tuple)))
			}
		}

		for w := range maps.Clone(after) { // all of a full map expire
			if w.name == ctmap.CT4TCP {
				g.connect(w.tuple, ctmap.Entry{Lifetime: f.now - long})
			}
		}
		left := g.requireSameCount() // as to write an entry anew may evict another
		var sum Pass
		for range 2 {
			sum.add(g.run(Filter{Expired: true, Orphans: true}))
		}
		require.Empty(f, g.requireSameCount())
		require.EqualValues(f, len(left)-2*connected, sum.Expired)
		require.EqualValues(f, 2*connected, sum.Translations+sum.Orphans)
		g.connect(manyFlow(0), ctmap.Entry{Lifetime: f.now + 1})
		require.True(f, g.connected(manyFlow(0)))
	})
}

// A connection that begins with the tuple of one that was just removed is another.
func TestTupleReuse(t *testing.T) {
	eachMethod(t, func(f *fixture) {
		for name, flow := range connections {
			f.connect(flow, ctmap.Entry{Lifetime: f.now - long})
			f.pair(flow, long)
			removed := 0
			sum := f.run(Filter{Expired: true, Orphans: true, Removed: func(Entry) {
				removed++
				if removed != 3 {
					return
				}
				f.connect(flow, ctmap.Entry{Lifetime: f.now + long})
				f.pair(flow, 0)
			}})
			require.Equal(f, uint64(1), sum.Expired, name)
			require.True(f, f.connected(flow) && f.translated(flow) && f.translated(replies(flow)), name)
			again := f.run(Filter{Expired: true, Orphans: true})
			require.Zero(f, again.Removed(), name)
			f.run(Filter{All: true})
		}
	})
}

// However much is to be removed, a run of the kernel is bounded, and each removal
// is told of.
func TestRunsAreBounded(t *testing.T) {
	const flows, room = 100_000, 1 << 18
	f := newFixtureOf(t, Iterator, room, func(name string) bool { return name == ctmap.CT4TCP || name == names[indexNAT4] })
	all := make([]ctmap.Tuple, flows)
	for i := range all {
		all[i] = manyFlow(2 * i)
		f.connect(all[i], ctmap.Entry{Lifetime: f.now - long})
		f.pair(all[i], long)
	}
	told := map[where]int{}
	filter := Filter{Expired: true, Orphans: true, Removed: func(e Entry) { told[where{e.Map, e.Tuple}]++ }}
	require.NoError(t, f.prepare(filter))
	require.NoError(t, f.reset(stepNone))
	opened, err := f.iterators[indexCT4TCP].Open()
	require.NoError(t, err)
	defer opened.Close()
	runs, before := 0, programsGcCounts{}
	for {
		n, err := opened.Read(make([]byte, 8))
		counts, failed := f.counts()
		require.NoError(t, failed)
		runs++
		require.LessOrEqual(t, counts.Scanned-before.Scanned, uint64(1024))
		require.LessOrEqual(t, counts.Expired+counts.Translations-before.Expired-before.Translations, uint64(512+3))
		before = counts
		require.NoError(t, f.drain(filter))
		if n == 0 {
			require.Error(t, err)
			break
		}
	}
	t.Logf("%d runs", runs)
	require.GreaterOrEqual(t, runs, 3*flows/(512+3))
	require.Zero(t, before.Deferred)
	require.Zero(t, before.Failed)

	for range 3 { // what the iterator has passed over
		f.run(filter)
	}
	f.requireEmpty()
	require.Len(t, told, 3*flows)
	for w, n := range told {
		if n != 1 {
			t.Fatalf("removal of %v told %d times", w, n)
		}
	}
}

// A map of the default size with hardly anything in it is read by keys: no program passes
// over its empty buckets.
func TestNearlyEmpty(t *testing.T) {
	f := newFixtureOf(t, "", 1<<19, func(name string) bool { return name == ctmap.CT4TCP })
	f.connect(manyFlow(0), ctmap.Entry{Lifetime: f.now + long})
	passes, err := f.Run(t.Context(), Filter{Expired: true, Orphans: true})
	require.NoError(t, err)
	require.Equal(t, Keys, passes[0].Method)
	require.EqualValues(t, 1, passes[0].Scanned)
	require.Positive(t, passes[0].LongestRun)
	require.LessOrEqual(t, passes[0].LongestRun, passes[0].Duration)
}

// The maps of a cluster are a set like the global ones.
func TestPerCluster(t *testing.T) {
	requireRoot(t)
	path := filepath.Join(t.TempDir(), "bpffs")
	require.NoError(t, bpf.Probe(path))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(path, unix.MNT_DETACH)) })
	dir := bpf.MapsDir(path)
	require.NoError(t, os.MkdirAll(dir, 0o700))
	clusters, err := percluster.OpenOrCreate(dir, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, clusters.Close()) })
	var sets []*fixture
	now, err := Now()
	require.NoError(t, err)
	for id := range uint32(2) {
		require.NoError(t, clusters.Create(id+1, percluster.Sizes{CTTCP: 1000, CTAny: 1000, NAT: 2000}))
		cluster, err := clusters.Get(id + 1)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, cluster.Close()) })
		c, err := Open(Maps(cluster.Set()))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, c.Close()) })
		f := &fixture{t, Maps(cluster.Set()), c, now}
		sets = append(sets, f)
		for _, flow := range connections {
			f.connect(flow, ctmap.Entry{Lifetime: now - long})
			f.pair(flow, long)
		}
	}
	n := uint64(len(connections))
	require.Equal(t, Pass{Scanned: n, Expired: n, Translations: 2 * n}, sets[0].run(Filter{Expired: true, Orphans: true}))
	sets[0].requireEmpty()
	require.Len(t, sets[1].requireSameCount(), int(3*n), "another cluster's")
}
