// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"net/netip"
	"path"
	"strconv"
	"time"
)

// Slots is how many of each of the maps there are by which packets are decided about,
// but for sluice_config: packets look into those of the slot in force, and an agent that
// starts fills those of the other one.
const Slots = 2

// SlotGrace is how long a slot that is no longer in force stays: packets that have read
// its number may still look into it.
const SlotGrace = 100 * time.Millisecond

const sourcesMap = "sluice_sources"

// StateMap is the map that says which slot is in force.
const StateMap = "sluice_state"

// StateKey is the key of sluice_state, an array.
type StateKey struct{ Index uint32 }

// StateSlot is the key of the number of the slot in force.
var StateSlot = StateKey{0}

// StateSize is how many entries sluice_state has; the second one is not used.
const StateSize = 2

func (k StateKey) String() string { return strconv.FormatUint(uint64(k.Index), 10) }

// StateValue is the value of sluice_state. It is written in one step.
type StateValue struct{ Value uint64 }

func (v StateValue) String() string { return strconv.FormatUint(v.Value, 10) }

// layoutDir is where maps in slots are pinned, and sluice_state. The number is another
// one when keys, values or types of the maps become others: so an agent never takes the
// maps of another layout for its own, and what is attached goes on with those that it was
// attached with.
const layoutDir = "layout_2"

// slotPath is where a map of a slot is, in the directory of all pins.
func slotPath(slot uint32, name string) string {
	return path.Join(layoutDir, strconv.FormatUint(uint64(slot), 10), name)
}

// Slot returns the slot in force, and the one that this agent writes to. They are the same
// from the flip on.
func (m *Maps) Slot() (inForce, own uint32, err error) {
	inForce, err = m.slotInForce()
	return inForce, m.own.Load(), err
}

func (m *Maps) slotInForce() (uint32, error) {
	state, _, err := Lookup(m.State, StateSlot)
	if err != nil {
		return 0, err
	}
	return uint32(state.Value) % Slots, nil
}

// openSlots opens a new map for each of those in slots, in the slot that is not in force.
// An agent that was killed may have filled that before, or have left it a moment ago.
func (m *Maps) openSlots(backend Backend) error {
	inForce, err := m.slotInForce()
	if err != nil {
		return err
	}
	if m.former, err = readFormer(backend, inForce); err != nil {
		return err
	}
	own := (inForce + 1) % Slots
	m.own.Store(own)
	if backend.hasSlot(own) {
		time.Sleep(SlotGrace)
	}
	for _, h := range m.all {
		if err := h.openSlot(backend, own); err != nil {
			return err
		}
	}
	return nil
}

// Former is what is known of the pods of the agent before.
type Former struct {
	Epoch uint32       // the last one of its node's pods
	Addrs []netip.Addr // of its node's pods, and of pods that policies selected
}

// Former is what the slot in force had when the maps were opened, or if that was empty,
// what the maps of a former layout had.
func (m *Maps) Former() Former { return m.former }

func readFormer(backend Backend, slot uint32) (f Former, err error) {
	for _, dir := range []string{slotPath(slot, ""), ""} {
		pods, err := dumpAt[PodKey, PodValue](backend, path.Join(dir, podsMap))
		if err != nil {
			return Former{}, err
		}
		sources, err := dumpAt[SourceKey, SourceValue](backend, path.Join(dir, sourcesMap))
		if err != nil {
			return Former{}, err
		}
		for _, e := range pods {
			f.Epoch = max(f.Epoch, e.Value.Epoch)
			f.Addrs = append(f.Addrs, e.Key.Addr.Addr())
		}
		for _, e := range sources {
			f.Addrs = append(f.Addrs, e.Key.Addr.Addr())
		}
		if len(f.Addrs) > 0 {
			break
		}
	}
	return f, nil
}

// dumpAt returns the entries of a map, none if there is no such map.
func dumpAt[K, V comparable](backend Backend, path string) ([]Entry[K, V], error) {
	switch backend := backend.(type) {
	case *Kernel:
		return dumpPinned[K, V](backend, path)
	case *Memory:
		backend.mu.Lock()
		t, found := backend.maps[path].(*memoryMap[K, V])
		backend.mu.Unlock()
		if found {
			return t.Dump()
		}
	}
	return nil, nil
}

// Flip has packets look into the slot that this agent has filled.
func (m *Maps) Flip() error {
	_, err := m.State.Update([]StateKey{StateSlot}, []StateValue{{uint64(m.own.Load())}})
	if err != nil {
		return fmt.Errorf("flip the slot: %w", err)
	}
	return nil
}

// Release gives up the maps of the slot that this agent does not write to. That is to be
// done when no packet looks into them any more: [SlotGrace] after the flip.
func (m *Maps) Release() error {
	backend := m.Backend()
	if backend == nil {
		return ErrNotOpen
	}
	spare := (m.own.Load() + 1) % Slots
	var errs []error
	for _, h := range m.all {
		errs = append(errs, h.release(spare))
	}
	return errors.Join(append(errs, backend.dropSlot(spare))...)
}

// Sweep removes what no agent of this version has made: the maps of others, which they
// left. It returns their names. What is attached goes on with them.
func (m *Maps) Sweep() (removed []string, err error) {
	backend := m.Backend()
	if backend == nil {
		return nil, ErrNotOpen
	}
	keep := append([]string{layoutDir, linksDir, programsDir}, programMaps...)
	return backend.Sweep(append(keep, m.Config.Spec().Name)...)
}

// openSlot opens a new map in a slot of a back end.
func openSlot[K, V comparable](backend Backend, spec Spec, slot uint32) (Map[K, V], error) {
	if err := checkSpec[K, V](spec); err != nil {
		return nil, err
	}
	switch backend := backend.(type) {
	case *Kernel:
		return openKernelSlot[K, V](backend, spec, slot)
	case *Memory:
		return openMemorySlot[K, V](backend, spec, slot), nil
	default:
		return nil, fmt.Errorf("open map %s: unknown back end %T", spec.Name, backend)
	}
}
