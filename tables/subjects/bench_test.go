// SPDX-License-Identifier: Apache-2.0

package subjects

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/tables"
)

// cluster has remote pods of 100 label sets on 100 nodes, and egress policies that this node
// may be the gateway of, each of which selects a tenth of them.
func cluster(b testing.TB, pods, policies int) *harness {
	h := newHarness(b, tables.EnforcementDefault, CIDRMatch{})
	h.Namespaces.Put(&tables.Namespace{Name: "n1"})
	h.Nodes.Put(node(here, labels.Set{"zone": "a"}))
	for i := range 100 {
		h.Nodes.Put(node(fmt.Sprint("node-", i), labels.Set{"zone": "b"}))
	}
	var endpoints []*tables.Endpoint
	for i := range pods {
		e := remotePod(i, fmt.Sprint("node-", i%100), fmt.Sprint("app-", i/100))
		e.LabelSet = tables.NewLabelSet("n1", "", labels.Set{
			"app": fmt.Sprint("app-", i%100), "tenth": fmt.Sprint("t", i%10),
		}, nil)
		e.Addrs[0] = e.Addrs[0].Next()
		endpoints = append(endpoints, e)
	}
	h.Endpoints.Put(endpoints...)
	for i := range policies {
		tenth := fmt.Sprint("tenth=t", i%10)
		h.EgressPolicies.Put(redirect(fmt.Sprint("e", i), tenth, "203.0.113.0/24", "zone=a"))
	}
	return h
}

func benchmarkCold(b *testing.B, build func() *harness) {
	for b.Loop() {
		b.StopTimer()
		h := build()
		b.StartTimer()
		h.work()
	}
}

func BenchmarkColdRemotePodsServed(b *testing.B) {
	benchmarkCold(b, func() *harness { return cluster(b, 10_000, 10) })
}

func BenchmarkColdRemotePods(b *testing.B) {
	benchmarkCold(b, func() *harness { return cluster(b, 50_000, 0) })
}

// busyNode has 200 pods of 100 label sets, each of which as many network policies select.
func busyNode(b *testing.B, policies int) *harness {
	h := newHarness(b, tables.EnforcementDefault, CIDRMatch{})
	h.Namespaces.Put(&tables.Namespace{Name: "n1"})
	h.Nodes.Put(node(here, nil))
	for i := range 200 {
		h.Locals.Put(localPod(i, fmt.Sprint("app-", i%100)))
	}
	for i := range policies {
		h.NetworkPolicies.Put(numbered(i, 80))
	}
	return h
}

func numbered(i int, port uint16) *tables.NetworkPolicy {
	peer := tables.PolicyPeer{Kind: tables.PeerPods, Pods: inN1(fmt.Sprint("app=peer-", i))}
	return allow(fmt.Sprintf("p%05d", i), fmt.Sprint("app=app-", i%100), port, peer)
}

func BenchmarkColdNetworkPolicies(b *testing.B) {
	benchmarkCold(b, func() *harness { return busyNode(b, 10_000) })
}

func benchmarkEdits(b *testing.B, h *harness, edit func(n int)) {
	h.work()
	n := 0
	for b.Loop() {
		n++
		edit(n)
		h.work()
	}
}

func BenchmarkNetworkPolicyEdited(b *testing.B) {
	h := busyNode(b, 10_000)
	benchmarkEdits(b, h, func(n int) { h.NetworkPolicies.Put(numbered(0, uint16(n))) })
}

func BenchmarkNetworkPolicyOfNobodyEdited(b *testing.B) {
	h := busyNode(b, 10_000)
	benchmarkEdits(b, h, func(n int) {
		h.NetworkPolicies.Put(allow("p", "app=none", uint16(n)))
	})
}

func BenchmarkEgressPolicyEdited(b *testing.B) {
	h := cluster(b, 10_000, 10)
	benchmarkEdits(b, h, func(n int) {
		destination := fmt.Sprintf("203.0.113.%d/32", n%256)
		h.EgressPolicies.Put(redirect("e0", "tenth=t0", destination, "zone=a"))
	})
}

func BenchmarkPodComesAndGoes(b *testing.B) {
	h := busyNode(b, 10_000)
	benchmarkEdits(b, h, func(n int) {
		if n%2 == 0 {
			h.Locals.Put(localPod(250, "app-0"))
		} else {
			h.Locals.Remove(localPod(250, "app-0"))
		}
	})
}

func BenchmarkLabelSetComesAndGoes(b *testing.B) {
	h := busyNode(b, 10_000)
	benchmarkEdits(b, h, func(n int) {
		if n%2 == 0 {
			h.Locals.Put(localPod(250, "other"))
		} else {
			h.Locals.Remove(localPod(250, "other"))
		}
	})
}

func BenchmarkNodeRelabeled(b *testing.B) {
	h := cluster(b, 10_000, 10)
	benchmarkEdits(b, h, func(n int) {
		h.Nodes.Put(node("node-1", labels.Set{"zone": "b", "n": fmt.Sprint(n)}))
	})
}
