// SPDX-License-Identifier: Apache-2.0

package members

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/tables"
)

// A policy with many label peers is evaluated some label sets at a time, and holds up no other.
func TestManyLabelPeers(t *testing.T) {
	const labelSets, peers = 2000, 60
	h := newHarness(t)
	for i := range labelSets {
		h.inputs.Endpoints.Put(pod(fmt.Sprintf("ns%d/p%d", i%10, i), "there",
			fmt.Sprintf("10.1.%d.%d", i>>8, i&255), labels.Set{"app": fmt.Sprint("a", i)}))
	}
	h.stepper.Work()
	var all []*tables.Selector
	for i := range peers {
		h.last++
		spec := tables.SelectorSpecs([]tables.PolicyPeer{pods(fmt.Sprintf("app notin (a%d)", i))})[0]
		all = append(all, h.resolve(tables.Selector{
			SelectorSpec: spec, Life: tables.Life{Number: h.last},
		}))
	}
	h.inputs.Selectors.Put(all...)
	h.stepper.Step()
	require.Zero(t, h.evaluated())

	small := h.use(pods("app=a7"))[0]
	steps := 0
	for h.stepper.Step() {
		steps++
		if h.isEvaluated(small) {
			break
		}
	}
	require.LessOrEqual(t, steps, 2*peers*labelSets/maxWork+10)
	for before := h.evaluated(); h.stepper.Step(); before = h.evaluated() {
		require.LessOrEqual(t, h.evaluated()-before, 2*maxWork/labelSets+2)
	}
	require.Equal(t, peers+1, h.evaluated())
	class := h.class(addr("10.1.0.7"))
	require.Len(t, class.Selectors, peers) // all but one, and the small one
	require.Contains(t, class.Selectors, small.Number)

	// They go some at a time, too.
	h.inputs.Selectors.Remove(all...)
	for h.stepper.Step() {
	}
	require.Equal(t, 1, h.evaluated())
	require.Equal(t, []uint32{small.Number}, h.class(addr("10.1.0.7")).Selectors)
}

// A block around many pods, and around many other blocks, looks at some of them at a time.
func TestManyInside(t *testing.T) {
	const many = 1000
	h := newHarness(t)
	for i := range many {
		h.inputs.Endpoints.Put(pod(fmt.Sprint("a/p", i), "there",
			fmt.Sprintf("10.1.%d.%d", i>>8, i&255), labels.Set{"app": "a"}))
	}
	for i := range 100 {
		h.use(cidr(fmt.Sprintf("10.2.%d.0/24", i), true))
	}
	h.stepper.Work()
	h.rule.maxWork = 50
	entered := func() (n int) {
		m := h.row(addr("10.1.0.1")).Member
		for range h.IPCache.List(h.db.ReadTxn(), tables.IPCacheByMember(m)) {
			n++
		}
		return n
	}
	require.Equal(t, many, entered())
	block := h.use(cidr("10.0.0.0/12", true, "10.3.0.0/24"))[0]
	steps := 0
	for last := 0; h.stepper.Step(); steps++ {
		now := entered()
		if now < many {
			require.LessOrEqual(t, now-last, 2*50)
			last = now
		}
	}
	require.Greater(t, steps, many/(2*50))
	require.Equal(t, many, entered())
	require.Equal(t, []uint32{block.Number}, h.class(addr("10.1.0.1")).Selectors)
	require.Len(t, h.class(addr("10.2.9.1")).Selectors, 2)
	require.Empty(t, h.class(addr("10.3.0.1")).Selectors)
	p, _, _ := h.PeerPrefixes.Get(h.db.ReadTxn(), tables.PeerPrefixByPrefix(prefix("10.2.9.0/24")))
	require.Same(t, &p.Outside[0], &p.Pods[0], "equal lists are one")
}

// Pods that come while many selectors are in use are classified some at a time.
func TestManyNewLabelSets(t *testing.T) {
	h := newHarness(t)
	h.rule.maxWork = 1000
	for i := range 200 {
		h.use(pods(fmt.Sprintf("app notin (a%d)", i)))
	}
	h.stepper.Work()
	var all []*tables.Endpoint
	for i := range 100 {
		all = append(all, pod(fmt.Sprint("a/p", i), "there", fmt.Sprintf("10.1.0.%d", i),
			labels.Set{"app": fmt.Sprint("a", i)}))
	}
	h.inputs.Endpoints.Put(all...)
	for before := h.Members.NumObjects(h.db.ReadTxn()); h.stepper.Step(); {
		now := h.Members.NumObjects(h.db.ReadTxn())
		require.LessOrEqual(t, now-before, 2*(1000/200+1))
		before = now
	}
	require.Len(t, h.class(addr("10.1.0.7")).Selectors, 199)
}

// Many selectors of one namespace are evaluated some at a time.
func TestManySelectorsOfNamespace(t *testing.T) {
	const labelSets, selectors = 500, 200
	h := newHarness(t)
	h.inputs.Namespaces.Put(&tables.Namespace{
		Name: "a", Labels: map[string]string{"kubernetes.io/metadata.name": "a"},
	})
	for i := range labelSets {
		h.inputs.Endpoints.Put(pod(fmt.Sprint("a/p", i), "there",
			fmt.Sprintf("10.1.%d.%d", i>>8, i&255), labels.Set{"app": fmt.Sprint("a", i)}))
	}
	h.stepper.Work()
	h.rule.maxWork = 2000
	for i := range selectors {
		h.use(tables.PolicyPeer{Kind: tables.PeerPods, Pods: tables.EgressSelector{
			Namespaces: "kubernetes.io/metadata.name=a", Pods: fmt.Sprintf("app=a%d", i),
		}})
	}
	for more, before := true, 0; more; before = h.evaluated() {
		more = h.stepper.Step()
		require.LessOrEqual(t, h.evaluated()-before, 2*(2000/labelSets+1))
	}
	require.Equal(t, selectors, h.evaluated())
	require.Len(t, h.class(addr("10.1.0.7")).Selectors, 1)
}
