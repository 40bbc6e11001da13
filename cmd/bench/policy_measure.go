// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// policyTables say whether the kernel has all that it is to have.
type policyTables struct {
	cell.In

	Compiled statedb.Table[*tables.CompiledPolicy]
	Rulesets statedb.Table[*tables.Ruleset]
	Wanted   statedb.Table[*tables.Subject]
	Subjects statedb.Table[*tables.SubjectMirror]
	Status   statedb.Table[*tables.NetworkPolicyStatus]
	IPCache  statedb.Table[*tables.IPCacheMirror]
	Desired  statedb.Table[*tables.IPCache]
}

// policyBench measures a cluster with network policies.
type policyBench struct {
	bench
	policyScenario
	tables policyTables
	coming []*tables.Endpoint // pods of another node that are yet to come
}

// inWorld has an agent without a cluster, of so many pods at most, for as long as do takes.
func (s policyScenario) inWorld(p site, pods int, do func(*policyBench) error) error {
	b := &policyBench{policyScenario: s}
	return withWorld(p, pods, func(t policyTables) { b.tables = t }, func(w *world) error {
		b.world = w
		return do(b)
	})
}

// measure measures a scenario, and prints what came of it.
func (s policyScenario) measure(
	w io.Writer, p site, o *policyOptions,
) (results []result, err error) {
	var without uint64
	err = s.inWorld(p, s.identities, func(b *policyBench) error {
		b.coldStart(nil)
		without = heap()
		return nil
	})
	if err != nil {
		return nil, err
	}
	tenth := max(1, o.samples/10)
	coming := o.samples + tenth*wavePods
	err = s.inWorld(p, s.identities+coming+o.samples+o.prefixes, func(b *policyBench) error {
		b.coldStart(s.allPolicies())
		entries, err := b.verify()
		if err := errors.Join(err, b.awaitFlip()); err != nil {
			return err
		}
		used := heap()
		b.makePods(coming)
		err = errors.Join(
			b.event("pod with new labels, known class", o.samples, b.newPod),
			b.event("that pod goes again", o.samples, func(i int) (time.Duration, error) {
				return b.podsGo(b.coming[i])
			}),
			b.event(fmt.Sprintf("%d such pods come at once", wavePods), tenth, b.waveComes),
			b.event(fmt.Sprintf("%d go at once", wavePods), tenth, func(i int) (time.Duration, error) {
				return b.podsGo(b.wave(i)...)
			}),
			b.event("pod of this node with new labels", o.samples, b.newLocalPod),
			b.event("that pod goes again, too", o.samples, func(i int) (time.Duration, error) {
				pod, _ := b.likeLocalPod(i)
				return b.podsGo(labeledPod(pod, localNode))
			}),
			b.onePolicy(o.samples),
			b.event("policy of all pods comes", tenth, b.clusterwide(true)),
			b.event("policy comes again, and says the same", tenth, b.withoutEffect),
			b.event("policy of all pods goes", tenth, b.clusterwide(false)),
			b.manyPrefixes(o.prefixes),
		)
		results = b.results
		fmt.Fprintf(w, "\npolicy %s\n", s)
		fmt.Fprintf(w, "  %d identities, %d entries for them: here %d entries\n",
			s.identities, s.perIdentity(), entries)
		fmt.Fprintf(w, "  heap %.1f MB, %d bytes a pod; of policies %.1f MB\n",
			float64(used)/1e6, used/uint64(s.identities), (float64(used)-float64(without))/1e6)
		printResults(w, results)
		return err
	})
	return results, err
}

// coldStart has pods and policies come at once, as rows: to decode objects is no part
// of it, as it is none of what other engines are measured with.
func (b *policyBench) coldStart(policies []*tables.NetworkPolicy) {
	pods, namespaces := b.pods(), make([]*tables.Namespace, policyNamespaces)
	for i := range namespaces {
		team := fmt.Sprintf("team-%d", i%policyTeams)
		namespaces[i] = &tables.Namespace{Name: namespaceName(i), Labels: labels.Set{"team": team}}
	}
	b.atOnce("cold start", func() {
		b.fillNodes()
		commit(b.world, b.base.Namespaces, namespaces...)
		commit(b.world, b.base.NetworkPolicies, policies...)
		commit(b.world, b.base.Endpoints, pods...)
		b.world.complete()
	}, b.inKernel)
}

// inKernel reports whether the kernel has all pods, and all that the policies say. The status of
// policies waits for the flip as well, and that for the devices of pods, which there are none of.
func (b *policyBench) inKernel() bool {
	txn := b.db.ReadTxn()
	if b.tables.IPCache.NumObjects(txn) < b.base.Endpoints.NumObjects(txn) ||
		b.tables.Compiled.NumObjects(txn) < b.base.NetworkPolicies.NumObjects(txn) {
		return false
	}
	for row := range b.tables.Wanted.All(txn) {
		if row.Status.Kind != reconciler.StatusKindDone {
			return false
		}
	}
	for row := range b.tables.Desired.All(txn) {
		if row.Status.Kind != reconciler.StatusKindDone {
			return false
		}
	}
	return true
}

// applied reports whether the kernel has what the policy's row says now.
func (b *policyBench) applied(p *tables.NetworkPolicy) bool {
	txn := b.db.ReadTxn()
	_, revision, _ := b.base.NetworkPolicies.Get(txn, tables.NetworkPolicyByID(p.ID()))
	s, _, found := b.tables.Status.Get(txn, tables.NetworkPolicyStatusByPolicy(p.ID()))
	return found && s.Compiled >= revision && s.Applied
}

// removed reports whether the kernel judges nothing any more by a policy that was deleted.
func (b *policyBench) removed(p *tables.NetworkPolicy) bool {
	txn := b.db.ReadTxn()
	for r := range b.tables.Rulesets.List(txn, tables.RulesetsByPolicy(p.ID())) {
		for range b.tables.Subjects.List(
			txn, tables.MirrorsTo[bpf.SubjectKey, bpf.SubjectValue](r.Number),
		) {
			return false
		}
	}
	return true
}

// awaitTables returns how long it is from start until tables say of policies what is
// asked for.
func (b *policyBench) awaitTables(start time.Time, done func() bool) (time.Duration, error) {
	ctx, stop := context.WithTimeout(context.Background(), eventTimeout)
	defer stop()
	for {
		txn := b.db.ReadTxn()
		_, status := b.tables.Status.AllWatch(txn)
		_, subjects := b.tables.Subjects.AllWatch(txn)
		if done() {
			return time.Since(start), nil
		}
		changed := statedb.NewWatchSet()
		changed.Add(status, subjects)
		if _, err := changed.Wait(ctx, 0); err != nil {
			return 0, err
		}
	}
}

// verify compares what the maps say with what the policies do, so that what is
// measured is the whole work. It returns how many entries that took.
func (b *policyBench) verify() (entries int, err error) {
	pairs, err := b.maps.Policy.Dump()
	if err != nil {
		return 0, err
	}
	verdicts, err := b.maps.Verdicts.Dump()
	if err != nil {
		return 0, err
	}
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 20000 {
		pod, peer, port, want := b.packet(random, i%2 == 0)
		got, err := b.allowed(pod, peer, port)
		if err != nil {
			return 0, err
		}
		if got != want {
			return 0, fmt.Errorf(
				"pod %d from pod %d, port %d: allowed %t, want %t", pod, peer, port, got, want,
			)
		}
	}
	return len(pairs) + len(verdicts), nil
}

// allowed looks up a packet to a pod of the measured node as the programs do, in their maps.
func (w *world) allowed(pod, peer int, port uint16) (bool, error) {
	ruleset, known, err := w.ruleset(pod)
	if err != nil || !known || ruleset == bpf.EmptyRuleset {
		return known, err
	}
	class, known, err := w.class(peer)
	if err != nil || !known {
		return false, err
	}
	for _, c := range []uint32{class, bpf.AnyClass} {
		key := bpf.PolicyKey{Ruleset: ruleset, Class: c, Direction: bpf.DirectionIngress}
		entry, found, err := bpf.Lookup(w.maps.Policy, key)
		if err != nil {
			return false, err
		}
		if found {
			v, found, err := bpf.Lookup(
				w.maps.Verdicts, bpf.VerdictKeyOf(entry.Set, protocolTCP, port, 16),
			)
			return found && v.Deny == 0, err
		}
	}
	return false, nil
}

// ruleset returns the ruleset that the kernel has for a pod of this node, if it knows what
// policies say of it.
func (w *world) ruleset(pod int) (ruleset uint32, known bool, err error) {
	at, found, err := bpf.Lookup(w.maps.Pods, podKey(pod))
	if err != nil || !found {
		return 0, false, err
	}
	subject, found, err := bpf.Lookup(w.maps.Subjects, bpf.SubjectKey{Subject: at.Subject})
	return subject.Ruleset, found, err
}

// class returns the class that the kernel has an address in, if any.
func (w *world) class(pod int) (class uint32, known bool, err error) {
	at, found, err := bpf.Lookup(w.maps.IPCache, addrKey(podAddr(pod)))
	if err != nil || !found {
		return 0, false, err
	}
	peer, found, err := bpf.Lookup(w.maps.Peers, bpf.PeerKey{Member: at.Member})
	return peer.Class, found, err
}
