// SPDX-License-Identifier: Apache-2.0

package addresses

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// cluster fills a world with pods on 500 other nodes, each with a label set of its
// own, of 200 classes.
func (w *world) cluster(n int) (addrs []netip.Addr) {
	nodes, sets, pods := w.DB.WriteTxn(w.Nodes), w.DB.WriteTxn(w.Members), w.DB.WriteTxn(w.Endpoints)
	for i := range 500 {
		_, _, err := w.Nodes.Insert(nodes, &tables.Node{
			Name: fmt.Sprint("node-", i), InternalIPs: []netip.Addr{netip.AddrFrom4([4]byte{192, 168, byte(i >> 8), byte(i)})},
			PodCIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)},
		})
		require.NoError(w.t, err)
	}
	for i := range n {
		node := i / 100
		e := &tables.Endpoint{
			Name: tables.Name{Namespace: fmt.Sprint("ns-", i%100), Name: fmt.Sprint("pod-", i)}, Node: fmt.Sprint("node-", node),
			Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(node >> 8), byte(node), byte(i % 100)})}, LabelSet: &tables.LabelSet{ID: labelSet(fmt.Sprint("set-", i))},
		}
		addrs = append(addrs, e.Addrs...)
		_, _, err := w.Endpoints.Insert(pods, e)
		require.NoError(w.t, err)
		class := uint32(1 + i%200)
		_, _, err = w.Members.Insert(sets, &tables.ClassMember{Role: bpf.RolePeer, LabelSet: e.LabelSet.ID, Class: class, Digest: digest(class)})
		require.NoError(w.t, err)
	}
	nodes.Commit()
	sets.Commit()
	pods.Commit()
	for class := range uint32(200) {
		w.ready(bpf.RolePeer, class+1)
	}
	return addrs
}

func (w *world) params() *ipcacheParams {
	return &ipcacheParams{
		Endpoints: w.Endpoints, Nodes: w.Nodes, CiliumNodes: w.CiliumNodes, Services: w.Services, Backends: w.Backends,
		Addresses: w.Addresses, Routes: w.Routes, LocalNode: w.Places.LocalNode, Members: w.Members, PeerPrefixes: w.Prefixes,
		Readiness: w.Readiness, Entries: w.PeerEntries, Places: w.Places,
	}
}

// BenchmarkPodOfIPCache is what it takes to derive what is known of a pod's address.
func BenchmarkPodOfIPCache(b *testing.B) {
	w := newWorld(b)
	addrs := w.cluster(50000)
	c := newIPCache(w.params())
	txn := w.DB.ReadTxn()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		prefix := single(addrs[i%len(addrs)])
		if rows := c.rows(txn, prefix); len(rows) != 1 || rows[0].PeerClass == 0 {
			b.Fatal(rows)
		}
	}
}

// BenchmarkNodesCome is what it takes to take in 100 nodes that come at once, among
// 50,000 pods of others.
func BenchmarkNodesCome(b *testing.B) {
	w := newWorld(b)
	w.cluster(50000)
	w.start()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		var rows []*tables.Node
		for n := range 100 {
			rows = append(rows, &tables.Node{Name: fmt.Sprint("new-", n), InternalIPs: []netip.Addr{netip.AddrFrom4([4]byte{172, 17, byte(i), byte(n)})}})
		}
		insert(w, w.Nodes, rows...)
		w.settle()
	}
}
