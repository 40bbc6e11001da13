// SPDX-License-Identifier: Apache-2.0

package events

import (
	"fmt"
	"testing"
	"unsafe"

	"github.com/sluice-net/sluice/bpf"
)

// FuzzDecode: any record of the ring buffer is an event, or an error that says so.
func FuzzDecode(f *testing.F) {
	e := bpf.Event{Kind: bpf.EventDrop}
	f.Add(append([]byte(nil), unsafe.Slice((*byte)(unsafe.Pointer(&e)), unsafe.Sizeof(e))...))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, record []byte) {
		event, err := decode(record)
		if (len(record) == int(unsafe.Sizeof(event)) && (event.Kind == bpf.EventDrop || event.Kind == bpf.EventFlow)) != (err == nil) {
			t.Fatalf("%d bytes of kind %d: %v", len(record), event.Kind, err)
		}
		_ = fmt.Sprintf("%+v", event) // whatever is in it, it can be printed
	})
}
