// SPDX-License-Identifier: Apache-2.0

package rulesets

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
	"github.com/sluice-net/sluice/testdata/await"
)

// A subject in the empty ruleset waits for nothing, and a pod for its subject, whose route waits for the egress ruleset, whose rule waits
// for all buckets of its group. A rule that excludes waits for nothing.
func TestEgressChain(t *testing.T) {
	w := newWorld(t, true)
	pod := &tables.Pod{Addr: addr("10.0.0.1"), Subject: 1}
	subject := &tables.Subject{Life: life(1), Ruleset: bpf.EmptyRuleset}
	route := &tables.SubjectRoute{Subject: 1, EgressRuleset: 5}
	rule := &tables.EgressRule{Ruleset: 5, Destination: prefix("192.0.2.0/24"), Group: 3}
	excluded := &tables.EgressRule{
		Ruleset:     5,
		Destination: prefix("192.0.2.7/32"),
		Group:       bpf.GroupExcluded,
	}

	insert(w, w.Pods.RWTable, pod)
	awaitStatus(w, w.Pods.ToTable(), pod, waiting+"subject 1: subjects")
	insert(w, w.Routes.RWTable, route)
	awaitStatus(w, w.Routes.ToTable(), route, waiting+"egress ruleset 5: it is not in egress-rulesets")
	insert(w, w.Subjects.RWTable, subject)
	awaitStatus(w, w.Subjects.ToTable(), subject, "Done")
	awaitStatus(w, w.Pods.ToTable(), pod, waiting+"subject 1: subject-routes")

	insert(w, w.EgressRules.RWTable, rule, excluded)
	insert(w, w.egressRulesets, &tables.EgressRuleset{Life: life(5)})
	awaitStatus(w, w.EgressRules.ToTable(), excluded, "Done")
	awaitStatus(w, w.EgressRules.ToTable(), rule, waiting+"gateway group 3: egress-gateways")
	awaitStatus(w, w.Routes.ToTable(), route, waiting+"egress ruleset 5: egress-rules")
	bucket := func(n uint32) *tables.EgressGateway {
		return &tables.EgressGateway{
			GatewayKey: bpf.GatewayKey{Group: 3, Bucket: n},
			Addr:       addr("10.9.0.1"),
			Reconciled: tables.Pending(),
		}
	}
	for n := range uint32(bpf.GatewayBuckets - 1) {
		insert(w, w.Gateways.RWTable, bucket(n))
	}
	awaitStatus(w, w.Gateways.ToTable(), bucket(254), "Done")
	awaitStatus(w, w.EgressRules.ToTable(), rule, waiting+"gateway group 3: egress-gateways")
	w.memory.Fail("sluice_gateways", bpf.OpUpdate, unix.EPERM, -1)
	insert(w, w.Gateways.RWTable, bucket(255))
	awaitStatus(w, w.Gateways.ToTable(), bucket(255), "Error operation not permitted")
	awaitStatus(w, w.EgressRules.ToTable(), rule, waiting+"gateway group 3: egress-gateways")
	w.memory.Fail("sluice_gateways", bpf.OpAny, nil, 0)
	awaitStatus(w, w.Pods.ToTable(), pod, "Done")

	// A route that has to go holds up a pod that comes.
	w.memory.Fail("sluice_routes", bpf.OpDelete, unix.EPERM, -1)
	tablestest.Delete(w.t, w.DB, w.Routes.RWTable, route)
	next := &tables.Pod{Addr: addr("10.0.0.2"), Subject: 1}
	insert(w, w.Pods.RWTable, next)
	awaitStatus(w, w.Pods.ToTable(), next, waiting+"subject 1: subject-routes")
	w.memory.Fail("sluice_routes", bpf.OpAny, nil, 0)
	awaitStatus(w, w.Pods.ToTable(), next, "Done")
}

// The device of a pod waits for its programs, and what is known of it already for nothing.
func TestPodDevice(t *testing.T) {
	w := newWorld(t, true)
	pod := func(ifIndex uint32, subject uint32) *tables.Pod {
		return &tables.Pod{Addr: addr("10.0.0.1"), Subject: subject, IfIndex: ifIndex}
	}
	attach := func(ifIndex int, programs ...bpf.Program) {
		for _, program := range programs {
			insert(w, w.attachments, &tables.Attachment{
				IfIndex: ifIndex, Program: program, Reconciled: tables.Done(),
			})
		}
	}
	insert(w, w.Subjects.RWTable, &tables.Subject{Life: life(1)})
	insert(w, w.Pods.RWTable, pod(7, 1))
	awaitStatus(w, w.Pods.ToTable(), pod(7, 1),
		waiting+"device 7: "+bpf.ProgramFromPod.String()+" at device 7")
	attach(7, bpf.ProgramFromPod)
	awaitStatus(w, w.Pods.ToTable(), pod(7, 1),
		waiting+"device 7: "+bpf.ProgramToPod.String()+" at device 7")
	attach(7, bpf.ProgramToPod)
	awaitStatus(w, w.Pods.ToTable(), pod(7, 1), "Done")

	// Its subject is not complete any more, but it stays in it.
	attach(8, bpf.ProgramFromPod, bpf.ProgramToPod)
	insert(w, w.Subjects.RWTable, &tables.Subject{Life: life(1), Ruleset: 99})
	awaitStatus(w, w.Subjects.ToTable(), &tables.Subject{Life: life(1)},
		waiting+"ruleset 99: it is not in compiled")
	insert(w, w.Pods.RWTable, pod(8, 1))
	awaitStatus(w, w.Pods.ToTable(), pod(8, 1), "Done")
	insert(w, w.Pods.RWTable, pod(8, 2))
	awaitStatus(w, w.Pods.ToTable(), pod(8, 2), waiting+"subject 2: subjects")
	require.Zero(t, w.raised)
}

// An address waits for its member, the member for the policy entries of its class, these
// for their verdict sets, and these for all verdicts. A subject waits for the policy
// entries of its ruleset likewise.
func TestPolicyChain(t *testing.T) {
	w := newWorld(t, true)
	w.memory.Fail("sluice_verdicts", bpf.OpUpdate, unix.EPERM, -1)
	address := &tables.IPCache{Prefix: prefix("10.0.0.9/32"), Member: 4, Flags: bpf.IPCachePod}
	member := &tables.Member{Life: life(4), Class: 8}
	entry := &tables.PolicyEntry{Ruleset: 6, Class: 8, Set: 2}
	verdict := &tables.Verdict{Key: bpf.VerdictKeyOf(2, 6, 80, 16)}
	subject := &tables.Subject{Life: life(1), Ruleset: 6}

	insert(w, w.IPCache.RWTable, address)
	awaitStatus(w, w.IPCache.ToTable(), address, waiting+"member 4: members")
	insert(w, w.Members.RWTable, member)
	awaitStatus(w, w.Members.ToTable(), member, waiting+"class 8: it is not in compiled")
	awaitStatus(w, w.IPCache.ToTable(), address, waiting+"member 4: members")
	insert(w, w.Subjects.RWTable, subject)
	awaitStatus(w, w.Subjects.ToTable(), subject, waiting+"ruleset 6: it is not in compiled")

	insert(w, w.PolicyEntries.RWTable, entry)
	awaitStatus(w, w.PolicyEntries.ToTable(), entry,
		waiting+"verdict set 2: it is not in verdict-sets")
	insert(w, w.compiled, &tables.Compiled{Role: tables.CompiledClass, Number: 8},
		&tables.Compiled{Role: tables.CompiledRuleset, Number: 6})
	awaitStatus(w, w.Members.ToTable(), member, waiting+"class 8: policy-entries")
	awaitStatus(w, w.Subjects.ToTable(), subject, waiting+"ruleset 6: policy-entries")
	insert(w, w.Verdicts.RWTable, verdict)
	insert(w, w.verdictSets, &tables.VerdictSet{Number: 2})
	awaitStatus(w, w.Verdicts.ToTable(), verdict, "Error operation not permitted")
	other := &tables.PolicyEntry{Ruleset: 6, Set: 2}
	insert(w, w.PolicyEntries.RWTable, other)
	awaitStatus(w, w.PolicyEntries.ToTable(), other, waiting+"verdict set 2: verdicts")

	w.memory.Fail("sluice_verdicts", bpf.OpAny, nil, 0)
	awaitStatus(w, w.IPCache.ToTable(), address, "Done")
	awaitStatus(w, w.Subjects.ToTable(), subject, waiting+"ruleset 6: it is not in rulesets")
	insert(w, w.rulesets, &tables.Ruleset{Life: life(6), Rules: []*tables.Rule{{Peers: []uint32{3}}}})
	awaitStatus(w, w.Subjects.ToTable(), subject,
		waiting+"ruleset 6: selector 3: it is not evaluated")
	insert(w, w.matches, &tables.SelectorMatch{Selector: 3})
	awaitStatus(w, w.Subjects.ToTable(), subject,
		waiting+"ruleset 6: selector 3: it is not in selectors")
	selector, err := tables.NewSelector(tables.Selector{Life: life(3), SelectorSpec: tables.SelectorSpec{
		Text: "all", Peers: []tables.PolicyPeer{{Kind: tables.PeerEntity}},
	}})
	require.NoError(t, err)
	insert(w, w.selectors, selector)
	awaitStatus(w, w.Subjects.ToTable(), subject, "Done")
	await.True(t, func() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.raisedSoon > 0 },
		"connections of the pod are judged again, as it was not known before")
	require.Empty(t, w.flushed)
}

// Every key of a map leads back to its row.
func TestByKey(t *testing.T) {
	w := newWorld(t, false)
	for _, a := range []string{"10.0.0.1", "fd00::1"} {
		insert(w, w.Pods.RWTable, &tables.Pod{Addr: addr(a)})
	}
	for _, p := range []string{"0.0.0.0/0", "::/0", "10.0.0.0/8", "10.0.0.1/32", "fd00::/64", "::ffff:0:0/96"} {
		insert(w, w.IPCache.RWTable, &tables.IPCache{Prefix: prefix(p)})
		insert(w, w.EgressRules.RWTable, &tables.EgressRule{Ruleset: 3, Destination: prefix(p)})
	}
	txn := w.DB.ReadTxn()
	config := pods(&w.params, w.gates)
	for row := range w.Pods.All(txn) {
		found, _, _ := w.Pods.Get(txn, config.ByKey(row.MapKey()))
		require.Same(t, row, found)
	}
	for row := range w.IPCache.All(txn) {
		found, _, _ := w.IPCache.Get(txn, ipcacheByKey(row.MapKey()))
		require.Same(t, row, found, "%s", row.Prefix)
	}
	for row := range w.EgressRules.All(txn) {
		found, _, _ := w.EgressRules.Get(txn, egress(&w.params, w.gates).ByKey(row.MapKey()))
		require.Same(t, row, found)
	}
}
