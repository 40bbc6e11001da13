// SPDX-License-Identifier: Apache-2.0

package percluster

import (
	"bytes"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/hive"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/natmap"
)

// testBPFFS returns the path of a BPF file system of the test's own, or skips.
func testBPFFS(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "bpffs")
	if err := bpf.Probe(path); err != nil {
		if os.Getenv("SLUICE_REQUIRE_PRIVILEGED") == "1" {
			t.Fatalf("kernel maps are not possible here: %v", err)
		}
		t.Skipf("kernel maps are not possible here: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(path, unix.MNT_DETACH)) })
	return path
}

func mapsDir(t *testing.T) string { return bpf.MapsDir(testBPFFS(t)) }

func openOrCreate(t *testing.T, dir string) *Maps {
	m, err := OpenOrCreate(dir, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m
}

func get(t *testing.T, m *Maps, id uint32) *Cluster {
	t.Helper()
	c, err := m.Get(id)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

func requireClusters(t *testing.T, m *Maps, want ...uint32) {
	t.Helper()
	ids, err := m.Clusters()
	require.NoError(t, err)
	require.Equal(t, want, ids)
}

var testSizes = Sizes{CTTCP: 100, CTAny: 200, NAT: 300}

// example returns a tuple for a map.
func example(m ctmap.Any) ctmap.Tuple {
	from, to := "10.0.0.1:1000", "192.0.2.7:53"
	if m.Is6() {
		from, to = "[2001:db8::1]:1000", "[2001:db8::2]:53"
	}
	return ctmap.Tuple{Source: netip.MustParseAddrPort(from), Destination: netip.MustParseAddrPort(to), Protocol: unix.IPPROTO_UDP}
}

// fill writes an entry to each map of a cluster.
func fill(t *testing.T, c *Cluster) {
	t.Helper()
	for _, m := range c.Connections {
		require.NoError(t, m.Update(example(m), ctmap.Entry{Packets: uint64(c.ID), Lifetime: 1}))
	}
	for _, m := range c.Translations {
		require.NoError(t, m.Update(example(m), natmap.Translation{Used: c.ID, To: example(m).Source}))
	}
}

func requireFilled(t *testing.T, c *Cluster, n int) {
	t.Helper()
	for _, m := range c.All() {
		count, err := m.Count()
		require.NoError(t, err)
		require.Equal(t, n, count, m.Name())
	}
}

func TestNumbersOfClusters(t *testing.T) {
	t.Parallel()
	for id, ok := range map[uint32]bool{0: false, 1: true, 511: true, 512: false, 1 << 31: false} {
		require.Equal(t, ok, CheckID(id) == nil, id)
	}
	m := &Maps{}
	for _, id := range []uint32{0, 512} {
		require.ErrorContains(t, m.Create(id, testSizes), "want a number from 1 to 511")
		require.ErrorContains(t, m.Delete(id), "want a number from 1 to 511")
		_, err := m.Get(id)
		require.ErrorContains(t, err, "want a number from 1 to 511")
	}
	for _, name := range Names() {
		require.LessOrEqual(t, len(name), 15, name)
	}
}

func TestCreateAndDelete(t *testing.T) {
	t.Parallel()
	dir := mapsDir(t)
	_, err := Open(dir)
	require.ErrorIs(t, err, fs.ErrNotExist)
	m := openOrCreate(t, dir)
	requireClusters(t, m)
	_, err = m.Get(7)
	require.ErrorIs(t, err, ebpf.ErrKeyNotExist)

	for _, id := range []uint32{511, 1, 7} {
		require.NoError(t, m.Create(id, testSizes))
		fill(t, get(t, m, id))
	}
	requireClusters(t, m, 1, 7, 511)
	seven := get(t, m, 7)
	require.Len(t, seven.Connections, 4)
	require.Len(t, seven.Translations, 2)
	require.Equal(t, "sluice_cct4_tcp/7", seven.Connections[0].Name())
	require.Equal(t, "sluice_cnat6/7", seven.Translations[1].Name())
	entry, err := seven.Connections[0].Lookup(example(seven.Connections[0]))
	require.NoError(t, err)
	require.EqualValues(t, 7, entry.Packets, "it is the cluster's own entry")
	set := seven.Set()
	for i, kernel := range []*ebpf.Map{set.CT4TCP, set.CT4Any, set.CT6TCP, set.CT6Any, set.NAT4, set.NAT6} {
		require.Same(t, seven.All()[i].Kernel(), kernel)
		require.Equal(t, ebpf.LRUHash, kernel.Type())
		require.EqualValues(t, []uint32{100, 200, 100, 200, 300, 300}[i], kernel.MaxEntries())
		require.EqualValues(t, []uint32{72, 72, 72, 72, 40, 56}[i], kernel.ValueSize())
	}

	require.NoError(t, m.Delete(7))
	require.NoError(t, m.Delete(7), "they are deleted already")
	requireClusters(t, m, 1, 511)
	requireFilled(t, seven, 1) // who has them open still can use them
	_, err = m.Get(7)
	require.ErrorIs(t, err, ebpf.ErrKeyNotExist)
	require.NoError(t, m.Create(7, testSizes))
	requireFilled(t, get(t, m, 7), 0)
	requireFilled(t, get(t, m, 1), 1)
}

// Maps of an array may differ in size, and one that exists can get another.
func TestSizes(t *testing.T) {
	t.Parallel()
	m := openOrCreate(t, mapsDir(t))
	require.NoError(t, m.Create(1, testSizes))
	fill(t, get(t, m, 1))
	require.NoError(t, m.Create(2, Sizes{CTTCP: 5000, CTAny: 1, NAT: 7}))
	require.EqualValues(t, 5000, get(t, m, 2).Set().CT6TCP.MaxEntries())

	before := info(t, get(t, m, 1).Set().CT4Any)
	require.NoError(t, m.Create(1, testSizes))
	require.Equal(t, before, info(t, get(t, m, 1).Set().CT4Any), "the map is the same")
	bigger := testSizes
	bigger.CTAny = 999
	require.NoError(t, m.Create(1, bigger))
	grown := get(t, m, 1)
	require.NotEqual(t, before, info(t, grown.Set().CT4Any))
	require.EqualValues(t, 999, grown.Set().CT4Any.MaxEntries())
	require.EqualValues(t, 100, grown.Set().CT4TCP.MaxEntries())
	requireFilled(t, grown, 1)
	require.ErrorContains(t, m.Create(3, Sizes{CTTCP: 1, CTAny: 1}), "map sluice_cnat4: create for cluster 3: ")
	require.Len(t, get(t, m, 3).All(), 4, "the others are created all the same")
}

func info(t *testing.T, m *ebpf.Map) ebpf.MapID {
	i, err := m.Info()
	require.NoError(t, err)
	id, ok := i.ID()
	require.True(t, ok)
	return id
}

func TestArraysOutliveTheirHandles(t *testing.T) {
	t.Parallel()
	dir := mapsDir(t)
	m, err := OpenOrCreate(dir, nil)
	require.NoError(t, err)
	require.NoError(t, m.Create(7, testSizes))
	fill(t, get(t, m, 7))
	require.NoError(t, m.Close())

	var logged bytes.Buffer
	again, err := OpenOrCreate(dir, slog.New(slog.NewTextHandler(&logged, nil)))
	require.NoError(t, err)
	defer again.Close()
	require.Empty(t, logged.String())
	requireFilled(t, get(t, again, 7), 1)
	opened, err := Open(dir)
	require.NoError(t, err)
	defer opened.Close()
	requireClusters(t, opened, 7)
}

// Arrays of other properties, or for maps of another layout, are replaced; the
// others keep what is in them.
func TestPropertyChanges(t *testing.T) {
	t.Parallel()
	arrayOf := func(name string, entries uint32, inner *ebpf.MapSpec) *ebpf.MapSpec {
		return &ebpf.MapSpec{Name: name, Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: entries, InnerMap: inner}
	}
	former := &ebpf.MapSpec{Type: ebpf.LRUHash, KeySize: 14, ValueSize: 56, MaxEntries: 5}
	present, err := innerSpec(1, 5)
	require.NoError(t, err)
	for what, spec := range map[string]*ebpf.MapSpec{
		"inner value size": arrayOf(CT4Any, MaxClusterID+1, former),
		"entries":          arrayOf(CT4Any, 256, present),
		"type":             {Name: CT4Any, Type: ebpf.Hash, KeySize: 4, ValueSize: 4, MaxEntries: 512},
	} {
		t.Run(what, func(t *testing.T) {
			dir := mapsDir(t)
			m := openOrCreate(t, dir)
			require.NoError(t, m.Create(7, testSizes))
			other, err := ebpf.NewMap(spec)
			require.NoError(t, err)
			defer other.Close()
			require.NoError(t, os.Remove(ctmap.Path(dir, CT4Any)))
			require.NoError(t, other.Pin(ctmap.Path(dir, CT4Any)))

			var logged bytes.Buffer
			again, err := OpenOrCreate(dir, slog.New(slog.NewTextHandler(&logged, nil)))
			require.NoError(t, err)
			defer again.Close()
			require.Regexp(t, "Replac.*map=sluice_cct4_any", logged.String())
			seven := get(t, again, 7)
			require.Len(t, seven.All(), 5)
			require.Nil(t, seven.Set().CT4Any)
			require.NoError(t, again.Create(7, testSizes))
			require.NotNil(t, get(t, again, 7).Set().CT4Any)
			require.NoError(t, again.Create(8, testSizes))
		})
	}
}

func TestCleanup(t *testing.T) {
	t.Parallel()
	dir := mapsDir(t)
	removed, err := Cleanup(dir)
	require.NoError(t, err)
	require.Empty(t, removed)

	m := openOrCreate(t, dir)
	require.NoError(t, m.Create(1, testSizes))
	require.NoError(t, m.Create(511, testSizes))
	global, err := ctmap.OpenOrCreate(dir, ctmap.CT4TCP, 10, nil)
	require.NoError(t, err)
	defer global.Close()
	removed, err = Cleanup(dir)
	require.NoError(t, err)
	require.Equal(t, append(Names(), "clusters"), removed)
	requireClusters(t, m) // also for who has the arrays
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1, "maps that are not of clusters stay")

	require.NoError(t, openOrCreate(t, dir).Create(1, testSizes))
	require.NotEmpty(t, pins(t, dir))
	removed, err = bpf.Cleanup(filepath.Dir(dir))
	require.NoError(t, err)
	require.Len(t, removed, len(Names())+2)
	require.NoDirExists(t, dir, "that of the agent's directory removes them too")
}

// The agent removes pins that it does not know when it starts. These it knows.
func TestAgentLeavesThemAlone(t *testing.T) {
	t.Parallel()
	bpffs := testBPFFS(t)
	m := openOrCreate(t, bpf.MapsDir(bpffs))
	require.NoError(t, m.Create(7, testSizes))
	var logged bytes.Buffer
	log := slog.New(slog.NewTextHandler(&logged, nil))
	h := hive.New(bpf.Cell)
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	h.RegisterFlags(flags)
	require.NoError(t, flags.Parse([]string{"--bpffs=" + bpffs}))
	require.NoError(t, h.Start(log, t.Context()))
	require.NoError(t, h.Stop(log, t.Context()))
	for _, name := range Names() {
		require.FileExists(t, ctmap.Path(bpf.MapsDir(bpffs), name))
	}
	require.Len(t, pins(t, bpf.MapsDir(bpffs)), len(Names()))
	require.NotContains(t, logged.String(), "Removed pins")
}
