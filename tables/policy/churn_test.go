// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// After any changes, of classes and policies in one transaction too, the entries
// are those of a computation from scratch.
func TestEntriesAfterChurn(t *testing.T) {
	for seed := range uint64(10) {
		random := rand.New(rand.NewPCG(seed, 1))
		labels := []string{"a", "b", "c", "d"}
		some := func() (chosen []string) {
			for _, l := range labels {
				if random.IntN(2) == 0 {
					chosen = append(chosen, l)
				}
			}
			return chosen
		}
		a := newAgent(t, nil)
		var rows []any
		for _, l := range labels {
			rows = append(rows, evaluated(bpf.RoleSubject, subjectOf(l))...)
			rows = append(rows, evaluated(bpf.RolePeer, peerOf(l))...)
		}
		for _, role := range []bpf.Role{bpf.RoleSubject, bpf.RolePeer} {
			rows = append(rows, evaluated(role, tables.PortSelectorID(role, "web", 6))...)
		}
		a.put(rows...)
		for range 25 {
			a.change(func(wtxn statedb.WriteTxn) {
				for range 1 + random.IntN(4) {
					a.randomChange(wtxn, random, some)
				}
			})
			a.requireFromScratch(fmt.Sprintf("seed %d", seed))
			if random.IntN(3) == 0 {
				a.program()
				a.requireProgrammed(fmt.Sprintf("seed %d", seed))
			}
		}
	}
}

func (a *agent) randomChange(wtxn statedb.WriteTxn, random *rand.Rand, some func() []string) {
	number := 1 + random.Uint32N(4)
	var ports []tables.NamedPort
	if random.IntN(2) == 0 {
		ports = []tables.NamedPort{{Name: "web", Protocol: 6, Port: uint16(80 + random.IntN(2))}}
	}
	switch kind := random.IntN(5); kind {
	case 0, 1:
		row := peerRow(number, some()...)
		if kind == 1 {
			row = subjectRow(number, some()...)
		}
		row.Ports = ports
		row.Digest = tables.SignatureDigest(row.Selectors, ports)
		if random.IntN(4) == 0 {
			remove(a, wtxn, a.Members, row)
		} else if len(row.Selectors) > 0 {
			put(a, wtxn, a.Members, row)
		}
	default:
		p := ingressPolicy(fmt.Sprint("p", number), "abcd"[number-1:number])
		traffic := func() (items []tables.PolicyTraffic) {
			for range random.IntN(4) {
				item := allow(some()...)
				item.Deny, item.AnyPeer = random.IntN(3) == 0, random.IntN(5) == 0
				switch random.IntN(3) {
				case 0:
					item.Ports = []tables.PolicyPort{{Protocol: 6, Name: "web"}}
				case 1:
					item.Ports = []tables.PolicyPort{{Protocol: 6, First: 80, Last: uint16(80 + random.IntN(3))}}
				}
				item.Field = fmt.Sprintf("item[%d]", len(items))
				items = append(items, item)
			}
			return items
		}
		p.Rules[0].Ingress = tables.PolicyDirection{DefaultDeny: random.IntN(2) == 0, Traffic: traffic()}
		p.Rules[0].Egress = tables.PolicyDirection{DefaultDeny: random.IntN(2) == 0, Traffic: traffic()}
		if random.IntN(4) == 0 {
			remove(a, wtxn, a.Policies, p)
		} else {
			put(a, wtxn, a.Policies, p)
		}
	}
}

// classes returns the numbers of all classes of a role.
func (a *agent) classes(role bpf.Role) (numbers []uint32) {
	for m := range a.Members.List(a.DB.ReadTxn(), tables.ClassRowsOfRole(role)) {
		numbers = append(numbers, m.Class)
	}
	return numbers
}

func (a *agent) requireFromScratch(about string) {
	a.t.Helper()
	txn := a.DB.ReadTxn()
	want := map[bpf.PolicyKey]*tables.PolicyEntry{}
	world := Tables{Members: a.Members, Rules: a.Rules, Kernel: a.Kernel, Enforcement: tables.EnforcementDefault}
	for _, subject := range a.classes(bpf.RoleSubject) {
		for _, peer := range append(a.classes(bpf.RolePeer), bpf.AnyPeerClass) {
			for _, d := range directions {
				for _, e := range NewComputer(world).Entries(txn, tables.PolicyPair{Subject: subject, Direction: d, Peer: peer}) {
					want[e.Key] = e
				}
			}
		}
	}
	got := 0
	cookies := map[uint32]bool{}
	for e := range a.Entries.All(txn) {
		got++
		require.NotNil(a.t, want[e.Key], "%s: %s is not wanted", about, e.Key)
		require.True(a.t, want[e.Key].Equal(e), "%s: %s is %s, want %s", about, e.Key, e.Value, want[e.Key].Value)
		if cookie := e.Value.Cookie; cookie != 0 {
			cookies[cookie] = true
			row, _, found := a.Cookies.Get(txn, tables.RuleCookieByNumber(cookie))
			require.True(a.t, found, "%s: cookie of %s", about, e.Key)
			require.Equal(a.t, e.Rules, row.Rules)
			require.NotContains(a.t, row.Fields, "")
		}
	}
	require.Len(a.t, want, got, about)

	for e := range a.Kernel.All(txn) {
		cookies[e.Value.Cookie] = true
	}
	for row := range a.Cookies.All(txn) {
		require.True(a.t, cookies[row.Cookie], "%s: cookie %d is not in use", about, row.Cookie)
	}
	a.requireCounts(about)
}

// requireCounts checks the readiness of each class by counting.
func (a *agent) requireCounts(about string) {
	txn := a.DB.ReadTxn()
	rows := 0
	for _, role := range []bpf.Role{bpf.RoleSubject, bpf.RolePeer} {
		of := func(k bpf.PolicyKey, class uint32) bool {
			return role == bpf.RoleSubject && k.Subject == class || role == bpf.RolePeer && k.Peer == class
		}
		for _, class := range a.classes(role) {
			rows++
			got, _, found := a.Readiness.Get(txn, tables.PolicyReadinessByKey(bpf.ClassKey{Role: role, Number: class}))
			require.True(a.t, found)
			want := *got
			want.Digest = tables.ClassRow(txn, a.Members, got.ClassKey).Digest
			want.RowsWanted, want.RowsReady, want.RowsExtra = 0, 0, 0
			for e := range a.Entries.All(txn) {
				if of(e.Key, class) {
					want.RowsWanted++
				}
			}
			for m := range a.Kernel.All(txn) {
				if !of(m.Key, class) {
					continue
				}
				if e, _, wanted := a.Entries.Get(txn, tables.PolicyEntryByKey(m.Key)); wanted && e.Value == m.Value {
					want.RowsReady++
				} else {
					want.RowsExtra++
				}
			}
			require.Equal(a.t, want, *got, "%s: %s", about, got.ClassKey)
		}
	}
	require.Equal(a.t, rows, a.Readiness.NumObjects(txn), about)
}

// requireProgrammed checks what is said when the kernel has all.
func (a *agent) requireProgrammed(about string) {
	txn := a.DB.ReadTxn()
	for r := range a.Readiness.All(txn) {
		require.True(a.t, r.Ready && r.Registered && r.Settled(), "%s: %s: %+v", about, r.ClassKey, r)
	}
	for p := range a.Rules.All(txn) {
		require.Empty(a.t, p.Retired, "%s: %s", about, p.Policy)
	}
	decided := map[tables.PolicyID]int{}
	for e := range a.Entries.All(txn) {
		var seen []tables.PolicyID
		for _, r := range e.Rules {
			if !slices.Contains(seen, r.Policy) {
				seen = append(seen, r.Policy)
				decided[r.Policy]++
			}
		}
	}
	for s := range a.Status.All(txn) {
		require.True(a.t, s.Settled, "%s: %+v", about, s)
		require.Equal(a.t, s.Wanted, s.InForce)
		require.Contains(a.t, []tables.PolicyState{tables.PolicyInForce, tables.PolicyNotHere}, s.State)
		require.Equal(a.t, decided[s.Policy], s.EntriesWanted, "%s: %s", about, s.Policy)
		require.Equal(a.t, s.EntriesWanted, s.Programmed)
		require.False(a.t, s.Done.Before(s.Since))
	}
}

// Both classes of a pair lose what a rule chose them by in one moment, so that
// neither is found by the other.
func TestBothClassesLose(t *testing.T) {
	a := settledWorld(t)
	a.put(ingressPolicy("p", "web", allow("a")))
	a.program()
	require.Contains(t, a.entries(), "ingress 1 any: allow 1")
	a.put(subjectRow(1, "db"), peerRow(1, "b"))
	require.NotContains(t, a.entries(), "ingress 1 any: allow 1")
	a.requireFromScratch("")
	a.program()
	a.requireProgrammed("")
}
