// SPDX-License-Identifier: Apache-2.0

package percluster

import (
	"bytes"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// pins returns the names of the pinned maps of clusters.
func pins(t *testing.T, dir string) (names []string) {
	t.Helper()
	files, err := os.ReadDir(filepath.Join(dir, pinDir))
	require.NoError(t, err)
	for _, file := range files {
		names = append(names, file.Name())
	}
	return names
}

// requireSettled requires that exactly the maps that are in arrays are pinned.
func requireSettled(t *testing.T, m *Maps) {
	t.Helper()
	want := []string{}
	for i := range kinds {
		for id := uint32(1); id <= MaxClusterID; id++ {
			number, err := m.number(i, id)
			require.NoError(t, err)
			if number == 0 {
				continue
			}
			path := Path(m.dir, kinds[i].name, id)
			want = append(want, filepath.Base(path))
			pinned, err := openPin(path, number)
			require.NoError(t, err)
			require.NotNil(t, pinned, "the pin %s is of another map than the array's", path)
			require.NoError(t, pinned.Close())
		}
	}
	require.ElementsMatch(t, want, pins(t, m.dir))
}

// What a process that ends between two steps of a change leaves, and then what
// the arrays have is what a reader without CAP_SYS_ADMIN gets. Each of the ways
// on makes the pins right again.
func TestEndBetweenSteps(t *testing.T) {
	t.Parallel()
	const i, id = 1, 7
	file := func(m *Maps, suffix string) string { return Path(m.dir, kinds[i].name, id) + suffix }
	pin := func(t *testing.T, m *Maps, suffix string) *ebpf.Map {
		spec, err := innerSpec(i, testSizes.CTAny)
		require.NoError(t, err)
		inner, err := ebpf.NewMap(spec)
		require.NoError(t, err)
		require.NoError(t, inner.Pin(file(m, suffix)))
		t.Cleanup(func() { require.NoError(t, inner.Close()) })
		return inner
	}
	// Each returns the map that is the cluster's afterwards, 0 for none.
	states := map[string]func(*testing.T, *Maps) ebpf.MapID{
		"pinned, not in the array": func(t *testing.T, m *Maps) ebpf.MapID {
			pin(t, m, newSuffix)
			return 0
		},
		"pinned, not in the array in the place of another": func(t *testing.T, m *Maps) ebpf.MapID {
			require.NoError(t, m.Create(id, testSizes))
			former := info(t, get(t, m, id).Set().CT4Any)
			pin(t, m, newSuffix)
			return former
		},
		"in the array, not renamed": func(t *testing.T, m *Maps) ebpf.MapID {
			inner := pin(t, m, newSuffix)
			require.NoError(t, m.arrays[i].Put(uint32(id), inner))
			return info(t, inner)
		},
		"in the array in the place of another, not renamed": func(t *testing.T, m *Maps) ebpf.MapID {
			require.NoError(t, m.Create(id, testSizes))
			inner := pin(t, m, newSuffix)
			require.NoError(t, m.arrays[i].Put(uint32(id), inner))
			return info(t, inner)
		},
		"deleted from the array, still pinned": func(t *testing.T, m *Maps) ebpf.MapID {
			require.NoError(t, m.Create(id, testSizes))
			require.NoError(t, m.arrays[i].Delete(uint32(id)))
			return 0
		},
		"deleted in the array, pinned twice": func(t *testing.T, m *Maps) ebpf.MapID {
			require.NoError(t, m.Create(id, testSizes))
			pin(t, m, newSuffix)
			require.NoError(t, m.arrays[i].Delete(uint32(id)))
			return 0
		},
		"the pin is no map": func(t *testing.T, m *Maps) ebpf.MapID {
			require.NoError(t, m.Create(id, testSizes))
			require.NoError(t, os.Rename(file(m, ""), file(m, newSuffix)))
			require.NoError(t, writer(t, m.arrays[0]).Pin(file(m, "")))
			return info(t, get(t, m, id).Set().CT4Any)
		},
	}
	present := func(t *testing.T, m *Maps) ebpf.MapID {
		inner, err := m.inner(i, id)
		require.NoError(t, err)
		if inner == nil {
			return 0
		}
		defer inner.Close()
		return info(t, inner)
	}
	ways := map[string]func(*testing.T, *Maps, ebpf.MapID){
		"create": func(t *testing.T, m *Maps, want ebpf.MapID) {
			require.NoError(t, m.Create(id, testSizes))
			if want != 0 {
				require.Equal(t, want, present(t, m), "it is kept")
			}
			require.Len(t, pins(t, m.dir), len(kinds))
		},
		"create of another size": func(t *testing.T, m *Maps, want ebpf.MapID) {
			require.NoError(t, m.Create(id, Sizes{CTTCP: 1, CTAny: 2, NAT: 3}))
			require.EqualValues(t, 2, get(t, m, id).Set().CT4Any.MaxEntries())
			require.Len(t, pins(t, m.dir), len(kinds))
		},
		"delete": func(t *testing.T, m *Maps, want ebpf.MapID) {
			require.NoError(t, m.Delete(id))
			require.Zero(t, present(t, m))
			require.Empty(t, pins(t, m.dir))
		},
		"open or create": func(t *testing.T, m *Maps, want ebpf.MapID) {
			var logged bytes.Buffer
			again, err := OpenOrCreate(m.dir, slog.New(slog.NewTextHandler(&logged, nil)))
			require.NoError(t, err)
			defer again.Close()
			require.Equal(t, want, present(t, again), "it is kept")
			require.Empty(t, logged.String())
		},
		"cleanup": func(t *testing.T, m *Maps, want ebpf.MapID) {
			_, err := Cleanup(m.dir)
			require.NoError(t, err)
			require.NoDirExists(t, filepath.Join(m.dir, pinDir))
			require.NoError(t, os.Mkdir(filepath.Join(m.dir, pinDir), 0o700))
		},
	}
	bpffs := testBPFFS(t)
	for state, leave := range states {
		for way, goOn := range ways {
			t.Run(state+"/"+way, func(t *testing.T) {
				t.Parallel()
				dir, err := os.MkdirTemp(bpffs, "")
				require.NoError(t, err)
				m := openOrCreate(t, dir)
				want := leave(t, m)
				dropCapabilities(t)
				require.Equal(t, want, present(t, m))
				ids, err := m.Clusters()
				require.NoError(t, err)
				for _, id := range ids {
					get(t, m, id)
				}
				goOn(t, m, want)
				requireSettled(t, m)
			})
		}
	}
}

// A map in an array without a pin is nothing that a change leaves, but another process
// may remove it. Who has CAP_SYS_ADMIN opens it and pins it again; who has not is
// told, and can still see and delete it.
func TestArrayEntryWithoutPin(t *testing.T) {
	t.Parallel()
	for what, remove := range map[string]func(t *testing.T, dir string){
		"none": func(t *testing.T, dir string) {
			require.NoError(t, os.RemoveAll(filepath.Join(dir, pinDir)))
		},
		"of another": func(t *testing.T, dir string) {
			require.NoError(t, os.Rename(Path(dir, CT4TCP, 8), Path(dir, CT4TCP, 7)))
		},
	} {
		t.Run(what, func(t *testing.T) {
			dir := mapsDir(t)
			m := openOrCreate(t, dir)
			unpinned := func(t *testing.T) ebpf.MapID {
				require.NoError(t, m.Create(7, testSizes))
				require.NoError(t, m.Create(8, testSizes))
				before := info(t, get(t, m, 7).Set().CT4TCP)
				remove(t, dir)
				require.Equal(t, before, info(t, get(t, m, 7).Set().CT4TCP), "by its number")
				return before
			}
			before := unpinned(t)
			require.NoError(t, m.Create(7, testSizes))
			require.NoError(t, m.Create(8, testSizes))
			require.Equal(t, before, info(t, get(t, m, 7).Set().CT4TCP), "it is the same, pinned")
			requireSettled(t, m)

			unpinned(t)
			openOrCreate(t, dir)
			requireSettled(t, m)

			unpinned(t)
			t.Run("without the capability", func(t *testing.T) {
				dropCapabilities(t)
				requireClusters(t, m, 7, 8)
				_, err := m.Get(7)
				require.ErrorIs(t, err, unix.EPERM)
				require.ErrorContains(t, err, "map sluice_cct4_tcp: open of cluster 7: it has no pin, and to open it by its number takes CAP_SYS_ADMIN")
				err = m.Create(7, testSizes)
				require.ErrorContains(t, err, "map sluice_cct4_tcp: create for cluster 7: it has no pin")
				var logged bytes.Buffer
				again, err := OpenOrCreate(dir, slog.New(slog.NewTextHandler(&logged, nil)))
				require.NoError(t, err)
				defer again.Close()
				require.Contains(t, logged.String(), "map=sluice_cct4_tcp cluster=7")
				for _, id := range []uint32{7, 8} {
					require.NoError(t, m.Delete(id))
				}
				requireClusters(t, m)
				require.NoError(t, m.Create(7, testSizes))
				requireFilled(t, get(t, m, 7), 0)
				requireSettled(t, m)
			})
		})
	}
}

// Arrays of an earlier agent have no directory of pins beside them.
func TestOpenWithoutDirectory(t *testing.T) {
	t.Parallel()
	dir := mapsDir(t)
	require.NoError(t, openOrCreate(t, dir).Close())
	require.NoError(t, os.Remove(filepath.Join(dir, pinDir)))
	m, err := Open(dir)
	require.NoError(t, err)
	defer m.Close()
	require.NoDirExists(t, filepath.Join(dir, pinDir), "to open them changes nothing")
	_, err = m.Get(7)
	require.ErrorIs(t, err, ebpf.ErrKeyNotExist)
	require.NoError(t, m.Create(7, testSizes))
	requireSettled(t, m)

	require.NoError(t, os.RemoveAll(dir))
	require.ErrorIs(t, m.Create(8, testSizes), fs.ErrNotExist, "nothing is created that cannot be pinned")
	requireClusters(t, m, 7)
	require.NoError(t, m.Delete(7))
	requireClusters(t, m)
}

// Maps are deleted from the arrays first: one that programs use is never without
// a pin, also where that cannot be removed.
func TestDeleteRemovesPinsLast(t *testing.T) {
	t.Parallel()
	m := openOrCreate(t, mapsDir(t))
	require.NoError(t, m.Create(7, testSizes))
	obstacle := filepath.Join(Path(m.dir, NAT6, 7)+newSuffix, "obstacle")
	require.NoError(t, os.MkdirAll(obstacle, 0o700))
	require.ErrorContains(t, m.Delete(7), "map sluice_cnat6: delete of cluster 7: remove pin: ")
	requireClusters(t, m)
	require.NoError(t, os.Remove(obstacle))
	require.NoError(t, m.Delete(7))
	requireSettled(t, m)
}
