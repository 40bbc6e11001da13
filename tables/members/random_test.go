// SPDX-License-Identifier: Apache-2.0

package members

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/statedb"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// randomWorld changes the inputs at random.
type randomWorld struct {
	*kernel
}

func (w *randomWorld) pick(options ...string) string { return options[w.IntN(len(options))] }

// randomAddrs are the addresses of objects and packets: of local and remote pods, without an
// owner inside and outside of the cluster, and of IPv6.
var randomAddrs = func() (addrs []netip.Addr) {
	for _, text := range []string{"10.1.0.%d", "10.2.0.%d", "198.51.100.%d", "fd00::%d", "2001:db8::%d"} {
		for i := range 6 {
			addrs = append(addrs, addr(fmt.Sprintf(text, i)))
		}
	}
	for _, text := range []string{"192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4", "169.254.169.254"} {
		addrs = append(addrs, addr(text))
	}
	return addrs
}()

func (w *randomWorld) addr() netip.Addr { return randomAddrs[w.IntN(len(randomAddrs))] }

func (w *randomWorld) prefix() netip.Prefix {
	bits := []int{0, 1, 8, 16, 24, 29, 30, 31, 32}[w.IntN(9)]
	a := w.addr()
	if a.Is6() {
		bits = []int{0, 7, 32, 64, 125, 126, 127, 128}[w.IntN(8)]
	}
	return netip.PrefixFrom(a, bits).Masked()
}

func (w *randomWorld) exceptions(n int) (except []netip.Prefix) {
	for range w.IntN(n) {
		except = append(except, w.prefix())
	}
	return except
}

// block has exceptions inside it.
func (w *randomWorld) block(matchesPods bool) tables.PolicyPeer {
	peer := cidr(w.prefix().String(), matchesPods)
	for _, e := range w.exceptions(4) {
		if peer.CIDR.Bits() < e.Bits() && peer.CIDR.Contains(e.Addr()) {
			peer.Except = append(peer.Except, e)
		}
	}
	return peer
}

func (w *randomWorld) labelSelector() string {
	return w.pick("", "app=web", "app=db", "app in (web,db)", "n=1", "n!=2", "app",
		"io.cilium.k8s.namespace.labels.team=red")
}

// peers are those of one rule.
func (w *randomWorld) peers() []tables.PolicyPeer {
	one := func(options ...tables.PolicyPeer) []tables.PolicyPeer {
		return []tables.PolicyPeer{options[w.IntN(len(options))]}
	}
	switch w.IntN(9) {
	case 0, 1:
		return one(pods(w.labelSelector()))
	case 2:
		return one(tables.PolicyPeer{Kind: tables.PeerPods, Pods: tables.EgressSelector{
			Namespaces: w.pick("team=red", "team!=red", "team=blue", "kubernetes.io/metadata.name=a"),
			Pods:       w.pick("", "app=web"),
		}})
	case 3:
		group := w.pick("g", "h") // the text does not say whether it matches pods
		return one(tables.PolicyPeer{Kind: tables.PeerCIDRGroups, PeerPrefixes: &tables.PeerPrefixes{
			Group: group, MatchesPods: group == "g", Except: w.exceptions(2),
		}})
	case 4:
		return one(
			entity(tables.EntityWorld),
			entity(tables.EntityWorldIPv4),
			entity(tables.EntityWorldIPv6),
			entity(tables.EntityCluster),
			entity(tables.EntityHost),
			entity(tables.EntityRemoteNode),
			entity(tables.EntityKubeAPIServer),
		)
	case 5:
		return one(tables.PolicyPeer{Kind: tables.PeerNodes, Labels: w.pick("", "zone=x")},
			tables.PolicyPeer{Kind: tables.PeerServices, PeerService: &tables.PeerService{
				Service: tables.Name{Namespace: w.pick("a", "b"), Name: "s"},
			}},
			cidr(w.pick("0.0.0.0/0", "::/0"), w.IntN(2) == 0))
	}
	matchesPods := w.IntN(2) == 0
	peers := []tables.PolicyPeer{w.block(matchesPods)}
	for range w.IntN(3) {
		peers = append(peers, w.block(matchesPods))
	}
	return peers
}

func (w *randomWorld) pod() *tables.Endpoint {
	i := w.IntN(6)
	var ports []tables.NamedPort
	for range w.IntN(3) {
		ports = append(ports, tables.NamedPort{
			Name: w.pick("http", "https"), Protocol: 6, Port: uint16(80 + w.IntN(2)),
		})
	}
	node, addrs := here, fmt.Sprintf("10.1.0.%d,fd00::%d", i, i)
	if w.IntN(2) == 0 {
		node, addrs = "there", fmt.Sprintf("10.2.0.%d", i)
	}
	return pod(fmt.Sprintf("%s/pod%d", w.pick("a", "b"), w.IntN(4)), node, addrs,
		labels.Set{"app": w.pick("web", "db"), "n": w.pick("1", "2", "3")}, ports...)
}

func anyOf[Row any](w *randomWorld, table statedb.RWTable[Row]) (row Row, found bool) {
	rows := statedb.Collect(table.All(w.db.ReadTxn()))
	if len(rows) == 0 {
		return row, false
	}
	return rows[w.IntN(len(rows))], true
}

// change is one event.
func (w *randomWorld) change() {
	in := &w.inputs
	switch w.IntN(18) {
	case 0, 1, 2, 3:
		w.useIn(w.pick("", "a", "b"), w.peers()...)
	case 4, 5:
		if s, found := anyOf(w, in.Selectors); found {
			in.Selectors.Remove(s)
		}
	case 6:
		if s, found := anyOf(w, in.Selectors); found {
			now := *s
			now.Undesired = !now.Undesired
			in.Selectors.Put(w.resolve(now))
		}
	case 7, 8, 9:
		e := w.pod()
		// One endpoint has an address at a time: which owns it is another test.
		for _, a := range e.Addrs {
			if owner, _ := tables.AddrOwner(w.db.ReadTxn(), in.Endpoints, a); owner != nil &&
				owner.Name != e.Name {
				in.Endpoints.Remove(owner)
			}
		}
		in.Endpoints.Put(e)
	case 10:
		if e, found := anyOf(w, in.Endpoints); found {
			in.Endpoints.Remove(e)
		}
	case 11:
		n := &tables.Namespace{Name: w.pick("a", "b"), Labels: labels.Set{"team": w.pick("red", "blue")}}
		w.changed[n.Name] = true
		if w.IntN(3) > 0 {
			in.Namespaces.Put(n)
		} else {
			in.Namespaces.Remove(n)
		}
	case 12:
		w.Groups.Put(&tables.CIDRGroup{Name: w.pick("g", "h"), Prefixes: w.exceptions(4)})
	case 13:
		w.service()
	case 14:
		w.node()
	case 15:
		if r, found := anyOf(w, in.Rulesets); found && w.IntN(2) == 0 {
			in.Rulesets.Remove(r)
		} else if in.Rulesets.NumObjects(w.db.ReadTxn()) < 3 {
			w.ruleset(w.pick("http", "https"))
		}
	case 16:
		w.local()
	case 17:
		cilium := &tables.CiliumNode{
			Name:  "there",
			Addrs: []netip.Addr{addr(w.pick("192.0.2.2", "192.0.2.3"))},
		}
		if w.IntN(2) == 0 {
			cilium = &tables.CiliumNode{Name: here, Addrs: []netip.Addr{addr("192.0.2.4")}}
		}
		if w.IntN(2) == 0 {
			in.CiliumNodes.Put(cilium)
		} else {
			in.CiliumNodes.Remove(cilium)
		}
	}
	w.resolveAll()
}

func (w *randomWorld) service() {
	s := &tables.Service{
		Name:  tables.Name{Namespace: w.pick("a", "b"), Name: "s"},
		Addrs: []netip.Addr{addr(w.pick("198.51.100.3", "10.3.0.1"))},
	}
	if w.IntN(2) == 0 {
		s.Selector = labels.Set{"app": w.pick("web", "db")}
	}
	if w.inputs.Services.Put(s); w.IntN(4) == 0 {
		w.inputs.Services.Remove(s)
	}
	w.inputs.Backends.Put(
		&tables.BackendSlice{Name: s.Name, Service: s.Name, Addrs: []netip.Addr{w.addr()}},
		&tables.BackendSlice{
			Name:    tables.Name{Namespace: "default", Name: "k"},
			Service: tables.KubernetesAPIService, Addrs: []netip.Addr{w.addr()},
		})
}

func (w *randomWorld) node() {
	n := &tables.Node{Name: "there", Labels: labels.Set{"zone": w.pick("x", "y")}}
	w.changed["there"] = true
	for range w.IntN(2) {
		n.InternalIPs = append(n.InternalIPs, addr(w.pick("192.0.2.2", "192.0.2.3")))
	}
	for range w.IntN(3) {
		n.PodCIDRs = append(n.PodCIDRs,
			prefix(w.pick("10.2.0.0/16", "198.51.100.0/29", "fd00::/64", "198.51.100.4/30")))
	}
	for range w.IntN(2) {
		n.TunnelIPs = append(n.TunnelIPs, addr(w.pick("10.2.0.0", "198.51.100.5")))
	}
	if w.inputs.Nodes.Put(n); w.IntN(5) == 0 {
		w.inputs.Nodes.Remove(n)
	}
}

// local changes what this node is.
func (w *randomWorld) local() {
	w.changed[here] = true
	a := &tables.NodeAddress{Addr: addr("192.0.2.1"), DeviceIndex: 2, Device: "eth0"}
	route := &tables.Route{
		Table: tables.RouteTableLocal, DeviceIndex: 2, Type: w.pick("local", "broadcast"),
		Destination: prefix(w.pick("192.0.2.1/32", "198.51.100.2/32")),
	}
	for _, do := range []func(){
		func() { w.inputs.Addresses.Put(a) }, func() { w.inputs.Addresses.Remove(a) },
		func() { w.inputs.Routes.Put(route) }, func() { w.inputs.Routes.Remove(route) },
		func() {
			w.inputs.Nodes.Put(&tables.Node{
				Name: here, Labels: labels.Set{"zone": w.pick("x", "y")},
				PodCIDRs: []netip.Prefix{prefix("10.1.0.0/24")},
			})
		},
	} {
		if w.IntN(3) == 0 {
			do()
		}
	}
}

// newRandomWorld is one whose rule computes some keys at a time.
func newRandomWorld(t *testing.T, seed uint64) *randomWorld {
	random := rand.New(rand.NewPCG(seed, 1))
	h := newHarnessWith(t, []Share{2, 4, 8, shareOf(bpf.DefaultConfig)}[random.IntN(4)])
	w := &randomWorld{newKernel(h, random)}
	h.rule.maxWork = []int{1, 3, 20, maxWork}[w.IntN(4)]
	h.stepper.Limit([]int{1, 2, 5, 1000}[w.IntN(4)], []int{0, 3, 10, 200}[w.IntN(4)])
	return w
}

// Whatever changes in whatever order, in pieces or at once, and however the kernel comes
// behind: each address is selected by what a naive evaluation says, no number stands for
// something else, and no object ends before its time.
func TestRandomChanges(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			w := newRandomWorld(t, seed)
			h := w.harness
			for round := range 40 {
				for range 1 + w.IntN(6) {
					if w.change(); w.IntN(3) == 0 {
						w.step()
					}
					if w.IntN(3) == 0 {
						w.some()
					}
				}
				w.settle()
				w.check(randomAddrs)
				if round%10 == 9 {
					w.all()
					w.check(randomAddrs)
				}
			}
			for s := range h.inputs.Selectors.All(h.db.ReadTxn()) {
				h.inputs.Selectors.Remove(s)
			}
			w.settle()
			w.all()
			w.check(randomAddrs)
		})
	}
}

// While the rule comes behind, a selector of prefixes that is evaluated selects no address
// that it never selected since the rule was up to date, and all that it always selected, as
// long as these are what they were: outside the cluster, a pod, or a node.
func TestNeitherOldNorNew(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			w := newRandomWorld(t, seed)
			may, was := map[selection]map[bool]bool{}, map[netip.Addr]map[string]bool{}
			note := func() {
				txn := w.db.ReadTxn()
				world := w.world(txn)
				for _, a := range randomAddrs {
					if was[a] == nil {
						was[a] = map[string]bool{}
					}
					was[a][kindOf(world, a)] = true
					should := w.should(world, a, func(*tables.Selector) bool { return false })
					for s := range w.inputs.Selectors.All(txn) {
						key := selection{a, s.Number}
						if may[key] == nil {
							may[key] = map[bool]bool{}
						}
						may[key][slices.Contains(should, s.Text)] = true
					}
				}
			}
			w.settle()
			for range 60 {
				for range 1 + w.IntN(4) {
					w.change()
					note()
					for range w.IntN(4) {
						w.step()
						w.checkSelections(may, was)
					}
				}
				for w.step() {
					w.checkSelections(may, was)
				}
				clear(may)
				clear(was)
				clear(w.changed)
				note()
				w.checkSelections(may, was)
			}
		})
	}
}
