// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"strconv"
	"time"
)

// Slots is the number of slots. Each slot has one of each map that packets are judged by, except
// sluice_config. Packets use the maps of the active slot. An agent that starts fills the maps of
// the other slot.
const Slots = 2

// SlotGrace is how long a slot stays after it was active: packets that have read its number may
// still use it.
const SlotGrace = 100 * time.Millisecond

// StateMap is the map with the slot that packets use, and the generation.
const StateMap = "sluice_state"

// StateKey is the key of sluice_state, an array of one entry.
type StateKey struct{ Index uint32 }

func (k StateKey) String() string { return strconv.FormatUint(uint64(k.Index), 10) }

// StateValue is the value of sluice_state. It is written in one step.
type StateValue struct {
	Slot uint32 // that packets use

	// Generation is that of verdicts: a connection keeps its verdict while it was judged under the
	// active generation.
	Generation uint32
}

func (v StateValue) String() string {
	return fmt.Sprintf("slot=%d generation=%d", v.Slot, v.Generation)
}

// firstGeneration is a bit that all generations have. The numbers that the previous version kept in
// the same place in connections do not have it, nor does 0, the generation of connections that have
// not been judged.
const firstGeneration = 1 << 31

// layoutDir is where maps in slots and sluice_state are pinned. Its number changes with keys,
// values or types of the maps. So an agent never uses maps of another layout, and attached programs
// keep the maps that they were attached with.
const layoutDir = "layout_4"

// slotPath returns where a map of a slot is pinned, relative to the directory of all pins.
func slotPath(slot uint32, name string) string {
	return path.Join(layoutDir, strconv.FormatUint(uint64(slot), 10), name)
}

// Slot returns the active slot, and the one that this agent writes to. They are the same from the
// flip on.
func (m *Maps) Slot() (active, own uint32, err error) {
	active, err = m.activeSlot()
	return active, m.own.Load(), err
}

func (m *Maps) activeSlot() (uint32, error) {
	state, _, err := Lookup(m.State, StateKey{})
	return state.Slot % Slots, err
}

// openSlots opens a new map for each map in slots, in the slot that is not active. A killed agent
// may have filled that slot before, or released it a moment ago.
func (m *Maps) openSlots(backend Backend) error {
	active, err := m.activeSlot()
	if err != nil {
		return err
	}
	if m.formerPods, err = readFormerPods(backend, active); err != nil {
		return err
	}
	own := (active + 1) % Slots
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

// Flip switches packets to the slot that this agent has filled, and has their connections judged
// again.
func (m *Maps) Flip() error { return m.setState(m.own.Load()) }

// Generation returns the active generation.
func (m *Maps) Generation() (uint32, error) {
	state, _, err := Lookup(m.State, StateKey{})
	return state.Generation, err
}

// Raise begins a new generation: the next packet of each connection is judged again. It is safe for
// concurrent use. Before the flip it does nothing: packets use what the previous agent has left.
func (m *Maps) Raise() error {
	active, err := m.activeSlot()
	if err != nil || active != m.own.Load() {
		return err
	}
	return m.setState(active)
}

// setState begins a new generation, in a slot.
func (m *Maps) setState(slot uint32) error {
	m.raising.Lock()
	defer m.raising.Unlock()
	now, err := m.Generation()
	if err != nil {
		return err
	}
	if now == 0 {
		// The map is new, but connections may be older: an agent of the version before
		// removes the map and leaves them. None may have the generation that begins.
		now = rand.Uint32()
	}
	next := StateValue{Slot: slot, Generation: (now + 1) | firstGeneration}
	if _, err := m.State.Update([]StateKey{{}}, []StateValue{next}); err != nil {
		return fmt.Errorf("begin generation %d in slot %d: %w", next.Generation, slot, err)
	}
	m.wrote = next
	return nil
}

// Release releases the maps of the slot that this agent does not write to. The caller waits until
// no packet uses them: [SlotGrace] after the flip.
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

// Sweep removes maps of other versions, and returns their names. Attached programs keep using them.
func (m *Maps) Sweep() (removed []string, err error) {
	backend := m.Backend()
	if backend == nil {
		return nil, ErrNotOpen
	}
	keep := append([]string{layoutDir, linksDir, programsDir}, programMaps...)
	for _, h := range m.all {
		if !h.isInSlots() {
			keep = append(keep, h.Spec().Name)
		}
	}
	return backend.Sweep(keep...)
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
