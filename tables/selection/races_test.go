// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// twoKinds has three pods that a policy chooses as peers and one that it does not,
// and returns the key of the class of the three.
func twoKinds(t *testing.T) (h *harness, key bpf.ClassKey) {
	h = newHarness(t, func(h *harness) {
		put(h, h.Nodes, &tables.Node{Name: here, InternalIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}})
		for i, app := range []string{"web", "web", "web", "db"} {
			put(h, h.Endpoints, pod(fmt.Sprintf("a/p%d", i), "there", fmt.Sprintf("10.1.0.%d", i), labels.Set{"app": app}))
		}
	})
	p := policy("p", "app=none", pods("app=web"))
	put(h, h.NetworkPolicies, p)
	h.settle(twoKindsAddrs)
	put(h, h.Rules, enforced(p))
	return h, bpf.ClassKey{Role: bpf.RolePeer, Number: h.peerClass("10.1.0.0")}
}

var twoKindsAddrs = podAddrs()[:4]

// leavers returns who is leaving a class.
func (h *harness) leavers(txn statedb.ReadTxn, key bpf.ClassKey) (leavers []tables.Leaver) {
	if row := tables.ClassRow(txn, h.members, key); row != nil {
		leavers = row.Leavers
	}
	return leavers
}

// awaitLeavers returns when so many are leaving a class.
func (h *harness) awaitLeavers(key bpf.ClassKey, n int) {
	h.t.Helper()
	h.await(func(txn statedb.ReadTxn) string {
		if leavers := h.leavers(txn, key); len(leavers) != n {
			return fmt.Sprintf("class %s is being left by %v", key, leavers)
		}
		return ""
	})
}

// Who is to leave a class and then is not, before anything was done about it, is
// not waited for.
func TestBackBeforeItHasLeft(t *testing.T) {
	h, class := twoKinds(t)
	before := pod("a/p0", "there", "10.1.0.0", labels.Set{"app": "web"})
	put(h, h.Endpoints, pod("a/p0", "there", "10.1.0.0", labels.Set{"app": "db"}))
	h.awaitLeavers(class, 1)
	put(h, h.Endpoints, before)
	h.awaitLeavers(class, 0)
}

// A round of the ipcache that has not seen yet who belongs elsewhere puts nobody
// into a class unnoticed.
func TestPlacedByAnOlderRound(t *testing.T) {
	h, class := twoKinds(t)
	late := pod("a/late", "there", "10.1.0.9", labels.Set{"app": "web"})
	put(h, h.Endpoints, late)
	h.marker(1)

	ipcache := h.db.WriteTxn(h.IPCache)
	defer ipcache.Abort()
	m := h.places.Member(ipcache, single(late.Addrs[0]))
	require.Equal(t, class.Number, m.Class)
	_, rounds := h.members.AllWatch(ipcache)
	put(h, h.Endpoints, pod("a/late", "there", "10.1.0.9", labels.Set{"app": "db"}))
	put(h, h.Nodes, &tables.Node{Name: "another", InternalIPs: []netip.Addr{netip.MustParseAddr("192.0.2.2")}})
	select {
	case <-rounds:
		require.Fail(t, "a round is under way at the same time")
	case <-time.After(20 * time.Millisecond):
	}
	h.place(ipcache, late, m.Class)
	ipcache.Commit()
	h.awaitLeavers(class, 1)
}

// So it is with what somebody has been for a moment only, of which nothing else tells
// when the round has ended.
func TestPlacedByWhatItWasForAMoment(t *testing.T) {
	h, class := twoKinds(t)
	db, web := pod("a/late", "there", "10.1.0.9", labels.Set{"app": "db"}), pod("a/late", "there", "10.1.0.9", labels.Set{"app": "web"})
	put(h, h.Endpoints, db)
	h.marker(1)

	ipcache := h.db.WriteTxn(h.IPCache)
	defer ipcache.Abort()
	put(h, h.Endpoints, web)
	put(h, h.Endpoints, db)
	h.place(ipcache, web, class.Number)
	ipcache.Commit()
	h.awaitLeavers(class, 1)
}

// place has an address desired in a class.
func (h *harness) place(wtxn statedb.WriteTxn, e *tables.Endpoint, class uint32) {
	_, _, err := h.IPCache.Insert(wtxn, &tables.IPCache{Prefix: single(e.Addrs[0]), PeerClass: class, Reconciled: tables.Pending()})
	require.NoError(h.t, err)
}

// While it is not known where the kernel has an address, it may be on its way into
// a class that it was wanted in before.
func TestLeavesWhenTheKernelHasSaidSo(t *testing.T) {
	h, class := twoKinds(t)
	late := pod("a/late", "there", "10.1.0.9", labels.Set{"app": "web"})
	put(h, h.Endpoints, late)
	h.marker(1)
	wtxn := h.db.WriteTxn(h.IPCache)
	h.place(wtxn, late, class.Number)
	wtxn.Commit()
	put(h, h.Endpoints, pod("a/late", "there", "10.1.0.9", labels.Set{"app": "db"}))
	h.awaitLeavers(class, 1)

	other := h.peerClass("10.1.0.9")
	require.NotEqual(t, class.Number, other)
	wtxn = h.db.WriteTxn(h.IPCache)
	h.place(wtxn, late, other)
	wtxn.Commit()
	h.marker(2)
	require.Len(t, h.leavers(h.db.ReadTxn(), class), 1, "the kernel may be about to have it there")
	row, _, _ := h.IPCache.Get(h.db.ReadTxn(), tables.IPCacheByPrefix(single(late.Addrs[0])))
	put(h, h.IPCacheEntries, &tables.IPCacheEntry{Key: row.MapKey(), Value: row.MapValue()})
	h.marker(3)
	require.Len(t, h.leavers(h.db.ReadTxn(), class), 1, "what was desired before may be about to be written")
	done := *row
	done.Status = reconciler.StatusDone()
	put(h, h.IPCache, &done)
	h.awaitLeavers(class, 0)
}

// Who is not where he belongs because the kernel refuses to take that is still in the
// class where the kernel has him, and in no other that he was wanted in.
func TestLeavesWhereTheKernelHasItWhenWritesFail(t *testing.T) {
	h, class := twoKinds(t)
	put(h, h.Endpoints, pod("a/p0", "there", "10.1.0.0", labels.Set{"app": "db"}), pod("a/late", "there", "10.1.0.9", labels.Set{"app": "web"}))
	h.awaitLeavers(class, 1)
	desire := func(addr string, class uint32, status reconciler.Status) {
		put(h, h.IPCache, &tables.IPCache{Prefix: single(netip.MustParseAddr(addr)), Flags: bpf.IPCachePod, PeerClass: class, Reconciled: tables.Reconciled{Status: status}})
	}
	other, refused := h.peerClass("10.1.0.0"), reconciler.StatusError(errors.New("no"))
	desire("10.1.0.9", class.Number, reconciler.StatusPending())
	put(h, h.Endpoints, pod("a/late", "there", "10.1.0.9", labels.Set{"app": "db"}))
	h.awaitLeavers(class, 2)
	desire("10.1.0.9", other, reconciler.StatusPending())
	desire("10.1.0.0", other, refused)
	h.marker(1)
	require.Len(t, h.leavers(h.db.ReadTxn(), class), 2)

	desire("10.1.0.9", other, refused)
	h.awaitLeavers(class, 1)
	require.Equal(t, "10.1.0.0/32", h.leavers(h.db.ReadTxn(), class)[0].Prefix.String())
	row, _, _ := h.IPCache.Get(h.db.ReadTxn(), tables.IPCacheByPrefix(single(netip.MustParseAddr("10.1.0.0"))))
	put(h, h.IPCacheEntries, &tables.IPCacheEntry{Key: row.MapKey(), Value: row.MapValue()})
	desire("10.1.0.0", other, reconciler.StatusDone())
	h.awaitLeavers(class, 0)
}

// Who comes to belong again into a class that it was to leave, while it is not known
// where the kernel has it, is not waited for.
func TestBelongsAgainWhileItLeaves(t *testing.T) {
	h, _ := twoKinds(t)
	desire := func(addr string, class uint32) {
		put(h, h.IPCache, &tables.IPCache{Prefix: single(netip.MustParseAddr(addr)), Flags: bpf.IPCacheService, PeerClass: class, Reconciled: tables.Pending()})
	}
	world := bpf.ClassKey{Role: bpf.RolePeer, Number: h.peerClass("198.51.100.1")}
	for _, addr := range []string{"198.51.100.1", "198.51.101.1", "198.51.101.2", "198.51.101.3"} { // most stay
		desire(addr, world.Number)
	}
	h.marker(1)
	awaitLeaver := func(is bool) {
		h.await(func(txn statedb.ReadTxn) string {
			row := tables.ClassRow(txn, h.members, world)
			if isLeaver(row, single(netip.MustParseAddr("198.51.100.1"))) != is {
				return fmt.Sprintf("class %s is being left by %v", world, row.Leavers)
			}
			return ""
		})
	}

	q := policy("q", "app=none", cidr("198.51.100.0/24", false))
	put(h, h.NetworkPolicies, q)
	awaitLeaver(true)
	desire("198.51.100.1", h.peerClass("198.51.100.1"))
	h.marker(2)
	awaitLeaver(true) // the kernel may be about to have it there

	remove(h, h.NetworkPolicies, q)
	awaitLeaver(false)
}

// A class that has ended, and that the kernel gets somebody into by a write that was
// under way, is none of those from before a start: nobody waits until that is undone.
func TestEndedClassIsEnteredLate(t *testing.T) {
	h, _ := twoKinds(t)
	q := policy("q", "app=web", pods("app=late"))
	put(h, h.NetworkPolicies, q)
	h.settle(twoKindsAddrs)
	put(h, h.Rules, enforced(q))
	late := pod("a/late", here, "10.1.0.9", labels.Set{"app": "late"})
	web := pod("a/web", here, "10.1.0.8", labels.Set{"app": "web"})
	put(h, h.Endpoints, late, web)
	h.await(h.wrong([]netip.Addr{late.Addrs[0], web.Addrs[0]}))
	peer := bpf.ClassKey{Role: bpf.RolePeer, Number: h.peerClass("10.1.0.9")}
	subject := bpf.ClassKey{Role: bpf.RoleSubject, Number: tables.MemberOf(h.db.ReadTxn(), h.members, bpf.RoleSubject, web).Class}
	desired := &tables.IPCache{Prefix: single(late.Addrs[0]), PeerClass: peer.Number}
	local := &tables.LocalEndpoint{Addr: web.Addrs[0], SubjectClass: subject.Number}
	put(h, h.IPCache, desired)
	put(h, h.Locals, local)
	remove(h, h.Endpoints, late, web)
	remove(h, h.IPCache, desired)
	remove(h, h.Locals, local)
	awaitRow := func(key bpf.ClassKey, is bool) {
		h.await(func(txn statedb.ReadTxn) string {
			if row := tables.ClassRow(txn, h.members, key); (row != nil) != is {
				return fmt.Sprintf("class %s has row %v", key, row)
			}
			return ""
		})
	}
	awaitRow(peer, false)
	awaitRow(subject, false)

	inKernel := &tables.IPCacheEntry{Key: desired.MapKey(), Value: desired.MapValue()}
	pod := &tables.PodEntry{Key: local.MapKey(), Value: local.MapValue()}
	put(h, h.IPCacheEntries, inKernel)
	put(h, h.PodEntries, pod)
	awaitRow(peer, true)
	awaitRow(subject, true)
	h.awaitLeavers(peer, 1)
	remove(h, h.IPCacheEntries, inKernel)
	remove(h, h.PodEntries, pod)
	awaitRow(peer, false)
	awaitRow(subject, false)
}
