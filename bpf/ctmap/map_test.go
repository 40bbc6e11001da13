// SPDX-License-Identifier: Apache-2.0

package ctmap

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
)

// mapsDir returns the directory of pinned maps of a BPF file system of the
// test's own, or skips.
func mapsDir(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "bpffs")
	if err := bpf.Probe(path); err != nil {
		if os.Getenv("SLUICE_REQUIRE_PRIVILEGED") == "1" {
			t.Fatalf("kernel maps are not possible here: %v", err)
		}
		t.Skipf("kernel maps are not possible here: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(path, unix.MNT_DETACH)) })
	return bpf.MapsDir(path)
}

// example returns a tuple for a map, the n-th.
func example(name string, n int) Tuple {
	protocol := uint8(unix.IPPROTO_TCP)
	if name == CT4Any || name == CT6Any {
		protocol = unix.IPPROTO_UDP
	}
	from, to := "10.0.0.1", "192.0.2.7"
	if name == CT6TCP || name == CT6Any {
		from, to = "2001:db8::1", "2001:db8::2"
	}
	port := func(addr string, port int) string {
		return netip.AddrPortFrom(netip.MustParseAddr(addr), uint16(port)).String()
	}
	return tuple(protocol, port(from, 1000+n), port(to, 53), Out)
}

func forEachMap(t *testing.T, f func(t *testing.T, dir, name string)) {
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) { f(t, mapsDir(t), name) })
	}
}

func openOrCreate(t *testing.T, dir, name string, maxEntries uint32, log *slog.Logger) Map {
	m, err := OpenOrCreate(dir, name, maxEntries, log)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m
}

func TestEntriesOfMaps(t *testing.T) {
	forEachMap(t, func(t *testing.T, dir, name string) {
		m := openOrCreate(t, dir, name, 1000, nil)
		require.Equal(t, name, m.Name())
		require.Equal(t, filepath.Join(dir, name), m.Path())
		require.FileExists(t, m.Path())
		require.Equal(t, 1000, m.MaxEntries())
		require.Equal(t, example(name, 1).Is6(), m.Is6())
		require.Equal(t, ebpf.LRUHash, m.Kernel().Type())
		require.EqualValues(t, 72, m.Kernel().ValueSize())
		require.Zero(t, m.Kernel().Flags())

		first, second := example(name, 1), example(name, 2)
		entry := Entry{Packets: 3, Lifetime: 90, Gateway: bpf.Address{15: 1}, Created: 5}
		require.NoError(t, m.Update(first, entry))
		require.NoError(t, m.Update(second, Entry{Packets: 4, Lifetime: 200, Flags: SeenNonSYN}))
		got, err := m.Lookup(first)
		require.NoError(t, err)
		require.Equal(t, entry, got)
		requireEntries(t, m, 2)
		pressure, err := m.Pressure()
		require.NoError(t, err)
		require.Equal(t, 2./1000, pressure)

		records, err := m.Records(100, nil)
		require.NoError(t, err)
		require.Equal(t, []Tuple{first, second}, []Tuple{records[0].Tuple(), records[1].Tuple()})
		require.Equal(t, name, records[0].Map)
		require.EqualValues(t, -10, records[0].ExpiresInSeconds)
		records, err = m.Records(100, &Match{Expired: true})
		require.NoError(t, err)
		require.Len(t, records, 1)
		lines, err := m.Dump(100)
		require.NoError(t, err)
		require.Contains(t, lines[0], fmt.Sprintf("%s expired age=95s expires=-10s packets=3 ", first))
		require.Contains(t, lines[1], " age=- expires=100s packets=4 ")

		calls := 0
		require.NoError(t, m.Each(func(Tuple, Entry) bool { calls++; return false }))
		require.Equal(t, 1, calls, "it stops")

		require.NoError(t, m.Delete(first))
		requireAbsent(t, m, first)
		requireEntries(t, m, 1)
	})
}

func requireEntries(t *testing.T, m Any, n int) {
	t.Helper()
	count, err := m.Count()
	require.NoError(t, err)
	require.Equal(t, n, count)
}

func requireAbsent(t *testing.T, m Map, tuple Tuple) {
	t.Helper()
	exists, err := m.Exists(tuple)
	require.NoError(t, err)
	require.False(t, exists)
	_, err = m.Lookup(tuple)
	require.ErrorIs(t, err, ebpf.ErrKeyNotExist)
	require.ErrorContains(t, err, "map "+m.Name()+": look up "+tuple.String()+": ")
	err = m.Delete(tuple)
	require.ErrorIs(t, err, ebpf.ErrKeyNotExist)
	require.ErrorContains(t, err, "map "+m.Name()+": delete "+tuple.String()+": ")
}

// A tuple of the other family, or of none, is refused before it becomes a key.
func TestTuplesOfAnotherFamily(t *testing.T) {
	forEachMap(t, func(t *testing.T, dir, name string) {
		m := openOrCreate(t, dir, name, 10, nil)
		other := map[bool]string{false: CT6TCP, true: CT4TCP}[m.Is6()]
		_, err := m.Lookup(example(other, 1))
		require.ErrorContains(t, err, "address in a map of")
		require.NotErrorIs(t, err, ebpf.ErrKeyNotExist)
		require.ErrorContains(t, m.Update(Tuple{}, Entry{}), "no address")
		exists, err := m.Exists(Tuple{})
		require.False(t, exists)
		require.Error(t, err)
	})
}

// What is read in batches is all there is: also of a map with more entries than
// a batch has, and of one that changes under the reader.
func TestCountOfManyEntries(t *testing.T) {
	forEachMap(t, func(t *testing.T, dir, name string) {
		const n = 3*batchSize + 17
		m := openOrCreate(t, dir, name, 8*batchSize, nil)
		for i := range n {
			require.NoError(t, m.Update(example(name, i), Entry{Lifetime: uint32(i + 1)}))
		}
		requireEntries(t, m, n)
		seen := map[Tuple]int{}
		require.NoError(t, m.Each(func(tuple Tuple, _ Entry) bool {
			// Every other entry is deleted while it is read.
			if seen[tuple]++; tuple.Source.Port()%2 == 0 {
				if err := m.Delete(tuple); err != nil {
					t.Error(err)
				}
			}
			return true
		}))
		require.Len(t, seen, n)
		for tuple, times := range seen {
			require.Equal(t, 1, times, tuple)
		}
		left := 0
		for i := range n {
			left += int(example(name, i).Source.Port() % 2)
		}
		requireEntries(t, m, left)
	})
}

// A map that is full takes new entries, at the cost of others.
func TestFullMapEvicts(t *testing.T) {
	forEachMap(t, func(t *testing.T, dir, name string) {
		m := openOrCreate(t, dir, name, 512, nil)
		for i := range 2000 {
			require.NoError(t, m.Update(example(name, i), Entry{Lifetime: 1}))
			exists, err := m.Exists(example(name, i))
			require.NoError(t, err)
			require.True(t, exists, "entry %d is there when it was written", i)
		}
		requireAbsent(t, m, example(name, 0))
		count, err := m.Count()
		require.NoError(t, err)
		require.Greater(t, count, 128)
		require.LessOrEqual(t, count, 512)
		pressure, err := m.Pressure()
		require.NoError(t, err)
		require.Equal(t, float64(count)/512, pressure)
	})
}

func TestPins(t *testing.T) {
	forEachMap(t, func(t *testing.T, dir, name string) {
		_, err := Open(dir, name)
		require.ErrorIs(t, err, fs.ErrNotExist)
		require.ErrorContains(t, err, "map "+name+": ")

		m := openOrCreate(t, dir, name, 100, nil)
		require.NoError(t, m.Update(example(name, 1), Entry{Packets: 7}))
		again, err := Open(dir, name)
		require.NoError(t, err)
		entry, err := again.Lookup(example(name, 1))
		require.NoError(t, err)
		require.EqualValues(t, 7, entry.Packets)
		all, err := OpenAll(dir)
		require.NoError(t, err)
		require.Len(t, all, 1)
		require.NoError(t, all[0].Close())

		require.NoError(t, again.Unpin())
		require.NoError(t, m.Unpin(), "there is no pin any more")
		requireEntries(t, again, 1)
		require.NoError(t, again.Close())
		_, err = again.Count()
		require.Error(t, err, "closed")
		all, err = OpenAll(dir)
		require.NoError(t, err)
		require.Empty(t, all)
	})
}

func TestNotOneOfConnections(t *testing.T) {
	for _, name := range []string{"", "sluice_nat4", "sluice_pods"} {
		_, err := Open(t.TempDir(), name)
		require.ErrorContains(t, err, "not one of connections", name)
		_, err = Spec(name, 1)
		require.ErrorContains(t, err, "not one of connections", name)
	}
}

// A handle of a map that is open already, of a map of another name, and of one
// that is something else.
func TestHandleOfOpenMap(t *testing.T) {
	mapsDir(t)
	spec, err := Spec(CT4TCP, 10)
	require.NoError(t, err)
	kernel, err := ebpf.NewMap(spec)
	require.NoError(t, err)
	m, err := New(CT4TCP, kernel)
	require.NoError(t, err)
	require.Same(t, kernel, m.Kernel())
	require.NoError(t, m.Update(example(CT4TCP, 1), Entry{}))
	require.Empty(t, m.Path())
	require.NoError(t, m.Unpin(), "it is not pinned")
	named, err := NewNamed("mine", CT4TCP, kernel)
	require.NoError(t, err)
	_, err = named.Lookup(example(CT4TCP, 2))
	require.ErrorContains(t, err, "map mine: look up tcp 10.0.0.1:1002 -> 192.0.2.7:53 out: ")
	_, err = New(CT6TCP, kernel)
	require.ErrorContains(t, err, "it is a LRUHash with keys of 14 bytes and values of 72, not a LRUHash with 38 and 72")
	require.NoError(t, m.Close())

	created, err := Create(CT6Any, 10)
	require.NoError(t, err)
	require.NoError(t, created.Update(example(CT6Any, 1), Entry{}))
	require.NoError(t, created.Close())
}

// A pinned map that is not as it has to be is replaced.
func TestPropertyChanges(t *testing.T) {
	tests := map[string]struct {
		change func(*ebpf.MapSpec)
		kept   bool
		logged string
	}{
		"nothing":    {func(*ebpf.MapSpec) {}, true, ""},
		"size":       {func(s *ebpf.MapSpec) { s.MaxEntries = 50 }, true, "old-max-entries=50 max-entries=100 kept=1 lost=0"},
		"value size": {func(s *ebpf.MapSpec) { s.ValueSize = 56 }, false, "old-value-size=56"},
		"key size":   {func(s *ebpf.MapSpec) { s.KeySize += 2 }, false, "another layout"},
		"type":       {func(s *ebpf.MapSpec) { s.Type = ebpf.Hash }, false, "old-type=Hash"},
		"flags":      {func(s *ebpf.MapSpec) { s.Flags = unix.BPF_F_NUMA_NODE }, false, "another layout"},
	}
	for what, test := range tests {
		t.Run(what, func(t *testing.T) {
			forEachMap(t, func(t *testing.T, dir, name string) {
				spec, err := Spec(name, 100)
				require.NoError(t, err)
				test.change(spec)
				old, err := ebpf.NewMap(spec)
				require.NoError(t, err)
				defer old.Close()
				require.NoError(t, old.Pin(Path(dir, name)))
				require.NoError(t, old.Put(padded(t, name, spec.KeySize), make([]byte, spec.ValueSize)))

				var logged bytes.Buffer
				m := openOrCreate(t, dir, name, 100, slog.New(slog.NewTextHandler(&logged, nil)))
				require.Equal(t, 100, m.MaxEntries())
				want, err := Spec(name, 100)
				require.NoError(t, err)
				require.Equal(t, []any{want.Type, want.KeySize, want.ValueSize, want.Flags},
					[]any{m.Kernel().Type(), m.Kernel().KeySize(), m.Kernel().ValueSize(), m.Kernel().Flags()})
				exists, err := m.Exists(example(name, 1))
				require.NoError(t, err)
				require.Equal(t, test.kept, exists)
				if test.logged == "" {
					require.Empty(t, logged.String())
				} else {
					require.Contains(t, logged.String(), test.logged)
				}
				reopened, err := Open(dir, name)
				require.NoError(t, err, "the pin is of the new one")
				require.NoError(t, reopened.Close())
			})
		})
	}
}

// padded returns the bytes of a key with zeros behind.
func padded(t *testing.T, name string, size uint32) []byte {
	var b []byte
	if key6 := NewKey6(example(CT6TCP, 1)); name == CT6TCP || name == CT6Any {
		key6.Protocol = example(name, 1).Protocol
		b = bytes.Clone(bytesOf(&key6))
	} else {
		key4 := NewKey4(example(name, 1))
		b = bytes.Clone(bytesOf(&key4))
	}
	require.LessOrEqual(t, len(b), int(size))
	return append(b, make([]byte, int(size)-len(b))...)
}

// Open refuses what OpenOrCreate would replace.
func TestOpenOfAnotherLayout(t *testing.T) {
	dir := mapsDir(t)
	other, err := ebpf.NewMap(&ebpf.MapSpec{Name: CT4TCP, Type: ebpf.LRUHash, KeySize: 14, ValueSize: 56, MaxEntries: 1})
	require.NoError(t, err)
	defer other.Close()
	require.NoError(t, other.Pin(Path(dir, CT4TCP)))
	_, err = Open(dir, CT4TCP)
	require.ErrorContains(t, err, "values of 56")
	_, err = OpenAll(dir)
	require.Error(t, err)
	require.False(t, errors.Is(err, fs.ErrNotExist))
}
