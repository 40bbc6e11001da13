// SPDX-License-Identifier: Apache-2.0

package natmap

import (
	"fmt"
	"log/slog"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/sluice-net/sluice/bpf/ctmap"
)

// Map is a map of translations, of either family.
type Map interface {
	ctmap.Any
	Update(ctmap.Tuple, Translation) error
	Lookup(ctmap.Tuple) (Translation, error)
	Each(func(ctmap.Tuple, Translation) bool) error

	// Records returns the entries that match, sorted, as of a time of the maps'
	// clock in seconds. A nil match is for all.
	Records(now uint32, match *ctmap.Match) ([]Record, error)
}

var (
	type4 = ctmap.Type[Key4, Entry4]{Key: NewKey4}
	type6 = ctmap.Type[Key6, Entry6]{Is6: true, Key: NewKey6}
)

// Names returns the names of the maps of translations.
func Names() []string { return []string{Name4, Name6} }

// New returns the handle of a map that is open already; name is one of [Names].
func New(name string, m *ebpf.Map) (Map, error) { return NewNamed(name, name, m) }

// NewNamed is [New] for a map of another name that is like one of [Names].
func NewNamed(name, like string, m *ebpf.Map) (Map, error) {
	return dispatch(like,
		func() (*ctmap.Typed[Key4, Entry4], error) { return type4.New(name, m) },
		func() (*ctmap.Typed[Key6, Entry6], error) { return type6.New(name, m) })
}

// Create creates a map that is not pinned; name is one of [Names].
func Create(name string, maxEntries uint32) (Map, error) {
	return dispatch(name,
		func() (*ctmap.Typed[Key4, Entry4], error) { return type4.Create(name, maxEntries) },
		func() (*ctmap.Typed[Key6, Entry6], error) { return type6.Create(name, maxEntries) })
}

// Open opens a pinned map; name is one of [Names]. The error is [fs.ErrNotExist]
// if there is none.
func Open(dir, name string) (Map, error) {
	return dispatch(name,
		func() (*ctmap.Typed[Key4, Entry4], error) { return type4.Open(dir, name) },
		func() (*ctmap.Typed[Key6, Entry6], error) { return type6.Open(dir, name) })
}

// OpenAll opens those of the maps that are pinned in a directory.
func OpenAll(dir string) ([]Map, error) {
	return ctmap.OpenPresent(Names(), func(name string) (Map, error) { return Open(dir, name) })
}

// OpenOrCreate opens a pinned map, or creates it, or replaces one that has other
// properties, as [ctmap.Type.OpenOrCreate] does; name is one of [Names].
func OpenOrCreate(dir, name string, maxEntries uint32, log *slog.Logger) (Map, error) {
	return dispatch(name,
		func() (*ctmap.Typed[Key4, Entry4], error) { return type4.OpenOrCreate(dir, name, maxEntries, log) },
		func() (*ctmap.Typed[Key6, Entry6], error) { return type6.OpenOrCreate(dir, name, maxEntries, log) })
}

// Spec returns the description of a map to the kernel; name is one of [Names].
func Spec(name string, maxEntries uint32) (*ebpf.MapSpec, error) {
	switch name {
	case Name4:
		return type4.Spec(name, maxEntries), nil
	case Name6:
		return type6.Spec(name, maxEntries), nil
	}
	return nil, unknown(name)
}

func dispatch(name string, v4 func() (*ctmap.Typed[Key4, Entry4], error), v6 func() (*ctmap.Typed[Key6, Entry6], error)) (Map, error) {
	switch name {
	case Name4:
		t, err := v4()
		return wrap(t, NewEntry4, err)
	case Name6:
		t, err := v6()
		return wrap(t, NewEntry6, err)
	}
	return nil, unknown(name)
}

func unknown(name string) error { return fmt.Errorf("map %q: not one of translations", name) }

// entry is an [Entry4] or [Entry6].
type entry interface {
	comparable
	Translation() Translation
}

// translations makes a map of entries of a family one of [Translation].
type translations[K ctmap.Key, V entry] struct {
	*ctmap.Typed[K, V]
	entry func(Translation) (V, error)
}

func wrap[K ctmap.Key, V entry](t *ctmap.Typed[K, V], entry func(Translation) (V, error), err error) (Map, error) {
	if err != nil {
		return nil, err
	}
	return translations[K, V]{t, entry}, nil
}

func (m translations[K, V]) Update(t ctmap.Tuple, to Translation) error {
	e, err := m.entry(to)
	if err != nil {
		return fmt.Errorf("map %s: update %s: %w", m.Name(), t, err)
	}
	return m.Typed.Update(t, e)
}

func (m translations[K, V]) Lookup(t ctmap.Tuple) (Translation, error) {
	e, err := m.Typed.Lookup(t)
	if err != nil {
		return Translation{}, err
	}
	return e.Translation(), nil
}

func (m translations[K, V]) Each(f func(ctmap.Tuple, Translation) bool) error {
	return m.Typed.Each(func(t ctmap.Tuple, e V) bool { return f(t, e.Translation()) })
}

func (m translations[K, V]) Records(now uint32, match *ctmap.Match) ([]Record, error) {
	var records []Record
	err := m.Each(func(t ctmap.Tuple, to Translation) bool {
		if r := NewRecord(m.Name(), t, to, now); r.Matches(match) {
			records = append(records, r)
		}
		return true
	})
	slices.SortFunc(records, func(a, b Record) int { return a.Tuple().Compare(b.Tuple()) })
	return records, err
}

func (m translations[K, V]) Dump(now uint32) ([]string, error) {
	records, err := m.Records(now, nil)
	lines := make([]string, len(records))
	for i := range records {
		lines[i] = records[i].String()
	}
	return lines, err
}
