// SPDX-License-Identifier: Apache-2.0

package percluster

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

const (
	pinDir    = "clusters" // beside the arrays: the maps in them
	newSuffix = "_new"     // of a map that is, or is about to be, in an array
)

// Path returns where the map of a cluster is pinned that is in the array of a
// name. While it is replaced, the new one has "_new" after it.
func Path(dir, name string, id uint32) string {
	return filepath.Join(dir, pinDir, fmt.Sprintf("%s_%d", strings.TrimPrefix(name, "sluice_"), id))
}

// lock takes the lock of those that change maps of clusters, and waits for it. The
// kernel releases it when the process ends. Without a directory of pinned maps
// there is nothing to lock, and nothing can be pinned.
func lock(dir string) (unlock func(), err error) {
	path := filepath.Join(dir, pinDir)
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("create directory of maps of clusters: %w", err)
	}
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return func() {}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open directory of maps of clusters: %w", err)
	}
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX)
		if err == nil {
			return func() { file.Close() }, nil
		}
		if !errors.Is(err, unix.EINTR) {
			file.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
	}
}

// number returns the kernel's number of the map of a cluster, 0 if there is none.
func (m *Maps) number(i int, id uint32) (number ebpf.MapID, err error) {
	err = m.arrays[i].Lookup(id, &number)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return 0, nil
	}
	return number, err
}

// inner opens the map of a cluster, nil if there is none. It needs no lock.
func (m *Maps) inner(i int, id uint32) (*ebpf.Map, error) {
	number, err := m.number(i, id)
	for err == nil && number != 0 {
		// In this order: it is renamed from the first to the second.
		path := Path(m.dir, kinds[i].name, id)
		next, errNext := openPin(path+newSuffix, number)
		if next != nil {
			return next, nil
		}
		present, errPresent := openPin(path, number)
		if present != nil {
			return present, nil
		}
		former := number
		if number, err = m.number(i, id); err == nil && number == former {
			return openNumber(number, errors.Join(errNext, errPresent))
		}
	}
	return nil, err
}

// openPin opens a pinned map if it is the one of a number, nil if it is not or
// there is none.
func openPin(path string, number ebpf.MapID) (*ebpf.Map, error) {
	pinned, err := ebpf.LoadPinnedMap(path, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	info, err := pinned.Info()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", path, err), pinned.Close())
	}
	if of, ok := info.ID(); ok && of == number {
		return pinned, nil
	}
	return nil, pinned.Close()
}

// openNumber opens a map whose pin is missing, or cannot be opened for a reason,
// nil if it was deleted after its number was read.
func openNumber(number ebpf.MapID, reason error) (*ebpf.Map, error) {
	inner, err := ebpf.NewMapFromID(number)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if errors.Is(err, unix.EPERM) {
		err = fmt.Errorf("it has no pin, and to open it by its number takes CAP_SYS_ADMIN: %w", err)
	}
	if err != nil {
		return nil, errors.Join(err, reason)
	}
	return inner, nil
}

// put puts a map into an array, in the place of what is there. Whenever it ends,
// the map that is in the array has a pin.
func (m *Maps) put(i int, id uint32, inner *ebpf.Map) error {
	path := Path(m.dir, kinds[i].name, id)
	if err := inner.Pin(path + newSuffix); err != nil {
		return fmt.Errorf("pin it: %w", err)
	}
	if err := m.arrays[i].Put(id, inner); err != nil {
		return errors.Join(err, os.Remove(path+newSuffix))
	}
	if err := os.Rename(path+newSuffix, path); err != nil {
		return fmt.Errorf("rename its pin: %w", err)
	}
	return nil
}

// delete deletes a map from an array, and then its pins.
func (m *Maps) delete(i int, id uint32) error {
	if err := m.arrays[i].Delete(id); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	path := Path(m.dir, kinds[i].name, id)
	return errors.Join(removePin(path), removePin(path+newSuffix))
}

func removePin(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove pin: %w", err)
	}
	return nil
}

// settle brings the pins of a cluster in line with the array, which another process may
// have left in the midst of a change, and opens the map, nil if there is none.
func (m *Maps) settle(i int, id uint32) (*ebpf.Map, error) {
	inner, err := m.inner(i, id)
	if err != nil {
		return nil, err
	}
	path := Path(m.dir, kinds[i].name, id)
	if inner == nil {
		return nil, errors.Join(removePin(path), removePin(path+newSuffix))
	}
	if err := settlePin(inner, path); err != nil {
		return nil, errors.Join(err, inner.Close())
	}
	return inner, nil
}

// settlePin has a map pinned at a path, and nothing beside it.
func settlePin(inner *ebpf.Map, path string) error {
	info, err := inner.Info()
	if err != nil {
		return err
	}
	number, _ := info.ID()
	if pinned, err := openPin(path, number); err == nil && pinned != nil {
		return errors.Join(pinned.Close(), removePin(path+newSuffix))
	}
	next, err := openPin(path+newSuffix, number)
	if err == nil && next != nil {
		err = next.Close()
	} else if err = removePin(path + newSuffix); err == nil {
		err = inner.Pin(path + newSuffix)
	}
	if err != nil {
		return fmt.Errorf("pin it: %w", err)
	}
	if err := os.Rename(path+newSuffix, path); err != nil {
		return fmt.Errorf("rename its pin: %w", err)
	}
	return nil
}

// settleAll settles the maps that are in arrays or have pins. One that it cannot
// settle is logged: the others are as usable as ever.
func (m *Maps) settleAll(log *slog.Logger) error {
	files, err := os.ReadDir(filepath.Join(m.dir, pinDir))
	if err != nil {
		return fmt.Errorf("list pins of maps of clusters: %w", err)
	}
	pinned := map[string]bool{}
	for _, file := range files {
		pinned[strings.TrimSuffix(file.Name(), newSuffix)] = true
	}
	for i := range kinds {
		for id := uint32(1); id <= MaxClusterID; id++ {
			number, err := m.number(i, id)
			if err != nil {
				return fmt.Errorf("map %s: look up cluster %d: %w", kinds[i].name, id, err)
			}
			if number == 0 && !pinned[filepath.Base(Path(m.dir, kinds[i].name, id))] {
				continue
			}
			inner, err := m.settle(i, id)
			if err != nil {
				log.Warn("Cannot bring the pin of a cluster's map in line", "map", kinds[i].name, "cluster", id, "error", err)
				continue
			}
			inner.Close()
		}
	}
	return nil
}
