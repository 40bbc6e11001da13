// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/hive/hivetest"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testBPFFS returns the path of a BPF file system of the test's own, or skips.
func testBPFFS(t testing.TB) string {
	path := filepath.Join(t.TempDir(), "bpffs")
	if err := Probe(path); err != nil {
		t.Skipf("kernel maps are not possible here: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(path, unix.MNT_DETACH)) })
	return path
}

func testKernel(t testing.TB, bpffs string) *Kernel {
	k, err := OpenKernel(bpffs, hivetest.Logger(t, hivetest.LogLevel(slog.LevelError)))
	require.NoError(t, err)
	return k
}

type prefix struct {
	Length uint32
	Bits   [4]byte
}

type value struct{ A, B uint32 }

// The back end in memory does what the kernel does, on random batches with
// duplicates, absent keys and no room.
func TestBackendsAlike(t *testing.T) {
	kernel := testKernel(t, testBPFFS(t))
	defer kernel.Close()
	memory := NewMemory()
	t.Run("hash", func(t *testing.T) {
		testAlike(t, kernel, memory, Spec{"alike_hash", TypeHash, 40}, func(rnd *rand.Rand) uint64 { return rnd.Uint64N(60) })
	})
	t.Run("array", func(t *testing.T) {
		testAlike(t, kernel, memory, Spec{"alike_array", TypeArray, 40}, func(rnd *rand.Rand) uint32 { return rnd.Uint32N(42) })
	})
	t.Run("lpm-trie", func(t *testing.T) {
		testAlike(t, kernel, memory, Spec{"alike_lpm", TypeLPM, 40}, func(rnd *rand.Rand) prefix {
			return prefix{rnd.Uint32N(34), [4]byte{10, byte(rnd.UintN(2)), byte(rnd.UintN(2)) << 7, byte(rnd.UintN(256))}}
		})
	})
}

func testAlike[K comparable](t *testing.T, kernel, memory Backend, spec Spec, randomKey func(*rand.Rand) K) {
	inKernel, err := Open[K, value](kernel, spec)
	require.NoError(t, err)
	inMemory, err := Open[K, value](memory, spec)
	require.NoError(t, err)
	require.Equal(t, inKernel.Spec(), inMemory.Spec())
	rnd := rand.New(rand.NewPCG(1, 1))
	full := 0
	for i := range 3000 {
		keys := make([]K, 1+rnd.IntN(5))
		values := make([]value, len(keys))
		for j := range keys {
			keys[j], values[j] = randomKey(rnd), value{rnd.Uint32N(3), 0}
		}
		var (
			done1, done2 int
			err1, err2   error
		)
		if rnd.IntN(3) > 0 {
			done1, err1 = inKernel.Update(keys, values)
			done2, err2 = inMemory.Update(keys, values)
		} else {
			done1, err1 = inKernel.Delete(keys)
			done2, err2 = inMemory.Delete(keys)
		}
		require.Equal(t, done1, done2, "operation %d: %v and %v", i, err1, err2)
		require.Equal(t, err1 == nil, err2 == nil, "operation %d: %v and %v", i, err1, err2)
		require.Equal(t, errors.Is(err1, ErrMapFull), errors.Is(err2, ErrMapFull), "operation %d: %v and %v", i, err1, err2)
		if errors.Is(err1, ErrMapFull) {
			full++
		}
		if i%50 == 0 || i > 2900 {
			entries1, err := inKernel.Dump()
			require.NoError(t, err)
			entries2, err := inMemory.Dump()
			require.NoError(t, err)
			require.Equal(t, Lines(entries1), Lines(entries2), "operation %d", i)
		}
	}
	require.Greater(t, full, 10)
	if spec.Type != TypeLPM {
		return
	}
	m := inKernel.(*kernelMap[K, value])
	for range 2000 {
		key := randomKey(rnd)
		var want value
		err := m.m.Lookup(&key, &want)
		memory.(*Memory).Read(func(r Reader) {
			entry, found := Match[K, value](r, spec.Name, key)
			require.Equal(t, err == nil, found, "%v: %v", key, err)
			require.Equal(t, want, entry.Value, "%v", key)
		})
	}
}

// Batches larger than one read of a dump are written and read whole.
func TestKernelLarge(t *testing.T) {
	kernel := testKernel(t, testBPFFS(t))
	defer kernel.Close()
	for _, typ := range []Type{TypeHash, TypeLPM} {
		m, err := Open[prefix, value](kernel, Spec{"large", typ, 10000})
		require.NoError(t, err)
		keys, values := manyKeys(10001)
		done, err := m.Update(keys, values)
		require.ErrorIs(t, err, ErrMapFull)
		require.Equal(t, "map full", err.Error())
		require.Equal(t, 10000, done)
		entries, err := m.Dump()
		require.NoError(t, err)
		require.Len(t, slices.Compact(Lines(entries)), 10000)
		done, err = m.Delete(append([]prefix{{32, [4]byte{99}}}, keys...))
		require.NoError(t, err)
		require.Equal(t, 10002, done)
	}
}

// What is there all the time comes, whatever is written between the pieces; and what comes
// is what the map has at that moment.
func TestWalk(t *testing.T) {
	kernel := testKernel(t, testBPFFS(t))
	defer kernel.Close()
	for _, backend := range []Backend{kernel, NewMemory()} {
		for _, typ := range []Type{TypeHash, TypeLPM} {
			m, err := Open[prefix, value](backend, Spec{"walk", typ, 20000})
			require.NoError(t, err)
			keys, values := manyKeys(20000)
			_, err = m.Update(keys[:10000], values[:10000])
			require.NoError(t, err)
			seen, pieces := map[prefix]bool{}, 0
			for entries, err := range m.Walk() {
				require.NoError(t, err)
				for _, e := range entries {
					seen[e.Key] = true
					require.False(t, e.Value.A < 10000 && e.Key.Bits[3]%2 == 0 && e.Key.Bits[3] < byte(pieces), "%s %s: %v is gone", backend.Name(), typ, e)
				}
				var gone []prefix
				for _, k := range keys[:10000] {
					if k.Bits[3]%2 == 0 && k.Bits[3] == byte(pieces) {
						gone = append(gone, k)
					}
				}
				_, err = m.Delete(gone)
				require.NoError(t, err)
				at := 10000 + 500*(pieces%20)
				_, err = m.Update(keys[at:at+500], values[at:at+500])
				require.NoError(t, err)
				pieces++
			}
			require.Greater(t, pieces, 2)
			for i, k := range keys[:10000] {
				require.True(t, k.Bits[3]%2 == 0 || seen[k], "%s %s: entry %d", backend.Name(), typ, i)
			}
			_, err = m.Delete(keys)
			require.NoError(t, err)
		}
	}
}

func manyKeys(n int) ([]prefix, []value) {
	keys, values := make([]prefix, n), make([]value, n)
	for i := range keys {
		keys[i] = prefix{32, [4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}}
		values[i] = value{uint32(i), 1}
	}
	return keys, values
}

func TestKernelPins(t *testing.T) {
	bpffs := testBPFFS(t)
	spec := Spec{"pinned", TypeHash, 10}
	open := func(k *Kernel, spec Spec) Map[prefix, value] {
		m, err := Open[prefix, value](k, spec)
		require.NoError(t, err)
		return m
	}
	length := func(m Map[prefix, value]) int {
		entries, err := m.Dump()
		require.NoError(t, err)
		return len(entries)
	}
	keys, values := manyKeys(8)
	k := testKernel(t, bpffs)
	_, err := open(k, spec).Update(keys, values)
	require.NoError(t, err)
	_, err = OpenKernel(bpffs, slog.New(slog.DiscardHandler))
	require.ErrorIs(t, err, ErrInUse)
	_, err = Cleanup(bpffs)
	require.ErrorIs(t, err, ErrInUse)
	require.NoError(t, k.Close())

	k = testKernel(t, bpffs)
	same := open(k, spec)
	require.Equal(t, 8, length(same))
	spec.MaxEntries = 20
	require.Equal(t, 8, length(open(k, spec)), "a larger map keeps all")
	spec.MaxEntries = 5
	require.Equal(t, 5, length(open(k, spec)), "a smaller one what fits")
	require.EqualValues(t, 5, open(k, spec).Spec().MaxEntries)
	spec.Type = TypeLPM
	require.Zero(t, length(open(k, spec)), "one of another type nothing")
	other, err := Open[prefix, uint32](k, spec)
	require.NoError(t, err)
	require.NotNil(t, other)

	// Pins of former versions go, also those of an update cut short.
	stray, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	require.NoError(t, err)
	defer stray.Close()
	require.NoError(t, os.Mkdir(filepath.Join(bpffs, pinDir, "links"), 0o700))
	require.NoError(t, stray.Pin(filepath.Join(bpffs, pinDir, "links", "eth0")))
	require.NoError(t, stray.Pin(filepath.Join(bpffs, pinDir, "pinned"+newSuffix)))
	removed, err := k.Sweep("pinned")
	require.NoError(t, err)
	require.Equal(t, []string{"links", "pinned_new"}, removed)
	require.NoError(t, k.Close())

	removed, err = Cleanup(bpffs)
	require.NoError(t, err)
	require.Equal(t, []string{"pinned"}, removed)
	_, err = os.Stat(filepath.Join(bpffs, pinDir))
	require.ErrorIs(t, err, os.ErrNotExist)
	removed, err = Cleanup(bpffs)
	require.NoError(t, err)
	require.Empty(t, removed)
}

func TestCleanupWithoutBPFFS(t *testing.T) {
	removed, err := Cleanup(filepath.Join(t.TempDir(), "none"))
	require.NoError(t, err)
	require.Empty(t, removed)
}

func TestCheckRelease(t *testing.T) {
	for release, want := range map[string]string{
		"6.6.0": "", "6.18.44-fc-v657": "", "7.0": "",
		"6.5.13-generic": "kernel 6.5.13-generic is too old: 6.6 or newer is needed",
		"5.15.0":         "kernel 5.15.0 is too old: 6.6 or newer is needed",
		"weird":          `parse kernel version "weird"`,
	} {
		err := checkRelease(release)
		if want == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, want)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	m := NewMemory()
	for _, c := range []struct {
		spec Spec
		want string
	}{
		{Spec{"a_name_that_is_too_long", TypeHash, 1}, "1 to 15 characters"},
		{Spec{"a.b", TypeHash, 1}, "no dot"},
		{Spec{"a", "tree", 1}, `unknown type "tree"`},
		{Spec{"a", TypeHash, 0}, "size is 0"},
		{Spec{"a", TypeArray, 1}, "no index of an array"},
	} {
		_, err := Open[prefix, value](m, c.spec)
		require.ErrorContains(t, err, c.want)
	}
	_, err := Open[struct {
		A uint8
		B uint32
	}, value](m, Spec{"a", TypeHash, 1})
	require.ErrorContains(t, err, "without padding")
}

// All maps of the agent can be made, with the layouts of their keys and values.
func TestMapsInKernel(t *testing.T) {
	k := testKernel(t, testBPFFS(t))
	defer k.Close()
	maps := newMaps(DefaultConfig)
	require.NoError(t, maps.open(k))
	require.Equal(t, []string{"sluice_pods", "sluice_ipcache", "sluice_services", "sluice_subjects", "sluice_routes", "sluice_peers",
		"sluice_policy", "sluice_verdicts", "sluice_egress", "sluice_gateways", "sluice_exits",
		"sluice_blocks", "sluice_owners", "sluice_limits", "sluice_covered",
		"sluice_nodes", "sluice_devices",
		"sluice_config", "sluice_keys", "sluice_state"}, maps.Names())
	_, err := maps.Gateways.Update([]GatewayKey{{1, 2}}, []GatewayValue{{IfIndex: 3}})
	require.NoError(t, err)
	lines, err := maps.Dump("sluice_gateways")
	require.NoError(t, err)
	require.Equal(t, []string{"group=1 bucket=2 -> gateway=- egress4=- egress6=- ifindex=3"}, lines)
	require.Equal(t, "kernel", maps.Gateways.Backend())
	maps.close()
	_, err = maps.Gateways.Dump()
	require.ErrorIs(t, err, ErrNotOpen)
}

// While an agent fills its slot beside that of the former one, both take twice the memory of one.
func TestSlotMemory(t *testing.T) {
	const entries = 20_000
	k := testKernel(t, testBPFFS(t))
	defer k.Close()
	memory := func() (bytes uint64) {
		for slot := range uint32(Slots) {
			pins, _ := os.ReadDir(filepath.Join(k.Dir(), slotPath(slot, "")))
			for _, pin := range pins {
				m, err := ebpf.LoadPinnedMap(filepath.Join(k.Dir(), slotPath(slot, pin.Name())), nil)
				require.NoError(t, err)
				info, err := m.Info()
				require.NoError(t, err)
				used, _ := info.Memlock() // none of an empty trie
				bytes += used
				require.NoError(t, m.Close())
			}
		}
		return bytes
	}
	// start starts an agent, which ends with its maps complete. It returns their memory before
	// the flip, and after it.
	start := func() (filled, released uint64) {
		maps := newMaps(DefaultConfig)
		require.NoError(t, maps.open(k))
		for i := range uint32(entries) {
			prefix := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 32)
			_, err := maps.IPCache.Update([]IPCacheKey{IPCacheKeyFrom(prefix)}, []IPCacheValue{{Member: i}})
			require.NoError(t, err)
			_, err = maps.Peers.Update([]PeerKey{{i}}, []PeerValue{{i}})
			require.NoError(t, err)
			_, err = maps.Policy.Update([]PolicyKey{{Ruleset: i}}, []PolicyValue{{i}})
			require.NoError(t, err)
		}
		filled = memory()
		require.NoError(t, maps.Flip())
		require.NoError(t, maps.Release())
		released = memory()
		maps.close()
		return filled, released
	}
	_, one := start()
	both, again := start()
	t.Logf("one slot: %d KiB; both: %d KiB", one>>10, both>>10)
	require.Equal(t, one, again)
	require.Equal(t, 2*one, both)
}

func TestTruncated(t *testing.T) {
	k := prefix{32, [4]byte{0xff, 0xff, 0xff, 0xff}}
	for length, want := range map[int][4]byte{0: {}, 1: {0x80}, 8: {0xff}, 13: {0xff, 0xf8}, 31: {0xff, 0xff, 0xff, 0xfe}, 32: k.Bits} {
		require.Equal(t, prefix{uint32(length), want}, Truncated(k, length))
	}
}

func BenchmarkUpdate(b *testing.B) {
	backends := map[string]Backend{"memory": NewMemory(), "kernel": testKernel(b, testBPFFS(b))}
	for name, backend := range backends {
		for _, typ := range []Type{TypeHash, TypeLPM} {
			for _, n := range []int{1, 10000} {
				b.Run(fmt.Sprintf("%s/%s/%d", name, typ, n), func(b *testing.B) {
					m, err := Open[prefix, value](backend, Spec{"bench", typ, 20000})
					require.NoError(b, err)
					keys, values := manyKeys(n)
					b.ReportAllocs()
					for b.Loop() {
						if _, err := m.Update(keys, values); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		}
		backend.Close()
	}
}
