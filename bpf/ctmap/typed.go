// SPDX-License-Identifier: Apache-2.0

package ctmap

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"unsafe"

	"github.com/cilium/ebpf"

	"github.com/sluice-net/sluice/bpf"
)

// Key is a key that stands for a tuple.
type Key interface {
	comparable
	fmt.Stringer
	Tuple() Tuple
}

// Type describes the maps with keys K and values V: connections of a family
// here, translations of one in package natmap. It makes handles of such maps.
type Type[K Key, V comparable] struct {
	Is6 bool
	Key func(Tuple) K // called with tuples of the family only
}

// Spec returns the description of a map to the kernel.
func (t Type[K, V]) Spec(name string, maxEntries uint32) *ebpf.MapSpec {
	var (
		key   K
		value V
	)
	return &ebpf.MapSpec{
		Name: name, Type: ebpf.LRUHash, MaxEntries: maxEntries,
		KeySize: uint32(unsafe.Sizeof(key)), ValueSize: uint32(unsafe.Sizeof(value)),
	}
}

// New returns the handle of a map that is open already, and which Close closes.
// It fails if the map is of another type or layout.
func (t Type[K, V]) New(name string, m *ebpf.Map) (*Typed[K, V], error) {
	want := t.Spec(name, 0)
	if m.Type() != want.Type || m.KeySize() != want.KeySize || m.ValueSize() != want.ValueSize {
		return nil, fmt.Errorf("map %s: it is a %s with keys of %d bytes and values of %d, not a %s with %d and %d",
			name, m.Type(), m.KeySize(), m.ValueSize(), want.Type, want.KeySize, want.ValueSize)
	}
	return &Typed[K, V]{typ: t, name: name, m: m}, nil
}

// Create creates a map that is not pinned.
func (t Type[K, V]) Create(name string, maxEntries uint32) (*Typed[K, V], error) {
	m, err := ebpf.NewMap(t.Spec(name, maxEntries))
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", name, err)
	}
	return &Typed[K, V]{typ: t, name: name, m: m}, nil
}

// Open opens the map that is pinned in a directory. The error is
// [fs.ErrNotExist] if there is none.
func (t Type[K, V]) Open(dir, name string) (*Typed[K, V], error) {
	path := Path(dir, name)
	m, err := ebpf.LoadPinnedMap(path, nil)
	if err != nil {
		return nil, fmt.Errorf("map %s: open %s: %w", name, path, err)
	}
	typed, err := t.New(name, m)
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	typed.path = path
	return typed, nil
}

// OpenOrCreate opens the map that is pinned in a directory, and puts a new one
// in its place if there is none or it has other properties: with the entries
// that find room if only the size is another, else empty. A nil log is none.
func (t Type[K, V]) OpenOrCreate(dir, name string, maxEntries uint32, log *slog.Logger) (*Typed[K, V], error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	m, err := bpf.OpenPinned(dir, t.Spec(name, maxEntries), bpf.CopyEntries[K, V], log)
	if err != nil {
		return nil, err
	}
	return &Typed[K, V]{typ: t, name: name, path: Path(dir, name), m: m}, nil
}

// Path returns where a map is pinned, given the directory of [bpf.MapsDir].
func Path(dir, name string) string { return filepath.Join(dir, name) }

// Typed is a map of the kernel with keys K and values V. It may be used
// concurrently. The programs write these maps at the same time: entries come and
// go while they are read, and what is written may be evicted by the next packet.
type Typed[K Key, V comparable] struct {
	typ  Type[K, V]
	name string
	path string
	m    *ebpf.Map
}

// Name returns the name of the map.
func (t *Typed[K, V]) Name() string { return t.name }

// Path returns where the map is pinned; empty if the handle was not opened there.
func (t *Typed[K, V]) Path() string { return t.path }

// Kernel returns the map itself. It stays the handle's: it must not be closed.
func (t *Typed[K, V]) Kernel() *ebpf.Map { return t.m }

// MaxEntries returns the size of the map. The least recently used entries make
// room for new ones before it is reached: up to 128 are kept free for each CPU.
func (t *Typed[K, V]) MaxEntries() int { return int(t.m.MaxEntries()) }

// Is6 reports whether the map is of IPv6.
func (t *Typed[K, V]) Is6() bool { return t.typ.Is6 }

// Close closes the handle. A pinned map stays.
func (t *Typed[K, V]) Close() error { return t.m.Close() }

// Unpin removes the pin; the map goes with its last user. It is no error that
// there is no pin.
func (t *Typed[K, V]) Unpin() error {
	if t.path == "" {
		return nil
	}
	if err := os.Remove(t.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("map %s: unpin: %w", t.name, err)
	}
	return nil
}

// Update writes an entry, whether there was one or not.
func (t *Typed[K, V]) Update(tuple Tuple, value V) error {
	key, err := t.key(tuple)
	if err == nil {
		err = t.m.Put(unsafe.Pointer(&key), unsafe.Pointer(&value))
	}
	return t.error("update", tuple, err)
}

// Lookup returns the entry of a tuple. The error is [ebpf.ErrKeyNotExist] if
// there is none.
func (t *Typed[K, V]) Lookup(tuple Tuple) (value V, err error) {
	key, err := t.key(tuple)
	if err == nil {
		err = t.m.Lookup(unsafe.Pointer(&key), unsafe.Pointer(&value))
	}
	return value, t.error("look up", tuple, err)
}

// Exists reports whether a tuple has an entry.
func (t *Typed[K, V]) Exists(tuple Tuple) (bool, error) {
	_, err := t.Lookup(tuple)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Delete deletes the entry of a tuple. The error is [ebpf.ErrKeyNotExist] if
// there is none. A connection that is in use is cut by it: see package gc.
func (t *Typed[K, V]) Delete(tuple Tuple) error {
	key, err := t.key(tuple)
	if err == nil {
		err = t.m.Delete(unsafe.Pointer(&key))
	}
	return t.error("delete", tuple, err)
}

// DumpEntries returns all entries in no particular order.
func (t *Typed[K, V]) DumpEntries() ([]bpf.Entry[K, V], error) {
	var entries []bpf.Entry[K, V]
	err := t.each(func(k K, v V) bool {
		entries = append(entries, bpf.Entry[K, V]{Key: k, Value: v})
		return true
	})
	return entries, err
}

// Each calls f with each entry, in no particular order, until it returns false.
// An entry that stays during the whole call is seen exactly once.
func (t *Typed[K, V]) Each(f func(Tuple, V) bool) error {
	return t.each(func(k K, v V) bool { return f(k.Tuple(), v) })
}

// Count counts the entries by reading them all. Package gc has the kernel's own
// counter, which costs microseconds.
func (t *Typed[K, V]) Count() (n int, err error) {
	err = t.batches(func(keys []K, _ []V) bool {
		n += len(keys)
		return true
	})
	return n, err
}

// Pressure returns which share of the map is in use: 0 if it is empty, about 1 if
// new entries evict others. It counts.
func (t *Typed[K, V]) Pressure() (float64, error) {
	n, err := t.Count()
	return float64(n) / float64(t.m.MaxEntries()), err
}

func (t *Typed[K, V]) each(f func(K, V) bool) error {
	return t.batches(func(keys []K, values []V) bool {
		for i := range keys {
			if !f(keys[i], values[i]) {
				return false
			}
		}
		return true
	})
}

// batchSize is how many entries are read by a system call. It is more than a
// bucket of a hash map ever has, which the kernel reads whole.
const batchSize = 4096

// batches calls f with all entries, until it returns false.
func (t *Typed[K, V]) batches(f func([]K, []V) bool) error {
	var (
		cursor ebpf.MapBatchCursor
		size   = min(batchSize, max(int(t.m.MaxEntries()), 64))
		keys   = make([]K, size)
		values = make([]V, size)
	)
	for {
		n, err := t.m.BatchLookup(&cursor, keys, values, nil)
		last := errors.Is(err, ebpf.ErrKeyNotExist)
		if err != nil && !last {
			return fmt.Errorf("map %s: read entries: %w", t.name, err)
		}
		if !f(keys[:n], values[:n]) || last {
			return nil
		}
	}
}

func (t *Typed[K, V]) key(tuple Tuple) (key K, err error) {
	for _, side := range []netip.AddrPort{tuple.Source, tuple.Destination} {
		switch addr := side.Addr(); {
		case !addr.IsValid():
			return key, errors.New("no address")
		case t.typ.Is6 && addr.Is4():
			return key, errors.New("IPv4 address in a map of IPv6")
		case !t.typ.Is6 && !addr.Unmap().Is4():
			return key, errors.New("IPv6 address in a map of IPv4")
		}
	}
	return t.typ.Key(tuple), nil
}

func (t *Typed[K, V]) error(what string, tuple Tuple, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("map %s: %s %s: %w", t.name, what, tuple, err)
}
