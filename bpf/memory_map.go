// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"iter"
	"path"
	"unsafe"

	"golang.org/x/sys/unix"
)

// memoryMap is a map of a [Memory], whose lock guards it.
type memoryMap[K, V comparable] struct {
	memory  *Memory
	spec    Spec
	entries map[K]Entry[K, V] // by identity: see id
	lengths map[int]int       // of a prefix map: number of entries by prefix length
}

func openMemoryMap[K, V comparable](m *Memory, spec Spec) (*memoryMap[K, V], error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if size, ok := m.sizes[spec.Name]; ok {
		spec.MaxEntries = size
	}
	t := &memoryMap[K, V]{memory: m, spec: spec, entries: map[K]Entry[K, V]{}, lengths: map[int]int{}}
	at := spec.Name
	if at == StateMap {
		at = path.Join(layoutDir, at)
	}
	if old, ok := m.maps[at].(*memoryMap[K, V]); ok && old.spec.Type == spec.Type {
		for _, e := range old.entries {
			if len(t.entries) < int(spec.MaxEntries) {
				t.set(e.Key, e.Value)
			}
		}
	}
	m.maps[at] = t
	return t, nil
}

// openMemorySlot puts a new map into a slot.
func openMemorySlot[K, V comparable](m *Memory, spec Spec, slot uint32) *memoryMap[K, V] {
	m.mu.Lock()
	defer m.mu.Unlock()
	if size, ok := m.sizes[spec.Name]; ok {
		spec.MaxEntries = size
	}
	t := &memoryMap[K, V]{
		memory: m, spec: spec, entries: map[K]Entry[K, V]{}, lengths: map[int]int{},
	}
	m.maps[slotPath(slot, spec.Name)] = t
	return t
}

func (t *memoryMap[K, V]) Spec() Spec {
	t.memory.mu.Lock()
	defer t.memory.mu.Unlock()
	return t.spec
}

func (t *memoryMap[K, V]) Backend() string { return t.memory.Name() }

func (t *memoryMap[K, V]) resize(max uint32) { t.spec.MaxEntries = max }

func (t *memoryMap[K, V]) Update(keys []K, values []V) (done int, err error) {
	t.memory.mu.Lock()
	defer t.memory.mu.Unlock()
	for i, key := range keys {
		err := t.memory.fault(t.spec.Name, OpUpdate)
		if err == nil {
			err = t.admits(key)
		}
		w := Write{Map: t.spec.Name, Op: OpUpdate, Key: key, Value: values[i], Old: t.get(key), Err: err}
		if err == nil {
			t.set(key, values[i])
		}
		t.memory.written(w)
		if err != nil {
			return i, mapError(err)
		}
	}
	return len(keys), nil
}

func (t *memoryMap[K, V]) Delete(keys []K) (done int, err error) {
	t.memory.mu.Lock()
	defer t.memory.mu.Unlock()
	for i, key := range keys {
		err := t.memory.fault(t.spec.Name, OpDelete)
		if err == nil {
			err = t.valid(key)
		}
		w := Write{Map: t.spec.Name, Op: OpDelete, Key: key, Old: t.get(key), Err: err}
		if err == nil {
			t.unset(key)
		}
		t.memory.written(w)
		if err != nil {
			return i, mapError(err)
		}
	}
	return len(keys), nil
}

func (t *memoryMap[K, V]) Dump() ([]Entry[K, V], error) {
	t.memory.mu.Lock()
	defer t.memory.mu.Unlock()
	entries := make([]Entry[K, V], 0, len(t.entries))
	for id, e := range t.entries {
		entries = append(entries, Entry[K, V]{id, e.Value})
	}
	return entries, nil
}

// valid returns the error that the kernel has for a key, if any.
func (t *memoryMap[K, V]) valid(key K) error {
	switch {
	case t.spec.Type == TypeArray && *(*uint32)(unsafe.Pointer(&key)) >= t.spec.MaxEntries:
		return unix.E2BIG
	case t.spec.Type == TypeLPM && PrefixLen(key) > MaxPrefixLen[K]():
		return unix.EINVAL
	}
	return nil
}

// admits returns the error that the kernel has for writing a key, if any.
func (t *memoryMap[K, V]) admits(key K) error {
	if err := t.valid(key); err != nil || t.spec.Type == TypeArray {
		return err
	}
	if _, ok := t.entries[t.id(key)]; ok || len(t.entries) < int(t.spec.MaxEntries) {
		return nil
	}
	if t.spec.Type == TypeLPM {
		return unix.ENOSPC
	}
	return unix.E2BIG
}

// id returns the key under which an entry is found: keys of a prefix map that
// have the same prefix are the same.
func (t *memoryMap[K, V]) id(key K) K {
	if t.spec.Type == TypeLPM {
		return Masked(key)
	}
	return key
}

func (t *memoryMap[K, V]) get(key K) any {
	if e, ok := t.entries[t.id(key)]; ok {
		return e.Value
	}
	return nil
}

// set puts an entry without asking, nor recording it.
func (t *memoryMap[K, V]) set(key K, value V) {
	var zero V
	if t.spec.Type == TypeArray && value == zero {
		t.unset(key)
		return
	}
	id := t.id(key)
	if _, ok := t.entries[id]; !ok && t.spec.Type == TypeLPM {
		t.lengths[PrefixLen(id)]++
	}
	t.entries[id] = Entry[K, V]{key, value}
}

func (t *memoryMap[K, V]) unset(key K) {
	id := t.id(key)
	if _, ok := t.entries[id]; !ok {
		return
	}
	delete(t.entries, id)
	if t.spec.Type == TypeLPM {
		if length := PrefixLen(id); t.lengths[length] == 1 {
			delete(t.lengths, length)
		} else {
			t.lengths[length]--
		}
	}
}

// Reader reads the maps of a [Memory] as packets do at one moment, those in slots in the
// active slot: see [Get], [Match] and [All].
type Reader struct{ memory *Memory }

func storeOf[K, V comparable](r Reader, name string) *memoryMap[K, V] {
	if store, ok := r.memory.active(name).(*memoryMap[K, V]); ok {
		return store
	}
	return &memoryMap[K, V]{}
}

// Get returns the value under exactly this key. A map that was not opened is empty.
func Get[K, V comparable](r Reader, name string, key K) (value V, found bool) {
	t := storeOf[K, V](r, name)
	e, found := t.entries[t.id(key)]
	return e.Value, found
}

// Match returns the entry that a lookup of the key finds, which in a prefix map
// is the one with the longest prefix that covers the key's.
func Match[K, V comparable](r Reader, name string, key K) (entry Entry[K, V], found bool) {
	return storeOf[K, V](r, name).match(key)
}

func (t *memoryMap[K, V]) match(key K) (entry Entry[K, V], found bool) {
	if t.spec.Type != TypeLPM {
		entry, found = t.entries[key]
		return entry, found
	}
	if t.valid(key) != nil {
		return entry, false
	}
	for length := PrefixLen(key); length >= 0; length-- {
		if t.lengths[length] > 0 {
			if entry, found = t.entries[Truncated(key, length)]; found {
				return entry, true
			}
		}
	}
	return entry, false
}

// All returns the entries of a map in no particular order.
func All[K, V comparable](r Reader, name string) iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		for id, e := range storeOf[K, V](r, name).entries {
			if !yield(id, e.Value) {
				return
			}
		}
	}
}
