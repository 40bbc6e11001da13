// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"fmt"
	"unsafe"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/natmap"
)

// What an event is about (bpf/programs/gc.h).
const (
	kindConnection  = 1
	kindTranslation = 2
)

// reasons are the reasons of the programs.
var reasons = [...]Reason{"", Expired, Orphan, Released, Flushed, Condemned}

// event is struct gc_event.
type event struct {
	Kind   uint8
	Reason uint8
	Family uint8
	Pad    [5]uint8
	Key    [40]byte // a key of the map, which may be shorter
	Value  [72]byte
}

// as returns the beginning of some bytes as a struct without pointers.
func as[T any](b []byte) T { return *(*T)(unsafe.Pointer(unsafe.SliceData(b))) }

func decodeEvent(raw []byte) (Entry, error) {
	if len(raw) < int(unsafe.Sizeof(event{})) {
		return Entry{}, fmt.Errorf("decode an event of %d bytes: want %d", len(raw), unsafe.Sizeof(event{}))
	}
	e := as[event](raw)
	if int(e.Reason) >= len(reasons) {
		return Entry{}, fmt.Errorf("decode an event: unknown reason %d", e.Reason)
	}
	reason := reasons[e.Reason]
	ipv6 := e.Family == bpf.FamilyIPv6
	switch {
	case e.Kind == kindConnection && ipv6:
		return connection(as[ctmap.Key6](e.Key[:]).Tuple(), as[ctmap.Entry](e.Value[:]), reason), nil
	case e.Kind == kindConnection:
		return connection(as[ctmap.Key4](e.Key[:]).Tuple(), as[ctmap.Entry](e.Value[:]), reason), nil
	case e.Kind == kindTranslation && ipv6:
		return translation(as[natmap.Key6](e.Key[:]).Tuple(), as[natmap.Entry6](e.Value[:]).Translation(), reason), nil
	case e.Kind == kindTranslation:
		return translation(as[natmap.Key4](e.Key[:]).Tuple(), as[natmap.Entry4](e.Value[:]).Translation(), reason), nil
	}
	return Entry{}, fmt.Errorf("decode an event: unknown kind %d", e.Kind)
}

func connection(t ctmap.Tuple, e ctmap.Entry, reason Reason) Entry {
	return Entry{Map: ctmap.CTName(t.Is6(), t.Protocol), Tuple: t, CT: &e, Reason: reason}
}

func translation(t ctmap.Tuple, to natmap.Translation, reason Reason) Entry {
	name := natmap.Name4
	if t.Is6() {
		name = natmap.Name6
	}
	return Entry{Map: name, Tuple: t, NAT: &to, Reason: reason}
}
