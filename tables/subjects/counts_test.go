// SPDX-License-Identifier: Apache-2.0

package subjects

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-net/sluice/bpf"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/tables"
)

// expect does something, has the rule work, and checks how many rows of which outputs it
// wrote, and how many it deleted.
func (h *harness) expect(want string, do func()) {
	h.Helper()
	before := h.db.ReadTxn()
	do()
	h.work()
	after := h.db.ReadTxn()
	var counts []string
	count(&counts, h.Pods, before, after)
	count(&counts, h.Subjects, before, after)
	count(&counts, h.Routes, before, after)
	count(&counts, h.Rulesets, before, after)
	count(&counts, h.Selectors, before, after)
	count(&counts, h.EgressRulesets, before, after)
	count(&counts, h.EgressRules, before, after)
	count(&counts, h.Groups, before, after)
	count(&counts, h.Compiled, before, after)
	require.Equal(h, want, strings.Join(counts, " "))
	(&oracle{h, after}).check()
}

func count[Row any](counts *[]string, table statedb.Table[Row], before, after statedb.ReadTxn) {
	primary, written, deleted := table.PrimaryIndexer(), 0, 0
	for _, revision := range table.All(after) {
		if revision > table.Revision(before) {
			written++
		}
	}
	for row := range table.All(before) {
		if _, _, found := table.Get(after, primary.QueryFromObject(row)); !found {
			deleted++
		}
	}
	if written > 0 {
		*counts = append(*counts, fmt.Sprint(table.Name(), "+", written))
	}
	if deleted > 0 {
		*counts = append(*counts, fmt.Sprint(table.Name(), "-", deleted))
	}
}

func setOf(app string) *tables.LabelSet {
	return tables.NewLabelSet("n1", "", labels.Set{"app": app}, nil)
}

func localPod(n int, app string) *tables.LocalEndpoint {
	return &tables.LocalEndpoint{
		Addr:     netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}),
		Endpoint: tables.Name{Namespace: "n1", Name: fmt.Sprint("p", n)},
		LabelSet: setOf(app), IfIndex: 7,
	}
}

func remotePod(n int, node, app string) *tables.Endpoint {
	return &tables.Endpoint{
		Name: tables.Name{Namespace: "n1", Name: fmt.Sprint("r", n)}, Node: node, LabelSet: setOf(app),
		Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, byte(n >> 8), byte(n)})}, Created: begin,
	}
}

func node(name string, set labels.Set) *tables.Node {
	addr := netip.AddrFrom4([4]byte{192, 168, 0, name[0]})
	return &tables.Node{Name: name, Labels: set, Ready: true, InternalIPs: []netip.Addr{addr}}
}

func allow(name, subject string, port uint16, peers ...tables.PolicyPeer) *tables.NetworkPolicy {
	return &tables.NetworkPolicy{
		Kind: tables.PolicyKubernetes, Name: tables.Name{Namespace: "n1", Name: name},
		Rules: []tables.PolicyRule{{
			Field: "spec", Subject: inN1(subject),
			Ingress: tables.PolicyDirection{DefaultDeny: true, Traffic: []tables.PolicyTraffic{{
				Field: "spec.ingress[0]", Peers: peers, AnyPeer: len(peers) == 0,
				Ports: []tables.PolicyPort{{Protocol: 6, First: port, Last: port}},
			}}},
		}},
	}
}

func inN1(pods string) tables.EgressSelector {
	return tables.EgressSelector{Namespaces: "kubernetes.io/metadata.name=n1", Pods: pods}
}

func redirect(name, pods, destination string, gateways ...string) *tables.EgressPolicy {
	p := &tables.EgressPolicy{
		Name: name, Created: begin, Selectors: []tables.EgressSelector{inN1(pods)},
		Destinations: prefixesOf(destination),
	}
	for _, g := range gateways {
		p.Gateways = append(p.Gateways, tables.GatewaySpec{Nodes: g})
	}
	return p
}

// smallNode has pods of three label sets, three of each, and as many elsewhere.
func smallNode(t testing.TB) *harness {
	h := newHarness(t, tables.EnforcementDefault, CIDRMatch{})
	h.Namespaces.Put(&tables.Namespace{Name: "n1"})
	h.Nodes.Put(node(here, labels.Set{"zone": "a"}), node("a", labels.Set{"zone": "a"}),
		node("b", labels.Set{"zone": "b"}))
	for i := range 9 {
		app := string(rune('a' + i/3))
		h.Locals.Put(localPod(i, app))
		h.Endpoints.Put(remotePod(i, "a", app))
	}
	h.work()
	return h
}

func TestCountsOfPods(t *testing.T) {
	h := smallNode(t)
	h.expect("pods+1", func() { h.Locals.Put(localPod(20, "a")) })
	h.expect("pods+1 subjects+1", func() { h.Locals.Put(localPod(21, "d")) })
	h.expect("pods+1", func() { h.Locals.Put(localPod(20, "b")) })
	h.expect("pods-1", func() { h.Locals.Remove(localPod(20, "b")) })
	h.expect("pods-1 subjects-1", func() { h.Locals.Remove(localPod(21, "d")) })
	h.expect("", func() { h.Endpoints.Put(remotePod(20, "a", "a")) })

	h.expect("subject-routes+1 egress-rulesets+1 egress-rules+1 egress-groups+1 compiled-policies+1", func() {
		h.EgressPolicies.Put(redirect("e", "app=a", "203.0.113.0/24", "zone=b"))
	})
	h.expect("", func() { h.Endpoints.Put(remotePod(21, "a", "a")) }) // not its gateway
	h.expect("pods+3 subjects+1 subject-routes+2 egress-rulesets+1 egress-rules+1 egress-groups+1 "+
		"compiled-policies+1",
		func() { h.EgressPolicies.Put(redirect("f", "app=b", "203.0.113.0/24", "zone=a")) })
}

func TestCountsOfNetworkPolicies(t *testing.T) {
	h := smallNode(t)
	peer := tables.PolicyPeer{Kind: tables.PeerPods, Pods: inN1("app=c")}
	h.expect("subjects+1 rulesets+1 compiled-policies+1",
		func() { h.NetworkPolicies.Put(allow("p", "app=a", 80)) })
	h.expect("subjects+2 rulesets+2 rulesets-1 selectors+1 compiled-policies+1",
		func() { h.NetworkPolicies.Put(allow("q", "app!=c", 80, peer)) })
	h.expect("subjects+2 rulesets+2 rulesets-2 compiled-policies+1",
		func() { h.NetworkPolicies.Put(allow("q", "app!=c", 81, peer)) })
	h.expect("compiled-policies+1",
		func() { h.NetworkPolicies.Put(allow("unused", "app=x", 80, peer)) })
	h.expect("compiled-policies+1", // the same again, as when the status of the object changes
		func() { h.NetworkPolicies.Put(allow("q", "app!=c", 81, peer)) })
	h.expect("subjects+2 rulesets+1 rulesets-2 selectors-1 compiled-policies-1", func() {
		h.NetworkPolicies.Remove(allow("q", "", 0))
	})
	h.expect("", func() {
		h.Namespaces.Put(&tables.Namespace{Name: "n1", Labels: labels.Set{"x": "y"}})
	})
}

func TestCountsOfNodes(t *testing.T) {
	h := smallNode(t)
	h.EgressPolicies.Put(redirect("e", "app=a", "203.0.113.0/24", "zone=a"),
		redirect("f", "app=b", "203.0.113.0/24", "zone=b"))
	h.work()
	down := node("b", labels.Set{"zone": "b"})
	down.Ready = false
	h.expect("egress-groups+1", func() { h.Nodes.Put(down) })
	h.expect("egress-groups+1", func() { h.Nodes.Put(node("b", labels.Set{"zone": "b"})) })
	h.expect("", func() { h.Nodes.Put(node("c", labels.Set{"zone": "c"})) })
	h.expect("", func() { h.Nodes.Put(node("b", labels.Set{"zone": "b", "x": "y"})) })
	// This node is no gateway any more.
	h.expect("pods-3 subjects-1 subject-routes-1 egress-groups+1", func() {
		h.Nodes.Put(node(here, labels.Set{"zone": "c"}))
	})
	h.expect("pods+3 subjects+1 subject-routes+1 egress-groups+1", func() {
		h.Nodes.Put(node(here, labels.Set{"zone": "a"}))
	})
	// An edit of the gateways moves one list, and the same list is one group.
	h.expect("pods+3 subjects+1 subject-routes+2 egress-rulesets+1 egress-rulesets-1 "+
		"egress-rules+1 egress-rules-1 egress-groups+1 egress-groups-1 compiled-policies+1", func() {
		h.EgressPolicies.Put(redirect("f", "app=b", "203.0.113.0/24", "zone=a"))
	})
}

// A policy is compiled when the last pod that it selects has its rules, however the work is
// cut into pieces, and whatever is marked again meanwhile.
func TestCompiledLast(t *testing.T) {
	h := smallNode(t)
	h.step.Limit(2, 2)
	h.NetworkPolicies.Put(allow("p", "", 80))
	for more := true; more; {
		more = h.step.Step()
		txn := h.db.ReadTxn()
		if h.Compiled.NumObjects(txn) > 0 {
			break
		}
		require.True(t, more)
		h.Locals.Put(localPod(h.Rulesets.NumObjects(txn), "d")) // marks one again
	}
	for p := range h.Pods.All(h.db.ReadTxn()) {
		s, _, _ := h.Subjects.Get(h.db.ReadTxn(), tables.SubjectByNumber(p.Subject))
		require.NotEqual(t, bpf.EmptyRuleset, int(s.Ruleset), "%s", p.Addr)
	}
}

// What a port is called may be what all ports are called.
func TestPortNamedAll(t *testing.T) {
	h := smallNode(t)
	p := allow("p", "app=a", 80)
	p.Rules[0].Egress, p.Rules[0].Ingress = p.Rules[0].Ingress, p.Rules[0].Egress
	ports := &p.Rules[0].Egress.Traffic[0].Ports[0]
	*ports = tables.PolicyPort{Protocol: 6, Name: "all"}
	h.expect("subjects+1 rulesets+1 compiled-policies+1", func() { h.NetworkPolicies.Put(p) })
	q := *p
	q.Rules = []tables.PolicyRule{p.Rules[0]}
	q.Rules[0].Egress.Traffic = []tables.PolicyTraffic{p.Rules[0].Egress.Traffic[0]}
	q.Rules[0].Egress.Traffic[0].Ports = []tables.PolicyPort{{Protocol: 6, First: 0, Last: 65535}}
	h.expect("subjects+1 rulesets+1 rulesets-1 compiled-policies+1",
		func() { h.NetworkPolicies.Put(&q) })
}

// A pod elsewhere of which it is not known whether a policy selects it concerns this node when
// that policy goes, though this node was no gateway of it.
func TestUnknownElsewhere(t *testing.T) {
	h := smallNode(t)
	h.Namespaces.Remove(&tables.Namespace{Name: "n1"})
	other := redirect("other", "", "203.0.113.0/24", "zone=b")
	other.Selectors[0].Namespaces = "team=blue"
	h.EgressPolicies.Put(other, redirect("served", "app=a", "203.0.113.0/24", "zone=a"))
	h.work()
	h.expect("pods+12 subjects+4 subject-routes+2 egress-rulesets+1 egress-rules+1 egress-groups-1 "+
		"compiled-policies-1",
		func() { h.EgressPolicies.Remove(other) })
}

// A pod whose object is gone follows the labels of its node, too.
func TestNodeOfPodsWithoutObjects(t *testing.T) {
	h := smallNode(t)
	p := redirect("e", "app=a", "203.0.113.0/24", "zone=b")
	p.Selectors[0].Nodes = "zone=c"
	h.expect("egress-groups+1 compiled-policies+1", func() { h.EgressPolicies.Put(p) })
	h.expect("subject-routes+1 egress-rulesets+1 egress-rules+1",
		func() { h.Nodes.Put(node(here, labels.Set{"zone": "c"})) })
}

// A subject that the kernel never had is deleted when the last pod has left it, not before.
func TestForkOfUnwritten(t *testing.T) {
	h := smallNode(t)
	h.Locals.Put(localPod(20, "x"))
	h.work()
	pod, _, _ := h.Pods.Get(h.db.ReadTxn(), tables.PodByAddr(localPod(20, "x").Addr))
	mirror := &tables.PodMirror{Key: pod.MapKey(), Value: pod.MapValue(), Present: true}
	h.PodMirrors.Put(mirror)
	h.Locals.Remove(localPod(20, "x"))
	h.work()

	h.step.Limit(1, 200)
	h.Locals.Put(localPod(6, "d"), localPod(0, "a")) // both wait, and a sweep behind them
	again := *mirror
	h.PodMirrors.Put(&again)
	h.step.Step()
	h.NetworkPolicies.Put(allow("p", "app=a", 80))
	h.Locals.Put(localPod(2, "b")) // waits behind the sweep
	h.step.Step()
	h.step.Step()
	before := h.db.ReadTxn()
	p, _, _ := h.Pods.Get(before, tables.PodByAddr(localPod(2, "a").Addr))
	left, _, found := h.Subjects.Get(before, tables.SubjectByNumber(p.Subject))
	require.True(t, found)
	require.True(t, left.Undesired, "by a fork")
	h.work()
	_, _, found = h.Subjects.Get(h.db.ReadTxn(), tables.SubjectByNumber(left.Number))
	require.False(t, found)
	(&oracle{h, h.db.ReadTxn()}).check()
}

// A subject that an address is leaving keeps what policies say of it: the others go to a new
// one, and it is deleted when the address has left in the kernel.
func TestFork(t *testing.T) {
	h := smallNode(t)
	kernel := h.reconcilers()
	for _, k := range kernel {
		k.settle(h)
	}
	h.expect("pods+1", func() { h.Locals.Put(localPod(0, "b")) }) // the kernel has it in a
	h.expect("pods+2 subjects+2 rulesets+1 compiled-policies+1",
		func() { h.NetworkPolicies.Put(allow("p", "app=a", 80)) })
	for _, k := range kernel {
		k.settle(h)
	}
	h.expect("subjects-1", func() {})
}
