// SPDX-License-Identifier: Apache-2.0

package percluster

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/natmap"
)

// MaxClusterID is the greatest number that a cluster may have; the least is 1.
const MaxClusterID = 511

// Names of the arrays.
const (
	CT4TCP = "sluice_cct4_tcp"
	CT4Any = "sluice_cct4_any"
	CT6TCP = "sluice_cct6_tcp"
	CT6Any = "sluice_cct6_any"
	NAT4   = "sluice_cnat4"
	NAT6   = "sluice_cnat6"
)

// kinds are the arrays and the global maps that the maps in them are like, in the
// order of the fields of [Set].
var kinds = [...]struct{ name, like string }{
	{CT4TCP, ctmap.CT4TCP}, {CT4Any, ctmap.CT4Any}, {CT6TCP, ctmap.CT6TCP}, {CT6Any, ctmap.CT6Any},
	{NAT4, natmap.Name4}, {NAT6, natmap.Name6},
}

// Names returns the names of the arrays.
func Names() []string {
	names := make([]string, len(kinds))
	for i, k := range kinds {
		names[i] = k.name
	}
	return names
}

// CheckID returns an error unless a number is one that a cluster may have.
func CheckID(id uint32) error {
	if id == 0 || id > MaxClusterID {
		return fmt.Errorf("cluster %d: want a number from 1 to %d", id, MaxClusterID)
	}
	return nil
}

// Sizes are the sizes of the maps of a cluster, in entries.
type Sizes struct{ CTTCP, CTAny, NAT uint32 }

func (s Sizes) of(like string) uint32 {
	switch like {
	case ctmap.CT4TCP, ctmap.CT6TCP:
		return s.CTTCP
	case ctmap.CT4Any, ctmap.CT6Any:
		return s.CTAny
	}
	return s.NAT
}

// innerSpec describes the map of a cluster. The kernel shows the array's name.
func innerSpec(i int, maxEntries uint32) (spec *ebpf.MapSpec, err error) {
	if i < 4 {
		spec, err = ctmap.Spec(kinds[i].like, maxEntries)
	} else {
		spec, err = natmap.Spec(kinds[i].like, maxEntries)
	}
	if err == nil {
		spec.Name = kinds[i].name
	}
	return spec, err
}

// Maps are the arrays. Methods may be called concurrently, by several processes
// too.
type Maps struct {
	dir    string
	mu     sync.Mutex
	arrays [len(kinds)]*ebpf.Map
}

// Open opens the arrays that are pinned in a directory ([bpf.MapsDir]). The
// error is [fs.ErrNotExist] if they are not.
func Open(dir string) (*Maps, error) {
	m := &Maps{dir: dir}
	for i, k := range kinds {
		path := ctmap.Path(dir, k.name)
		array, err := ebpf.LoadPinnedMap(path, nil)
		if err == nil && !isArray(array) {
			err = errors.Join(fmt.Errorf("it is a %s", array.Type()), array.Close())
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("map %s: open %s: %w", k.name, path, err), m.Close())
		}
		m.arrays[i] = array
	}
	return m, nil
}

func isArray(m *ebpf.Map) bool {
	return m.Type() == ebpf.ArrayOfMaps && m.MaxEntries() == MaxClusterID+1
}

// OpenOrCreate opens the arrays that are pinned in a directory, and creates those
// that are not. One of other properties, or for maps of another layout, is
// replaced by an empty one; a program that uses the former goes on with it until
// it is replaced. Pins of maps that no array has are removed, and maps that are
// not pinned are. A nil log is none.
func OpenOrCreate(dir string, log *slog.Logger) (*Maps, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	unlock, err := lock(dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	m := &Maps{dir: dir}
	for i := range kinds {
		array, err := openArray(dir, i, log)
		if err != nil {
			return nil, errors.Join(err, m.Close())
		}
		m.arrays[i] = array
	}
	if err := m.settleAll(log); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

func openArray(dir string, i int, log *slog.Logger) (*ebpf.Map, error) {
	template, err := innerSpec(i, 1)
	if err != nil {
		return nil, err
	}
	want := &ebpf.MapSpec{
		Name: kinds[i].name, Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: MaxClusterID + 1, InnerMap: template,
	}
	_, missing := os.Stat(ctmap.Path(dir, want.Name))
	array, err := bpf.OpenPinned(dir, want, nil, log)
	if err != nil || errors.Is(missing, fs.ErrNotExist) {
		return array, err
	}
	takes, err := takesMapsLike(array, template)
	switch {
	case err != nil:
		return nil, errors.Join(err, array.Close())
	case takes:
		return array, nil
	}
	log.Warn("Replacing an array of maps of another layout by an empty one", "map", want.Name)
	if err := errors.Join(array.Close(), os.Remove(ctmap.Path(dir, want.Name))); err != nil {
		return nil, fmt.Errorf("map %s: replace: %w", want.Name, err)
	}
	return bpf.OpenPinned(dir, want, nil, log)
}

// takesMapsLike reports whether an array is for maps as described. The kernel
// does not tell what its template was, so one is put at the index that no cluster
// has, and removed.
func takesMapsLike(array *ebpf.Map, template *ebpf.MapSpec) (bool, error) {
	inner, err := ebpf.NewMap(template)
	if err != nil {
		return false, fmt.Errorf("map %s: create one for it: %w", template.Name, err)
	}
	defer inner.Close()
	err = array.Put(uint32(0), inner)
	if errors.Is(err, unix.EINVAL) {
		return false, nil
	}
	if err == nil {
		err = array.Delete(uint32(0))
	}
	if err != nil {
		return false, fmt.Errorf("map %s: try its layout: %w", template.Name, err)
	}
	return true, nil
}

// Close closes the arrays. They stay, with the maps in them.
func (m *Maps) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var errs []error
	for _, array := range m.arrays {
		errs = append(errs, array.Close())
	}
	return errors.Join(errs...)
}

// Create creates the maps of a cluster. Those that exist stay if they have the
// size, and are replaced by ones that have it, with the entries that find room,
// if not. If one fails the others are created all the same; it may be repeated.
func (m *Maps) Create(id uint32, sizes Sizes) error {
	return m.change(id, "create for", func(kind int) error { return m.create(kind, id, sizes.of(kinds[kind].like)) })
}

// change does something to each map of a cluster, also after it has failed for one.
func (m *Maps) change(id uint32, what string, do func(kind int) error) error {
	if err := CheckID(id); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	unlock, err := lock(m.dir)
	if err != nil {
		return err
	}
	defer unlock()
	var errs []error
	for i := range kinds {
		if err := do(i); err != nil {
			errs = append(errs, fmt.Errorf("map %s: %s cluster %d: %w", kinds[i].name, what, id, err))
		}
	}
	return errors.Join(errs...)
}

// copiers write the entries of maps to others of another size.
var copiers = [len(kinds)]bpf.Copier{
	bpf.CopyEntries[ctmap.Key4, ctmap.Entry], bpf.CopyEntries[ctmap.Key4, ctmap.Entry],
	bpf.CopyEntries[ctmap.Key6, ctmap.Entry], bpf.CopyEntries[ctmap.Key6, ctmap.Entry],
	bpf.CopyEntries[natmap.Key4, natmap.Entry4], bpf.CopyEntries[natmap.Key6, natmap.Entry6],
}

func (m *Maps) create(i int, id, maxEntries uint32) error {
	old, err := m.settle(i, id)
	if err != nil {
		return err
	}
	defer old.Close()
	if old != nil && old.MaxEntries() == maxEntries {
		return nil
	}
	spec, err := innerSpec(i, maxEntries)
	if err != nil {
		return err
	}
	inner, err := ebpf.NewMap(spec)
	if err != nil {
		return err
	}
	defer inner.Close() // the array and the pin keep it
	if old != nil {
		if _, _, err := copiers[i](old, inner); err != nil {
			return fmt.Errorf("move its entries: %w", err)
		}
	}
	return m.put(i, id, inner)
}

// Delete deletes the maps of a cluster, when the programs are done with them. It
// is no error that there are none.
func (m *Maps) Delete(id uint32) error {
	return m.change(id, "delete of", func(kind int) error { return m.delete(kind, id) })
}

// Clusters returns the numbers of the clusters that have maps, ascending.
func (m *Maps) Clusters() (ids []uint32, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id := uint32(1); id <= MaxClusterID; id++ {
		for i := range m.arrays {
			number, err := m.number(i, id)
			if err != nil {
				return nil, fmt.Errorf("map %s: look up cluster %d: %w", kinds[i].name, id, err)
			}
			if number != 0 {
				ids = append(ids, id)
				break
			}
		}
	}
	return ids, nil
}

// Cleanup removes the arrays that are pinned in a directory, and the maps in
// them, though a program may have the arrays still. It returns the names of what
// was removed; it is no error that there is nothing.
func Cleanup(dir string) (removed []string, err error) {
	var errs []error
	pins := filepath.Join(dir, pinDir)
	if _, err := os.Stat(pins); err == nil {
		unlock, err := lock(dir)
		if err != nil {
			return nil, err
		}
		defer unlock()
	}
	for _, k := range kinds {
		path := ctmap.Path(dir, k.name)
		array, err := ebpf.LoadPinnedMap(path, nil)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = empty(array)
		}
		if err = errors.Join(err, os.Remove(path)); err != nil {
			errs = append(errs, fmt.Errorf("map %s: remove: %w", k.name, err))
			continue
		}
		removed = append(removed, k.name)
	}
	// Last: maps that arrays have are pinned as long as possible.
	if _, err := os.Stat(pins); err == nil {
		if err := os.RemoveAll(pins); err != nil {
			errs = append(errs, fmt.Errorf("remove pins of maps of clusters: %w", err))
		} else {
			removed = append(removed, pinDir)
		}
	}
	return removed, errors.Join(errs...)
}

func empty(array *ebpf.Map) error {
	defer array.Close()
	if !isArray(array) {
		return nil
	}
	for id := range uint32(MaxClusterID + 1) {
		// To delete what is not there may take as long.
		var number ebpf.MapID
		err := array.Lookup(id, &number)
		if err == nil {
			err = array.Delete(id)
		}
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("delete of cluster %d: %w", id, err)
		}
	}
	return nil
}
