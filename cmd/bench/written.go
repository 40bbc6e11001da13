// SPDX-License-Identifier: Apache-2.0

package main

import (
	"sync"
	"time"

	"github.com/sluice-net/sluice/bpf"
)

// writes ask after each write to a map whether the maps are as somebody waits for: who
// writes asks, so that the answer's time is not that of a goroutine which waits for its turn.
type writes struct {
	mu    sync.Mutex
	asked func() (bool, error) // nil when nobody waits
	seen  chan seen
}

// seen is when the maps were as is waited for, or why that is not known.
type seen struct {
	at  time.Time
	err error
}

// await returns what comes of a question, which is asked at once and after each write.
func (w *writes) await(asked func() (bool, error)) <-chan seen {
	w.mu.Lock()
	w.asked, w.seen = asked, make(chan seen, 1)
	answer := w.seen
	w.mu.Unlock()
	w.ask()
	return answer
}

func (w *writes) ask() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.asked == nil {
		return
	}
	if is, err := w.asked(); is || err != nil {
		w.seen <- seen{time.Now(), err}
		w.asked = nil
	}
}

// watchWrites has the agent's writes to the maps of network policy noticed.
func (w *world) watchWrites(maps *bpf.Maps) {
	maps.Pods = asking[bpf.PodKey, bpf.PodValue]{maps.Pods, &w.writes}
	maps.IPCache = asking[bpf.IPCacheKey, bpf.IPCacheValue]{maps.IPCache, &w.writes}
	maps.Policy = asking[bpf.PolicyKey, bpf.PolicyValue]{maps.Policy, &w.writes}
}

// asking is a map whose writes are followed by a question.
type asking[K, V comparable] struct {
	bpf.Map[K, V]
	writes *writes
}

func (a asking[K, V]) Update(keys []K, values []V) (int, error) {
	defer a.writes.ask()
	return a.Map.Update(keys, values)
}

func (a asking[K, V]) Delete(keys []K) (int, error) {
	defer a.writes.ask()
	return a.Map.Delete(keys)
}

// Lookup has [bpf.Lookup] find what the map has.
func (a asking[K, V]) Lookup(key K) (V, bool, error) { return bpf.Lookup(a.Map, key) }
