// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Errors of maps.
var (
	// ErrMapFull says that an entry was refused for lack of room. Entries that
	// exist can still be changed and deleted.
	ErrMapFull = errors.New("map full")

	// ErrNotOpen says that a map is used before the agent has started.
	ErrNotOpen = errors.New("map is not open")
)

// Type is the type of a map.
type Type string

const (
	TypeHash Type = "hash"
	// TypeLPM is a longest-prefix-match trie. Its keys begin with the prefix
	// length, a uint32, and two keys that agree in that many bits are one key.
	TypeLPM Type = "lpm-trie"
	// TypeArray is indexed by a uint32. An entry of zero bytes is absent.
	TypeArray Type = "array"
)

// Spec describes a map.
type Spec struct {
	Name       string // at most 15 characters, which is what the kernel keeps
	Type       Type
	MaxEntries uint32
}

// Entry is one entry of a map.
type Entry[K, V comparable] struct {
	Key   K
	Value V
}

// Map is one map. Dump may be called at any time; the others by one goroutine.
type Map[K, V comparable] interface {
	// Spec returns the description of the map, with its present size.
	Spec() Spec

	// Backend names the back end that holds the map: kernel or memory.
	Backend() string

	// Update writes entries, in this order. It stops at the first that fails:
	// done is the number of entries before it, and err is its error.
	Update(keys []K, values []V) (done int, err error)

	// Delete deletes entries, in this order. To delete what is absent is no
	// error. Errors are as of Update.
	Delete(keys []K) (done int, err error)

	// Dump returns all entries in no particular order; the keys of a prefix
	// map have zeros behind their prefix.
	Dump() ([]Entry[K, V], error)

	// Walk yields the entries in pieces, each as it is when it is asked for. What is
	// there all the time comes at least once, whatever is written meanwhile. Keys are
	// as of Dump.
	Walk() iter.Seq2[[]Entry[K, V], error]
}

// Backend is what holds maps: a [*Kernel] or a [*Memory].
type Backend interface {
	// Name returns the name of the back end as --bpf has it.
	Name() string

	// Sweep removes all maps but the named ones, and those in directories with such
	// a name, as other versions may have left some. It returns the names of those
	// removed.
	Sweep(keep ...string) (removed []string, err error)

	// Close releases the back end; the maps keep their entries.
	Close() error

	// hasSlot reports whether there are maps in a slot.
	hasSlot(slot uint32) bool

	// dropSlot forgets the maps of a slot.
	dropSlot(slot uint32) error
}

// Open opens a map of a back end, which is created if there is none. A map of
// other properties is replaced; its entries are kept, as far as they fit, if
// only the size is another.
func Open[K, V comparable](backend Backend, spec Spec) (Map[K, V], error) {
	if err := checkSpec[K, V](spec); err != nil {
		return nil, err
	}
	switch backend := backend.(type) {
	case *Kernel:
		return openKernelMap[K, V](backend, spec)
	case *Memory:
		return openMemoryMap[K, V](backend, spec)
	default:
		return nil, fmt.Errorf("open map %s: unknown back end %T", spec.Name, backend)
	}
}

func checkSpec[K, V comparable](spec Spec) error {
	var (
		key   K
		value V
		fail  = func(format string, args ...any) error {
			return fmt.Errorf("open map %s: %s", spec.Name, fmt.Sprintf(format, args...))
		}
	)
	switch {
	case spec.Name == "" || len(spec.Name) > 15 || strings.ContainsAny(spec.Name, "./"):
		return fmt.Errorf("open map %q: a name has 1 to 15 characters, and no dot or slash", spec.Name)
	case !slices.Contains([]Type{TypeHash, TypeLPM, TypeArray}, spec.Type):
		return fail("unknown type %q", spec.Type)
	case spec.MaxEntries == 0:
		return fail("size is 0")
	case binary.Size(key) != int(unsafe.Sizeof(key)) ||
		binary.Size(value) != int(unsafe.Sizeof(value)):
		return fail("%T or %T is not of fixed size without padding", key, value)
	case spec.Type == TypeLPM && unsafe.Sizeof(key) < 5:
		return fail("%T is too short for a prefix", key)
	case spec.Type == TypeArray && unsafe.Sizeof(key) != 4:
		return fail("%T is no index of an array", key)
	}
	return nil
}

// fullError is an error of the kernel that says there is no room.
type fullError struct{ cause error }

func (e *fullError) Error() string {
	if errors.Is(e.cause, unix.ENOMEM) {
		return ErrMapFull.Error() + ": no memory"
	}
	return ErrMapFull.Error()
}

func (e *fullError) Is(target error) bool { return target == ErrMapFull }
func (e *fullError) Unwrap() error        { return e.cause }

// mapError makes the errors that mean "no room" an [ErrMapFull]: hash maps give
// E2BIG, tries ENOSPC, and both ENOMEM when the kernel has no memory for an entry.
func mapError(err error) error {
	if errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.ENOMEM) {
		return &fullError{err}
	}
	return err
}
