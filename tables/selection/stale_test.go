// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// inKernel has the kernel have a row's entry.
func (h *harness) inKernel(row *tables.IPCache) *tables.IPCacheEntry {
	e := &tables.IPCacheEntry{Key: row.MapKey(), Value: row.MapValue()}
	put(h, h.IPCacheEntries, e)
	return e
}

// awaitWaiting returns when a class is said to be left by a prefix that goes to where it
// belongs, and the rules of a peer wait for that.
func (h *harness) awaitWaiting(class uint32, prefix string, peer tables.PolicyPeer) {
	h.t.Helper()
	h.await(func(txn statedb.ReadTxn) string {
		leaver := tables.Leaver{Prefix: netip.MustParsePrefix(prefix)}
		if m := h.places.Member(txn, leaver.Prefix); m != nil {
			leaver.To = m.Class
		}
		row := tables.ClassRow(txn, h.members, bpf.ClassKey{Role: bpf.RolePeer, Number: class})
		if row == nil || !slices.Contains(row.Leavers, leaver) || !slices.Contains(row.Leaving, tables.PeerSelectorID(peer)) {
			return fmt.Sprintf("%s is not said to leave for %d: %+v", prefix, leaver.To, row)
		}
		return ""
	})
}

// awaitLeft returns when a class is not said to be left by a prefix.
func (h *harness) awaitLeft(class uint32, prefix string) {
	h.t.Helper()
	h.await(func(txn statedb.ReadTxn) string {
		row := tables.ClassRow(txn, h.members, bpf.ClassKey{Role: bpf.RolePeer, Number: class})
		if row != nil && isLeaver(row, netip.MustParsePrefix(prefix)) {
			return fmt.Sprintf("%s is still said to leave: %+v", prefix, row)
		}
		return ""
	})
}

// What the kernel has of an address that nothing names any more is told apart, as long as
// it is there, by policies that come.
func TestStaleEntry(t *testing.T) {
	h, _ := twoKinds(t)
	world := h.peerClass("198.51.100.1")
	service := &tables.IPCache{Prefix: netip.MustParsePrefix("198.51.100.1/32"), Flags: bpf.IPCacheService, PeerClass: world, Reconciled: tables.Reconciled{Status: reconciler.StatusDone()}}
	put(h, h.IPCache, service)
	entry := h.inKernel(service)
	h.marker(1)
	remove(h, h.IPCache, service)
	h.marker(2)

	near, nearest := cidr("198.51.100.0/24", false), cidr("198.51.100.0/31", false)
	put(h, h.NetworkPolicies, policy("near", "app=none", near))
	h.awaitWaiting(world, "198.51.100.1/32", near)
	put(h, h.NetworkPolicies, policy("nearest", "app=none", nearest))
	h.awaitWaiting(world, "198.51.100.1/32", nearest)
	remove(h, h.IPCacheEntries, entry)
	h.awaitLeft(world, "198.51.100.1/32")
}

// So it is with what is still desired of a pod that is gone.
func TestStaleRow(t *testing.T) {
	h, _ := twoKinds(t)
	gone := pod("a/gone", "there", "10.1.9.9", labels.Set{"app": "db"})
	put(h, h.Endpoints, gone)
	h.marker(1)
	class := h.peerClass("10.1.9.9")
	row := &tables.IPCache{Prefix: single(gone.Addrs[0]), Flags: bpf.IPCachePod, PeerClass: class, Reconciled: tables.Reconciled{Status: reconciler.StatusDone()}}
	put(h, h.IPCache, row)
	entry := h.inKernel(row)
	h.marker(2)
	remove(h, h.Endpoints, gone)
	h.marker(3)
	require.Equal(t, class, h.peerClass("10.1.9.9"), "as one that nobody has")

	block := cidr("10.1.9.0/24", true)
	put(h, h.NetworkPolicies, policy("block", "app=none", block))
	h.awaitWaiting(class, "10.1.9.9/32", block)
	remove(h, h.IPCache, row)
	h.marker(4)
	h.awaitWaiting(class, "10.1.9.9/32", block)
	remove(h, h.IPCacheEntries, entry)
	h.awaitLeft(class, "10.1.9.9/32")
}

// It is stale until another row comes or none is left, whatever becomes of its write.
func TestStaleRowWithAnotherStatus(t *testing.T) {
	db := statedb.New()
	m := newMembers(newMemberParams(t, db, nil, nil))
	prefix := netip.MustParsePrefix("10.1.9.9/32")
	m.peers.stale[prefix] = struct{}{}
	was := placed{prefix: prefix, class: 1, desired: true, settled: true}
	is := was
	is.failed = true
	changed := func() { m.peers.affectedByPlacement(db.ReadTxn(), was, is, true, func(memberKey) {}) }
	changed()
	require.Contains(t, m.peers.stale, prefix)
	is.outside = true // of a service that has come
	changed()
	require.NotContains(t, m.peers.stale, prefix)
}

// A prefix that the kernel has no entry of goes where what is around it goes.
func TestGoesWithWhatIsAround(t *testing.T) {
	h, _ := twoKinds(t)
	outer, inner := cidr("198.51.0.0/16", false), cidr("198.51.100.0/24", false)
	put(h, h.NetworkPolicies, policy("p", "app=none", outer), policy("q", "app=none", inner))
	h.await(h.wrong([]netip.Addr{netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("198.51.1.1"), netip.MustParseAddr("203.0.113.1")}))
	world, around, own := h.peerClass("203.0.113.1"), h.peerClass("198.51.1.1"), h.peerClass("198.51.100.1")
	entry := func(prefix string, class uint32) *tables.IPCache {
		return &tables.IPCache{Prefix: netip.MustParsePrefix(prefix), Inherits: true, PeerClass: class, Reconciled: tables.Pending()}
	}
	put(h, h.IPCache, entry("198.51.0.0/16", around), entry("198.51.100.0/24", own))
	h.inKernel(entry("198.51.0.0/16", world))
	h.awaitWaiting(world, "198.51.100.0/24", inner)

	h.inKernel(entry("198.51.0.0/16", around))
	h.awaitWaiting(around, "198.51.100.0/24", inner)
	h.inKernel(entry("198.51.100.0/24", own))
	put(h, h.IPCache, tables.WithStatus(entry("198.51.100.0/24", own), reconciler.StatusDone()))
	h.awaitLeft(around, "198.51.100.0/24")
}
