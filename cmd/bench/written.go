// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"sync"
	"time"

	"github.com/sluice-net/sluice/bpf"
)

// writes ask after each write to a map whether the maps are as an event has to make them.
// The writer asks: another goroutine would have to be scheduled first, which takes time.
type writes struct {
	mu    sync.Mutex
	asked afterWrite // nil while no event is measured
	seen  chan seen
}

// afterWrite says whether the maps are as they are to be, after a write of some keys.
type afterWrite func(written any) (bool, error)

// hasKey reports whether a key is among those written.
func hasKey[K comparable](written any, key K) bool {
	keys, ok := written.([]K)
	return ok && slices.Contains(keys, key)
}

// seen is when the maps were as they are to be, or why that is not known.
type seen struct {
	at  time.Time
	err error
}

// await asks after each write from now on, until the answer is yes.
func (w *writes) await(asked afterWrite) <-chan seen {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked, w.seen = asked, make(chan seen, 1)
	return w.seen
}

// ask asks after a write.
func (w *writes) ask(written any) {
	at := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.asked == nil {
		return
	}
	if is, err := w.asked(written); is || err != nil {
		w.seen <- seen{at, err}
		w.asked = nil
	}
}

// watchWrites has the agent's writes to maps noticed.
func (w *world) watchWrites(maps *bpf.Maps) {
	maps.Subjects = asking[bpf.SubjectKey, bpf.SubjectValue]{maps.Subjects, &w.writes}
	maps.Routes = asking[bpf.SubjectKey, bpf.RouteValue]{maps.Routes, &w.writes}
	maps.Peers = asking[bpf.PeerKey, bpf.PeerValue]{maps.Peers, &w.writes}
	maps.Egress = asking[bpf.EgressKey, bpf.EgressValue]{maps.Egress, &w.writes}
	maps.Gateways = asking[bpf.GatewayKey, bpf.GatewayValue]{maps.Gateways, &w.writes}
	maps.Pods = asking[bpf.PodKey, bpf.PodValue]{maps.Pods, &w.writes}
	maps.IPCache = asking[bpf.IPCacheKey, bpf.IPCacheValue]{maps.IPCache, &w.writes}
	maps.Policy = asking[bpf.PolicyKey, bpf.PolicyValue]{maps.Policy, &w.writes}
}

// asking is a map whose writes are followed by an afterWrite.
type asking[K, V comparable] struct {
	bpf.Map[K, V]
	writes *writes
}

func (a asking[K, V]) Update(keys []K, values []V) (int, error) {
	defer func() { a.writes.ask(keys) }()
	return a.Map.Update(keys, values)
}

func (a asking[K, V]) Delete(keys []K) (int, error) {
	defer func() { a.writes.ask(keys) }()
	return a.Map.Delete(keys)
}

// Unwrap has [bpf.Lookup] find what the map has.
func (a asking[K, V]) Unwrap() bpf.Map[K, V] { return a.Map }
