// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// controlOptions say how the agent is measured with egress policies: at each size.
type controlOptions struct {
	endpoints, policies []int
	samples             int
}

// controlBench measures a cluster with egress policies. Each policy selects every pod,
// for a destination of its own: as many entries as there can be for a system that has
// one for each pod and destination.
type controlBench struct {
	bench
	endpoints, policies, samples int
}

// controlTables mirror the maps that have an entry for each pod.
type controlTables struct {
	ipcache statedb.Table[*tables.IPCacheMirror]
	pods    statedb.Table[*tables.PodMirror]
}

func measureControl(w io.Writer, p site, o controlOptions) error {
	fmt.Fprintf(w, "control: egress policies, maps in %s; each event measured %d times\n",
		p.mode, o.samples)
	for _, endpoints := range o.endpoints {
		for _, policies := range o.policies {
			var mirrors controlTables
			take := func(
				i statedb.Table[*tables.IPCacheMirror], p statedb.Table[*tables.PodMirror],
			) {
				mirrors = controlTables{i, p}
			}
			err := withWorld(p, endpoints+2*o.samples, take, func(world *world) error {
				b := &controlBench{bench{world: world}, endpoints, policies, o.samples}
				used := b.coldStart(mirrors)
				err := errors.Join(
					b.awaitFlip(),
					b.event("floor: one bare map write", o.samples, b.bareWrite),
					b.event("new endpoint, known class", o.samples, b.newEndpoint),
					b.event("endpoint with new labels", o.samples, b.newLabels),
					b.event("endpoint relabeled", o.samples, b.relabel),
					b.event("policy's destination changed", o.samples, b.changePolicy),
					b.event("gateway not ready, or ready again", o.samples, b.changeGateway),
				)
				fmt.Fprintf(w, "\n%d endpoints x %d policies; heap %.1f MB, %d bytes an endpoint\n",
					endpoints, policies, float64(used)/1e6, used/uint64(endpoints))
				printResults(w, b.results)
				return err
			})
			if err != nil {
				return fmt.Errorf("%d endpoints, %d policies: %w", endpoints, policies, err)
			}
		}
	}
	return nil
}

// coldStart measures from the base tables being filled to the last entry, and returns
// the heap of the whole process.
func (b *controlBench) coldStart(mirrors controlTables) uint64 {
	b.atOnce("cold start", func() {
		b.fillNodes()
		commit(b.world, b.base.Namespaces, &tables.Namespace{Name: "prod"})
		pods := make([]*tables.Endpoint, b.endpoints)
		for i := range pods {
			pods[i] = endpoint(i, i/podsPerApp)
		}
		commit(b.world, b.base.Endpoints, pods...)
		for i := range b.policies {
			commit(b.world, b.base.Policies, policy(i, 0))
		}
		b.complete()
	}, func() bool {
		txn := b.db.ReadTxn()
		return mirrors.pods.NumObjects(txn) >= b.endpoints &&
			mirrors.ipcache.NumObjects(txn) >= b.endpoints
	})
	return heap()
}

func podKey(pod int) bpf.PodKey { return bpf.PodKey{Addr: bpf.AddressFrom(podAddr(pod))} }

func (b *controlBench) bareWrite(int) (time.Duration, error) {
	keys := []bpf.PodKey{podKey(1<<addressBits - 1)}
	start := time.Now()
	_, err := b.maps.Pods.Update(keys, []bpf.PodValue{{Subject: 1}})
	took := time.Since(start)
	_, gone := b.maps.Pods.Delete(keys)
	return took, errors.Join(err, gone)
}

// routed reports whether the kernel has an egress ruleset for a pod.
func (b *controlBench) routed(pod int) (bool, error) {
	at, found, err := bpf.Lookup(b.maps.Pods, podKey(pod))
	if err != nil || !found {
		return false, err
	}
	_, found, err = bpf.Lookup(b.maps.Routes, bpf.SubjectKey{Subject: at.Subject})
	return found, err
}

// endpointComes waits until the kernel routes the pod, or does not any more.
func (b *controlBench) endpointComes(
	i int, e *tables.Endpoint, routed bool,
) (time.Duration, error) {
	return b.await(
		func() time.Time { return commit(b.world, b.base.Endpoints, e) },
		func(any) (bool, error) {
			is, err := b.routed(i)
			return is == routed, err
		},
	)
}

// A pod of a known application on another node: two writes on this gateway
// node, of its address as a pod and as a peer; one on any other.
func (b *controlBench) newEndpoint(i int) (time.Duration, error) {
	n := b.endpoints + i
	return b.endpointComes(n, endpoint(n, 0), true)
}

// A pod of an application that was not there before, selected as all others are.
func (b *controlBench) newLabels(i int) (time.Duration, error) {
	n := b.endpoints + b.samples + i
	return b.endpointComes(n, endpoint(n, 1<<20+i), true)
}

// A pod leaves the team that policies select, or comes back.
func (b *controlBench) relabel(i int) (time.Duration, error) {
	n, back := i/2%b.endpoints, i%2 == 1
	e := endpoint(n, n/podsPerApp)
	if !back {
		e.LabelSet = tables.NewLabelSet("prod", "", map[string]string{"app": "none"}, nil)
	}
	return b.endpointComes(n, e, back)
}

// The destination of a policy that selects every pod: until each label set has it.
func (b *controlBench) changePolicy(i int) (time.Duration, error) {
	p := policy(0, i%2+1)
	all, err := b.maps.Routes.Dump()
	if err != nil {
		return 0, err
	}
	former := map[bpf.SubjectKey]bool{}
	for _, e := range all {
		former[e.Key] = true
	}
	return b.await(
		func() time.Time { return commit(b.world, b.base.Policies, p) },
		func(written any) (bool, error) {
			keys, _ := written.([]bpf.SubjectKey)
			for _, key := range keys {
				is, err := b.leadsTo(key, p.Destinations[0])
				if err != nil {
					return false, err
				}
				if is {
					delete(former, key)
				}
			}
			return len(former) == 0, nil
		},
	)
}

// leadsTo reports whether the kernel has a destination for a subject, or no subject any more.
func (b *controlBench) leadsTo(key bpf.SubjectKey, destination netip.Prefix) (bool, error) {
	route, found, err := bpf.Lookup(b.maps.Routes, key)
	if err != nil || !found {
		return err == nil, err
	}
	_, found, err = bpf.Lookup(b.maps.Egress, bpf.EgressKeyFrom(route.EgressRuleset, destination))
	return found, err
}

// The elected gateway turns not ready or ready again: its buckets are rewritten.
func (b *controlBench) changeGateway(i int) (time.Duration, error) {
	ready := i%2 == 1
	want := bpf.AddressFrom(nodeAddr(1))
	if ready {
		want = bpf.AddressFrom(nodeAddr(0))
	}
	all, err := b.maps.Gateways.Dump()
	if err != nil {
		return 0, err
	}
	others := map[bpf.GatewayKey]bool{}
	for _, e := range all {
		if e.Value.Gateway != want {
			others[e.Key] = true
		}
	}
	return b.await(
		func() time.Time { return commit(b.world, b.base.Nodes, node(0, ready)) },
		func(written any) (bool, error) {
			keys, _ := written.([]bpf.GatewayKey)
			for _, key := range keys {
				if v, _, err := bpf.Lookup(b.maps.Gateways, key); err != nil {
					return false, err
				} else if v.Gateway == want {
					delete(others, key)
				}
			}
			return len(keys) > 0 && len(others) == 0, nil
		},
	)
}
