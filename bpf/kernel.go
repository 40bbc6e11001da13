// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"iter"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Tries must not be preallocated, and hash maps are not so that memory goes
// with the entries there are; only the agent writes them, so the cost of an
// allocation is not that of a packet.
const mapFlags = unix.BPF_F_NO_PREALLOC

// kernelMap is a map of the kernel. A batch stops at its first error and the
// kernel says how many entries it had done (hash maps and tries alike, tried on
// 6.18), so an error is known to be that of the next.
type kernelMap[K, V comparable] struct {
	spec  Spec
	m     *ebpf.Map
	slots *ebpf.Map // that it is in, nil if it is in none
}

// kernelSpec returns the description of a map to the kernel.
func kernelSpec[K, V comparable](spec Spec) *ebpf.MapSpec {
	var (
		key   K
		value V
	)
	s := &ebpf.MapSpec{
		Name:       spec.Name,
		KeySize:    uint32(unsafe.Sizeof(key)),
		ValueSize:  uint32(unsafe.Sizeof(value)),
		MaxEntries: spec.MaxEntries,
		Flags:      mapFlags,
	}
	switch spec.Type {
	case TypeHash:
		s.Type = ebpf.Hash
	case TypeLPM:
		s.Type = ebpf.LPMTrie
	case TypeArray:
		s.Type, s.Flags = ebpf.Array, 0
	}
	return s
}

// kernelType returns a description with the name of a map and the type that
// decides how its entries are read and written.
func kernelType(m *ebpf.Map) Spec {
	spec := Spec{Type: TypeHash, MaxEntries: m.MaxEntries()}
	switch m.Type() {
	case ebpf.LPMTrie:
		spec.Type = TypeLPM
	case ebpf.Array:
		spec.Type = TypeArray
	}
	if info, err := m.Info(); err == nil {
		spec.Name = info.Name
	}
	return spec
}

// DumpKernel returns all entries of a map of the kernel, in no particular order.
func DumpKernel[K, V comparable](m *ebpf.Map) ([]Entry[K, V], error) {
	return (&kernelMap[K, V]{spec: kernelType(m), m: m}).Dump()
}

// WalkKernel returns the entries of a map of the kernel, in batches and in no particular order.
func WalkKernel[K, V comparable](m *ebpf.Map) iter.Seq2[[]Entry[K, V], error] {
	return (&kernelMap[K, V]{spec: kernelType(m), m: m}).Walk()
}

func (t *kernelMap[K, V]) Spec() Spec { return t.spec }

func (t *kernelMap[K, V]) Backend() string { return kernelName }

func (t *kernelMap[K, V]) Update(keys []K, values []V) (done int, err error) {
	if len(keys) > 1 {
		done, err = t.m.BatchUpdate(keys, values, nil)
		// An error before the first entry leaves the count as it was given.
		if err == nil || done < len(keys) && !errors.Is(err, ebpf.ErrNotSupported) {
			return done, t.error(OpUpdate, err)
		}
	}
	for i := range keys {
		if err := t.m.Put(unsafe.Pointer(&keys[i]), unsafe.Pointer(&values[i])); err != nil {
			return i, t.error(OpUpdate, err)
		}
	}
	return len(keys), nil
}

func (t *kernelMap[K, V]) Delete(keys []K) (done int, err error) {
	if t.spec.Type == TypeArray {
		return t.Update(keys, make([]V, len(keys)))
	}
	for done < len(keys) {
		n, err := t.deleteSome(keys[done:])
		done += n
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			done++ // as wanted
		} else if err != nil {
			return done, t.error(OpDelete, err)
		}
	}
	return done, nil
}

// deleteSome deletes entries up to the first error.
func (t *kernelMap[K, V]) deleteSome(keys []K) (done int, err error) {
	if len(keys) > 1 {
		done, err = t.m.BatchDelete(keys, nil)
		if err == nil || done < len(keys) && !errors.Is(err, ebpf.ErrNotSupported) {
			return done, err
		}
	}
	for i := range keys {
		if err := t.m.Delete(unsafe.Pointer(&keys[i])); err != nil {
			return i, err
		}
	}
	return len(keys), nil
}

func (t *kernelMap[K, V]) Dump() (entries []Entry[K, V], err error) {
	for piece, err := range t.Walk() {
		if err != nil {
			return nil, err
		}
		entries = append(entries, piece...)
	}
	return entries, nil
}

// error turns an error of the kernel into one of this package. It has only the cause: the caller
// knows what was to be written to which map.
func (t *kernelMap[K, V]) error(op Op, err error) error {
	if err == nil {
		return nil
	}
	var errno unix.Errno
	if errors.As(err, &errno) {
		err = fmt.Errorf("%s: %w", op, errno)
	}
	return mapError(err)
}
