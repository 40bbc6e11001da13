// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
	"github.com/sluice-net/sluice/testdata/await"
)

var someAddrs = []netip.Addr{
	netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("10.2.0.1"), netip.MustParseAddr("10.2.0.2"),
	netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("203.0.113.9"),
	netip.MustParseAddr("10.3.0.1"), netip.MustParseAddr("2001:db8::1"),
}

// someCluster has two nodes with two pods each.
func someCluster(h *harness) {
	put(h, h.Namespaces, &tables.Namespace{Name: "a", Labels: labels.Set{"team": "red"}}, &tables.Namespace{Name: "b"})
	put(h, h.Nodes,
		&tables.Node{Name: here, InternalIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Labels: labels.Set{"zone": "x"}},
		&tables.Node{Name: "there", InternalIPs: []netip.Addr{netip.MustParseAddr("192.0.2.2")}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16")}})
	put(h, h.Endpoints,
		pod("a/web", here, "10.1.0.1", labels.Set{"app": "web"}, tables.NamedPort{Name: "http", Protocol: 6, Port: 8080}),
		pod("a/db", here, "10.1.0.2", labels.Set{"app": "db"}),
		pod("b/web", "there", "10.2.0.1", labels.Set{"app": "web"}, tables.NamedPort{Name: "http", Protocol: 6, Port: 80}),
		pod("b/db", "there", "10.2.0.2", labels.Set{"app": "db"}))
}

func TestSignatures(t *testing.T) {
	namedPort := policy("port", "app=web", pods("app=web"))
	namedPort.Rules[0].Ingress.Traffic[0].Ports = []tables.PolicyPort{{Protocol: 6, Name: "http"}}
	namedPort.Rules[0].Egress.Traffic = []tables.PolicyTraffic{{AnyPeer: true, Ports: []tables.PolicyPort{{Protocol: 6, Name: "http"}}}}
	for _, test := range []struct {
		name   string
		policy *tables.NetworkPolicy
		flags  []string
	}{
		{name: "pods", policy: policy("p", "app=web", pods("app=db"))},
		{name: "all pods", policy: policy("p", "", pods(""))},
		{name: "pods of a namespace", policy: policy("p", "app=web", tables.PolicyPeer{Kind: tables.PeerPods, Pods: tables.EgressSelector{Namespaces: "team=red"}})},
		{name: "named port", policy: namedPort},
		{name: "outside", policy: policy("p", "app=web", cidr("198.51.0.0/16", false), cidr("0.0.0.0/0", false, "198.51.100.0/24"))},
		{name: "in Cilium's prefix", policy: policy("p", "app=web", cidr("10.0.0.0/8", false))},
		{name: "pods in Cilium's prefix", policy: policy("p", "app=web", cidr("10.0.0.0/8", false), cidr("192.0.2.0/24", false)), flags: []string{"--policy-cidr-match=pods"}},
		{name: "nodes in Cilium's prefix", policy: policy("p", "app=web", cidr("10.0.0.0/8", false), cidr("192.0.2.0/24", false)), flags: []string{"--policy-cidr-match=nodes"}},
		{name: "block", policy: policy("p", "app=web", cidr("0.0.0.0/0", true, "10.1.0.2/32", "192.0.2.2/32"))},
		{name: "block inside a block", policy: policy("p", "app=web", cidr("10.0.0.0/8", true), cidr("10.1.0.0/16", true), cidr("10.1.0.1/32", true))},
		{name: "group", policy: policy("p", "app=web", tables.PolicyPeer{Kind: tables.PeerCIDRGroups, PeerPrefixes: &tables.PeerPrefixes{Group: "g", Except: []netip.Prefix{netip.MustParsePrefix("198.51.100.7/32")}}})},
		{name: "groups", policy: policy("p", "app=web", tables.PolicyPeer{Kind: tables.PeerCIDRGroups, Labels: "of=outside", PeerPrefixes: &tables.PeerPrefixes{}})},
		{name: "entities", policy: policy("p", "app=web", entity(tables.EntityWorld), entity(tables.EntityHost), entity(tables.EntityKubeAPIServer))},
		{name: "nodes", policy: policy("p", "app=web", tables.PolicyPeer{Kind: tables.PeerNodes, Labels: "zone=x"})},
		{name: "service", policy: policy("p", "app=web", tables.PolicyPeer{Kind: tables.PeerServices, PeerService: &tables.PeerService{Service: tables.Name{Namespace: "b", Name: "db"}}})},
		{name: "services", policy: policy("p", "app=web", tables.PolicyPeer{Kind: tables.PeerServices, PeerService: &tables.PeerService{}})},
		{name: "always", policy: policy("p", "app=web", pods("app=db")), flags: []string{"--enforcement=always"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := newHarness(t, func(h *harness) {
				someCluster(h)
				put(h, h.CIDRGroups, &tables.CIDRGroup{Name: "g", Labels: labels.Set{"of": "outside"}, Prefixes: []netip.Prefix{netip.MustParsePrefix("198.51.0.0/16")}})
				put(h, h.Services,
					&tables.Service{Name: tables.Name{Namespace: "b", Name: "db"}, Selector: labels.Set{"app": "db"}},
					&tables.Service{Name: tables.Name{Namespace: "b", Name: "out"}})
				put(h, h.Backends,
					&tables.BackendSlice{Name: tables.Name{Namespace: "b", Name: "out-1"}, Service: tables.Name{Namespace: "b", Name: "out"}, Addrs: []netip.Addr{netip.MustParseAddr("203.0.113.9")}},
					&tables.BackendSlice{Name: tables.Name{Namespace: "default", Name: "kubernetes"}, Service: tables.KubernetesAPIService, Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.2")}})
			}, test.flags...)
			if h.options.Enforcement == "always" {
				// Its name in policytest.
				put(h, h.NetworkPolicies, test.policy)
				h.await(func(txn statedb.ReadTxn) string {
					row := tables.MemberOf(txn, h.members, bpf.RoleSubject, pod("a/db", here, "10.1.0.2", labels.Set{"app": "db"}))
					if row == nil || row.Class == 0 || !slices.Equal(row.Selectors, []tables.SelectorID{tables.SubjectSelectorID(tables.EgressSelector{})}) {
						return "the pod is no subject"
					}
					return ""
				})
				return
			}
			h.await(h.wrong(someAddrs))
			put(h, h.NetworkPolicies, test.policy)
			h.await(h.wrong(someAddrs))
			h.await(func(txn statedb.ReadTxn) string {
				for _, s := range test.policy.Selectors() {
					if !tables.SelectorIsEvaluated(txn, h.members, s.Role, s.ID()) {
						return s.Text + " is not evaluated"
					}
				}
				return h.wrong(someAddrs)(txn)
			})
			remove(h, h.NetworkPolicies, test.policy)
			h.await(h.wrong(someAddrs))
			h.await(func(txn statedb.ReadTxn) string {
				if n := h.selectors.NumObjects(txn); n != len(entities) {
					return fmt.Sprintf("%d selectors are left", n)
				}
				return ""
			})
		})
	}
}

func TestNeverEnforced(t *testing.T) {
	h := newHarness(t, someCluster, "--enforcement=never")
	put(h, h.NetworkPolicies, policy("p", "app=web", pods("app=db")))
	h.await(func(txn statedb.ReadTxn) string {
		if !tables.SelectorIsEvaluated(txn, h.members, bpf.RoleSubject, tables.SubjectSelectorID(tables.EgressSelector{Pods: "app=web"})) {
			return "not evaluated"
		}
		return ""
	})
	for m := range h.members.All(h.db.ReadTxn()) {
		require.False(t, m.Role == bpf.RoleSubject && m.Evaluated == 0, m)
	}
}

func TestInvalidFlags(t *testing.T) {
	_, err := Config{Enforcement: "sometimes"}.enforcement()
	require.ErrorContains(t, err, "sometimes")
	_, err = Config{PolicyCIDRMatch: []string{"services"}}.cidrMatch()
	require.ErrorContains(t, err, "services")
}

// peerClass returns the class that an address belongs to as a peer.
func (h *harness) peerClass(addr string) uint32 {
	m := h.places.Member(h.db.ReadTxn(), single(netip.MustParseAddr(addr)))
	require.NotNil(h.t, m, addr)
	return m.Class
}

// manyPods has ten pods with a label of their own each, that are alike to all policies.
func manyPods(h *harness) {
	put(h, h.Nodes, &tables.Node{Name: here, InternalIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}})
	for i := range 10 {
		put(h, h.Endpoints, pod(fmt.Sprintf("a/p%d", i), here, fmt.Sprintf("10.1.0.%d", i), labels.Set{"app": "web", "n": fmt.Sprint(i)}))
	}
}

func podAddrs() (addrs []netip.Addr) {
	for i := range 10 {
		addrs = append(addrs, netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}))
	}
	return addrs
}

// settle has the kernel follow until nobody is on his way.
func (h *harness) settle(addrs []netip.Addr) {
	h.t.Helper()
	h.await(h.wrong(addrs))
	for deadline := time.Now().Add(await.Bound); time.Now().Before(deadline); runtime.Gosched() {
		h.follow(always)
		h.follow(always)
		h.await(h.wrong(addrs))
		if h.unsettled(h.db.ReadTxn()) == "" {
			return
		}
	}
	require.Fail(h.t, "not settled: "+h.unsettled(h.db.ReadTxn()))
}

func (h *harness) unsettled(txn statedb.ReadTxn) string {
	digests, peopled := map[tables.RoleDigest]uint32{}, map[bpf.ClassKey]bool{}
	for m := range h.members.All(txn) {
		if m.IsMember() {
			peopled[bpf.ClassKey{Role: m.Role, Number: m.Class}] = true
		}
	}
	for _, role := range []bpf.Role{bpf.RolePeer, bpf.RoleSubject} {
		for row := range h.members.List(txn, tables.ClassRowsOfRole(role)) {
			if len(row.Leavers) > 0 {
				return fmt.Sprintf("class %s/%d is being left by %v", role, row.Class, row.Leavers)
			}
			if !peopled[bpf.ClassKey{Role: role, Number: row.Class}] {
				return fmt.Sprintf("class %s/%d is nobody's", role, row.Class)
			}
			key := tables.RoleDigest{Role: role, Digest: row.Digest}
			if digests[key] != 0 {
				return fmt.Sprintf("classes %s/%d and %d are alike", role, row.Class, digests[key])
			}
			digests[key] = row.Class
		}
	}
	return ""
}

// A new selector that chooses some of a class has the smaller part go, and names
// in the row who is yet to leave, until the kernel has them elsewhere.
func TestSmallerPartLeaves(t *testing.T) {
	h := newHarness(t, manyPods)
	h.settle(podAddrs())
	class := h.peerClass("10.1.0.0")

	put(h, h.NetworkPolicies, policy("p", "app=none", pods("n in (0,1,2,3,4,5,6)")))
	h.await(h.wrong(podAddrs()))
	for i := range 10 {
		require.Equal(t, i < 7, h.peerClass(fmt.Sprintf("10.1.0.%d", i)) == class, i)
	}
	row := tables.ClassRow(h.db.ReadTxn(), h.members, bpf.ClassKey{Role: bpf.RolePeer, Number: class})
	require.Len(t, row.Leavers, 4, "three pods, and addresses of the cluster that nobody has")
	require.Equal(t, []tables.SelectorID{tables.PeerSelectorID(pods("n in (0,1,2,3,4,5,6)"))}, row.Leaving)

	h.follow(always) // desired, but not in the kernel
	row = tables.ClassRow(h.db.ReadTxn(), h.members, bpf.ClassKey{Role: bpf.RolePeer, Number: class})
	require.Len(t, row.Leavers, 4)
	h.settle(podAddrs())
	row = tables.ClassRow(h.db.ReadTxn(), h.members, bpf.ClassKey{Role: bpf.RolePeer, Number: class})
	require.Empty(t, row.Leaving)
}

// When rules in force come to choose otherwise all who are in a class, all leave
// it, and it stands for what it did until the last has gone.
func TestNumberKeepsItsMeaning(t *testing.T) {
	h := newHarness(t, manyPods)
	p := policy("p", "app=none", pods("app=api"), pods("app in (web, api)"))
	put(h, h.NetworkPolicies, p)
	h.settle(podAddrs())
	put(h, h.Rules, enforced(p))
	class := h.peerClass("10.1.0.0")
	key := bpf.ClassKey{Role: bpf.RolePeer, Number: class}
	before := tables.ClassRow(h.db.ReadTxn(), h.members, key)

	var relabelled []*tables.Endpoint
	for i := range 10 {
		relabelled = append(relabelled, pod(fmt.Sprintf("a/p%d", i), here, fmt.Sprintf("10.1.0.%d", i), labels.Set{"app": "api", "n": fmt.Sprint(i)}))
	}
	put(h, h.Endpoints, relabelled...)
	h.await(h.wrong(podAddrs()))
	require.NotEqual(t, class, h.peerClass("10.1.0.0"))
	row := tables.ClassRow(h.db.ReadTxn(), h.members, key)
	require.NotNil(t, row)
	require.Equal(t, before.Selectors, row.Selectors)
	require.Equal(t, []tables.SelectorID{tables.PeerSelectorID(pods("app=api"))}, row.Leaving)
	require.Len(t, row.Leavers, 10)

	h.settle(podAddrs())
	require.Nil(t, tables.ClassRow(h.db.ReadTxn(), h.members, key))
}

// A new prefix that pods are told apart by has only those in it leave.
func TestPrefixSplitsALabelSet(t *testing.T) {
	h := newHarness(t, func(h *harness) {
		put(h, h.Nodes, &tables.Node{Name: here})
		for i := range 10 {
			put(h, h.Endpoints, pod(fmt.Sprintf("a/p%d", i), here, fmt.Sprintf("10.1.0.%d", i), labels.Set{"app": "web"}))
		}
	})
	h.settle(podAddrs())
	class := h.peerClass("10.1.0.0")
	p := policy("p", "app=none", cidr("10.1.0.8/31", true))
	put(h, h.NetworkPolicies, p)
	h.settle(podAddrs())
	for i := range 10 {
		require.Equal(t, i < 8, h.peerClass(fmt.Sprintf("10.1.0.%d", i)) == class, i)
	}
	// A prefix around all of them moves nobody.
	put(h, h.NetworkPolicies, policy("q", "app=none", cidr("10.1.0.0/16", true)))
	h.settle(podAddrs())
	for i := range 10 {
		require.Equal(t, i < 8, h.peerClass(fmt.Sprintf("10.1.0.%d", i)) == class, i)
	}
	remove(h, h.NetworkPolicies, p)
	h.await(func(txn statedb.ReadTxn) string {
		if tables.SelectorIsEvaluated(txn, h.members, bpf.RolePeer, p.Selectors()[1].ID()) {
			return "its selector is still there"
		}
		return ""
	})
	h.settle(podAddrs())
	for i := range 10 {
		require.Equal(t, class, h.peerClass(fmt.Sprintf("10.1.0.%d", i)), i)
	}
}

// A pod with known labels at a known place, and one with a label that no policy
// looks at, cost nothing, or a row for the label set.
func TestCosts(t *testing.T) {
	h := newHarness(t, manyPods)
	put(h, h.NetworkPolicies, policy("p", "app=web", pods("app=web"), cidr("10.0.0.0/8", true)))
	h.settle(podAddrs())
	h.settle(podAddrs())
	work := func(do func()) derive.Counts {
		before := h.counts("class-members")
		do()
		after := h.counts("class-members")
		return derive.Counts{Keys: after.Keys - before.Keys, Inserted: after.Inserted - before.Inserted, Deleted: after.Deleted - before.Deleted}
	}
	h.marker(1)
	marker := work(func() { h.marker(2) })
	require.Equal(t, derive.Counts{Keys: 2, Inserted: 1}, marker, "the node and its class")
	require.Equal(t, marker, work(func() {
		for i := range 10 {
			put(h, h.Endpoints, pod(fmt.Sprintf("a/again%d", i), here, fmt.Sprintf("10.1.1.%d", i), labels.Set{"app": "web", "n": "3"}))
		}
		h.marker(3)
	}))
	other := pod("a/other", here, "10.1.2.1", labels.Set{"app": "web", "other": "label"})
	require.Nil(t, tables.MemberOf(h.db.ReadTxn(), h.members, bpf.RoleEgress, other), "not known yet")
	require.Equal(t, 2, work(func() {
		put(h, h.Endpoints, other)
		h.await(func(txn statedb.ReadTxn) string {
			if h.places.Member(txn, single(other.Addrs[0])) == nil {
				return "no member"
			}
			return ""
		})
	}).Inserted, "a member under each role of network policies")
	require.Zero(t, tables.MemberOf(h.db.ReadTxn(), h.members, bpf.RoleEgress, other).Class, "no egress policy chooses it")
}

// When many prefixes come to divide pods of one kind in place of as many others, each
// pod is looked at a few times, not once for each prefix.
func TestManyPrefixesOfOneKind(t *testing.T) {
	const pods, blocks = 80, 20
	var endpoints []*tables.Endpoint
	for i := range pods {
		endpoints = append(endpoints, pod(fmt.Sprint("a/p", i), "there", netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}).String(), labels.Set{"app": "web"}))
	}
	db := statedb.New()
	params := newMemberParams(t, db, manySelectors(t, 1), endpoints)
	m := newMembers(params)
	m.peers.inside[1] = pods // somebody is in some class
	named := params.Places.PeerPrefixes.(statedb.RWTable[*tables.PeerPrefix])
	keys := []memberKey{{role: bpf.RolePeer, set: endpoints[0].LabelSet.ID}}
	round := func(insert, remove int) (looks int) {
		wtxn := db.WriteTxn(named, params.Output)
		for i := range blocks {
			block := func(first int) *tables.PeerPrefix {
				return &tables.PeerPrefix{Prefix: single(endpoints[first+i].Addrs[0]), Pods: true}
			}
			named.Delete(wtxn, block(remove))
			named.Insert(wtxn, block(insert))
		}
		r := m.partitions[bpf.RolePeer].plan(wtxn, keys)
		for row := range params.Output.All(wtxn) {
			params.Output.Delete(wtxn, row)
		}
		for _, row := range r.rows(keys[0]) {
			params.Output.Insert(wtxn, row)
		}
		wtxn.Commit()
		return len(r.looks)
	}
	round(0, blocks)
	require.Equal(t, blocks+1, params.Output.NumObjects(db.ReadTxn()))
	require.LessOrEqual(t, round(2*blocks, 0), 2*pods)
}
