// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"iter"

	"github.com/cilium/ebpf"
)

// walkBatch is how many entries are read at once. It is more than a bucket of a hash map
// ever has, which the kernel reads whole.
const walkBatch = 1024

func (t *kernelMap[K, V]) Walk() iter.Seq2[[]Entry[K, V], error] {
	return func(yield func([]Entry[K, V], error) bool) {
		var (
			cursor ebpf.MapBatchCursor
			keys   = make([]K, walkBatch)
			values = make([]V, walkBatch)
			zero   V
		)
		for last := false; !last; {
			n, err := t.m.BatchLookup(&cursor, keys, values, nil)
			last = errors.Is(err, ebpf.ErrKeyNotExist)
			if err != nil && !last {
				yield(nil, fmt.Errorf("dump map %s: %w", t.spec.Name, err))
				return
			}
			entries := make([]Entry[K, V], 0, n)
			for i := range n {
				switch {
				case t.spec.Type == TypeArray && values[i] == zero:
					continue
				case t.spec.Type == TypeLPM:
					keys[i] = Masked(keys[i])
				}
				entries = append(entries, Entry[K, V]{keys[i], values[i]})
			}
			if !yield(entries, nil) {
				return
			}
		}
	}
}

func (t *memoryMap[K, V]) Walk() iter.Seq2[[]Entry[K, V], error] {
	return func(yield func([]Entry[K, V], error) bool) {
		t.memory.mu.Lock()
		var ids []K
		for id := range t.entries {
			ids = append(ids, id)
		}
		t.memory.mu.Unlock()
		for len(ids) > 0 {
			n := min(len(ids), walkBatch)
			var entries []Entry[K, V]
			t.memory.mu.Lock()
			for _, id := range ids[:n] {
				if e, ok := t.entries[id]; ok {
					entries = append(entries, Entry[K, V]{id, e.Value})
				}
			}
			t.memory.mu.Unlock()
			if ids = ids[n:]; !yield(entries, nil) {
				return
			}
		}
	}
}

func (h *handle[K, V]) Walk() iter.Seq2[[]Entry[K, V], error] {
	if m := h.inner.Load(); m != nil {
		return (*m).Walk()
	}
	return func(yield func([]Entry[K, V], error) bool) { yield(nil, ErrNotOpen) }
}
