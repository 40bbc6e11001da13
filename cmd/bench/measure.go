// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/reconcilers/attach"
	"github.com/sluice-net/sluice/tables"
)

// result is what one kind of event cost.
type result struct {
	Endpoints int           `json:"endpoints"`
	Policies  int           `json:"policies"`
	Event     string        `json:"event"`
	P50       time.Duration `json:"p50ns"`
	P99       time.Duration `json:"p99ns"`
	Max       time.Duration `json:"maxns"`
	Rows      float64       `json:"rows"`    // computed in derived tables, an event
	Writes    float64       `json:"writes"`  // of entries of maps, an event
	Deletes   float64       `json:"deletes"` // of entries of maps, an event
	HeapBytes uint64        `json:"heapBytes,omitempty"`
	Note      string        `json:"note,omitempty"`
}

// bench is the measurement of one size.
type bench struct {
	*world
	size    size
	samples int
	results []result
}

func measure(mode, bpffs, dir string, s size, samples int) ([]result, error) {
	w, err := newWorld(mode, bpffs, dir, s)
	if err != nil {
		return nil, err
	}
	defer cleanUp(mode, bpffs)
	b := &bench{world: w, size: s, samples: samples}
	defer w.stop() // also what was started before a failure
	if err := w.start(); err != nil {
		return nil, err
	}
	b.coldStart()
	b.floor()
	b.event("new endpoint, known class", b.newEndpoint)
	b.event("endpoint with new labels", b.newLabels)
	b.event("endpoint relabelled", b.relabel)
	b.event("label that no policy looks at", b.relabelUnseen)
	b.event("policy's destination changed", b.changePolicy)
	b.event("gateway not ready, or ready again", b.changeGateway)
	b.event("resync without change", b.resync)
	return b.results, nil
}

// cleanUp takes from the kernel what the agent leaves there, for the next one is
// to begin where this one did.
func cleanUp(mode, bpffs string) {
	if mode != "kernel" {
		return
	}
	_, err1 := bpf.CleanupLinks(bpffs)
	_, err2 := attach.CleanupOverlay()
	_, err3 := bpf.Cleanup(bpffs)
	if err := errors.Join(err1, err2, err3); err != nil {
		fmt.Fprintln(os.Stderr, "bench: clean up:", err)
	}
}

// heap is what is in use. What has a finalizer, and what that holds, goes with a later
// collection than the first that finds it, when the finalizer has run.
func heap() uint64 {
	for range 4 {
		runtime.GC()
		time.Sleep(50 * time.Millisecond)
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// cost is the work so far.
type cost struct{ rows, writes, deletes int }

func (b *bench) cost() (c cost) {
	for _, s := range b.derived.All() {
		c.rows += s.Counts().Rows
	}
	for _, name := range b.maps.Names() {
		writes, deletes := b.control.Counts(name)
		c.writes += int(writes)
		c.deletes += int(deletes)
	}
	return c
}

// event measures something that is done again and again.
func (b *bench) event(name string, do func(i int) (took time.Duration)) {
	before := b.rest()
	times := make([]time.Duration, b.samples)
	for i := range times {
		times[i] = do(i)
		if i%20 == 19 {
			b.rest() // so that what follows an event does not pile up behind it
		}
	}
	after := b.rest()
	b.report(name, times, cost{after.rows - before.rows, after.writes - before.writes, after.deletes - before.deletes}, "")
}

func (b *bench) report(name string, times []time.Duration, c cost, note string) {
	slices.Sort(times)
	n := float64(len(times))
	b.results = append(b.results, result{
		Endpoints: b.size.endpoints, Policies: b.size.policies, Event: name,
		P50: times[len(times)/2], P99: times[len(times)*99/100], Max: times[len(times)-1],
		Rows: float64(c.rows) / n, Writes: float64(c.writes) / n, Deletes: float64(c.deletes) / n, Note: note,
	})
}

// rest waits until nothing is written any more, and returns the work so far.
func (b *bench) rest() cost {
	last, since := b.cost(), time.Now()
	for time.Since(since) < 30*time.Millisecond {
		time.Sleep(3 * time.Millisecond)
		if c := b.cost(); c != last {
			last, since = c, time.Now()
		}
	}
	return last
}

// coldStart measures from the base tables being filled to the last entry. The
// heap is that of the whole process.
func (b *bench) coldStart() {
	before := b.cost()
	start := time.Now()
	b.fill(b.size)
	filled := time.Since(start)
	for b.sources.NumObjects(b.db.ReadTxn()) < b.size.endpoints || b.ipcache.NumObjects(b.db.ReadTxn()) < b.size.endpoints {
		time.Sleep(200 * time.Microsecond)
	}
	took := time.Since(start)
	after := b.rest()
	used := heap()
	b.report("cold start", []time.Duration{took}, cost{after.rows - before.rows, after.writes - before.writes, after.deletes - before.deletes},
		fmt.Sprintf("of which %s to fill the base tables; heap %.1f MB, %d bytes an endpoint",
			filled.Round(time.Millisecond), float64(used)/1e6, used/uint64(b.size.endpoints)))
	b.results[len(b.results)-1].HeapBytes = used
}

// floor measures a bare write to a map, and a commit of one row.
func (b *bench) floor() {
	times := make([]time.Duration, b.samples)
	key := bpf.SourceKey{Addr: bpf.AddressFrom(podAddr(1<<addressBits - 1))}
	for i := range times {
		start := time.Now()
		b.maps.Sources.Update([]bpf.SourceKey{key}, []bpf.SourceValue{{Class: 1}})
		times[i] = time.Since(start)
	}
	b.maps.Sources.Delete([]bpf.SourceKey{key})
	b.report("floor: one bare map write", times, cost{}, "")
}

// insert commits a row and returns when the predicate holds, which is asked
// anew whenever the watched channel closes.
func insert[Row any](b *bench, table statedb.RWTable[Row], row Row, done func(statedb.ReadTxn) (bool, <-chan struct{})) time.Duration {
	start := time.Now()
	wtxn := b.db.WriteTxn(table)
	defer wtxn.Abort()
	table.Insert(wtxn, row)
	wtxn.Commit()
	for {
		ok, watch := done(b.db.ReadTxn())
		if ok {
			return time.Since(start)
		}
		<-watch
	}
}

// hasSource waits for an address to be in the kernel with some class.
func (b *bench) hasSource(i int, is func(*tables.SourceEntry) bool) func(statedb.ReadTxn) (bool, <-chan struct{}) {
	key := bpf.SourceKey{Addr: bpf.AddressFrom(podAddr(i))}
	return func(txn statedb.ReadTxn) (bool, <-chan struct{}) {
		e, _, watch, _ := b.sources.GetWatch(txn, tables.MapEntryByKey[bpf.SourceKey, bpf.SourceValue](key))
		return is(e), watch
	}
}

func present(e *tables.SourceEntry) bool { return e != nil }
func absent(e *tables.SourceEntry) bool  { return e == nil }

// A pod of a known application on another node: two writes on this gateway
// node, the ipcache and its class; one on any other.
func (b *bench) newEndpoint(i int) time.Duration {
	n := b.size.endpoints + i
	return insert(b, b.base.Endpoints, endpoint(n, 0), b.hasSource(n, present))
}

// A pod of an application that was not there before, chosen as all others are.
func (b *bench) newLabels(i int) time.Duration {
	n := b.size.endpoints + b.samples + i
	return insert(b, b.base.Endpoints, endpoint(n, 1<<20+i), b.hasSource(n, present))
}

// A pod leaves the team that policies choose, or comes back.
func (b *bench) relabel(i int) time.Duration {
	n := i / 2
	e := endpoint(n, n/podsPerApp)
	if i%2 == 1 {
		return insert(b, b.base.Endpoints, e, b.hasSource(n, present))
	}
	e.LabelSet = tables.NewLabelSet("prod", "", map[string]string{"app": "none"}, nil)
	return insert(b, b.base.Endpoints, e, b.hasSource(n, absent))
}

// A pod gets a label that is in no selector: nothing is written. The time is
// that of the commit.
func (b *bench) relabelUnseen(i int) time.Duration {
	e := endpoint(i, i/podsPerApp)
	set := e.LabelSet.Labels.Set()
	set["color"] = "green"
	e.LabelSet = tables.NewLabelSet("prod", "", set, nil)
	return insert(b, b.base.Endpoints, e, func(statedb.ReadTxn) (bool, <-chan struct{}) { return true, nil })
}

// The destination of a policy that chooses every pod.
func (b *bench) changePolicy(i int) time.Duration {
	p := policy(0, i%2+1)
	return insert(b, b.base.Policies, p, func(txn statedb.ReadTxn) (bool, <-chan struct{}) {
		_, watch := b.rules.AllWatch(txn)
		written := false
		for e := range b.rules.All(txn) {
			written = written || e.Key.Prefix() == p.Destinations[0]
		}
		return written, watch
	})
}

// The elected gateway turns not ready or ready again: its buckets are rewritten.
func (b *bench) changeGateway(i int) time.Duration {
	ready := i%2 == 1
	want := bpf.AddressFrom(nodeAddr(1))
	if ready {
		want = bpf.AddressFrom(nodeAddr(0))
	}
	return insert(b, b.base.Nodes, node(0, ready), func(txn statedb.ReadTxn) (bool, <-chan struct{}) {
		_, watch := b.gateways.AllWatch(txn)
		for e := range b.gateways.All(txn) {
			if e.Value.Gateway != want {
				return false, watch
			}
		}
		return true, watch
	})
}

// All endpoints are written again as they are, as by a relist that does not
// compare: rows are computed, and nothing is written to a map.
func (b *bench) resync(int) time.Duration {
	start := time.Now()
	wtxn := b.db.WriteTxn(b.base.Endpoints)
	defer wtxn.Abort()
	for e := range b.base.Endpoints.All(wtxn) {
		copied := *e
		b.base.Endpoints.Insert(wtxn, &copied)
	}
	wtxn.Commit()
	took := time.Since(start)
	b.rest()
	return took
}
