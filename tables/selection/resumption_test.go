// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"errors"
	"fmt"
	"testing"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// restarted starts anew with what the kernel has of an earlier run, and waits until
// the classes are those of the policy.
func (h *harness) restarted(prepare func(*harness), p *tables.NetworkPolicy) *harness {
	h.t.Helper()
	txn := h.db.ReadTxn()
	next := newHarness(h.t, func(next *harness) {
		prepare(next)
		put(next, next.NetworkPolicies, p)
		put(next, next.ClassEntries, statedb.Collect(h.ClassEntries.All(txn))...)
		put(next, next.IPCacheEntries, statedb.Collect(h.IPCacheEntries.All(txn))...)
		put(next, next.PodEntries, statedb.Collect(h.PodEntries.All(txn))...)
	})
	next.await(next.wrong(podAddrs()))
	return next
}

// row returns the row of a class.
func (h *harness) row(role bpf.Role, number uint32) *tables.ClassMember {
	h.t.Helper()
	row := tables.ClassRow(h.db.ReadTxn(), h.members, bpf.ClassKey{Role: role, Number: number})
	require.NotNil(h.t, row)
	return row
}

// leavers returns those that are to leave a class.
func leavers(row *tables.ClassMember) (prefixes []string) {
	for _, l := range row.Leavers {
		prefixes = append(prefixes, l.Prefix.String())
	}
	return prefixes
}

func beforeRestart(t *testing.T) (h *harness, a, b uint32) {
	h = newHarness(t, manyPods)
	put(h, h.NetworkPolicies, policy("p", "app=none", pods("n in (0,1,2)")))
	h.settle(podAddrs())
	a, b = h.peerClass("10.1.0.0"), h.peerClass("10.1.0.5")
	require.NotEqual(t, a, b)
	return h, a, b
}

func TestRestartWithTheSame(t *testing.T) {
	h, a, b := beforeRestart(t)
	next := h.restarted(manyPods, policy("p", "app=none", pods("n in (0,1,2)")))
	require.Equal(t, []uint32{a, b}, []uint32{next.peerClass("10.1.0.0"), next.peerClass("10.1.0.5")})
	require.Empty(t, next.unsettled(next.db.ReadTxn()))
}

// Classes whose addresses are alike to other policies too keep their numbers, and
// stand for what these ask for.
func TestRestartWithOtherMeanings(t *testing.T) {
	h, a, b := beforeRestart(t)
	next := h.restarted(manyPods, policy("q", "app=none", pods("n notin (3,4,5,6,7,8,9)")))
	require.Equal(t, []uint32{a, b}, []uint32{next.peerClass("10.1.0.0"), next.peerClass("10.1.0.5")})
	require.Contains(t, next.row(bpf.RolePeer, a).Selectors, tables.PeerSelectorID(pods("n notin (3,4,5,6,7,8,9)")))
	require.Empty(t, next.unsettled(next.db.ReadTxn()))

	// Of two classes that are alike now, one will be left; both are known.
	next = h.restarted(manyPods, policy("q", "app=none", pods("n in (77)")))
	require.Equal(t, next.peerClass("10.1.0.0"), next.peerClass("10.1.0.5"))
	require.Equal(t, next.row(bpf.RolePeer, a).Digest, next.row(bpf.RolePeer, b).Digest)
	require.True(t, tables.ClassesKnown(next.db.ReadTxn(), next.members, bpf.RolePeer))
	next.settle(podAddrs())
}

// Where those of a class are to be told apart, the greater part stays, and the class
// is unknown until the others have gone to one that is for them alone: others with
// their signature had other verdicts before.
func TestRestartPartsClasses(t *testing.T) {
	h, a, b := beforeRestart(t)
	next := h.restarted(manyPods, policy("q", "app=none", pods("n in (0,1,9)")))
	txn := next.db.ReadTxn()
	require.True(t, next.row(bpf.RolePeer, a).MeaningUnknown())
	require.True(t, next.row(bpf.RolePeer, b).MeaningUnknown())
	require.Equal(t, []uint32{a, b}, []uint32{next.peerClass("10.1.0.0"), next.peerClass("10.1.0.5")})
	require.Equal(t, []uint32{b, a}, []uint32{next.peerClass("10.1.0.2"), next.peerClass("10.1.0.9")})
	require.Equal(t, []string{"10.1.0.2/32"}, leavers(next.row(bpf.RolePeer, a)))
	require.Equal(t, []string{"10.1.0.9/32"}, leavers(next.row(bpf.RolePeer, b)))
	signature := func(addr string) bpf.Digest {
		return next.places.Member(txn, single(pod("a/x", here, addr, nil).Addrs[0])).Digest
	}
	two := tables.ClassContinuing(txn, next.members, bpf.ClassKey{Role: bpf.RolePeer, Number: a}, signature("10.1.0.2"))
	nine := tables.ClassContinuing(txn, next.members, bpf.ClassKey{Role: bpf.RolePeer, Number: b}, signature("10.1.0.9"))
	require.NotNil(t, two)
	require.NotNil(t, nine)
	require.NotContains(t, []uint32{a, b, nine.Class}, two.Class)
	require.NotContains(t, []uint32{a, b}, nine.Class)

	next.settle(podAddrs())
	require.False(t, next.row(bpf.RolePeer, a).MeaningUnknown())
	require.Nil(t, tables.ClassRow(next.db.ReadTxn(), next.members, bpf.ClassKey{Role: bpf.RolePeer, Number: two.Class}))
}

// A new class that all of a signature come to from one class continues that one.
func TestRestartNewClassContinues(t *testing.T) {
	h, _, b := beforeRestart(t)
	next := h.restarted(manyPods, policy("q", "app=none", pods("n in (0,1,2)"), pods("n=9")))
	class := next.peerClass("10.1.0.9")
	require.Equal(t, b, next.row(bpf.RolePeer, class).Continues)
	require.Len(t, statedb.Collect(next.members.List(next.db.ReadTxn(), tables.ClassRowsContinuing(bpf.ClassKey{Role: bpf.RolePeer, Number: b}))), 1)
	next.settle(podAddrs())
	require.Equal(t, class, next.peerClass("10.1.0.9"))
}

// Subjects leave a class that is to be parted all together.
func TestRestartPartsSubjects(t *testing.T) {
	h := newHarness(t, manyPods)
	put(h, h.NetworkPolicies, policy("p", "app=web", pods("app=none")))
	h.settle(podAddrs())
	before := tables.MemberOf(h.db.ReadTxn(), h.members, bpf.RoleSubject, pod("a/p3", here, "10.1.0.3", map[string]string{"app": "web", "n": "3"}))
	require.NotZero(t, before.Class)
	next := h.restarted(manyPods, policy("q", "n in (3,4)", pods("app=none")))
	require.True(t, next.row(bpf.RoleSubject, before.Class).MeaningUnknown())
	after := tables.MemberOf(next.db.ReadTxn(), next.members, bpf.RoleSubject, pod("a/p3", here, "10.1.0.3", map[string]string{"app": "web", "n": "3"}))
	require.NotEqual(t, before.Class, after.Class)
	require.Len(t, next.row(bpf.RoleSubject, before.Class).Leavers, 10)
	next.settle(podAddrs())
}

// A class of addresses that nobody has any more is unknown until they are gone, and
// one whose writes all fail is not waited for.
func TestRestartWithOthers(t *testing.T) {
	h, a, b := beforeRestart(t)
	next := h.restarted(manyPods, policy("q", "app=none", pods("n in (0,1,9)")))
	stuck := func(number uint32) func(statedb.ReadTxn) string {
		return func(txn statedb.ReadTxn) string {
			if row := tables.ClassRow(txn, next.members, bpf.ClassKey{Role: bpf.RolePeer, Number: number}); row == nil || !row.Stuck {
				return fmt.Sprintf("not stuck: %+v", row)
			}
			return ""
		}
	}
	for class, addr := range map[uint32]string{a: "10.1.0.2", b: "10.1.0.9"} {
		c := &tables.IPCache{Prefix: single(pod("a/x", here, addr, nil).Addrs[0]), PeerClass: 99, WaitsFor: next.peerClass(addr)}
		put(next, next.IPCache, tables.WithStatus(c, reconciler.StatusError(errors.New("no room"))))
		next.await(stuck(class))
	}
	require.True(t, tables.ClassesKnown(next.db.ReadTxn(), next.members, bpf.RolePeer))
}
