// SPDX-License-Identifier: Apache-2.0

package members

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/tables"
)

// A selector that begins to name an address while it is evaluated is evaluated after that address
// is in a class with it.
func TestNamesMoreMeanwhile(t *testing.T) {
	const labelSets = 50
	h := newHarness(t)
	for i := range labelSets {
		h.inputs.Endpoints.Put(pod(fmt.Sprint("a/p", i), "there",
			fmt.Sprintf("10.1.0.%d", i), labels.Set{"app": fmt.Sprint("a", i)}))
	}
	h.settle()
	service := tables.PolicyPeer{Kind: tables.PeerServices, PeerService: &tables.PeerService{
		Service: tables.Name{Namespace: "a", Name: "s"},
	}}
	h.rule.maxWork = 10
	s := h.use(service)[0]
	h.step()
	require.False(t, h.isEvaluated(s))
	h.rule.maxWork = maxWork
	h.inputs.Services.Put(&tables.Service{Name: service.Service})
	h.inputs.Backends.Put(&tables.BackendSlice{
		Name: service.Service, Service: service.Service, Addrs: []netip.Addr{addr("10.1.0.7")},
	})
	s = h.resolve(*s)
	h.inputs.Selectors.Put(s)
	h.stepper.Limit(1, 1000)
	for h.step() { // which checks what is evaluated
	}
	require.True(t, h.isEvaluated(s))
	require.True(t, h.class(addr("10.1.0.7")).Selects(s.Number))
}

// A prefix inside a block that a selector names only until its key is computed does not keep the
// selector.
func TestBlockComesAndGoes(t *testing.T) {
	h := newHarness(t)
	named := func(prefixes ...netip.Prefix) {
		h.Groups.Put(&tables.CIDRGroup{Name: "g", Prefixes: prefixes})
	}
	named(prefix("203.0.113.0/24"))
	s := h.use(tables.PolicyPeer{
		Kind: tables.PeerCIDRGroups, PeerPrefixes: &tables.PeerPrefixes{Group: "g"},
	})[0]
	h.use(cidr("203.0.113.0/24", false)) // the prefix keeps its row
	h.settle()
	require.True(t, h.class(addr("203.0.113.7")).Selects(s.Number))
	h.stepper.Limit(1, 1000)
	named(prefix("203.0.0.0/16"))
	h.inputs.Selectors.Put(h.resolve(*s))
	h.step() // computes the longer prefix, which the other one still contains
	require.True(t, h.class(addr("203.0.113.7")).Selects(s.Number))
	named(prefix("198.51.100.0/24"))
	h.inputs.Selectors.Put(h.resolve(*s))
	h.settle()
	require.False(t, h.class(addr("203.0.113.7")).Selects(s.Number))
}

// The exceptions of a block come before it, also if its key waits before theirs, for another
// selector.
func TestExceptionsComeFirst(t *testing.T) {
	h := newHarness(t)
	group := func(except ...netip.Prefix) tables.PolicyPeer {
		return tables.PolicyPeer{Kind: tables.PeerCIDRGroups, PeerPrefixes: &tables.PeerPrefixes{
			Group: "g", Except: except,
		}}
	}
	h.Groups.Put(&tables.CIDRGroup{Name: "g"})
	all, most := h.use(group())[0], h.use(group(prefix("203.0.113.0/24")))[0]
	h.settle()
	h.Groups.Put(&tables.CIDRGroup{Name: "g", Prefixes: []netip.Prefix{prefix("203.0.0.0/16")}})
	h.inputs.Selectors.Put(h.resolve(*all))
	h.stepper.Limit(1, 1000)
	h.inputs.Selectors.Put(h.resolve(*most))
	for more := true; more; {
		more = h.step()
		require.False(t, h.class(addr("203.0.113.7")).Selects(most.Number))
	}
	require.True(t, h.class(addr("203.0.113.7")).Selects(all.Number))
	require.True(t, h.class(addr("203.0.112.7")).Selects(most.Number))
}

// Addresses that go to pods of another namespace leave their member before it gets what selects a
// new label of its namespace, also if they are many, with many new label sets.
func TestAddressesLeaveBeforeNamespaceIsRelabeled(t *testing.T) {
	const many = 300
	h := newHarness(t)
	h.inputs.Namespaces.Put(&tables.Namespace{Name: "a"}, &tables.Namespace{Name: "b"})
	h.use(podsOf("team=y"))
	var before, after []*tables.Endpoint
	address := func(i int) string { return fmt.Sprintf("10.1.%d.%d", i>>8, i&255) }
	for i := range many {
		before = append(before,
			pod(fmt.Sprint("a/p", i), "there", address(i), labels.Set{"app": "a"}))
		after = append(after,
			pod(fmt.Sprint("b/p", i), "there", address(i), labels.Set{"app": fmt.Sprint(i)}))
	}
	h.inputs.Endpoints.Put(before...)
	h.settle()
	h.rule.maxWork = 10
	h.inputs.Endpoints.Remove(before...)
	h.inputs.Endpoints.Put(after...)
	h.stepper.Step()
	h.inputs.Namespaces.Put(&tables.Namespace{
		Name: "a", Labels: map[string]string{"team": "y"},
	})
	for h.stepper.Step() {
		for i := range many {
			require.Empty(t, h.class(addr(address(i))).Selectors)
		}
	}
}
