// SPDX-License-Identifier: Apache-2.0

package ctmap

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"slices"

	"github.com/cilium/ebpf"
)

// Any is a map of connections or of translations (package natmap), of either
// family. The methods are those of [Typed].
type Any interface {
	Name() string
	Path() string
	Kernel() *ebpf.Map
	MaxEntries() int
	Is6() bool
	Count() (int, error)
	Pressure() (float64, error)
	Exists(Tuple) (bool, error)
	Delete(Tuple) error
	Unpin() error
	Close() error

	// Dump returns a line for each entry, sorted, with times as differences to a
	// time of the maps' clock, in seconds.
	Dump(now uint32) ([]string, error)
}

// Map is a map of connections, of either family.
type Map interface {
	Any
	Update(Tuple, Entry) error
	Lookup(Tuple) (Entry, error)
	Each(func(Tuple, Entry) bool) error

	// Records returns the entries that match, sorted, as of a time of the maps'
	// clock in seconds. A nil match is for all.
	Records(now uint32, match *Match) ([]Record, error)
}

var (
	type4 = Type[Key4, Entry]{Key: NewKey4}
	type6 = Type[Key6, Entry]{Is6: true, Key: NewKey6}
)

// Names returns the names of the maps of connections.
func Names() []string { return []string{CT4TCP, CT4Any, CT6TCP, CT6Any} }

// New returns the handle of a map that is open already; name is one of [Names].
func New(name string, m *ebpf.Map) (Map, error) { return NewNamed(name, name, m) }

// NewNamed is [New] for a map of another name that is like one of [Names].
func NewNamed(name, like string, m *ebpf.Map) (Map, error) {
	return dispatch(like,
		func() (*Typed[Key4, Entry], error) { return type4.New(name, m) },
		func() (*Typed[Key6, Entry], error) { return type6.New(name, m) })
}

// Create creates a map that is not pinned; name is one of [Names].
func Create(name string, maxEntries uint32) (Map, error) {
	return dispatch(name,
		func() (*Typed[Key4, Entry], error) { return type4.Create(name, maxEntries) },
		func() (*Typed[Key6, Entry], error) { return type6.Create(name, maxEntries) })
}

// Open opens a pinned map; name is one of [Names]. The error is [fs.ErrNotExist]
// if there is none.
func Open(dir, name string) (Map, error) {
	return dispatch(name,
		func() (*Typed[Key4, Entry], error) { return type4.Open(dir, name) },
		func() (*Typed[Key6, Entry], error) { return type6.Open(dir, name) })
}

// OpenAll opens those of the four maps that are pinned in a directory.
func OpenAll(dir string) ([]Map, error) {
	return OpenPresent(Names(), func(name string) (Map, error) { return Open(dir, name) })
}

// OpenPresent opens the maps of some names, but for those of which there is none.
func OpenPresent[M io.Closer](names []string, open func(name string) (M, error)) (maps []M, err error) {
	for _, name := range names {
		m, err := open(name)
		switch {
		case err == nil:
			maps = append(maps, m)
		case !errors.Is(err, fs.ErrNotExist):
			for _, m := range maps {
				err = errors.Join(err, m.Close())
			}
			return nil, err
		}
	}
	return maps, nil
}

// OpenOrCreate opens a pinned map, or creates it, or replaces one that has other
// properties, as [Type.OpenOrCreate] does; name is one of [Names].
func OpenOrCreate(dir, name string, maxEntries uint32, log *slog.Logger) (Map, error) {
	return dispatch(name,
		func() (*Typed[Key4, Entry], error) { return type4.OpenOrCreate(dir, name, maxEntries, log) },
		func() (*Typed[Key6, Entry], error) { return type6.OpenOrCreate(dir, name, maxEntries, log) })
}

// Spec returns the description of a map to the kernel; name is one of [Names].
func Spec(name string, maxEntries uint32) (*ebpf.MapSpec, error) {
	switch name {
	case CT4TCP, CT4Any:
		return type4.Spec(name, maxEntries), nil
	case CT6TCP, CT6Any:
		return type6.Spec(name, maxEntries), nil
	}
	return nil, unknown(name)
}

func dispatch(name string, v4 func() (*Typed[Key4, Entry], error), v6 func() (*Typed[Key6, Entry], error)) (Map, error) {
	switch name {
	case CT4TCP, CT4Any:
		return wrap(v4())
	case CT6TCP, CT6Any:
		return wrap(v6())
	}
	return nil, unknown(name)
}

func wrap[K Key](t *Typed[K, Entry], err error) (Map, error) {
	if err != nil {
		return nil, err
	}
	return connections[K]{t}, nil
}

func unknown(name string) error { return fmt.Errorf("map %q: not one of connections", name) }

// connections adds what knows of entries to a map of them.
type connections[K Key] struct{ *Typed[K, Entry] }

func (c connections[K]) Records(now uint32, match *Match) ([]Record, error) {
	var records []Record
	err := c.Each(func(t Tuple, e Entry) bool {
		if r := NewRecord(c.name, t, e, now); match.Record(&r) {
			records = append(records, r)
		}
		return true
	})
	slices.SortFunc(records, func(a, b Record) int { return a.Tuple().Compare(b.Tuple()) })
	return records, err
}

func (c connections[K]) Dump(now uint32) ([]string, error) {
	records, err := c.Records(now, nil)
	lines := make([]string, len(records))
	for i := range records {
		lines[i] = records[i].String()
	}
	return lines, err
}
