// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"fmt"
	"slices"
	"strings"
	"unsafe"
)

// Ways to corrupt a map.
const (
	corruptRemove = "remove"
	corruptChange = "change"
	corruptAdd    = "add"
)

// corrupt changes one entry of a map as something other than the agent would:
// the first in the order of the dump is removed or changed, or one that cannot
// be wanted is added. A map in memory does not record it.
func (h *handle[K, V]) corrupt(kind string) (what string, err error) {
	inner := h.inner.Load()
	if inner == nil {
		return "", ErrNotOpen
	}
	entries, err := h.Dump()
	if err != nil {
		return "", err
	}
	slices.SortFunc(entries, func(a, b Entry[K, V]) int {
		return strings.Compare(fmt.Sprintf("%v -> %v", a.Key, a.Value), fmt.Sprintf("%v -> %v", b.Key, b.Value))
	})
	if len(entries) == 0 && kind != corruptAdd {
		return "", fmt.Errorf("map %s has no entry to %s", h.spec.Name, kind)
	}
	var e Entry[K, V]
	switch kind {
	case corruptRemove:
		return fmt.Sprint("removed ", entries[0].Key), erase(*inner, entries[0].Key)
	case corruptChange:
		e = entries[0]
		bytesOf(&e.Value)[0] ^= 0xff
	case corruptAdd:
		for i := range bytesOf(&e.Key) {
			bytesOf(&e.Key)[i] = 0xee
		}
		if h.spec.Type == TypeLPM {
			e.Key = Truncated(e.Key, MaxPrefixLen[K]())
		}
	default:
		return "", fmt.Errorf("unknown way %q to corrupt a map: want %s, %s or %s", kind, corruptRemove, corruptChange, corruptAdd)
	}
	return fmt.Sprintf("wrote %v -> %v", e.Key, e.Value), put(*inner, e)
}

func bytesOf[T any](v *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))
}

func put[K, V comparable](m Map[K, V], e Entry[K, V]) error {
	if t, ok := m.(*memoryMap[K, V]); ok {
		t.memory.mu.Lock()
		defer t.memory.mu.Unlock()
		t.set(e.Key, e.Value)
		return nil
	}
	_, err := m.Update([]K{e.Key}, []V{e.Value})
	return err
}

func erase[K, V comparable](m Map[K, V], key K) error {
	if t, ok := m.(*memoryMap[K, V]); ok {
		t.memory.mu.Lock()
		defer t.memory.mu.Unlock()
		t.unset(key)
		return nil
	}
	_, err := m.Delete([]K{key})
	return err
}
