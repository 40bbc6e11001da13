// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
)

// A pod of the same name may come to this node from another one, and leave it again.
func TestEndpointsHere(t *testing.T) {
	db := statedb.New()
	endpoints, err := NewEndpointTable(db, LocalNode{Name: "here"})
	require.NoError(t, err)
	set := &LabelSet{}
	for _, step := range []struct {
		node string
		here int
	}{{"there", 0}, {"here", 1}, {"here", 1}, {"", 0}, {"here", 1}, {"there", 0}} {
		wtxn := db.WriteTxn(endpoints)
		_, _, err := endpoints.Insert(wtxn, &Endpoint{Name: Name{Namespace: "shop", Name: "db-0"}, Node: step.node, LabelSet: set})
		require.NoError(t, err)
		require.Len(t, statedb.Collect(endpoints.List(wtxn.Commit(), EndpointsHere())), step.here, step.node)
	}
}

// An endpoint goes from the addresses of its status to announced ones and back, and the
// claim of a pod that has a new sandbox is before one by a status.
func TestWithAnnounced(t *testing.T) {
	first, second := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	status := &Endpoint{Name: Name{Namespace: "shop", Name: "db"}, Addrs: []netip.Addr{first},
		Created: time.Unix(1, 0)}
	require.Same(t, status, status.WithAnnounced(nil))
	announced := status.WithAnnounced([]netip.Addr{second})
	require.Equal(t, []netip.Addr{second}, announced.Addrs)
	require.Equal(t, status.Addrs, announced.InStatus())
	require.Same(t, announced, announced.WithAnnounced([]netip.Addr{second}))
	require.Equal(t, status, announced.WithAnnounced(nil))

	later := &Endpoint{Name: Name{Namespace: "shop", Name: "web"}, Addrs: []netip.Addr{second},
		Created: time.Unix(2, 0)}
	require.True(t, announced.Newer(later))
	require.False(t, later.Newer(announced))
	require.True(t, later.Newer(status))
	require.False(t, announced.SameClaim(&Endpoint{Addrs: announced.Addrs, Created: status.Created}))
	none := &Endpoint{Name: status.Name, Created: status.Created}
	require.True(t, later.Newer(none.WithAnnounced([]netip.Addr{second})), "of a pod without a status")

	attached := later.WithAttachment([]netip.Addr{second}, time.Unix(1, 0))
	require.True(t, attached.Newer(announced), "this node knows its own pods")
}

// An announcement counts for the very status that it is about.
func TestAnnouncedAddrs(t *testing.T) {
	db := statedb.New()
	backends, err := NewBackendSliceTable(db)
	require.NoError(t, err)
	addr := func(i byte) []netip.Addr { return []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, i})} }
	pod := PodAddrs{Pod: Name{Namespace: "shop", Name: "db"}, UID: "u", Node: "n", Addrs: addr(2),
		StatusAddrs: addr(1)}
	wtxn := db.WriteTxn(backends)
	for _, namespace := range []string{"agents", "tenant"} {
		_, _, err = backends.Insert(wtxn, &BackendSlice{
			Name: Name{Namespace: namespace, Name: "s"}, Pods: []PodAddrs{pod}})
		require.NoError(t, err)
	}
	txn := wtxn.Commit()
	for _, c := range []struct {
		uid, node string
		status    []netip.Addr
		want      []netip.Addr
	}{
		{"u", "n", addr(1), addr(2)},
		{"u", "n", addr(2), nil},
		{"u", "n", addr(3), nil},
		{"u", "n", nil, nil},
		{"former", "n", addr(1), nil},
		{"u", "other", addr(1), nil},
	} {
		e := &Endpoint{Name: pod.Pod, UID: c.uid, Node: c.node, Addrs: c.status}
		require.Equal(t, c.want, AnnouncedAddrs(txn, backends, "agents", e), "%+v", c)
		e = e.WithAnnounced(addr(9)) // as a row that was announced before
		require.Equal(t, c.want, AnnouncedAddrs(txn, backends, "agents", e), "%+v", c)
	}
}
