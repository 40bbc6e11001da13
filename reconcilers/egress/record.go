// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"math"
	"sync"

	"github.com/sluice-net/sluice/bpf"
)

// record has what numbers stand for, as far as all that is in the kernel under a number
// agrees with that. No program asks, and no other agent uses the numbers of this one: so
// the agent has it for itself.
type record struct {
	mu      sync.Mutex
	entries map[bpf.ClassKey]bpf.ClassValue
}

var _ bpf.Map[bpf.ClassKey, bpf.ClassValue] = &record{}

func newRecord() *record { return &record{entries: map[bpf.ClassKey]bpf.ClassValue{}} }

// Spec implements [bpf.Map].
func (*record) Spec() bpf.Spec {
	return bpf.Spec{Name: "class-record", Type: bpf.TypeHash, MaxEntries: math.MaxUint32}
}

// Backend implements [bpf.Map].
func (*record) Backend() string { return "agent" }

// Update implements [bpf.Map].
func (r *record) Update(keys []bpf.ClassKey, values []bpf.ClassValue) (done int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, key := range keys {
		r.entries[key] = values[i]
	}
	return len(keys), nil
}

// Delete implements [bpf.Map].
func (r *record) Delete(keys []bpf.ClassKey) (done int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, key := range keys {
		delete(r.entries, key)
	}
	return len(keys), nil
}

// Dump implements [bpf.Map].
func (r *record) Dump() ([]bpf.Entry[bpf.ClassKey, bpf.ClassValue], error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	entries := make([]bpf.Entry[bpf.ClassKey, bpf.ClassValue], 0, len(r.entries))
	for key, value := range r.entries {
		entries = append(entries, bpf.Entry[bpf.ClassKey, bpf.ClassValue]{Key: key, Value: value})
	}
	return entries, nil
}
