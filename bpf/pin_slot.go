// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
)

// The kernel has the maps of slots in arrays of maps, which the programs know. Both are
// pinned. To read the maps in an array needs CAP_SYS_ADMIN.
//
//	layout_4/sluice_state
//	layout_4/sluice_pods, ...    the array
//	layout_4/0/sluice_pods, ...  what is in it
//	layout_4/1/sluice_pods, ...
//
// To change such an array the kernel waits until no program uses what was in it, so the former maps
// of a slot are freed when nothing uses them any more.

// slotsSpec returns the description of the array of a map.
func slotsSpec(inner *ebpf.MapSpec) *ebpf.MapSpec {
	return &ebpf.MapSpec{
		Name: inner.Name, Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: Slots,
		InnerMap: inner,
	}
}

// openKernelSlot puts a new map into a slot.
func openKernelSlot[K, V comparable](k *Kernel, spec Spec, slot uint32) (Map[K, V], error) {
	inner := kernelSpec[K, V](spec)
	slots, err := OpenPinned(filepath.Join(k.Dir(), layoutDir), slotsSpec(inner), nil, k.log)
	if err != nil {
		return nil, err
	}
	k.maps = append(k.maps, slots)
	m, err := ebpf.NewMap(inner)
	if err != nil {
		return nil, fmt.Errorf("create map %s: %w", spec.Name, err)
	}
	k.maps = append(k.maps, m)
	if err := slots.Put(slot, m); err != nil {
		return nil, fmt.Errorf("put map %s into slot %d: %w", spec.Name, slot, err)
	}
	path := filepath.Join(k.Dir(), slotPath(slot, spec.Name))
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("create directory of slot %d: %w", slot, err)
	}
	if err := replacePin(m.Pin, path); err != nil {
		return nil, fmt.Errorf("pin map %s: %w", spec.Name, err)
	}
	k.pinned = append(k.pinned,
		pinnedMap{path: filepath.Join(k.Dir(), layoutDir, spec.Name), m: slots},
		pinnedMap{path: path, m: m, slots: slots, slot: slot})
	return &kernelMap[K, V]{spec: spec, m: m, slots: slots}, nil
}

// hasSlot implements [Backend].
func (k *Kernel) hasSlot(slot uint32) bool {
	pins, err := os.ReadDir(filepath.Join(k.Dir(), slotPath(slot, "")))
	return err == nil && len(pins) > 0
}

// dropSlot implements [Backend].
func (k *Kernel) dropSlot(slot uint32) error {
	if err := os.RemoveAll(filepath.Join(k.Dir(), slotPath(slot, ""))); err != nil {
		return fmt.Errorf("remove pins of slot %d: %w", slot, err)
	}
	return nil
}

// openActiveSlot opens the map of a name that packets use, and the array by which programs find
// it.
func openActiveSlot(dir, name string) (slots, m *ebpf.Map, slot uint32, err error) {
	if slot, err = readActiveSlot(dir); err != nil {
		return nil, nil, 0, err
	}
	if slots, err = ebpf.LoadPinnedMap(filepath.Join(dir, layoutDir, name), nil); err != nil {
		return nil, nil, 0, fmt.Errorf("open map %s: %w", name, err)
	}
	if m, err = ebpf.LoadPinnedMap(filepath.Join(dir, slotPath(slot, name)), nil); err != nil {
		slots.Close()
		return nil, nil, 0, fmt.Errorf("open map %s of slot %d: %w", name, slot, err)
	}
	return slots, m, slot, nil
}

// readActiveSlot reads which slot is active.
func readActiveSlot(dir string) (uint32, error) {
	state, err := ebpf.LoadPinnedMap(filepath.Join(dir, layoutDir, StateMap), nil)
	if err != nil {
		return 0, fmt.Errorf("open map %s: %w", StateMap, err)
	}
	defer state.Close()
	var now StateValue
	if err := state.Lookup(StateKey{}, &now); err != nil {
		return 0, fmt.Errorf("read map %s: %w", StateMap, err)
	}
	return now.Slot % Slots, nil
}

// OpenActive opens the map of a name that packets use, of a directory of pinned maps ([MapsDir]).
func OpenActive(dir, name string) (*ebpf.Map, error) {
	slots, m, _, err := openActiveSlot(dir, name)
	if err != nil {
		return nil, err
	}
	return m, slots.Close()
}
