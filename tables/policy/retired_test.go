// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// Retired rules go though the kernel refuses a pod of the policy.
func TestRetiredRulesOfAPolicyWithARefusedPod(t *testing.T) {
	for _, refused := range []bool{false, true} {
		t.Run(fmt.Sprint("refused=", refused), func(t *testing.T) {
			a := newAgent(t, nil)
			a.put(evaluated(bpf.RoleSubject, subjectOf("web"))...)
			a.put(subjectRow(1, "web"))
			status := reconciler.StatusDone()
			if refused {
				status = reconciler.StatusError(errors.New("map full"))
			}
			a.put(&tables.LocalEndpoint{Addr: netip.MustParseAddr("10.0.0.1"), SubjectClass: 1, Reconciled: tables.Reconciled{Status: status}})
			for i := range 6 {
				l := fmt.Sprintf("l%d", i)
				a.put(evaluated(bpf.RolePeer, peerOf(l))...)
				a.put(peerRow(uint32(i+1), l))
				a.put(ingressPolicy("p", "web", allow(l)))
				a.program()
			}
			row, _, _ := a.Rules.Get(a.DB.ReadTxn(), tables.EnforcedPolicyByID(policyID("p")))
			require.Empty(t, row.Retired)
		})
	}
}

// Nor do they stay for an entry of another rule that does not fit into the map.
func TestRetiredRulesWhileAnEntryDoesNotFit(t *testing.T) {
	a := newAgent(t, nil)
	a.put(evaluated(bpf.RoleSubject, subjectOf("web"))...)
	a.put(evaluated(bpf.RolePeer, peerOf("full"), peerOf("l0"), peerOf("l1"), peerOf("l2"), peerOf("l3"))...)
	a.put(subjectRow(1, "web"), peerRow(9, "full"))
	for i := range 4 {
		a.put(peerRow(uint32(i+1), fmt.Sprintf("l%d", i)))
	}
	for i := range 4 {
		a.put(ingressPolicy("p", "web", allow(fmt.Sprintf("l%d", i)), allow("full")))
		a.program()
		wtxn := a.DB.WriteTxn(a.Kernel, a.Entries.RWTable)
		for e := range a.Entries.All(wtxn) {
			if e.Key.Peer == 9 {
				put(a, wtxn, a.Entries.RWTable, tables.WithStatus(e, reconciler.StatusError(errors.New("map full"))))
				remove(a, wtxn, a.Kernel, &tables.PolicyMapEntry{Key: e.Key})
			}
		}
		wtxn.Commit()
		a.quiet()
	}
	a.put(ingressPolicy("p", "web", allow("l0"), allow("full")))
	wtxn := a.DB.WriteTxn(a.Kernel, a.Entries.RWTable)
	for e := range a.Entries.All(wtxn) {
		if e.Key.Peer != 9 {
			put(a, wtxn, a.Kernel, &tables.PolicyMapEntry{Key: e.Key, Value: e.Value, Wanted: tables.WantedSame})
			put(a, wtxn, a.Entries.RWTable, tables.WithStatus(e, reconciler.StatusDone()))
		}
	}
	for e := range a.Kernel.All(wtxn) {
		if _, _, ok := a.Entries.Get(wtxn, tables.PolicyEntryByKey(e.Key)); !ok {
			remove(a, wtxn, a.Kernel, e)
		}
	}
	wtxn.Commit()
	a.quiet()
	row, _, _ := a.Rules.Get(a.DB.ReadTxn(), tables.EnforcedPolicyByID(policyID("p")))
	require.Empty(t, row.Retired, "the kernel has nothing of them any more")
}
