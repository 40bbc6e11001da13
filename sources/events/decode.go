// SPDX-License-Identifier: Apache-2.0

package events

import (
	"fmt"
	"unsafe"

	"github.com/sluice-net/sluice/bpf"
)

// decode returns the event of a record, which has the byte order of this machine.
func decode(sample []byte) (e bpf.Event, err error) {
	if len(sample) != int(unsafe.Sizeof(e)) {
		return e, fmt.Errorf("decode event: %d bytes, want %d", len(sample), unsafe.Sizeof(e))
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&e)), len(sample)), sample)
	if e.Kind != bpf.EventDrop && e.Kind != bpf.EventFlow {
		return e, fmt.Errorf("decode event: unknown kind %d", e.Kind)
	}
	return e, nil
}
