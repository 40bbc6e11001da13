// SPDX-License-Identifier: Apache-2.0

package packettest

import (
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/sluice-net/sluice/bpf"
)

// activeSlot is the slot of programs that have not been given another one.
const activeSlot uint32 = 0

// newSlot makes one of each of the maps that programs have in slots, by the names of
// those, with room for some entries.
func newSlot(spec *ebpf.CollectionSpec, entries uint32) (slot map[string]*ebpf.Map, err error) {
	slot = map[string]*ebpf.Map{}
	for name, m := range spec.Maps {
		if m.Type != ebpf.ArrayOfMaps {
			continue
		}
		inner := m.InnerMap.Copy()
		inner.MaxEntries = entries
		if slot[name], err = ebpf.NewMap(inner); err != nil {
			closeSlot(slot)
			return nil, fmt.Errorf("create map %s of a slot: %w", name, err)
		}
	}
	return slot, nil
}

// putSlot puts maps into a slot.
func putSlot(programs *ebpf.Collection, number uint32, slot map[string]*ebpf.Map) error {
	for name, m := range slot {
		if err := programs.Maps[name].Put(number, m); err != nil {
			return fmt.Errorf("put map %s into slot %d: %w", name, number, err)
		}
	}
	return nil
}

// UseSlot brings one of the two slots into force. That which is not the first is empty until
// FillSlot.
func (n *Node) UseSlot(number uint32) error {
	if n.slots[number] == nil {
		slot, err := newSlot(n.spec, agentEntries)
		if err != nil {
			return err
		}
		n.slots[number] = slot
		if err := putSlot(n.programs, number, slot); err != nil {
			return err
		}
	}
	n.slot = n.slots[number]
	var state bpf.StateValue
	if err := n.programs.Maps[bpf.StateMap].Lookup(bpf.StateKey{}, &state); err != nil {
		return err
	}
	state.Slot = number
	return n.programs.Maps[bpf.StateMap].Put(bpf.StateKey{}, state)
}

// emptySlots has all slots but the first be empty.
func (n *Node) emptySlots() error {
	for number, slot := range n.slots {
		if uint32(number) == activeSlot {
			continue
		}
		for name := range slot {
			if err := n.programs.Maps[name].Delete(uint32(number)); err != nil {
				return fmt.Errorf("empty slot %d of %s: %w", number, name, err)
			}
		}
		closeSlot(slot)
		n.slots[number] = nil
	}
	return nil
}

// FillSlot writes into the active slot what is so of some addresses where no egress policy
// selects a pod.
func (n *Node) FillSlot(w Addresses) error { return n.fill(w) }

func closeSlot(slot map[string]*ebpf.Map) {
	for _, m := range slot {
		m.Close()
	}
}
