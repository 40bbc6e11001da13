// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// randomWorld changes what the classes follow from at random.
type randomWorld struct {
	*harness
	*rand.Rand
	meaning map[bpf.ClassKey]*tables.ClassMember // of the classes that someone is in
}

func (w *randomWorld) pick(options ...string) string { return options[w.IntN(len(options))] }

var randomAddrs = func() (addrs []netip.Addr) {
	for _, text := range []string{"10.1.0.%d", "10.2.0.%d", "198.51.100.%d", "fd00::%d", "2001:db8::%d"} {
		for i := range 6 {
			addrs = append(addrs, netip.MustParseAddr(fmt.Sprintf(text, i)))
		}
	}
	return append(addrs, netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"))
}()

func (w *randomWorld) prefix() netip.Prefix {
	bits := []int{0, 8, 16, 24, 30, 31, 32}[w.IntN(7)]
	addr := randomAddrs[w.IntN(len(randomAddrs))]
	if addr.Is6() {
		bits = []int{0, 7, 32, 64, 126, 127, 128}[w.IntN(7)]
	}
	return netip.PrefixFrom(addr, bits).Masked()
}

func (w *randomWorld) block() tables.PolicyPeer {
	peer := tables.PolicyPeer{Kind: tables.PeerCIDR, PeerPrefixes: &tables.PeerPrefixes{CIDR: w.prefix(), MatchesPods: w.IntN(2) == 0}}
	if except := w.prefix(); peer.CIDR.Bits() < except.Bits() && peer.CIDR.Contains(except.Addr()) {
		peer.Except = []netip.Prefix{except}
	}
	return peer
}

func (w *randomWorld) peer() tables.PolicyPeer {
	switch w.IntN(8) {
	case 0, 1, 2:
		return pods(w.labelSelector())
	case 3:
		return tables.PolicyPeer{Kind: tables.PeerPods, Pods: tables.EgressSelector{Namespaces: w.pick("team=red", "team=blue", "kubernetes.io/metadata.name=a"), Pods: w.pick("", "app=web")}}
	case 4:
		return tables.PolicyPeer{Kind: tables.PeerCIDRGroups, PeerPrefixes: &tables.PeerPrefixes{Group: w.pick("g", "h")}}
	case 5:
		return w.pick2(entity(tables.EntityWorld), entity(tables.EntityCluster), entity(tables.EntityKubeAPIServer),
			tables.PolicyPeer{Kind: tables.PeerNodes, Labels: w.pick("", "zone=x")},
			tables.PolicyPeer{Kind: tables.PeerServices, PeerService: &tables.PeerService{Service: tables.Name{Namespace: w.pick("a", "b"), Name: "s"}}})
	}
	return w.block()
}

func (w *randomWorld) pick2(options ...tables.PolicyPeer) tables.PolicyPeer {
	return options[w.IntN(len(options))]
}

func (w *randomWorld) labelSelector() string {
	return w.pick("", "app=web", "app=db", "app in (web,db)", "n=1", "n!=2", "app")
}

func (w *randomWorld) policy() *tables.NetworkPolicy {
	p := policy(w.pick("p", "q", "r", "s"), w.labelSelector(), w.peer(), w.peer())
	named := []tables.PolicyPort{{Protocol: 6, Name: w.pick("http", "https")}}
	switch w.IntN(4) {
	case 0:
		p.Rules[0].Ingress.Traffic[0].Ports = named
	case 1:
		p.Rules[0].Egress.Traffic = []tables.PolicyTraffic{{AnyPeer: true, Ports: named}}
	}
	return p
}

func (w *randomWorld) pod() *tables.Endpoint {
	i := w.IntN(6)
	var ports []tables.NamedPort
	if w.IntN(2) == 0 {
		ports = []tables.NamedPort{{Name: w.pick("http", "https"), Protocol: 6, Port: uint16(80 + w.IntN(2))}}
	}
	node, subnet := here, "10.1.0.%d"
	if w.IntN(2) == 0 {
		node, subnet = "there", "10.2.0.%d"
	}
	e := pod(fmt.Sprintf("%s/pod%d", w.pick("a", "b"), w.IntN(4)), node, fmt.Sprintf(subnet, i), labels.Set{"app": w.pick("web", "db"), "n": w.pick("1", "2", "3")}, ports...)
	if node == here {
		e.Addrs = append(e.Addrs, netip.MustParseAddr(fmt.Sprintf("fd00::%d", i)))
	}
	return e
}

// change is one event.
func (w *randomWorld) change() {
	txn := w.db.ReadTxn()
	switch w.IntN(14) {
	case 0, 1, 2:
		put(w.harness, w.NetworkPolicies, w.policy())
	case 3:
		if all := statedb.Collect(w.NetworkPolicies.All(txn)); len(all) > 0 {
			remove(w.harness, w.NetworkPolicies, all[w.IntN(len(all))])
		}
	case 4, 5, 6, 7:
		e := w.pod()
		// One endpoint has an address at a time: who wins is another test.
		for _, a := range e.Addrs {
			if owner, _ := tables.AddrOwner(w.db.ReadTxn(), w.Endpoints, a); owner != nil && owner.Name != e.Name {
				remove(w.harness, w.Endpoints, owner)
			}
		}
		put(w.harness, w.Endpoints, e)
	case 8:
		if all := statedb.Collect(w.Endpoints.All(txn)); len(all) > 0 {
			remove(w.harness, w.Endpoints, all[w.IntN(len(all))])
		}
	case 9:
		put(w.harness, w.Namespaces, &tables.Namespace{Name: w.pick("a", "b"), Labels: labels.Set{"team": w.pick("red", "blue")}})
	case 10:
		put(w.harness, w.CIDRGroups, &tables.CIDRGroup{Name: w.pick("g", "h"), Prefixes: []netip.Prefix{w.prefix(), w.prefix()}})
	case 11:
		service := &tables.Service{Name: tables.Name{Namespace: w.pick("a", "b"), Name: "s"}}
		if w.IntN(2) == 0 {
			service.Selector = labels.Set{"app": w.pick("web", "db")}
		}
		put(w.harness, w.Services, service)
		put(w.harness, w.Backends, &tables.BackendSlice{Name: service.Name, Service: service.Name, Addrs: []netip.Addr{randomAddrs[w.IntN(len(randomAddrs))]}},
			&tables.BackendSlice{Name: tables.Name{Namespace: "default", Name: "k"}, Service: tables.KubernetesAPIService, Addrs: []netip.Addr{randomAddrs[w.IntN(len(randomAddrs))]}})
	case 12:
		put(w.harness, w.Nodes, &tables.Node{
			Name: "there", Labels: labels.Set{"zone": w.pick("x", "y")}, InternalIPs: []netip.Addr{netip.MustParseAddr("192.0.2.2")},
			PodCIDRs: []netip.Prefix{netip.MustParsePrefix(w.pick("10.2.0.0/16", "198.51.100.0/29", "fd00::/64"))},
		})
	case 13:
		w.activate(txn)
	}
}

// activate brings a policy into force as far as its selectors are settled, and
// drops the rules of those that are no more wanted.
func (w *randomWorld) activate(txn statedb.ReadTxn) {
	w.checkMeanings()
	for p := range w.NetworkPolicies.All(txn) {
		settled := true
		for _, s := range p.Selectors() {
			settled = settled && tables.SelectorIsCurrent(txn, w.selectors, w.members, s.Role, s.ID())
			for row := range w.members.List(txn, tables.ClassRowsLeaving(s.Role)) {
				settled = settled && !slices.Contains(row.Leaving, s.ID())
			}
		}
		if settled && w.IntN(2) == 0 {
			put(w.harness, w.Rules, enforced(p))
		}
	}
	for r := range w.Rules.All(txn) {
		if _, _, found := w.NetworkPolicies.Get(txn, tables.NetworkPolicyByID(r.Policy)); !found {
			remove(w.harness, w.Rules, r)
		}
	}
}

// checkMeanings checks that since the last time no class that someone has been in
// all the while has come to stand for something else as rules in force see it.
func (w *randomWorld) checkMeanings() {
	txn := w.db.ReadTxn()
	for key, former := range w.meaning {
		row := tables.ClassRow(txn, w.members, key)
		require.NotNil(w.t, row, "class %s is gone, and someone is in it", key)
		for _, id := range distinction(former, row) {
			forced := len(slices.Collect(tables.EnforcedPoliciesBySelector(txn, w.Rules, id))) > 0
			s, _, _ := w.selectors.Get(txn, tables.SelectorByID(id))
			require.False(w.t, forced, "class %s has come to differ by %v, which is in force", key, s)
		}
	}
	w.remember(txn)
}

// remember notes what the classes stand for that someone is in.
func (w *randomWorld) remember(txn statedb.ReadTxn) {
	w.meaning = map[bpf.ClassKey]*tables.ClassMember{}
	for e := range w.IPCacheEntries.All(txn) {
		w.note(txn, bpf.ClassKey{Role: bpf.RolePeer, Number: e.Value.PeerClass})
	}
	for e := range w.PodEntries.All(txn) {
		w.note(txn, bpf.ClassKey{Role: bpf.RoleSubject, Number: e.Value.SubjectClass})
	}
}

func (w *randomWorld) note(txn statedb.ReadTxn, key bpf.ClassKey) {
	if row := tables.ClassRow(txn, w.members, key); row != nil {
		w.meaning[key] = row
	}
}

// Whatever changes in whatever order, and however the kernel comes behind: each
// address is chosen by what a naive evaluation says, no number changes its meaning
// for rules in force, and in the end there are as few classes as can be.
func TestRandomChanges(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			flags := []string{"--policy-cidr-match=" + []string{"", "pods", "nodes", "pods,nodes"}[seed%4]}
			w := &randomWorld{Rand: rand.New(rand.NewPCG(seed, 1))}
			w.harness = newHarness(t, func(h *harness) { someCluster(h) }, flags...)
			for round := range 40 {
				for range 1 + w.IntN(4) {
					w.change()
				}
				w.await(w.wrong(randomAddrs))
				w.checkMeanings()
				if w.IntN(2) == 0 {
					w.follow(func() bool { return w.IntN(2) == 0 })
					w.remember(w.db.ReadTxn())
				}
				if round%20 == 19 {
					for r := range w.Rules.All(w.db.ReadTxn()) {
						remove(w.harness, w.Rules, r)
					}
					w.settle(randomAddrs)
					w.remember(w.db.ReadTxn())
				}
			}
		})
	}
}
