// SPDX-License-Identifier: Apache-2.0

package addresses

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// Pods are reached through their nodes: a node that comes, goes or gets another
// address affects its own pods and no others, and anything else that changes of it none.
func TestNodesThatMove(t *testing.T) {
	w := newWorld(t)
	w.member(bpf.RolePeer, "web", "", 0)
	for name, at := range map[string]string{"10.0.1.1": "one", "10.0.1.2": "one", "10.0.2.1": "two", "10.0.3.1": "three"} {
		insert(w, w.Endpoints, &tables.Endpoint{
			Name: tables.Name{Namespace: "prod", Name: name}, Node: at, Addrs: []netip.Addr{netip.MustParseAddr(name)}, LabelSet: &tables.LabelSet{ID: labelSet("web")},
		})
	}
	node := func(name string, addrs ...string) *tables.Node {
		n := &tables.Node{Name: name}
		for _, a := range addrs {
			n.InternalIPs = append(n.InternalIPs, netip.MustParseAddr(a))
		}
		return n
	}
	type change struct{ old, new *tables.Node }
	c := newIPCache(w.params())
	affected := func(changes ...change) (prefixes []string) {
		txn := w.DB.ReadTxn()
		keys := map[netip.Prefix]struct{}{}
		for _, change := range changes {
			c.nodeChanged(txn, change.old, change.new, func(p netip.Prefix) { keys[p] = struct{}{} })
		}
		for _, p := range c.withMoved(txn, slices.Collect(maps.Keys(keys))) {
			prefixes = append(prefixes, p.Addr().String())
		}
		slices.Sort(prefixes)
		return prefixes
	}
	one, two := node("one", "192.168.0.1"), node("two", "192.168.0.2")
	require.Equal(t, []string{"10.0.1.1", "10.0.1.2", "192.168.0.1"}, affected(change{nil, one}))
	require.Equal(t, []string{"10.0.1.1", "10.0.1.2", "10.0.2.1", "192.168.0.1", "192.168.0.2"}, affected(change{nil, one}, change{two, nil}))
	require.Empty(t, affected())
	ready := *one
	ready.Ready = true
	require.Empty(t, affected(change{one, &ready}))
	outside := *one
	outside.OtherIPs = []netip.Addr{netip.MustParseAddr("203.0.113.1")}
	require.Equal(t, []string{"192.168.0.1", "203.0.113.1"}, affected(change{one, &outside}))
	require.Equal(t, []string{"192.168.0.1", "192.168.0.9"}, affected(change{one, node("one", "192.168.0.1", "192.168.0.9")}), "reached as before")
	require.Equal(t, []string{"10.0.1.1", "10.0.1.2", "192.168.0.1", "192.168.0.9"}, affected(change{one, node("one", "192.168.0.9", "192.168.0.1")}))

	w.start()
	tunnel := func(want, pod string) {
		t.Helper()
		w.settle()
		require.Equal(t, want, w.peer(pod+"/32").Tunnel.String())
	}
	insert(w, w.Nodes, one, two)
	tunnel("192.168.0.1", "10.0.1.2")
	tunnel("192.168.0.2", "10.0.2.1")
	insert(w, w.Nodes, node("one", "192.168.0.9"), node("three", "192.168.0.3"))
	tunnel("192.168.0.9", "10.0.1.2")
	tunnel("192.168.0.3", "10.0.3.1")
	remove(w, w.Nodes, two)
	tunnel("invalid IP", "10.0.2.1")
}
