// SPDX-License-Identifier: Apache-2.0

package addresses

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

func (w *world) peerPrefix(prefix string) *tables.PeerPrefix {
	p := &tables.PeerPrefix{Prefix: netip.MustParsePrefix(prefix)}
	insert(w, w.Prefixes, p)
	return p
}

// A look-up of the longest prefix must not lose what is known of a shorter one.
func TestPrefixesOfPoliciesInheritWhatIsKnown(t *testing.T) {
	w := newWorld(t, "--cluster-cidrs=10.0.0.0/8")
	there := netip.MustParseAddr("192.168.0.2")
	insert(w, w.Members, &tables.ClassMember{Role: bpf.RolePeer, Node: "here"})
	insert(w, w.Nodes, &tables.Node{
		Name: "there", InternalIPs: []netip.Addr{there}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16")},
	})
	insert(w, w.Routes, &tables.Route{
		Table: tables.RouteTableLocal, Type: "local", Destination: netip.MustParsePrefix("192.168.9.0/24"), DeviceIndex: 1,
	})
	for _, p := range []string{"10.2.3.0/24", "10.0.0.0/12", "10.0.0.0/7", "169.254.169.254/32", "192.168.9.7/32", "fe80::1/128", "2001:db8::/32"} {
		w.peerPrefix(p)
	}
	w.start()
	for prefix, want := range map[string]tables.IPCache{
		"0.0.0.0/0":          {Origins: []string{"peer prefix"}},
		"::/0":               {Origins: []string{"peer prefix"}},
		"10.0.0.0/7":         {Origins: []string{"peer prefix"}},
		"2001:db8::/32":      {Origins: []string{"peer prefix"}},
		"10.2.3.0/24":        {Flags: bpf.IPCacheInCluster, Tunnel: there, Origins: []string{"peer prefix", "inside 10.2.0.0/16"}},
		"10.0.0.0/12":        {Flags: bpf.IPCacheInCluster, Origins: []string{"peer prefix", "inside 10.0.0.0/8"}},
		"169.254.169.254/32": {Flags: bpf.IPCacheLocalScope, Origins: []string{"peer prefix", "inside 169.254.0.0/16"}},
		"fe80::1/128":        {Flags: bpf.IPCacheLocalScope, Origins: []string{"peer prefix", "inside fe80::/10"}},
		"192.168.9.7/32":     {Flags: bpf.IPCacheInCluster | bpf.IPCacheHost, Origins: []string{"peer prefix", "inside 192.168.9.0/24"}},
	} {
		row := w.peer(prefix)
		require.Equal(t, want.Flags, row.Flags, prefix)
		require.Equal(t, want.Tunnel, row.Tunnel, prefix)
		require.Equal(t, want.Origins, row.Origins, prefix)
		require.True(t, row.Inherits, prefix)
	}

	// What is around them goes away, and comes back with another tunnel.
	node, _, _ := w.Nodes.Get(w.DB.ReadTxn(), tables.NodeByName("there"))
	remove(w, w.Nodes, node)
	w.settle()
	require.Equal(t, []string{"peer prefix", "inside 10.0.0.0/8"}, w.peer("10.2.3.0/24").Origins)
	require.Equal(t, netip.Addr{}, w.peer("10.2.3.0/24").Tunnel)
	moved := *node
	moved.InternalIPs = []netip.Addr{netip.MustParseAddr("192.168.0.3")}
	insert(w, w.Nodes, &moved)
	w.settle()
	require.Equal(t, moved.InternalIPs[0], w.peer("10.2.3.0/24").Tunnel)

	// A pod in it has its own row, and so has the prefix when the pod is gone.
	w.member(bpf.RolePeer, "a", "", 0)
	pod := w.pod("a", "10.2.3.4", "a")
	w.peerPrefix("10.2.3.4/32")
	w.settle()
	require.False(t, w.peer("10.2.3.4/32").Inherits)
	require.Equal(t, bpf.IPCacheInCluster|bpf.IPCachePod|bpf.IPCacheLocalPods, w.peer("10.2.3.4/32").Flags)
	remove(w, w.Endpoints, pod)
	w.settle()
	require.Equal(t, []string{"peer prefix", "inside 10.2.0.0/16"}, w.peer("10.2.3.4/32").Origins)

	// No policy names it any more.
	last, _, _ := w.Prefixes.Get(w.DB.ReadTxn(), tables.PeerPrefixByPrefix(netip.MustParsePrefix("10.2.3.4/32")))
	remove(w, w.Prefixes, last)
	w.settle()
	_, _, found := w.IPCache.Get(w.DB.ReadTxn(), tables.IPCacheByPrefix(last.Prefix))
	require.False(t, found)
}

// An address goes over to a class when that is ready, in one step.
func TestPeerClassWaitsUntilItIsReady(t *testing.T) {
	w := newWorld(t)
	w.member(bpf.RolePeer, "", "0.0.0.0/0", 7)
	w.ready(bpf.RolePeer, 7)
	w.member(bpf.RolePeer, "web", "", 3)
	w.pod("web", "10.0.0.1", "web")
	w.start()

	// Nothing of it is known: it is what is around it.
	require.EqualValues(t, 7, w.peer("10.0.0.1/32").PeerClass)
	require.EqualValues(t, 3, w.peer("10.0.0.1/32").WaitsFor)
	w.ready(bpf.RolePeer, 3)
	w.settle()
	require.EqualValues(t, 3, w.peer("10.0.0.1/32").PeerClass)
	require.Zero(t, w.peer("10.0.0.1/32").WaitsFor)
	w.write()

	// Its label set gets another class: it stays until that is ready, and there is
	// nothing to be written.
	status := w.peer("10.0.0.1/32").Status
	w.member(bpf.RolePeer, "web", "", 4)
	w.settle()
	require.EqualValues(t, 3, w.peer("10.0.0.1/32").PeerClass)
	require.EqualValues(t, 4, w.peer("10.0.0.1/32").WaitsFor)
	require.Equal(t, status, w.peer("10.0.0.1/32").Status)
	insert(w, w.Readiness, &tables.PolicyReadiness{
		ClassKey: bpf.ClassKey{Role: bpf.RolePeer, Number: 4}, Digest: digest(9), Ready: true, // of another meaning
	})
	w.settle()
	require.EqualValues(t, 3, w.peer("10.0.0.1/32").PeerClass)
	w.ready(bpf.RolePeer, 4)
	w.settle()
	require.EqualValues(t, 4, w.peer("10.0.0.1/32").PeerClass)

	// Its class means something else for a moment, and the kernel does not even
	// hear of it: who came meanwhile waits no longer.
	other := &tables.ClassMember{Role: bpf.RolePeer, LabelSet: labelSet("web"), Class: 4, Digest: digest(9)}
	insert(w, w.Members, other)
	w.pod("web-0", "10.0.0.7", "web")
	w.settle()
	require.EqualValues(t, 4, w.peer("10.0.0.7/32").WaitsFor)
	w.member(bpf.RolePeer, "web", "", 4)
	w.settle()
	require.EqualValues(t, 4, w.peer("10.0.0.7/32").PeerClass)

	// The class is not ready for a moment: who is in it stays.
	insert(w, w.Readiness, &tables.PolicyReadiness{ClassKey: bpf.ClassKey{Role: bpf.RolePeer, Number: 4}, Digest: digest(4)})
	w.settle()
	require.EqualValues(t, 4, w.peer("10.0.0.1/32").PeerClass)

	// The next pod of the labels does not join it, but it is as the kernel has
	// what is around it.
	insert(w, w.PeerEntries, &tables.IPCacheEntry{
		Key: bpf.IPCacheKeyFrom(netip.MustParsePrefix("10.0.0.0/24")), Value: bpf.IPCacheValue{PeerClass: 8},
	})
	w.pod("web-2", "10.0.0.2", "web")
	w.settle()
	require.EqualValues(t, 8, w.peer("10.0.0.2/32").PeerClass)
	require.EqualValues(t, 4, w.peer("10.0.0.2/32").WaitsFor)

	// Nothing is written of a pod of which it is not known where it belongs.
	w.pod("web-3", "10.0.0.3", "third")
	w.settle()
	_, _, found := w.IPCache.Get(w.DB.ReadTxn(), tables.IPCacheByPrefix(netip.MustParsePrefix("10.0.0.3/32")))
	require.False(t, found)
	w.member(bpf.RolePeer, "third", "", 0)
	w.settle()
	require.Zero(t, w.peer("10.0.0.3/32").PeerClass)

	// The pod has new labels of which the class is not known yet, then it is.
	w.pod("web-2", "10.0.0.2", "new")
	w.settle()
	w.ready(bpf.RolePeer, 4)
	w.settle()
	require.EqualValues(t, 8, w.peer("10.0.0.2/32").PeerClass)
	require.Zero(t, w.peer("10.0.0.2/32").WaitsFor)
	w.member(bpf.RolePeer, "new", "", 4)
	w.settle()
	require.EqualValues(t, 4, w.peer("10.0.0.2/32").PeerClass)
}

// At a start classes are known a moment before they are ready: each address goes
// to its own at once. It does not wait for a class that others are to leave first.
func TestFirstRoundAwaitsClasses(t *testing.T) {
	w := newWorld(t)
	c := ipcacheParams{Members: w.Members, Readiness: w.Readiness, IPCache: w.IPCache.(statedb.RWTable[*tables.IPCache])}
	ready := func() bool {
		is, _ := c.classesReady(w.DB.ReadTxn())
		return is
	}
	require.True(t, ready(), "there are no classes")
	class := &tables.ClassMember{Role: bpf.RolePeer, OfClass: true, Class: 3, Digest: digest(3), Selectors: []tables.SelectorID{1}}
	insert(w, w.Members, class)
	_, changed := c.classesReady(w.DB.ReadTxn())
	require.False(t, ready())
	w.ready(bpf.RolePeer, 3)
	require.True(t, ready())
	require.True(t, slices.ContainsFunc(changed, func(ch <-chan struct{}) bool {
		select {
		case <-ch:
			return true
		default:
			return false
		}
	}))

	w.ready(bpf.RoleSubject, 4)
	left := *class
	left.Class, left.Digest = 4, digest(4)
	insert(w, w.Members, &left)
	require.False(t, ready(), "another role has the number")
	leaving := left
	leaving.Leavers = []tables.Leaver{{Prefix: netip.MustParsePrefix("10.0.0.1/32"), To: 3}}
	insert(w, w.Members, &leaving)
	require.True(t, ready())
}

// Later a class is waited for that many are to go to, not one for a few.
func TestRoundAwaitsClassesOfMany(t *testing.T) {
	w := newWorld(t)
	w.start()
	c := ipcacheParams{Members: w.Members, Readiness: w.Readiness, IPCache: w.IPCache.(statedb.RWTable[*tables.IPCache])}
	awaited := func(leavers int) bool {
		class := func(number uint32) *tables.ClassMember {
			return &tables.ClassMember{Role: bpf.RolePeer, OfClass: true, Class: number, Digest: digest(number), Selectors: []tables.SelectorID{1}}
		}
		left := class(3)
		for i := range leavers {
			addr := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
			left.Leavers = append(left.Leavers, tables.Leaver{Prefix: single(addr), To: 4})
		}
		insert(w, w.Members, left, class(4))
		ready, _ := c.classesReady(w.DB.ReadTxn())
		return !ready
	}
	require.False(t, awaited(manyLeave-1))
	require.True(t, awaited(manyLeave))
	w.ready(bpf.RolePeer, 4)
	require.False(t, awaited(manyLeave), "it is ready")
}

// Whatever objects say of a pod's address is found, in whichever order they come.
func TestFactsOfPodAddress(t *testing.T) {
	w := newWorld(t)
	w.member(bpf.RolePeer, "web", "", 0)
	w.start()
	addr := netip.MustParseAddr("10.0.0.1")
	service := &tables.Service{Name: tables.Name{Namespace: "prod", Name: "s"}, Addrs: []netip.Addr{addr}}
	node := &tables.Node{Name: "there", InternalIPs: []netip.Addr{addr}}
	slice := &tables.BackendSlice{Name: service.Name, Service: service.Name, Addrs: []netip.Addr{addr}}
	of := func(origins ...string) {
		t.Helper()
		w.settle()
		require.Equal(t, origins, w.peer("10.0.0.1/32").Origins)
	}

	pod := w.pod("web", "10.0.0.1", "web")
	of("pod prod/web")
	insert(w, w.Backends, slice)
	of("pod prod/web")
	insert(w, w.Services, service)
	of("pod prod/web", "service prod/s")
	insert(w, w.Nodes, node)
	of("node there", "pod prod/web", "service prod/s")
	remove(w, w.Endpoints, pod)
	remove(w, w.Services, service)
	of("node there")
	remove(w, w.Nodes, node)
	w.settle()
	_, _, found := w.IPCache.Get(w.DB.ReadTxn(), tables.IPCacheByPrefix(single(addr)))
	require.False(t, found)

	api := *slice
	api.Service = tables.KubernetesAPIService
	insert(w, w.Backends, &api)
	of("backend of default/kubernetes")
	insert(w, w.Endpoints, pod)
	of("pod prod/web", "backend of default/kubernetes")
	remove(w, w.Backends, &api)
	of("pod prod/web")
}

// A restart finds addresses in the classes in which the kernel has them.
func TestPeerClassAfterRestart(t *testing.T) {
	w := newWorld(t)
	insert(w, w.PeerEntries, &tables.IPCacheEntry{
		Key: bpf.IPCacheKeyFrom(netip.MustParsePrefix("10.0.0.1/32")), Value: bpf.IPCacheValue{PeerClass: 5},
	})
	w.member(bpf.RolePeer, "web", "", 3)
	w.pod("web", "10.0.0.1", "web")
	w.start()
	require.EqualValues(t, 5, w.peer("10.0.0.1/32").PeerClass)
	w.ready(bpf.RolePeer, 3)
	w.settle()
	require.EqualValues(t, 3, w.peer("10.0.0.1/32").PeerClass)
}

// Who belongs to which member: nodes before pods before prefixes; pods and nodes
// by the prefix that they are told apart by, others by the longest that they are in.
func TestPeerMembers(t *testing.T) {
	w := newWorld(t)
	for class := range uint32(20) {
		w.ready(bpf.RolePeer, class)
	}
	w.member(bpf.RolePeer, "", "0.0.0.0/0", 1)
	w.member(bpf.RolePeer, "", "10.0.0.0/16", 2)
	w.peerPrefix("10.0.0.0/16")
	w.member(bpf.RolePeer, "web", "", 3)
	w.member(bpf.RolePeer, "web", "10.0.1.0/24", 4)
	insert(w, w.Prefixes, &tables.PeerPrefix{Prefix: netip.MustParsePrefix("10.0.1.0/24"), Pods: true})
	w.member(bpf.RolePeer, "", "10.0.1.0/24", 5)
	w.node("here", 6, "192.168.0.1")
	w.node("there", 7, "192.168.0.2")
	insert(w, w.Addresses, &tables.NodeAddress{Addr: netip.MustParseAddr("10.0.1.200"), Device: "cni0", DeviceIndex: 4, Scope: "global"})
	w.pod("web-1", "10.0.0.1", "web")
	w.pod("web-2", "10.0.1.1", "web")
	insert(w, w.Services, &tables.Service{Name: tables.Name{Namespace: "prod", Name: "s"}, Addrs: []netip.Addr{netip.MustParseAddr("10.0.2.1")}})
	w.start()
	w.classes(map[string]uint32{
		"0.0.0.0/0": 1, "10.0.0.0/16": 2, "10.0.1.0/24": 5, "10.0.0.1/32": 3, "10.0.1.1/32": 4,
		"192.168.0.1/32": 6, "192.168.0.2/32": 7, "10.0.1.200/32": 6, "10.0.2.1/32": 2, "127.0.0.0/8": 1,
	})

	// Each kind of member gets another class, and only its own follow.
	w.member(bpf.RolePeer, "", "10.0.0.0/16", 12)
	w.member(bpf.RolePeer, "web", "10.0.1.0/24", 14)
	w.node("here", 16, "192.168.0.1")
	w.settle()
	w.classes(map[string]uint32{
		"0.0.0.0/0": 1, "10.0.0.0/16": 12, "10.0.1.0/24": 5, "10.0.0.1/32": 3, "10.0.1.1/32": 14,
		"192.168.0.1/32": 16, "192.168.0.2/32": 7, "10.0.1.200/32": 16, "10.0.2.1/32": 12, "127.0.0.0/8": 1,
	})

	// A prefix goes away: what was in it is in the one around it.
	old := &tables.PeerPrefix{Prefix: netip.MustParsePrefix("10.0.1.0/24")}
	remove(w, w.Prefixes, old)
	w.settle()
	remove(w, w.Members, &tables.ClassMember{Role: bpf.RolePeer, LabelSet: labelSet("web"), Prefix: old.Prefix},
		&tables.ClassMember{Role: bpf.RolePeer, Prefix: old.Prefix})
	w.settle()
	w.classes(map[string]uint32{"10.0.1.1/32": 3, "10.0.0.1/32": 3, "10.0.1.200/32": 16})

	// Another one comes.
	w.peerPrefix("10.0.2.0/24")
	w.member(bpf.RolePeer, "", "10.0.2.0/24", 9)
	w.settle()
	w.classes(map[string]uint32{"10.0.2.0/24": 9, "10.0.2.1/32": 9, "10.0.0.0/16": 12})
}

// A prefix that is named no more, as what is around it is now, keeps its class until
// that one has the new class in the kernel; and so does what is in it.
func TestPrefixThatGivesWay(t *testing.T) {
	w := newWorld(t)
	w.ready(bpf.RolePeer, 1)
	w.ready(bpf.RolePeer, 2)
	w.member(bpf.RolePeer, "", "0.0.0.0/0", 1)
	w.member(bpf.RolePeer, "", "198.51.100.0/24", 2)
	prefix := &tables.PeerPrefix{Prefix: netip.MustParsePrefix("198.51.100.0/24")}
	insert(w, w.Prefixes, prefix)
	insert(w, w.Services, &tables.Service{Name: tables.Name{Namespace: "prod", Name: "s"}, Addrs: []netip.Addr{netip.MustParseAddr("198.51.100.1")}})
	w.start()
	w.write()
	w.settle()
	w.classes(map[string]uint32{"0.0.0.0/0": 1, "198.51.100.0/24": 2, "198.51.100.1/32": 2})

	remove(w, w.Prefixes, prefix)
	w.settle()
	w.classes(map[string]uint32{"0.0.0.0/0": 1, "198.51.100.0/24": 2, "198.51.100.1/32": 2})

	wtxn := w.DB.WriteTxn(w.Members)
	_, _, err := w.Members.Delete(wtxn, &tables.ClassMember{Role: bpf.RolePeer, Prefix: prefix.Prefix})
	require.NoError(t, err)
	_, _, err = w.Members.Insert(wtxn, &tables.ClassMember{Role: bpf.RolePeer, Prefix: netip.MustParsePrefix("0.0.0.0/0"), Class: 3, Digest: digest(3)})
	require.NoError(t, err)
	wtxn.Commit()
	w.settle()
	w.classes(map[string]uint32{"0.0.0.0/0": 1, "198.51.100.0/24": 2, "198.51.100.1/32": 2})

	w.ready(bpf.RolePeer, 3)
	w.settle()
	w.classes(map[string]uint32{"0.0.0.0/0": 3, "198.51.100.0/24": 3, "198.51.100.1/32": 3})
	w.write()
	w.settle()
	_, _, found := w.IPCache.Get(w.DB.ReadTxn(), tables.IPCacheByPrefix(prefix.Prefix))
	require.False(t, found)
}

func (w *world) node(name string, class uint32, addr string) {
	insert(w, w.Nodes, &tables.Node{Name: name, InternalIPs: []netip.Addr{netip.MustParseAddr(addr)}})
	for _, prefix := range []netip.Prefix{{}, netip.MustParsePrefix("10.0.1.0/24")} {
		insert(w, w.Members, &tables.ClassMember{Role: bpf.RolePeer, Node: name, Prefix: prefix, Class: class, Digest: digest(class)})
	}
}

func (w *world) classes(want map[string]uint32) {
	w.t.Helper()
	got := map[string]uint32{}
	for prefix := range want {
		got[prefix] = w.peer(prefix).PeerClass
	}
	require.Equal(w.t, want, got)
}
