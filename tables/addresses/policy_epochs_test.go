// SPDX-License-Identifier: Apache-2.0

package addresses

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

const (
	tcp    = 6
	inward = bpf.DirectionIngress
)

var (
	allowed       = bpf.PolicyValue{Precedence: bpf.PrecedenceAllow}
	denied        = bpf.PolicyValue{Precedence: bpf.PrecedenceDeny, Deny: 1}
	defaultDenied = bpf.PolicyValue{Deny: 1}
)

func (w *world) verdict(value bpf.PolicyValue, subject, peer uint32, ports ...uint16) {
	insert(w, w.Policy, &tables.PolicyMapEntry{Key: keyOf(subject, peer, ports), Value: value, Wanted: tables.WantedSame})
}

func (w *world) noVerdict(subject, peer uint32, ports ...uint16) {
	remove(w, w.Policy, &tables.PolicyMapEntry{Key: keyOf(subject, peer, ports)})
}

func keyOf(subject, peer uint32, ports []uint16) bpf.PolicyKey {
	if len(ports) == 0 {
		return bpf.PolicyKeyOf(subject, peer, inward, 0, 0, 0)
	}
	return bpf.PolicyKeyOf(subject, peer, inward, tcp, ports[0], 16)
}

func (w *world) inKernel(prefix string, class uint32, flags bpf.IPCacheFlags) *tables.IPCacheEntry {
	e := &tables.IPCacheEntry{
		Key:    bpf.IPCacheKeyFrom(netip.MustParsePrefix(prefix)),
		Value:  bpf.IPCacheValue{PeerClass: class, Flags: flags},
		Wanted: tables.WantedSame,
	}
	insert(w, w.PeerEntries, e)
	return e
}

// enforced is a world with two pods in subject class 1 and one in class 2. Peers
// of class 5 may come in to both, to port 80 of class 1 those of class 6, and
// nobody else.
func enforced(t *testing.T) *world {
	w := newWorld(t)
	for subject := uint32(1); subject <= 3; subject++ {
		w.verdict(defaultDenied, subject, 0)
		w.verdict(allowed, subject, 5)
		w.ready(bpf.RoleSubject, subject)
	}
	w.verdict(allowed, 1, 6, 80)
	w.verdict(allowed, 1, 9) // nobody is in class 9
	w.inKernel("0.0.0.0/0", 4, 0)
	w.inKernel("10.9.0.5/32", 5, bpf.IPCachePod)
	w.inKernel("10.9.0.6/32", 6, bpf.IPCachePod)
	w.inKernel("10.9.0.7/32", 7, bpf.IPCachePod)
	w.inKernel("10.8.0.0/16", 5, 0)
	w.member(bpf.RoleSubject, "one", "", 1)
	w.member(bpf.RoleSubject, "two", "", 2)
	w.member(bpf.RoleSubject, "marker", "", 0)
	w.pod("a", "10.0.0.1", "one")
	w.pod("b", "10.0.0.2", "one")
	w.pod("c", "10.0.0.3", "two")
	w.start()
	w.write()
	w.settle()
	return w
}

func (w *world) epochs() (epochs [3]uint32) {
	for i, addr := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"} {
		epochs[i] = w.local(addr).Epoch
	}
	return epochs
}

func TestEpochsAreRaisedWhenSomethingIsRevoked(t *testing.T) {
	none, one, two, all := [3]bool{}, [3]bool{true, true, false}, [3]bool{false, false, true}, [3]bool{true, true, true}
	for _, test := range []struct {
		name   string
		raised [3]bool
		change func(w *world)
	}{
		{"nothing", none, func(*world) {}},
		{"an allowance more", none, func(w *world) { w.verdict(allowed, 1, 7) }},
		{"an allowance more to all", none, func(w *world) { w.verdict(allowed, 1, 0, 443) }},
		{"an allowance less", one, func(w *world) { w.noVerdict(1, 5) }},
		{"of one port", one, func(w *world) { w.noVerdict(1, 6, 80) }},
		{"of the other class", two, func(w *world) { w.noVerdict(2, 5) }},
		{"of a class that nobody is in", none, func(w *world) { w.noVerdict(1, 9) }},
		{"of a subject that nobody is in", none, func(w *world) { w.noVerdict(3, 5) }},
		{"other rules say the same", none, func(w *world) {
			v := allowed
			v.Cookie = 77
			w.verdict(v, 1, 5)
		}},
		{"an entry for what another covers", none, func(w *world) {
			w.verdict(allowed, 1, 5, 80)
			w.settle()
			w.noVerdict(1, 5, 80)
		}},
		{"a longer entry replaced by a shorter one", none, func(w *world) {
			w.verdict(allowed, 1, 6)
			w.noVerdict(1, 6, 80)
		}},
		{"a denial", one, func(w *world) { w.verdict(denied, 1, 5, 443) }},
		{"a denial of what was denied", none, func(w *world) { w.verdict(denied, 1, 6, 443) }},
		{"a denial to all", one, func(w *world) { w.verdict(denied, 1, 0, 80) }},
		{"a denial goes", none, func(w *world) {
			w.verdict(denied, 1, 7)
			w.settle()
			w.noVerdict(1, 7)
		}},
		{"the default comes to allow, and then not", one, func(w *world) {
			w.verdict(bpf.PolicyValue{}, 1, 0)
			w.settle()
			w.verdict(defaultDenied, 1, 0)
		}},
		{"a peer goes to a class with less", one, func(w *world) { w.inKernel("10.9.0.6/32", 7, bpf.IPCachePod) }},
		{"of all subjects", all, func(w *world) { w.inKernel("10.9.0.5/32", 7, bpf.IPCachePod) }},
		{"with less to one of them", two, func(w *world) {
			w.verdict(allowed, 1, 8)
			w.inKernel("10.9.0.5/32", 8, bpf.IPCachePod)
		}},
		{"a peer goes to a class with more", none, func(w *world) { w.inKernel("10.9.0.6/32", 5, bpf.IPCachePod) }},
		{"a peer goes to a class that is alike", none, func(w *world) {
			w.verdict(allowed, 1, 8)
			w.verdict(allowed, 2, 8)
			w.settle()
			w.inKernel("10.9.0.5/32", 8, bpf.IPCachePod)
			w.inKernel("10.8.0.0/16", 8, 0)
			w.settle()
			w.noVerdict(1, 5) // the class is retired
			w.noVerdict(2, 5)
		}},
		{"the peers leave a class that ends meanwhile", all, func(w *world) {
			w.inKernel("10.9.0.5/32", 7, bpf.IPCachePod)
			w.inKernel("10.8.0.0/16", 7, 0)
			w.noVerdict(1, 5)
			w.noVerdict(2, 5)
		}},
		{"a pod comes with less than what is around it", all, func(w *world) { w.inKernel("10.8.0.1/32", 7, bpf.IPCachePod) }},
		{"with a denial", one, func(w *world) {
			w.verdict(allowed, 1, 8)
			w.verdict(allowed, 2, 8)
			w.verdict(denied, 1, 8, 22)
			w.settle()
			w.inKernel("10.8.0.1/32", 8, bpf.IPCachePod)
		}},
		{"with as much", none, func(w *world) { w.inKernel("10.8.0.1/32", 5, bpf.IPCachePod) }},
		{"in another class that is alike", none, func(w *world) {
			w.verdict(allowed, 1, 8)
			w.verdict(allowed, 2, 8)
			w.inKernel("10.8.0.1/32", 8, bpf.IPCachePod)
		}},
		{"with more", none, func(w *world) { w.inKernel("10.7.0.1/32", 5, bpf.IPCachePod) }},
		{"where nothing is around it", none, func(w *world) { w.inKernel("fd00::1/128", 7, bpf.IPCachePod) }},
		{"a node comes with less", all, func(w *world) { w.inKernel("10.8.0.1/32", 7, bpf.IPCacheNode) }},
		{"a pod comes with less than what was just allowed around it", one, func(w *world) {
			w.verdict(allowed, 1, 4)
			w.inKernel("10.7.0.1/32", 7, bpf.IPCachePod)
		}},
		{"a pod with less goes", none, func(w *world) {
			remove(w, w.PeerEntries, &tables.IPCacheEntry{Key: bpf.IPCacheKeyFrom(netip.MustParsePrefix("10.9.0.7/32"))})
		}},
		{"an allowed pod goes", all, func(w *world) {
			remove(w, w.PeerEntries, &tables.IPCacheEntry{Key: bpf.IPCacheKeyFrom(netip.MustParsePrefix("10.9.0.5/32"))})
		}},
		{"one that was allowed to one of them goes", one, func(w *world) {
			remove(w, w.PeerEntries, &tables.IPCacheEntry{Key: bpf.IPCacheKeyFrom(netip.MustParsePrefix("10.9.0.6/32"))})
		}},
		{"a prefix with less is set off", all, func(w *world) { w.inKernel("10.8.1.0/24", 7, 0) }},
		{"a prefix with as much is set off", none, func(w *world) { w.inKernel("10.8.1.0/24", 5, 0) }},
		{"a prefix with more is set off", none, func(w *world) { w.inKernel("10.7.1.0/24", 5, 0) }},
		{"and goes", all, func(w *world) {
			e := w.inKernel("10.7.1.0/24", 5, 0)
			w.settle()
			remove(w, w.PeerEntries, e)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := enforced(t)
			before := w.epochs()
			test.change(w)
			w.settle()
			after := w.epochs()
			for i := range before {
				require.Equal(t, test.raised[i], after[i] > before[i], "pod %d: %d, then %d", i, before[i], after[i])
			}
		})
	}
}

func TestSubjectGoesToAnotherClass(t *testing.T) {
	for _, test := range []struct {
		name   string
		raised bool
		fill   func(w *world)
	}{
		{"with the same", false, func(w *world) { w.verdict(allowed, 8, 5); w.verdict(allowed, 8, 6, 80) }},
		{"with more", false, func(w *world) { w.verdict(allowed, 8, 0) }},
		{"with less", true, func(w *world) { w.verdict(allowed, 8, 5) }},
		{"without what applied to nobody", false, func(w *world) { w.verdict(allowed, 8, 5); w.verdict(allowed, 8, 6) }},
		{"with a denial", true, func(w *world) { w.verdict(allowed, 8, 0); w.verdict(denied, 8, 5, 22) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := enforced(t)
			before := w.local("10.0.0.1")
			w.verdict(defaultDenied, 8, 0)
			test.fill(w)
			w.member(bpf.RoleSubject, "eight", "", 8)
			w.pod("a", "10.0.0.1", "eight")
			w.settle()
			row := w.local("10.0.0.1")
			require.EqualValues(t, 1, row.SubjectClass)
			require.EqualValues(t, 8, row.WaitsFor)
			require.Equal(t, before.Epoch, row.Epoch)

			w.ready(bpf.RoleSubject, 8)
			w.settle()
			row = w.local("10.0.0.1")
			require.EqualValues(t, 8, row.SubjectClass)
			require.Zero(t, row.WaitsFor)
			require.Equal(t, test.raised, row.Epoch > before.Epoch)

			// No policy chooses it any more: all is allowed.
			w.member(bpf.RoleSubject, "free", "", 0)
			w.pod("a", "10.0.0.1", "free")
			w.settle()
			require.Zero(t, w.local("10.0.0.1").SubjectClass)
			require.Equal(t, row.Epoch, w.local("10.0.0.1").Epoch)

			// One does again.
			w.pod("a", "10.0.0.1", "one")
			w.settle()
			require.EqualValues(t, 1, w.local("10.0.0.1").SubjectClass)
			require.Greater(t, w.local("10.0.0.1").Epoch, row.Epoch)
		})
	}
}

// What is alive of a pod whose verdicts are not known was not allowed by them.
func TestPodIsHeldUntilItsClassIsReady(t *testing.T) {
	w := enforced(t)
	w.pod("new", "10.0.0.9", "eight")
	w.settle()
	row := w.local("10.0.0.9")
	require.Equal(t, bpf.PodPolicyUnknown, row.Flags)
	require.Zero(t, row.SubjectClass)

	w.member(bpf.RoleSubject, "eight", "", 8)
	w.settle()
	require.Equal(t, bpf.PodPolicyUnknown, w.local("10.0.0.9").Flags)
	require.EqualValues(t, 8, w.local("10.0.0.9").WaitsFor)

	w.verdict(defaultDenied, 8, 0)
	w.ready(bpf.RoleSubject, 8)
	w.settle()
	require.Zero(t, w.local("10.0.0.9").Flags)
	require.EqualValues(t, 8, w.local("10.0.0.9").SubjectClass)
	require.Equal(t, row.Epoch, w.local("10.0.0.9").Epoch)

	// Another pod gets the address: it does not get the class too.
	w.ready(bpf.RoleSubject, 10)
	remove(w, w.Endpoints, &tables.Endpoint{Name: tables.Name{Namespace: "prod", Name: "new"}})
	w.pod("newer", "10.0.0.9", "ten")
	w.settle()
	require.Equal(t, bpf.PodPolicyUnknown, w.local("10.0.0.9").Flags)
	require.Zero(t, w.local("10.0.0.9").SubjectClass)
	require.Greater(t, w.local("10.0.0.9").Epoch, row.Epoch)
}

// What peers lose by going from one class to another is remembered from round to
// round, as long as the verdicts stay.
func TestPeersAppearOneAfterAnother(t *testing.T) {
	w := enforced(t)
	before := w.epochs()
	raised := func() (raised [3]bool) {
		w.settle()
		after := w.epochs()
		for i := range before {
			raised[i] = after[i] > before[i]
		}
		before = after
		return raised
	}
	w.inKernel("10.8.0.1/32", 6, bpf.IPCachePod)
	require.Equal(t, [3]bool{true, true, true}, raised())
	w.inKernel("10.8.0.2/32", 6, bpf.IPCachePod)
	require.Equal(t, [3]bool{true, true, true}, raised())

	w.verdict(allowed, 1, 6)
	require.Equal(t, [3]bool{}, raised())
	w.inKernel("10.8.0.3/32", 6, bpf.IPCachePod)
	require.Equal(t, [3]bool{false, false, true}, raised())

	// The verdict goes in the round in which a pod comes.
	w.noVerdict(1, 6)
	w.inKernel("10.8.0.4/32", 6, bpf.IPCachePod)
	require.Equal(t, [3]bool{true, true, true}, raised())
	w.inKernel("10.8.0.5/32", 5, bpf.IPCachePod)
	require.Equal(t, [3]bool{}, raised())
}
