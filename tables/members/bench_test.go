// SPDX-License-Identifier: Apache-2.0

package members

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/tables"
)

const manyLabelSets = 50_000

// largeWorld has a pod of each of many label sets, and selectors that select some.
func largeWorld(b testing.TB) *harness {
	h := newHarness(b)
	var endpoints []*tables.Endpoint
	for i := range manyLabelSets {
		namespace := fmt.Sprint("ns-", i%500)
		addr := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}).String()
		set := labels.Set{
			"app": fmt.Sprint("app-", i), "tier": fmt.Sprint("tier-", i%10),
			"team": fmt.Sprint(i % 50),
		}
		name, node := fmt.Sprintf("%s/pod-%d", namespace, i), fmt.Sprint("node-", i%1000)
		endpoints = append(endpoints, pod(name, node, addr, set))
	}
	for i := range 500 {
		h.inputs.Namespaces.Put(&tables.Namespace{
			Name: fmt.Sprint("ns-", i), Labels: labels.Set{"kind": fmt.Sprint(i % 3)},
		})
	}
	for i := range 200 {
		h.use(pods(fmt.Sprintf("app=app-%d", i)), pods(fmt.Sprintf("tier=tier-%d,team=%d", i%10, i%50)),
			podsOf(fmt.Sprint("kubernetes.io/metadata.name=ns-", i)))
	}
	h.use(podsOf("kind=1"))
	h.inputs.Endpoints.Put(endpoints...)
	return h
}

// work runs the rule without checks.
func (h *harness) work() { h.stepper.Work() }

func BenchmarkCold(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		h := largeWorld(b)
		b.StartTimer()
		h.work()
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/manyLabelSets, "µs/labelset")
}

func BenchmarkChange(b *testing.B) {
	h := largeWorld(b)
	h.work()
	change := func(name string, do func(i int)) {
		i := 0
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				i++
				do(i)
				h.work()
			}
		})
	}
	change("pod with known labels", func(i int) {
		e := pod("ns-1/new", "node-1", fmt.Sprintf("10.2.%d.%d", i>>8%256, i%256), nil)
		set := labels.Set{"app": "app-1", "tier": "tier-1", "team": "1"}
		e.LabelSet = tables.NewLabelSet("ns-1", "", set, nil)
		h.inputs.Endpoints.Put(e)
	})
	change("pod with new labels", func(i int) {
		set := labels.Set{"app": fmt.Sprint("new-", i)}
		h.inputs.Endpoints.Put(pod("ns-1/new", "node-1", "10.2.0.1", set))
	})
	change("selector of one label set", func(i int) {
		h.use(pods(fmt.Sprintf("app=app-%d,n notin (%d)", i%manyLabelSets, i)))
	})
	change("namespace of 100 label sets", func(i int) {
		set := labels.Set{"kind": fmt.Sprint(i % 2)}
		h.inputs.Namespaces.Put(&tables.Namespace{Name: "ns-2", Labels: set})
	})
}

func BenchmarkManyPrefixes(b *testing.B) {
	const many = 16_000
	var peers []tables.PolicyPeer
	for i := range many {
		peers = append(peers, cidr(fmt.Sprintf("198.%d.%d.0/24", 18+i/256, i%256), false))
	}
	for b.Loop() {
		b.StopTimer()
		h := newHarness(b)
		h.work()
		h.use(peers...)
		b.StartTimer()
		h.work()
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/many, "µs/prefix")
}

// BenchmarkPause reports the longest transaction while a block comes into use that selects
// half of all pods.
func BenchmarkPause(b *testing.B) {
	h := largeWorld(b)
	h.work()
	var longest time.Duration
	i := 0
	for b.Loop() {
		i++
		h.use(cidr("0.0.0.0/0", true, "10.1.128.0/17", fmt.Sprintf("198.51.100.%d/32", i)))
		for more := true; more; {
			start := time.Now()
			more = h.stepper.Step()
			longest = max(longest, time.Since(start))
		}
	}
	b.ReportMetric(float64(longest.Microseconds())/1000, "ms/longest")
}
