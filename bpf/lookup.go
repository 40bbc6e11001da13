// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/cilium/ebpf"
)

// Lookup returns the value that the programs find under a key: in a prefix map
// that of the longest prefix which covers the key's. It may be called at any time.
func Lookup[K, V comparable](m Map[K, V], key K) (value V, found bool, err error) {
	if h, ok := m.(*handle[K, V]); ok {
		inner := h.inner.Load()
		if inner == nil {
			return value, false, ErrNotOpen
		}
		m = *inner
	}
	switch t := m.(type) {
	case interface{ Unwrap() Map[K, V] }: // around another map
		return Lookup(t.Unwrap(), key)
	case *kernelMap[K, V]:
		err := t.m.Lookup(unsafe.Pointer(&key), unsafe.Pointer(&value))
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return value, false, nil
		}
		if err != nil {
			return value, false, fmt.Errorf("look up in map %s: %w", t.spec.Name, err)
		}
		var zero V
		return value, t.spec.Type != TypeArray || value != zero, nil
	case *memoryMap[K, V]:
		t.memory.mu.Lock()
		defer t.memory.mu.Unlock()
		e, found := t.match(key)
		return e.Value, found, nil
	}
	return value, false, fmt.Errorf("look up in map %s: unknown back end %T", m.Spec().Name, m)
}
