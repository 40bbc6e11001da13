// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

func TestStatus(t *testing.T) {
	a := settledWorld(t)
	a.program()
	p := ingressPolicy("p", "web", allow("a"))
	p.Generation = 3
	a.put(p)
	s := a.status("p")
	require.Equal(t, tables.PolicyPending, s.State)
	require.False(t, s.Settled)
	require.EqualValues(t, 3, s.Generation)
	require.Equal(t, 2, s.EntriesWanted) // the default, and what is allowed
	require.Zero(t, s.Programmed)
	require.False(t, s.Since.IsZero())
	require.Zero(t, s.Done)

	a.program()
	done := a.status("p")
	require.Equal(t, tables.PolicyInForce, done.State)
	require.Equal(t, 2, done.Programmed)
	require.Equal(t, s.Since, done.Since)
	require.False(t, done.Done.Before(done.Since) || done.Done.IsZero())

	// Something else about its entries is nothing new to it.
	a.put(ingressPolicy("q", "web", allow("a")))
	require.Equal(t, tables.PolicyPending, a.status("p").State)
	require.Equal(t, done.Done, a.status("p").Done)
	a.remove(ingressPolicy("q", "web"))
	a.program()
	require.Equal(t, tables.PolicyInForce, a.status("p").State)

	// What it allows no more is in the kernel still: it is not in force.
	a.put(ingressPolicy("p", "web"))
	s = a.status("p")
	require.Equal(t, tables.PolicyPending, s.State)
	require.Equal(t, 1, s.EntriesWanted)
	require.Equal(t, 1, s.Programmed)
	a.program()
	require.Equal(t, tables.PolicyInForce, a.status("p").State)

	// The kernel refuses an entry.
	a.put(p)
	wtxn := a.DB.WriteTxn(a.Entries.RWTable)
	for e := range a.Entries.List(wtxn, tables.PolicyEntriesByPolicy(policyID("p"))) {
		put(a, wtxn, a.Entries.RWTable, tables.WithStatus(e, reconciler.StatusError(errors.New("full"))))
	}
	wtxn.Commit()
	a.quiet()
	require.Equal(t, tables.PolicyFailed, a.status("p").State)
	require.Equal(t, 2, a.status("p").Failed)
	a.program()
	require.Equal(t, tables.PolicyInForce, a.status("p").State)

	// Nobody here is chosen any more, and then somebody is.
	web := subjectRow(1, "web")
	a.remove(web)
	a.program()
	require.Equal(t, tables.PolicyNotHere, a.status("p").State)
	a.put(web)
	require.Equal(t, tables.PolicyPending, a.status("p").State)
	a.program()
	require.Equal(t, tables.PolicyInForce, a.status("p").State)

	a.remove(p)
	require.Zero(t, a.Status.NumObjects(a.DB.ReadTxn()))
}

// A policy is not in force while the kernel does not have its pods in their class.
func TestStatusOfPods(t *testing.T) {
	a := settledWorld(t)
	a.put(ingressPolicy("p", "web"), ingressPolicy("other", "db"))
	a.program()
	pod := func(class, waitsFor uint32, status reconciler.Status) *tables.LocalEndpoint {
		return &tables.LocalEndpoint{Addr: netip.MustParseAddr("10.0.0.1"), SubjectClass: class, WaitsFor: waitsFor, Reconciled: tables.Reconciled{Status: status}}
	}
	for _, tc := range []struct {
		pod   *tables.LocalEndpoint
		state tables.PolicyState
	}{
		{pod(0, 1, reconciler.StatusDone()), tables.PolicyPending},
		{pod(1, 0, reconciler.StatusPending()), tables.PolicyPending},
		{pod(1, 0, reconciler.StatusError(errors.New("refused"))), tables.PolicyFailed},
		{pod(1, 0, reconciler.StatusDone()), tables.PolicyInForce},
		{pod(1, 2, reconciler.StatusDone()), tables.PolicyInForce},
	} {
		a.put(tc.pod)
		require.Equal(t, tc.state, a.status("p").State, "%+v", tc.pod)
		require.Equal(t, tc.state == tables.PolicyInForce, a.status("p").Settled)
	}
}

func TestStatusOfMistakes(t *testing.T) {
	a := settledWorld(t)
	invalid := ingressPolicy("invalid", "web", allow("a"))
	invalid.Errors = []tables.FieldError{{Field: "spec.ingress[1]", Reason: "what is wrong"}}
	unsupported := ingressPolicy("unsupported", "web")
	unsupported.Unsupported = []tables.FieldError{{Field: "spec.ingress[0]", Reason: "http"}}
	none := ingressPolicy("none", "web")
	none.Rules, none.Errors = nil, invalid.Errors
	a.put(invalid, unsupported, none)
	require.Equal(t, tables.PolicyInvalid, a.status("invalid").State)
	require.False(t, a.status("invalid").Settled)
	a.program()
	for name, state := range map[string]tables.PolicyState{
		"invalid": tables.PolicyInvalid, "unsupported": tables.PolicyUnsupported, "none": tables.PolicyInvalid,
	} {
		s := a.status(name)
		require.Equal(t, state, s.State)
		require.True(t, s.Settled, name)
		require.Equal(t, s.Wanted, s.InForce, name)
		require.NotEmpty(t, append(s.Errors, s.Unsupported...))
	}
	// What can be used of it is in force all the same.
	require.Contains(t, a.entries(), "ingress 1 any: allow 1")
}

func TestReadiness(t *testing.T) {
	a := settledWorld(t)
	ready := func(role bpf.Role, class uint32) bool {
		m := tables.ClassRow(a.DB.ReadTxn(), a.Members, bpf.ClassKey{Role: role, Number: class})
		return tables.ClassIsReady(a.DB.ReadTxn(), a.Readiness, bpf.ClassKey{Role: role, Number: class}, m.Digest)
	}
	// Without rules a peer class has no verdicts, but a subject class has its
	// defaults.
	require.False(t, ready(bpf.RolePeer, 1))
	a.register()
	require.True(t, ready(bpf.RolePeer, 1))
	require.False(t, ready(bpf.RoleSubject, 1))
	a.program()
	require.True(t, ready(bpf.RoleSubject, 1))

	// Verdicts that change later do so for all in the class.
	a.put(ingressPolicy("p", "web", allow("a")))
	require.True(t, ready(bpf.RolePeer, 1))
	require.True(t, ready(bpf.RoleSubject, 1))

	// A new class with verdicts.
	peer := peerRow(3, "a")
	a.put(peer)
	a.register()
	require.False(t, ready(bpf.RolePeer, 3))
	a.program()
	require.True(t, ready(bpf.RolePeer, 3))

	// It stands for something else, by which its verdicts are as they were.
	a.put(peerRow(3, "a", "new"))
	require.False(t, ready(bpf.RolePeer, 3))
	a.register()
	require.True(t, ready(bpf.RolePeer, 3))

	// And once more, while somebody leaves and the record stays.
	changed := left(peerRow(3, "a", "new", "newer"), "b")
	a.put(changed)
	require.True(t, ready(bpf.RolePeer, 3))

	// It loses verdicts: it is ready when the kernel has them no more.
	a.put(peerRow(3, "b"))
	a.register()
	require.False(t, ready(bpf.RolePeer, 3))
	a.program()
	require.True(t, ready(bpf.RolePeer, 3))

	a.remove(peer)
	require.False(t, tables.ClassIsReady(a.DB.ReadTxn(), a.Readiness, bpf.ClassKey{Role: bpf.RolePeer, Number: 3}, peer.Digest))
}

func TestCookies(t *testing.T) {
	a := settledWorld(t)
	p := ingressPolicy("p", "web", allow("a"))
	a.put(p)
	rules := func() map[string]uint32 {
		got := map[string]uint32{}
		for c := range a.Cookies.All(a.DB.ReadTxn()) {
			got[c.TableRow()[1]] = c.Cookie
		}
		return got
	}
	const id = "CiliumNetworkPolicy/default/p "
	item := tables.CookieOf([]tables.RuleID{ruleID("p", bpf.DirectionIngress, 0)})
	byDefault := tables.CookieOf([]tables.RuleID{ruleID("p", bpf.DirectionIngress, -1)})
	require.Equal(t, map[string]uint32{id + "spec.ingress": byDefault, id + "spec.ingress[0]": item}, rules())

	// In use for as long as the kernel has it, and by the name that it had.
	a.program()
	a.remove(p)
	require.Equal(t, map[string]uint32{id + "spec.ingress": byDefault, id + "spec.ingress[0]": item}, rules())
	a.program()
	require.Empty(t, rules())

	// The field of a rule follows its object.
	a.put(p)
	moved := ingressPolicy("p", "web", allow("a"))
	moved.Rules[0].Ingress.Traffic[0].Field = "specs[0].ingress[0]"
	a.put(moved)
	require.Equal(t, item, rules()[id+"specs[0].ingress[0]"])
}
