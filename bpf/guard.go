// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
)

// pinnedMap is a map that this agent has pinned, and the array of a slot that it is in.
type pinnedMap struct {
	path  string
	m     *ebpf.Map
	slots *ebpf.Map // nil if it is in none
	slot  uint32
}

// Damage is what something else has changed of a map as a whole.
type Damage struct {
	Map      string
	Replaced bool // another map was in the place of the agent's; else its pin was gone
}

// Guarded returns the names of the maps that [Kernel.Restore] looks at.
func (m *Maps) Guarded() []string { return append(m.Names(), programMaps[:ownMaps]...) }

// Restore pins maps again whose pins are gone, or are of other maps, and puts them into their
// slots again. It returns what it has put right. own returns the maps that the programs write and
// that are pinned.
func (k *Kernel) Restore(own func(name string) *ebpf.Map) (damage []Damage, err error) {
	all := k.pinned
	for _, name := range programMaps[:ownMaps] {
		if m := own(name); m != nil {
			all = append(all[:len(all):len(all)], pinnedMap{path: filepath.Join(k.Dir(), name), m: m})
		}
	}
	var errs []error
	for _, p := range all {
		did, err := p.restore()
		damage, errs = append(damage, did...), append(errs, err)
	}
	return damage, errors.Join(errs...)
}

func (p *pinnedMap) restore() (damage []Damage, err error) {
	name := filepath.Base(p.path)
	want, err := mapID(p.m)
	if err != nil {
		return nil, err
	}
	is := ebpf.MapID(0)
	if pinned, err := ebpf.LoadPinnedMap(p.path, nil); err == nil {
		is, err = mapID(pinned)
		pinned.Close()
		if err != nil {
			return nil, err
		}
	}
	if is != want {
		if err := p.pin(); err != nil {
			return nil, fmt.Errorf("pin map %s again: %w", name, err)
		}
		damage = append(damage, Damage{Map: name, Replaced: is != 0})
	}
	if p.slots == nil {
		return damage, nil
	}
	var inside uint32
	err = p.slots.Lookup(p.slot, &inside)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return damage, fmt.Errorf("look at map %s in slot %d: %w", name, p.slot, err)
	}
	if ebpf.MapID(inside) == want {
		return damage, nil
	}
	if err := p.slots.Put(p.slot, p.m); err != nil {
		return damage, fmt.Errorf("put map %s into slot %d again: %w", name, p.slot, err)
	}
	return append(damage, Damage{Map: name, Replaced: true}), nil
}

// pin pins the map where another may be, in one step.
func (p *pinnedMap) pin() error {
	if err := os.MkdirAll(filepath.Dir(p.path), 0o700); err != nil {
		return err
	}
	clone, err := p.m.Clone() // one that is pinned twice loses its first pin
	if err != nil {
		return err
	}
	defer clone.Close()
	return replacePin(clone.Pin, p.path)
}

func mapID(m *ebpf.Map) (ebpf.MapID, error) {
	info, err := m.Info()
	if err != nil {
		return 0, fmt.Errorf("look at map: %w", err)
	}
	id, _ := info.ID()
	return id, nil
}

// RestoreState has packets use this agent's slot, and begins a new generation, if sluice_state is
// not what was written to it last. It returns what it was then.
func (m *Maps) RestoreState() (was string, err error) {
	m.raising.Lock()
	defer m.raising.Unlock()
	if m.wrote == (StateValue{}) {
		return "", nil
	}
	now, _, err := Lookup(m.State, StateKey{})
	if err != nil || now == m.wrote {
		return "", err
	}
	next := StateValue{Slot: m.wrote.Slot, Generation: (m.wrote.Generation + 1) | firstGeneration}
	if _, err := m.State.Update([]StateKey{{}}, []StateValue{next}); err != nil {
		return "", fmt.Errorf("restore map %s: %w", StateMap, err)
	}
	m.wrote = next
	return now.String(), nil
}
