// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
)

// Op is an operation on a map.
type Op string

const (
	OpUpdate Op = "update"
	OpDelete Op = "delete"
	OpAny    Op = "any" // either, for faults
)

// Write is one attempt to change one entry of a map in memory.
type Write struct {
	Sequence uint64 // counts the writes to all maps of the back end, from 1
	Map      string
	Op       Op
	Key      any // of the map's key type
	Value    any // of the map's value type, nil for a deletion
	Old      any // of the map's value type, nil if there was no entry
	Err      error
}

// String returns the write without its number, so that it can be compared.
func (w Write) String() string {
	s := fmt.Sprintf("%s %s %v", w.Map, w.Op, w.Key)
	if w.Op == OpUpdate {
		s += fmt.Sprintf(" -> %v", w.Value)
	}
	if w.Err != nil {
		s += fmt.Sprintf(" (%v)", w.Err)
	}
	return s
}

// recordedWrites is how many writes a back end remembers at least.
const recordedWrites = 1 << 15

// Memory is the back end in memory. It behaves as the kernel does, keeps its
// maps while agents come and go, records every write in the order of all maps
// together, fails writes on demand, and calls observers after each one.
type Memory struct {
	mu        sync.Mutex
	maps      map[string]memoryStore // by where the kernel would have them pinned
	sizes     map[string]uint32      // overrides that of the map's Spec
	faults    []fault
	inject    func(name string, op Op) error
	sequence  uint64
	record    []Write
	observers []func(Write, Reader)
	seen      uint64 // last write that unseen returned
	links     map[string]struct{}
}

// memoryStore is a map of any types.
type memoryStore interface {
	resize(max uint32)
}

type fault struct {
	name  string
	op    Op
	err   error
	count int // -1: until cleared
}

// NewMemory returns a back end without maps.
func NewMemory() *Memory {
	return &Memory{
		maps: map[string]memoryStore{}, sizes: map[string]uint32{}, links: map[string]struct{}{},
	}
}

var _ Backend = (*Memory)(nil)

// Name implements [Backend].
func (m *Memory) Name() string { return "memory" }

// Link notes that a program runs at a device, by the name of the link, until Unlink. As links do,
// the note outlives the agent.
func (m *Memory) Link(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.links[name] = struct{}{}
}

// Unlink removes what Link noted.
func (m *Memory) Unlink(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.links, name)
}

// Links returns the names that Link noted, in order.
func (m *Memory) Links() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.links))
}

// Maps returns where the kernel would have the maps pinned, in order.
func (m *Memory) Maps() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.maps))
}

// Close implements [Backend]. The maps stay for the next agent.
func (m *Memory) Close() error { return nil }

// Sweep implements [Backend].
func (m *Memory) Sweep(keep ...string) (removed []string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name := range m.maps {
		first, _, _ := strings.Cut(name, "/")
		if !slices.Contains(keep, first) {
			delete(m.maps, name)
			removed = append(removed, name)
		}
	}
	slices.Sort(removed)
	return removed, nil
}

// hasSlot implements [Backend].
func (m *Memory) hasSlot(slot uint32) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for at := range m.maps {
		if strings.HasPrefix(at, slotPath(slot, "")+"/") {
			return true
		}
	}
	return false
}

// dropSlot implements [Backend].
func (m *Memory) dropSlot(slot uint32) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for at := range m.maps {
		if strings.HasPrefix(at, slotPath(slot, "")+"/") {
			delete(m.maps, at)
		}
	}
	return nil
}

// What active looks for, which tests ask hundreds of times after each write.
var (
	statePath = path.Join(layoutDir, StateMap)
	slotDirs  = [Slots]string{slotPath(0, ""), slotPath(1, "")}
)

// active returns the map of a name that packets use, nil if there is none.
func (m *Memory) active(name string) memoryStore {
	if store, found := m.maps[name]; found {
		return store
	}
	slot := uint32(0)
	if state, ok := m.maps[statePath].(*memoryMap[StateKey, StateValue]); ok {
		slot = state.entries[StateKey{}].Value.Slot % Slots
	}
	return m.maps[slotDirs[slot]+"/"+name]
}

// OnWrite has f called after every single write, also a failed one, before the
// next can happen. f reads the maps, of those in slots the active ones, through the
// reader it gets, and must not call the back end itself.
func (m *Memory) OnWrite(f func(Write, Reader)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.observers = append(m.observers, f)
}

// Read calls f with a reader of the maps as they are at one moment.
func (m *Memory) Read(f func(Reader)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f(Reader{m})
}

// Fail makes the next count operations on the named map fail with err. A count
// of -1 means all until it is cleared, and 0 clears.
func (m *Memory) Fail(name string, op Op, err error, count int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults = slices.DeleteFunc(m.faults, func(f fault) bool {
		return f.name == name && (f.op == op || op == OpAny)
	})
	if count != 0 {
		m.faults = append(m.faults, fault{name, op, err, count})
	}
}

// Inject has f asked before every write: the error that it returns is the
// write's. nil injects nothing more.
func (m *Memory) Inject(f func(name string, op Op) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inject = f
}

// Resize changes the room of the named map, now and when it is opened again.
// Entries above it stay.
func (m *Memory) Resize(name string, maxEntries uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sizes[name] = maxEntries
	for at, store := range m.maps {
		if path.Base(at) == name {
			store.resize(maxEntries)
		}
	}
}

// Writes returns the writes after the numbered one in their order, and how many
// before them are no longer remembered.
func (m *Memory) Writes(after uint64) (writes []Write, lost uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, _ := slices.BinarySearchFunc(m.record, after+1, func(w Write, seq uint64) int {
		return int(int64(w.Sequence) - int64(seq))
	})
	if i < len(m.record) {
		lost = m.record[i].Sequence - after - 1
	}
	return slices.Clone(m.record[i:]), lost
}

// unseen returns the writes since the last call, and how many are lost.
func (m *Memory) unseen() (writes []Write, lost uint64) {
	m.mu.Lock()
	after := m.seen
	m.mu.Unlock()
	writes, lost = m.Writes(after)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.seen = after + lost + uint64(len(writes))
	return writes, lost
}

// Sequence returns the number of writes so far.
func (m *Memory) Sequence() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sequence
}

// fault returns the error that a write shall have, or nil.
func (m *Memory) fault(name string, op Op) error {
	for i := range m.faults {
		f := &m.faults[i]
		if f.name != name || f.op != op && f.op != OpAny {
			continue
		}
		err := f.err
		if f.count > 0 {
			if f.count--; f.count == 0 {
				m.faults = slices.Delete(m.faults, i, i+1)
			}
		}
		return err
	}
	if m.inject != nil {
		return m.inject(name, op)
	}
	return nil
}

// written records a write and shows it to the observers.
func (m *Memory) written(w Write) {
	m.sequence++
	w.Sequence = m.sequence
	if len(m.record) == 2*recordedWrites {
		m.record = slices.Clone(m.record[recordedWrites:])
	}
	m.record = append(m.record, w)
	for _, observe := range m.observers {
		observe(w, Reader{m})
	}
}
