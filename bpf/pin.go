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
	linksDir   = "links"  // under it: links of attached programs
	// programsDir is under it too: programs for pods' devices, see [PinProgram].
	programsDir = "programs"
	newSuffix   = "_new" // of what will replace the pin of the name; bpffs refuses names with dots
)

// programMaps are the maps that the programs write. Package datapath opens them,
// in the same directory, and package percluster those of clusters: arrays, and
// a directory of the maps in them.
var programMaps = []string{
	"sluice_ct4_tcp", "sluice_ct4_any", "sluice_ct6_tcp", "sluice_ct6_any", "sluice_nat4",
	"sluice_nat6", "sluice_frag4", "sluice_frag6", "sluice_metrics", "sluice_events",
	RulesMap, RuleSlotsMap, DecidedMap, SharesMap, PortsMap, PathsMap, LedgerMap, MissingMap,
	VotesMap, VotersMap, ToldMap,
	TrafficMap, TrafficOwnersMap, TrafficCountsMap, BucketsMap,
	"sluice_cct4_tcp", "sluice_cct4_any", "sluice_cct6_tcp", "sluice_cct6_any", "sluice_cnat4",
	"sluice_cnat6", "clusters",
}

// ErrInUse says that another agent uses the maps.
var ErrInUse = errors.New("in use by another agent")

// ownMaps is how many of these, the first ones, package datapath opens.
const ownMaps = 25

// Kernel is the back end of kernel maps, pinned under <bpffs>/sluice. It holds
// a lock on that directory: there is one agent on a node.
type Kernel struct {
	log  *slog.Logger
	dir  *os.File
	maps []io.Closer

	pinned []pinnedMap
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

// Dir returns the directory of pinned maps.
func (k *Kernel) Dir() string { return k.dir.Name() }

// MapsDir returns the directory of pinned maps of a BPF file system. It may not
// exist yet.
func MapsDir(bpffs string) string { return filepath.Join(bpffs, pinDir) }

// LinksDir returns the directory of pinned links of a BPF file system. It may
// not exist yet.
func LinksDir(bpffs string) string { return filepath.Join(bpffs, pinDir, linksDir) }

// ProgramsDir returns the directory of pinned programs of a BPF file system. It may
// not exist yet.
func ProgramsDir(bpffs string) string { return filepath.Join(bpffs, pinDir, programsDir) }

// ProgramsDir returns the directory of pinned programs.
func (k *Kernel) ProgramsDir() string { return filepath.Join(k.dir.Name(), programsDir) }

// LinksDir returns the directory of pinned links.
func (k *Kernel) LinksDir() string { return filepath.Join(k.dir.Name(), linksDir) }

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
	dir := k.Dir()
	if spec.Name == StateMap {
		dir = filepath.Join(dir, layoutDir)
	}
	m, err := OpenPinned(dir, kernelSpec[K, V](spec), CopyEntries[K, V], k.log)
	if err != nil {
		return nil, err
	}
	k.maps = append(k.maps, m)
	k.pinned = append(k.pinned, pinnedMap{path: filepath.Join(dir, spec.Name), m: m})
	return &kernelMap[K, V]{spec: spec, m: m}, nil
}

// Copier writes the entries of one map into another, as far as there is room,
// and returns how many found room and how many did not.
type Copier func(from, to *ebpf.Map) (kept, lost int, err error)

// OpenPinned opens the map that is pinned in a directory under the name of its
// description if it is as described. Otherwise it puts a new one in its place,
// in one step, which takes over the entries that fit if nothing but the size was
// another and there is a copier.
func OpenPinned(
	dir string, want *ebpf.MapSpec, copier Copier, log *slog.Logger,
) (*ebpf.Map, error) {
	path := filepath.Join(dir, want.Name)
	old, err := ebpf.LoadPinnedMap(path, nil)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		old = nil
	case err != nil:
		old = nil
		log.Warn("Replacing a pin that is not a map", "map", want.Name, "error", err)
	case sameButSize(old, want) && old.MaxEntries() == want.MaxEntries:
		return old, nil
	}
	defer old.Close()

	unpinned := want.Copy()
	unpinned.Pinning = ebpf.PinNone
	m, err := ebpf.NewMap(unpinned)
	if err != nil {
		return nil, fmt.Errorf("create map %s: %w", want.Name, err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		m.Close()
		return nil, fmt.Errorf("create directory of pinned maps: %w", err)
	}
	if err := takeOver(m, old, want, copier, log); err != nil {
		m.Close()
		return nil, err
	}
	if err := replacePin(m.Pin, path); err != nil {
		m.Close()
		return nil, fmt.Errorf("pin map %s: %w", want.Name, err)
	}
	return m, nil
}

// sameButSize reports whether a map is as described but for its size.
func sameButSize(m *ebpf.Map, want *ebpf.MapSpec) bool {
	return m.Type() == want.Type && m.KeySize() == want.KeySize && m.ValueSize() == want.ValueSize &&
		m.Flags() == want.Flags
}

// takeOver writes the entries of an old map into the one that will replace it,
// or says why it does not.
func takeOver(m, old *ebpf.Map, want *ebpf.MapSpec, copier Copier, log *slog.Logger) error {
	switch {
	case old == nil:
	case sameButSize(old, want) && copier != nil:
		kept, lost, err := copier(old, m)
		if err != nil {
			return fmt.Errorf("move the entries of map %s to one of another size: %w", want.Name, err)
		}
		log.Info("Replaced a map by one of another size", "map", want.Name,
			"old-max-entries", old.MaxEntries(), "max-entries", want.MaxEntries, "kept", kept, "lost", lost)
	case sameButSize(old, want):
		log.Info("Replaced a map by an empty one of another size", "map", want.Name,
			"old-max-entries", old.MaxEntries(), "max-entries", want.MaxEntries)
	default:
		log.Warn("Replaced a map of another layout by an empty one", "map", want.Name,
			"old-type", old.Type().String(), "old-key-size", old.KeySize(), "old-value-size",
			old.ValueSize(),
			"type", want.Type.String(), "key-size", want.KeySize, "value-size", want.ValueSize)
	}
	return nil
}

// replacePin pins an object where another may be, in one step.
func replacePin(pin func(path string) error, path string) error {
	if err := os.Remove(path + newSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove leftover pin: %w", err)
	}
	if err := pin(path + newSuffix); err != nil {
		return err
	}
	return os.Rename(path+newSuffix, path)
}

// CopyEntries is the [Copier] of maps with keys and values of these types.
func CopyEntries[K, V comparable](from, to *ebpf.Map) (kept, lost int, err error) {
	entries, err := DumpKernel[K, V](from)
	if err != nil {
		return 0, 0, err
	}
	keys, values := make([]K, len(entries)), make([]V, len(entries))
	for i, e := range entries {
		keys[i], values[i] = e.Key, e.Value
	}
	kept, err = (&kernelMap[K, V]{spec: kernelType(to), m: to}).Update(keys, values)
	if errors.Is(err, ErrMapFull) {
		err = nil
	}
	if to.Type() == ebpf.LRUHash { // it takes all, at the cost of others
		kept = min(kept, int(to.MaxEntries()))
	}
	return kept, len(entries) - kept, err
}
