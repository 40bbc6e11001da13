// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// put commits rows.
func put[Row any](b *policyBench, table statedb.RWTable[Row], rows ...Row) (start time.Time) {
	start = time.Now()
	wtxn := b.db.WriteTxn(table)
	defer wtxn.Abort()
	for _, row := range rows {
		table.Insert(wtxn, row)
	}
	wtxn.Commit()
	return start
}

func take[Row any](b *policyBench, table statedb.RWTable[Row], rows ...Row) (start time.Time) {
	start = time.Now()
	wtxn := b.db.WriteTxn(table)
	defer wtxn.Abort()
	for _, row := range rows {
		table.Delete(wtxn, row)
	}
	wtxn.Commit()
	return start
}

// makePods makes the pods that are to come, with labels that nobody has had: n of
// another node, and those of this one.
func (b *policyBench) makePods(n int) {
	for i := range n {
		b.coming = append(b.coming, labelledPod(b.w.scenario.identities+i, nodeName(remoteNode)))
	}
	for i := range b.samples {
		pod, _ := b.likeLocalPod(i)
		b.comingHere = append(b.comingHere, labelledPod(pod, localNode))
	}
}

// A pod of another node, with labels that nobody has had, which all policies see
// as they see those of its place: one write, of its address.
func (b *policyBench) newPod(i int) (time.Duration, error) {
	pod := b.w.scenario.identities + i
	isAlike := pod%places < b.w.scenario.identities // a small cluster has nobody in some places
	like, err := b.peerClass(pod % places)
	if err != nil {
		return 0, err
	}
	return b.await(func() time.Time { return put(b, b.base.Endpoints, b.coming[i]) }, func(written any) (bool, error) {
		class, err := b.peerClass(pod)
		return hasKey(written, peerKey(pod)) && (class == like || !isAlike), err
	})
}

// wavePods is how many pods come at once, as when workloads start anew.
const wavePods = 500

// wave is the i-th of those that come at once, of the pods that are to come.
func (b *policyBench) wave(i int) []*tables.Endpoint {
	return b.coming[b.samples+i*wavePods:][:wavePods]
}

// Pods of another node, each as that of [policyBench.newPod]: a write of each one's address.
func (b *policyBench) waveComes(i int) (time.Duration, error) {
	pods := b.wave(i)
	return b.await(func() time.Time { return put(b, b.base.Endpoints, pods...) }, allWritten(pods))
}

func (b *policyBench) waveGoes(i int) (time.Duration, error) {
	pods := b.wave(i)
	return b.await(func() time.Time { return take(b, b.base.Endpoints, pods...) }, allWritten(pods))
}

// allWritten asks whether the addresses of all pods have been written.
func allWritten(pods []*tables.Endpoint) afterWrite {
	missing := map[bpf.IPCacheKey]bool{}
	for _, pod := range pods {
		missing[addrKey(pod.Addrs[0])] = true
	}
	return func(written any) (bool, error) {
		keys, _ := written.([]bpf.IPCacheKey)
		for _, key := range keys {
			delete(missing, key)
		}
		return len(missing) == 0, nil
	}
}

// peerClass returns the class that the kernel has an address in.
func (b *policyBench) peerClass(pod int) (uint32, error) {
	v, _, err := bpf.Lookup(b.maps.IPCache, peerKey(pod))
	return v.PeerClass, err
}

func peerKey(pod int) bpf.IPCacheKey { return addrKey(podAddr(pod)) }

func addrKey(addr netip.Addr) bpf.IPCacheKey { return bpf.IPCacheKeyFrom(netip.PrefixFrom(addr, 32)) }

func (b *policyBench) podGoes(i int) (time.Duration, error) {
	key := peerKey(b.w.scenario.identities + i)
	return b.await(func() time.Time { return take(b, b.base.Endpoints, b.coming[i]) }, func(written any) (bool, error) {
		return hasKey(written, key), nil
	})
}

// likeLocalPod is a pod that is not there, as policies see one that is here: with
// labels of its own, in the same place.
func (b *policyBench) likeLocalPod(i int) (pod, like int) {
	like = b.w.scenario.localPod(i % b.w.scenario.local)
	rounds := (b.w.scenario.identities+len(b.coming))/places + 2 + i/b.w.scenario.local
	return like%places + places*rounds, like
}

// A pod of this node with labels that nobody has had, where another one is that
// policies see alike: its address as a peer, and as a subject.
func (b *policyBench) newLocalPod(i int) (time.Duration, error) {
	pod, like := b.likeLocalPod(i)
	want, _, subjectErr := b.subjectClass(like)
	wantPeer, peerErr := b.peerClass(like)
	if err := errors.Join(subjectErr, peerErr); err != nil {
		return 0, err
	}
	placed := false
	return b.await(func() time.Time { return put(b, b.base.Endpoints, b.comingHere[i]) }, func(written any) (bool, error) {
		placed = placed || hasKey(written, peerKey(pod))
		class, known, err := b.subjectClass(pod)
		if err != nil || !placed || !known || class != want {
			return false, err
		}
		peer, err := b.peerClass(pod)
		return peer == wantPeer, err
	})
}

func (b *policyBench) localPodGoes(i int) (time.Duration, error) {
	pod, _ := b.likeLocalPod(i)
	gone := false
	return b.await(func() time.Time { return take(b, b.base.Endpoints, b.comingHere[i]) }, func(written any) (bool, error) {
		gone = gone || hasKey(written, peerKey(pod))
		_, known, err := b.subjectClass(pod)
		return gone && !known, err
	})
}

// subjectClass returns the class that the kernel has a pod of this node in, if it
// knows what policies say of it.
func (b *policyBench) subjectClass(pod int) (class uint32, known bool, err error) {
	v, found, err := bpf.Lookup(b.maps.Pods, bpf.PodKey{Addr: bpf.AddressFrom(podAddr(pod))})
	return v.SubjectClass, found && v.Flags&bpf.PodPolicyUnknown == 0, err
}

// onePolicy has a policy of a single pod of this node go and come again.
func (b *policyBench) onePolicy(samples int) error {
	type change struct{ policy, pod, peer int }
	var changes []change
	for i := range b.w.scenario.local {
		pod := b.w.scenario.localPod(i)
		for _, p := range b.w.scenario.policiesAt(placeOf(pod)) {
			if peer := b.w.peerOf(p, 0); !b.w.scenario.allPods && peersOf(p).has(peer) {
				changes = append(changes, change{p, pod, peer})
			}
		}
	}
	if len(changes) == 0 {
		return nil
	}
	// The verdict by which it is seen whether the policy is in force: of the peers
	// on its port; or of a port that nobody names if it is the only one of the pod.
	// It comes as often as it goes: all is as before.
	return b.event("policy of one pod goes, or comes", samples+samples%2, func(i int) (time.Duration, error) {
		c := changes[i/2%len(changes)]
		only := len(b.w.scenario.policiesAt(placeOf(c.pod))) == 1
		port, comes := ingressPort(c.policy), i%2 == 1
		if only {
			port = noPort
		}
		change := b.changing(selectivePolicy(c.policy), comes)
		return b.await(change, func(any) (bool, error) {
			allowed, err := b.w.allowed(c.pod, c.peer, bpf.DirectionIngress, port)
			return allowed == (comes != only), err
		})
	})
}

// changing returns what has a policy come, or go.
func (b *policyBench) changing(p *tables.NetworkPolicy, comes bool) func() time.Time {
	if comes {
		return func() time.Time { return put(b, b.base.NetworkPolicies, p) }
	}
	return func() time.Time { return take(b, b.base.NetworkPolicies, p) }
}

// clusterwide has a policy of all pods come, or go: all pods of this node accept
// another port, or no more.
func (b *policyBench) clusterwide(comes bool) func(i int) (time.Duration, error) {
	return func(i int) (time.Duration, error) {
		p, peer := clusterwidePolicy(i), b.w.peerOf(i, 0)
		change := b.changing(p, comes)
		pods := b.w.isolated()
		if comes {
			pods = b.w.allLocal()
		}
		if b.w.scenario.allPods || len(pods) == 0 { // no verdict tells it
			return b.awaitTables(change(), func() bool { return b.inForce(p) == comes && b.gone(p) != comes })
		}
		return b.await(change, func(any) (bool, error) {
			for _, pod := range pods {
				allowed, err := b.w.allowed(pod, peer, bpf.DirectionIngress, clusterwidePort(i))
				if err != nil || allowed != comes {
					return false, err
				}
				other, err := b.w.allowed(pod, peer, bpf.DirectionIngress, noPort)
				if err != nil || other {
					return false, err // as before any policy was about it
				}
			}
			return true, nil
		})
	}
}

// allLocal are the pods of the measured node.
func (w *policyWorld) allLocal() (pods []int) {
	for i := range w.scenario.local {
		pods = append(pods, w.scenario.localPod(i))
	}
	return pods
}

// isolated are those of them that a policy is about which is not of all pods.
func (w *policyWorld) isolated() []int {
	return slices.DeleteFunc(w.allLocal(), func(pod int) bool { return len(w.scenario.policiesAt(placeOf(pod))) == 0 })
}

// A policy of all pods is applied again with a new generation, and says what it
// said: until it is said to be in force.
func (b *policyBench) withoutEffect(i int) (time.Duration, error) {
	p := clusterwidePolicy(0)
	p.Generation = int64(i + 1)
	start := put(b, b.base.NetworkPolicies, p)
	return b.awaitTables(start, func() bool { return b.inForce(p) })
}

// manyPrefixes has a policy of many prefixes come, which are as many classes; lose one
// of them, and go.
func (b *policyBench) manyPrefixes() {
	n, at := b.w.scenario.prefixes, placeOf(b.w.scenario.localPod(0))
	if n == 0 {
		return
	}
	all, less, others := prefixesPolicy(at, 0, n), prefixesPolicy(at, 1, n), prefixesPolicy(at, n, 2*n)
	inForce := func() bool { return b.inForce(all) && b.w.complete() }
	gone := func() bool { return b.gone(all) }
	for _, step := range []struct {
		name     string
		do       func()
		complete func() bool
	}{
		{fmt.Sprintf("policy of %d prefixes comes", n), func() { put(b, b.base.NetworkPolicies, all) }, inForce},
		{"one of its prefixes goes", func() { put(b, b.base.NetworkPolicies, less) }, inForce},
		{"as many others in their place", func() { put(b, b.base.NetworkPolicies, others) }, inForce},
		{"policy of prefixes goes", func() { take(b, b.base.NetworkPolicies, others) }, gone},
	} {
		b.lastChange(time.Now(), b.w.complete) // what still follows is not to count
		b.atOnce(step.name, step.do, step.complete)
	}
}

// gone reports whether the kernel has nothing left of a policy that was deleted.
func (b *policyBench) gone(p *tables.NetworkPolicy) bool {
	_, _, found := b.w.tables.Rules.Get(b.db.ReadTxn(), tables.EnforcedPolicyByID(p.ID()))
	return !found
}

// inForce reports whether the kernel has what the policy's row says now.
func (b *policyBench) inForce(p *tables.NetworkPolicy) bool {
	txn := b.db.ReadTxn()
	_, revision, _ := b.base.NetworkPolicies.Get(txn, tables.NetworkPolicyByID(p.ID()))
	s, _, found := b.w.tables.Status.Get(txn, tables.NetworkPolicyStatusByPolicy(p.ID()))
	return found && s.InForce >= revision && s.Settled
}
