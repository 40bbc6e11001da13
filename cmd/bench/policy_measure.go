// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// policyResult is what came of one scenario.
type policyResult struct {
	Scenario   string `json:"scenario"`
	Local      int    `json:"local"`
	Identities int    `json:"identities"`      // distinct sets of labels
	PerID      int    `json:"identityEntries"` // entries for each endpoint and peer identity, computed
	Peers      int    `json:"peerClasses"`
	Subjects   int    `json:"subjectClasses"`
	Entries    int    `json:"entries"`

	Cold       time.Duration `json:"coldns"`     // from full base tables to the last entry
	ColdFill   time.Duration `json:"coldFillns"` // of which to fill the base tables
	ColdCPU    time.Duration `json:"coldcpuns"`  // of the process meanwhile
	ColdWrites int           `json:"coldWrites"` // of entries of maps
	Heap       uint64        `json:"heapBytes"`  // of the whole process
	HeapPolicy uint64        `json:"heapPolicyBytes"`

	Events  []policyEvent  `json:"events"`
	Explain *explainResult `json:"explain,omitempty"`
	Peer    []string       `json:"peer,omitempty"` // what another engine says of itself
}

// policyEvent is a [result] with the CPU time of the process.
type policyEvent struct {
	result
	CPU time.Duration `json:"cpuns"` // an event
}

// settleTime is for how long nothing may change before all is said to be done.
const settleTime = 300 * time.Millisecond

func measurePolicy(mode, bpffs, dir string, s policyScenario, samples int) (*policyResult, error) {
	r := &policyResult{Scenario: s.String(), Local: s.local, Identities: s.identities, PerID: s.perIdentity()}
	if err := r.measureCold(mode, bpffs, dir, s, samples); err != nil {
		return nil, err
	}
	return r, r.measureEvents(mode, bpffs, dir, s, samples)
}

// withPolicyWorld has an agent without a cluster for as long as do takes.
func withPolicyWorld(mode, bpffs, dir string, s policyScenario, samples int, do func(*policyWorld) error) error {
	w, err := newPolicyWorld(mode, bpffs, dir, s, samples)
	if err != nil {
		return err
	}
	defer cleanUp(mode, bpffs)
	defer w.stop() // also what was started before a failure
	if err := w.start(); err != nil {
		return err
	}
	return do(w)
}

// measureCold has pods and policies come at once, as rows: to decode objects is no part
// of it, as it is none of what other engines are measured with.
func (r *policyResult) measureCold(mode, bpffs, dir string, s policyScenario, samples int) error {
	return withPolicyWorld(mode, bpffs, dir, s, samples, func(w *policyWorld) error {
		b := &bench{world: w.world}
		policies, pods := s.allPolicies(), s.pods()
		before, cpu, start := b.cost(), processTime(), time.Now()
		w.fillPolicies(policies)
		w.fillPods(pods)
		r.ColdFill = time.Since(start)
		last, after := b.lastChange(start, w.complete)
		r.Cold, r.ColdCPU, r.ColdWrites = last, processTime()-cpu, after.writes-before.writes
		if err := w.verify(r); err != nil {
			return err
		}
		b.lastChange(time.Now(), w.complete) // what still follows is not to count
		r.Heap = heap()
		return nil
	})
}

// lastChange waits until all is there and nothing changes any more, and returns
// when something did. What is slow may pause for longer than that.
func (b *bench) lastChange(start time.Time, complete func() bool) (time.Duration, cost) {
	last, at := b.cost(), time.Now()
	for time.Since(at) < settleTime || !complete() {
		time.Sleep(time.Millisecond)
		if c := b.cost(); c != last {
			last, at = c, time.Now()
		}
	}
	return at.Sub(start), last
}

// complete reports whether the kernel has all pods, and all that the policies say.
func (w *policyWorld) complete() bool {
	txn := w.db.ReadTxn()
	if w.tables.IPCache.NumObjects(txn) < w.base.Endpoints.NumObjects(txn) ||
		w.tables.Status.NumObjects(txn) < w.base.NetworkPolicies.NumObjects(txn) {
		return false
	}
	for s := range w.tables.Status.All(txn) {
		if !s.Settled || s.InForce < s.Wanted {
			return false
		}
	}
	for row := range w.tables.Desired.All(txn) {
		if row.WaitsFor != 0 || row.Status.Kind != reconciler.StatusKindDone {
			return false
		}
	}
	return true
}

// verify compares what the maps say with what the policies do, so that what is
// measured is the whole work; and counts what came of it.
func (w *policyWorld) verify(r *policyResult) error {
	txn := w.db.ReadTxn()
	r.Entries = w.tables.Policy.NumObjects(txn)
	for range w.tables.Members.List(txn, tables.ClassRowsOfRole(bpf.RolePeer)) {
		r.Peers++
	}
	for range w.tables.Members.List(txn, tables.ClassRowsOfRole(bpf.RoleSubject)) {
		r.Subjects++
	}
	for e := range w.tables.Entries.All(txn) {
		if err := e.Status.GetError(); err != "" {
			return fmt.Errorf("entry %s: %s", e.Key, err)
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	var allowed int
	for i := range 20000 {
		pod, peer, port, want := w.packet(random, i%2 == 0)
		got, err := w.allowed(pod, peer, bpf.DirectionIngress, port)
		if err != nil || got != want {
			return errors.Join(err, fmt.Errorf("pod %d from pod %d, port %d: allowed %t, want %t: %s", pod, peer, port, got, want, w.standing(pod, peer)))
		}
		if got {
			allowed++
		}
	}
	if allowed == 0 {
		return errors.New("nothing is allowed")
	}
	return nil
}

// standing says in which classes a pod and its peer are, by the kernel and by the tables.
func (w *policyWorld) standing(pod, peer int) string {
	txn := w.db.ReadTxn()
	subject, _, err := bpf.Lookup(w.maps.Pods, bpf.PodKey{Addr: bpf.AddressFrom(podAddr(pod))})
	at, _, atErr := bpf.Lookup(w.maps.IPCache, bpf.IPCacheKeyFrom(netip.PrefixFrom(podAddr(peer), 32)))
	text := fmt.Sprintf("the kernel has %s (%v) and %s (%v)", subject, err, at, atErr)
	if row, _, found := w.tables.Locals.Get(txn, tables.LocalEndpointByAddr(podAddr(pod))); found {
		text += fmt.Sprintf(", local-endpoints %v", row.TableRow())
	}
	if row, _, found := w.tables.Desired.Get(txn, tables.IPCacheByPrefix(netip.PrefixFrom(podAddr(peer), 32))); found {
		text += fmt.Sprintf(", ipcache %v", row.TableRow())
	}
	for role, i := range map[bpf.Role]int{bpf.RoleSubject: pod, bpf.RolePeer: peer} {
		for m := range w.tables.Members.Prefix(txn, tables.ClassMembersOfLabelSet(role, labelledPod(i, localNode).LabelSet.ID)) {
			text += fmt.Sprintf(", class-members %v", m.TableRow())
		}
	}
	return text
}

// peerOf returns a pod that a policy allows, from a number on; or that number's
// pod if there is none.
func (w *policyWorld) peerOf(policy, from int) int {
	for i := range w.scenario.identities {
		if pod := (from + i) % w.scenario.identities; peersOf(policy).has(pod) {
			return pod
		}
	}
	return from
}

// policyBench measures events, in a cluster that is complete.
type policyBench struct {
	bench
	w *policyWorld
	r *policyResult

	coming     []*tables.Endpoint // pods of another node that are yet to come
	comingHere []*tables.Endpoint // and of this one
}

func (r *policyResult) measureEvents(mode, bpffs, dir string, s policyScenario, samples int) error {
	return withPolicyWorld(mode, bpffs, dir, s, samples, func(w *policyWorld) error {
		b := &policyBench{bench: bench{world: w.world, samples: samples}, w: w, r: r}
		w.fillPolicies(nil)
		w.fillPods(s.pods())
		b.lastChange(time.Now(), w.complete)
		without := heap()
		policies := s.allPolicies()
		b.atOnce("all policies come, pods are there", func() { w.fillPolicies(policies) }, w.complete)
		b.lastChange(time.Now(), w.complete) // what still follows is not to count
		if with := heap(); with > without {
			r.HeapPolicy = with - without
		}
		tenth := max(1, samples/10)
		b.makePods(samples + tenth*wavePods)
		err := errors.Join(
			b.event("pod with new labels, known class", samples, b.newPod),
			b.event("that pod goes again", samples, b.podGoes),
			b.event(fmt.Sprintf("%d such pods come at once", wavePods), tenth, b.waveComes),
			b.event(fmt.Sprintf("%d go at once", wavePods), tenth, b.waveGoes),
			b.event("pod of this node with new labels", samples, b.newLocalPod),
			b.event("that pod goes again, too", samples, b.localPodGoes),
			b.onePolicy(samples),
			b.event("policy of all pods comes", tenth, b.clusterwide(true)),
			b.event("change without effect", tenth, b.withoutEffect),
			b.event("policy of all pods goes", tenth, b.clusterwide(false)),
			b.explain(100*samples),
			b.floor(samples),
		)
		b.manyPrefixes()
		return err
	})
}

// atOnce measures a change until nothing follows of it any more. That of all policies
// to pods that are there is what other engines call the cold computation, and the way
// into the kernel.
func (b *policyBench) atOnce(name string, change func(), complete func() bool) {
	before, cpu, start := b.cost(), processTime(), time.Now()
	change()
	took, after := b.lastChange(start, complete)
	b.add(name, []time.Duration{took}, cost{after.rows - before.rows, after.writes - before.writes, after.deletes - before.deletes}, processTime()-cpu)
}

func (b *policyBench) add(name string, times []time.Duration, c cost, cpu time.Duration) {
	b.report(name, times, c, "")
	last := b.results[len(b.results)-1]
	last.Endpoints, last.Policies = b.w.scenario.identities, b.w.scenario.policies
	b.r.Events = append(b.r.Events, policyEvent{last, cpu / time.Duration(len(times))})
}

// event measures something that is done again and again.
func (b *policyBench) event(name string, samples int, do func(i int) (time.Duration, error)) error {
	before := b.rest()
	times := make([]time.Duration, samples)
	var cpu time.Duration
	for i := range times {
		started := processTime()
		var err error
		if times[i], err = do(i); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		cpu += processTime() - started
		if i%20 == 19 {
			b.rest() // so that what follows an event does not pile up behind it
		}
	}
	after := b.rest()
	b.add(name, times, cost{after.rows - before.rows, after.writes - before.writes, after.deletes - before.deletes}, cpu)
	return nil
}

// processTime is the CPU time that the process has used.
func processTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// eventTimeout is for one event to have its effect in the kernel.
const eventTimeout = time.Minute

// await returns how long it is from a change until the maps are as is asked for. The
// change returns when it began.
func (b *policyBench) await(change func() (start time.Time), asked afterWrite) (time.Duration, error) {
	answer := b.writes.await(asked)
	start := change()
	select {
	case seen := <-answer:
		return seen.at.Sub(start), seen.err
	case <-time.After(eventTimeout):
		return 0, fmt.Errorf("the maps are not as they are to be after %s", eventTimeout)
	}
}

// awaitTables returns how long it is from start until tables say of policies what is
// asked for.
func (b *policyBench) awaitTables(start time.Time, done func() bool) (time.Duration, error) {
	ctx, stop := context.WithTimeout(context.Background(), eventTimeout)
	defer stop()
	for {
		changed := statedb.NewWatchSet()
		changed.Add(b.watches()...)
		if done() {
			return time.Since(start), nil
		}
		if _, err := changed.Wait(ctx, 0); err != nil {
			return 0, err
		}
	}
}

func (b *policyBench) watches() []<-chan struct{} {
	txn := b.db.ReadTxn()
	_, status := b.w.tables.Status.AllWatch(txn)
	_, rules := b.w.tables.Rules.AllWatch(txn)
	return []<-chan struct{}{status, rules}
}
