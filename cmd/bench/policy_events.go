// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// makePods makes the pods of another node that are to come, with labels that no pod has had.
func (b *policyBench) makePods(n int) {
	for i := range n {
		b.coming = append(b.coming, labeledPod(b.identities+i, nodeName(remoteNode)))
	}
}

// podsCome returns how long it takes until the maps have pods as is asked for.
func (b *policyBench) podsCome(asked afterWrite, pods ...*tables.Endpoint) (time.Duration, error) {
	return b.await(func() time.Time { return commit(b.world, b.base.Endpoints, pods...) }, asked)
}

// podsGo returns how long it takes until the addresses of pods are gone.
func (b *policyBench) podsGo(pods ...*tables.Endpoint) (time.Duration, error) {
	goes := func() time.Time { return remove(b.world, b.base.Endpoints, pods...) }
	return b.await(goes, allWritten(pods))
}

// allWritten asks whether the addresses of all pods have been written, or deleted.
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

func addrKey(addr netip.Addr) bpf.IPCacheKey {
	return bpf.IPCacheKeyFrom(netip.PrefixFrom(addr, 32))
}

// A pod of another node, with labels that no pod has had, which all policies see
// as they see those of its place: two writes, of its label set and of its address.
func (b *policyBench) newPod(i int) (time.Duration, error) {
	pod := b.identities + i
	isAlike := pod%places < b.identities // a small cluster has no pods in some places
	like, _, err := b.class(pod % places)
	if err != nil {
		return 0, err
	}
	return b.podsCome(func(written any) (bool, error) {
		if !hasKey(written, addrKey(podAddr(pod))) {
			return false, nil
		}
		class, _, err := b.class(pod)
		return class == like || !isAlike, err
	}, b.coming[i])
}

// wavePods is how many pods come at once, as when workloads start anew.
const wavePods = 500

// Pods of another node, each as that of [policyBench.newPod]: the writes of each.
func (b *policyBench) waveComes(i int) (time.Duration, error) {
	pods := b.wave(i)
	return b.podsCome(allWritten(pods), pods...)
}

// wave is the i-th of those that come at once, of the pods that are to come.
func (b *policyBench) wave(i int) []*tables.Endpoint {
	return b.coming[len(b.coming)-(i+1)*wavePods:][:wavePods]
}

// likeLocalPod is a pod that is not there, as policies see one that is here: with
// labels of its own, in the same place.
func (b *policyBench) likeLocalPod(i int) (pod, like int) {
	like = b.localPod(i % b.local)
	rounds := (b.identities+len(b.coming))/places + 2 + i/b.local
	return like%places + places*rounds, like
}

// A pod of this node with labels that no pod has had, where another one is that
// policies see alike: its address as a peer, and as a subject.
func (b *policyBench) newLocalPod(i int) (time.Duration, error) {
	pod, like := b.likeLocalPod(i)
	want, _, rulesetErr := b.ruleset(like)
	wantClass, _, classErr := b.class(like)
	if err := errors.Join(rulesetErr, classErr); err != nil {
		return 0, err
	}
	placed := false
	return b.podsCome(func(written any) (bool, error) {
		placed = placed || hasKey(written, addrKey(podAddr(pod)))
		ruleset, known, err := b.ruleset(pod)
		if err != nil || !placed || !known || ruleset != want {
			return false, err
		}
		class, _, err := b.class(pod)
		return class == wantClass, err
	}, labeledPod(pod, localNode))
}

// policyOfPod is a policy that selects a pod of this node, and a peer that it allows.
type policyOfPod struct{ policy, pod, peer int }

func (b *policyBench) policiesOfPods() (all []policyOfPod) {
	for i := range b.local {
		pod := b.localPod(i)
		for _, p := range b.policiesAt(placeOf(pod)) {
			if peer := b.peerOf(p, 0); !b.allPods && peersOf(p).has(peer) {
				all = append(all, policyOfPod{p, pod, peer})
			}
		}
	}
	return all
}

// changePolicyOfPod has a policy of a single pod of this node come, or go. The verdict by which
// it is seen whether the policy is enforced is that of the peers on its port; or of a port that
// no policy names if it is the only one of the pod.
func (b *policyBench) changePolicyOfPod(c policyOfPod, comes bool) (time.Duration, error) {
	only := len(b.policiesAt(placeOf(c.pod))) == 1
	port := ingressPort(c.policy)
	if only {
		port = noPort
	}
	return b.await(b.changing(selectivePolicy(c.policy), comes), func(any) (bool, error) {
		allowed, err := b.allowed(c.pod, c.peer, port)
		return allowed == (comes != only), err
	})
}

// onePolicy has policies go and come again: all is as before.
func (b *policyBench) onePolicy(samples int) error {
	all := b.policiesOfPods()
	if len(all) == 0 {
		return nil
	}
	return b.event(
		"policy of one pod goes, or comes",
		samples+samples%2,
		func(i int) (time.Duration, error) {
			return b.changePolicyOfPod(all[i/2%len(all)], i%2 == 1)
		},
	)
}

// changing returns what has a policy come, or go.
func (b *policyBench) changing(p *tables.NetworkPolicy, comes bool) func() time.Time {
	if comes {
		return func() time.Time { return commit(b.world, b.base.NetworkPolicies, p) }
	}
	return func() time.Time { return remove(b.world, b.base.NetworkPolicies, p) }
}

// clusterwide has a policy of all pods come, or go: all pods of this node accept
// another port, or no more.
func (b *policyBench) clusterwide(comes bool) func(i int) (time.Duration, error) {
	return func(i int) (time.Duration, error) {
		p, peer := clusterwidePolicy(i), b.peerOf(i, 0)
		change := b.changing(p, comes)
		var pods []int // whose verdicts tell whether it is enforced
		for n := range b.local {
			pod := b.localPod(n)
			if comes || len(b.policiesAt(placeOf(pod))) > 0 {
				pods = append(pods, pod)
			}
		}
		if b.allPods || len(pods) == 0 {
			return b.awaitTables(change(),
				func() bool { return b.applied(p) == comes && b.removed(p) != comes })
		}
		return b.await(change, func(any) (bool, error) {
			for _, pod := range pods {
				allowed, err := b.allowed(pod, peer, clusterwidePort(i))
				if err != nil || allowed != comes {
					return false, err
				}
				other, err := b.allowed(pod, peer, noPort)
				if err != nil || other {
					return false, err // as before any policy selected it
				}
			}
			return true, nil
		})
	}
}

// A policy of all pods is applied again with a new generation, and says what it
// said: until its status says so.
func (b *policyBench) withoutEffect(i int) (time.Duration, error) {
	p := b.allPolicies()[0]
	p.Generation = int64(i + 1)
	start := commit(b.world, b.base.NetworkPolicies, p)
	return b.awaitTables(start, func() bool { return b.applied(p) })
}

// manyPrefixes has a policy of many prefixes come, and until it is applied one of a single pod
// go and come again, which the other is not about: a huge policy must not delay a small one
// of other pods.
func (b *policyBench) manyPrefixes(n int) (err error) {
	at := placeOf(b.localPod(0))
	small := slices.DeleteFunc(b.policiesOfPods(), func(c policyOfPod) bool {
		return placeOf(c.pod) == at
	})
	if n == 0 || len(small) == 0 {
		return nil
	}
	huge := prefixesPolicy(at, n)
	var meanwhile []time.Duration
	b.atOnce(fmt.Sprintf("policy of %d prefixes comes", n), func() {
		commit(b.world, b.base.NetworkPolicies, huge)
		for comes := false; err == nil && (len(meanwhile) == 0 || comes || !b.applied(huge)); comes = !comes {
			var took time.Duration
			took, err = b.changePolicyOfPod(small[0], comes)
			meanwhile = append(meanwhile, took)
		}
	}, func() bool { return b.applied(huge) && b.inKernel() })
	b.results = append(b.results, resultOf("policy of one pod meanwhile", meanwhile, cost{}))
	b.atOnce("policy of prefixes goes",
		func() { remove(b.world, b.base.NetworkPolicies, huge) },
		func() bool { return b.removed(huge) })
	return err
}
