// SPDX-License-Identifier: Apache-2.0

package main

import "github.com/sluice-net/sluice/bpf"

// watchWrites has the agent tell of what it writes to the maps that policy events are
// seen in: the kernel has it before the tables say so.
func (w *world) watchWrites(maps *bpf.Maps) {
	written := make(chan struct{}, 1)
	w.written = written
	maps.Pods = telling[bpf.PodKey, bpf.PodValue]{maps.Pods, written}
	maps.IPCache = telling[bpf.IPCacheKey, bpf.IPCacheValue]{maps.IPCache, written}
	maps.Policy = telling[bpf.PolicyKey, bpf.PolicyValue]{maps.Policy, written}
}

// telling is a map that tells of writes.
type telling[K, V comparable] struct {
	bpf.Map[K, V]
	written chan<- struct{}
}

func (t telling[K, V]) Update(keys []K, values []V) (int, error) {
	defer t.tell()
	return t.Map.Update(keys, values)
}

func (t telling[K, V]) Delete(keys []K) (int, error) {
	defer t.tell()
	return t.Map.Delete(keys)
}

// Lookup has [bpf.Lookup] find what the map has.
func (t telling[K, V]) Lookup(key K) (V, bool, error) { return bpf.Lookup(t.Map, key) }

func (t telling[K, V]) tell() {
	select {
	case t.written <- struct{}{}:
	default:
	}
}
