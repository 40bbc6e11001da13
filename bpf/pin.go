// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

const (
	kernelName = "kernel"
	pinDir     = "sluice" // under the BPF file system
	newSuffix  = "_new"   // of a map that will replace the one of the name; bpffs refuses names with dots
)

// ErrInUse says that another agent uses the maps.
var ErrInUse = errors.New("in use by another agent")

// Kernel is the back end of kernel maps, pinned under <bpffs>/sluice. It holds
// a lock on that directory: there is one agent on a node.
type Kernel struct {
	log  *slog.Logger
	dir  *os.File
	maps []io.Closer
}

var _ Backend = (*Kernel)(nil)

// OpenKernel opens the back end on a BPF file system, which is mounted if it is
// not yet. It fails with [ErrInUse] if another agent has it.
func OpenKernel(bpffs string, log *slog.Logger) (*Kernel, error) {
	if err := mountBPFFS(bpffs); err != nil {
		return nil, err
	}
	path := filepath.Join(bpffs, pinDir)
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("create directory of pinned maps: %w", err)
	}
	dir, err := lockDir(path)
	if err != nil {
		return nil, err
	}
	return &Kernel{log: log, dir: dir}, nil
}

// lockDir opens a directory and takes its lock, which the kernel releases when
// the process ends, however it does.
func lockDir(path string) (*os.File, error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open directory of pinned maps: %w", err)
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		dir.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = ErrInUse
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return dir, nil
}

// Name implements [Backend].
func (k *Kernel) Name() string { return kernelName }

// Close implements [Backend]. It releases the lock.
func (k *Kernel) Close() error {
	errs := []error{k.dir.Close()}
	for _, m := range k.maps {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}

// Sweep implements [Backend]. It removes pins of any kind.
func (k *Kernel) Sweep(keep ...string) (removed []string, err error) {
	return removePins(k.dir.Name(), keep)
}

func removePins(dir string, keep []string) (removed []string, err error) {
	pins, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list pins: %w", err)
	}
	var errs []error
	for _, pin := range pins {
		if slices.Contains(keep, pin.Name()) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, pin.Name())); err != nil {
			errs = append(errs, fmt.Errorf("remove pin: %w", err))
			continue
		}
		removed = append(removed, pin.Name())
	}
	return removed, errors.Join(errs...)
}

// Cleanup removes everything that agents have pinned in a BPF file system and
// returns the names. It fails with [ErrInUse] while an agent runs.
func Cleanup(bpffs string) (removed []string, err error) {
	if mounted, err := isBPFFS(bpffs); err != nil || !mounted {
		return nil, err
	}
	path := filepath.Join(bpffs, pinDir)
	lock, err := lockDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	defer lock.Close()
	removed, err = removePins(path, nil)
	if err != nil {
		return removed, err
	}
	if err := os.Remove(path); err != nil {
		return removed, fmt.Errorf("remove directory of pinned maps: %w", err)
	}
	return removed, nil
}

// openKernelMap opens the pinned map of a name if it is as described, and
// otherwise puts a new one in its place.
func openKernelMap[K, V comparable](k *Kernel, spec Spec) (Map[K, V], error) {
	want := kernelSpec[K, V](spec)
	path := filepath.Join(k.dir.Name(), spec.Name)
	old, err := ebpf.LoadPinnedMap(path, nil)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		old = nil
	case err != nil:
		k.log.Warn("Replacing a pin that is not a map", "map", spec.Name, "error", err)
	case sameButSize(old, want) && old.MaxEntries() == want.MaxEntries:
		k.maps = append(k.maps, old)
		return &kernelMap[K, V]{spec, old}, nil
	}
	defer old.Close()

	m, err := ebpf.NewMap(want)
	if err != nil {
		return nil, fmt.Errorf("create map %s: %w", spec.Name, err)
	}
	t := &kernelMap[K, V]{spec, m}
	if err := k.replace(t, old, want, path); err != nil {
		m.Close()
		return nil, err
	}
	k.maps = append(k.maps, m)
	return t, nil
}

// sameButSize reports whether a map is as described but for its size.
func sameButSize(m *ebpf.Map, want *ebpf.MapSpec) bool {
	return m.Type() == want.Type && m.KeySize() == want.KeySize && m.ValueSize() == want.ValueSize && m.Flags() == want.Flags
}

// filler is a map that can take over the entries of another.
type filler interface {
	fill(from *ebpf.Map, spec *ebpf.MapSpec) (kept, lost int, err error)
	pin(path string) error
}

// replace pins a new map, in one step, where an old one may be, from which it
// takes the entries that fit if it differs in nothing but the size.
func (k *Kernel) replace(t filler, old *ebpf.Map, want *ebpf.MapSpec, path string) error {
	if old != nil && sameButSize(old, want) {
		kept, lost, err := t.fill(old, want)
		if err != nil {
			return fmt.Errorf("move the entries of map %s to one of another size: %w", want.Name, err)
		}
		k.log.Info("Replaced a map by one of another size", "map", want.Name,
			"old-max-entries", old.MaxEntries(), "max-entries", want.MaxEntries, "kept", kept, "lost", lost)
	} else if old != nil {
		k.log.Warn("Replaced a map of another layout by an empty one", "map", want.Name,
			"old-type", old.Type().String(), "old-key-size", old.KeySize(), "old-value-size", old.ValueSize(),
			"type", want.Type.String(), "key-size", want.KeySize, "value-size", want.ValueSize)
	}
	if err := os.Remove(path + newSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove leftover pin: %w", err)
	}
	if err := t.pin(path + newSuffix); err != nil {
		return fmt.Errorf("pin map %s: %w", want.Name, err)
	}
	if err := os.Rename(path+newSuffix, path); err != nil {
		return fmt.Errorf("pin map %s: %w", want.Name, err)
	}
	return nil
}

func (t *kernelMap[K, V]) pin(path string) error { return t.m.Pin(path) }

func (t *kernelMap[K, V]) fill(from *ebpf.Map, spec *ebpf.MapSpec) (kept, lost int, err error) {
	entries, err := (&kernelMap[K, V]{t.spec, from}).Dump()
	if err != nil {
		return 0, 0, err
	}
	keys, values := make([]K, len(entries)), make([]V, len(entries))
	for i, e := range entries {
		keys[i], values[i] = e.Key, e.Value
	}
	kept, err = t.Update(keys, values)
	if errors.Is(err, ErrMapFull) {
		err = nil
	}
	return kept, len(entries) - kept, err
}
