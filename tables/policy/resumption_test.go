// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

const (
	oldSubject, newSubject = 1, 2
	oldPeer, newPeer       = 5, 6
)

func unknownRow(role bpf.Role, number uint32) *tables.ClassMember {
	return &tables.ClassMember{Role: role, OfClass: true, Class: number, Digest: bpf.Digest{byte(number)}}
}

// inKernelBefore is what an earlier agent has left: from the peers of oldPeer the
// subjects of oldSubject got port 80, from others nothing.
func inKernelBefore() (rows []*tables.PolicyMapEntry) {
	rows = append(rows,
		&tables.PolicyMapEntry{Key: bpf.PolicyKeyOf(oldSubject, 0, bpf.DirectionIngress, 0, 0, 0), Value: bpf.PolicyValue{Deny: 1, Cookie: 7}},
		&tables.PolicyMapEntry{Key: bpf.PolicyKeyOf(oldSubject, 0, bpf.DirectionEgress, 0, 0, 0)},
		&tables.PolicyMapEntry{Key: bpf.PolicyKeyOf(oldSubject, oldPeer, bpf.DirectionIngress, 6, 80, 16), Value: bpf.PolicyValue{Precedence: bpf.PrecedenceAllow, Cookie: 8}})
	return rows
}

// resumed starts where the class of the peer is to be parted, and with it that of
// the subject if so asked.
func resumed(t *testing.T, subject *tables.ClassMember) *agent {
	continuing := peerRow(newPeer, "new")
	continuing.Continues = oldPeer
	return newAgent(t, func(a *agent) {
		wtxn := a.DB.WriteTxn(a.Policies, a.Selectors, a.Members, a.Kernel)
		defer wtxn.Commit()
		put(a, wtxn, a.Policies, ingressPolicy("now", "subject", allow("new")))
		evaluateAll(a, wtxn)
		put(a, wtxn, a.Members, subject, subjectRow(newSubject, "subject"), unknownRow(bpf.RolePeer, oldPeer), continuing)
		put(a, wtxn, a.Kernel, inKernelBefore()...)
	})
}

func (a *agent) readiness(role bpf.Role, number uint32) tables.PolicyReadiness {
	row, _, found := a.Readiness.Get(a.DB.ReadTxn(), tables.PolicyReadinessByKey(bpf.ClassKey{Role: role, Number: number}))
	require.True(a.t, found)
	return *row
}

func (a *agent) value(subject, peer uint32, protocol uint8, port uint16) *bpf.PolicyValue {
	get := func(key bpf.PolicyKey) (bpf.PolicyValue, bool) {
		e, _, found := a.Entries.Get(a.DB.ReadTxn(), tables.PolicyEntryByKey(key))
		if !found {
			return bpf.PolicyValue{}, false
		}
		return e.Value, true
	}
	v, _, found := Lookup(get, subject, peer, bpf.DirectionIngress, protocol, port)
	if !found {
		return nil
	}
	return &v
}

// While peers are being told apart, subjects keep their verdicts, also those on peers
// that have gone over; those of now come when no class is unknown any more.
func TestEntriesStayWhilePeersAreUnknown(t *testing.T) {
	for name, subject := range map[string]*tables.ClassMember{
		"known subject": subjectRow(oldSubject, "subject"), "unknown subject": unknownRow(bpf.RoleSubject, oldSubject),
	} {
		t.Run(name, func(t *testing.T) {
			a := resumed(t, subject)
			stays := func() {
				t.Helper()
				for _, peer := range []uint32{oldPeer, newPeer} {
					require.Equal(t, &bpf.PolicyValue{Precedence: bpf.PrecedenceAllow, Cookie: 8}, a.value(oldSubject, peer, 6, 80))
					require.Equal(t, &bpf.PolicyValue{Deny: 1, Cookie: 7}, a.value(oldSubject, peer, 6, 81))
				}
			}
			stays()
			require.Len(t, a.entries(), 4, "one copy, and nothing of those who are yet to come")
			require.False(t, a.readiness(bpf.RolePeer, newPeer).Copied, "not in the kernel")
			a.program()
			stays()
			require.Len(t, a.entries(), 4, "copies are not copied")
			require.True(t, a.readiness(bpf.RolePeer, newPeer).Copied)
			require.False(t, a.readiness(bpf.RolePeer, newPeer).Ready)
			require.False(t, a.readiness(bpf.RolePeer, oldPeer).Copied)
			require.False(t, a.readiness(bpf.RoleSubject, newSubject).Ready)

			// The last has left the class of the peers.
			a.remove(unknownRow(bpf.RolePeer, oldPeer))
			require.Equal(t, bpf.PrecedenceAllow, a.value(newSubject, newPeer, 6, 81).Precedence)
			if subject.MeaningUnknown() {
				require.Equal(t, uint8(1), a.value(oldSubject, newPeer, 6, 81).Deny, "until all pods have left it")
			} else {
				require.Equal(t, uint8(0), a.value(oldSubject, newPeer, 6, 81).Deny)
			}
			require.False(t, a.readiness(bpf.RoleSubject, newSubject).Ready, "the kernel does not have its entries")
			require.False(t, a.readiness(bpf.RolePeer, newPeer).Ready)
			a.program()
			require.True(t, a.readiness(bpf.RoleSubject, newSubject).Ready)
			require.Equal(t, !subject.MeaningUnknown(), a.readiness(bpf.RolePeer, newPeer).Ready)

			a.remove(subject)
			require.Nil(t, a.value(oldSubject, newPeer, 6, 80))
			require.Len(t, a.entries(), 3)
			a.program()
			require.True(t, a.readiness(bpf.RolePeer, newPeer).Ready)
			require.Zero(t, len(statedb.Collect(a.Kernel.Prefix(a.DB.ReadTxn(), tables.PolicyMapEntriesOfSubject(oldSubject)))))
		})
	}
}

// A class that nobody can leave is not waited for: its entries stay.
func TestStuckClassIsNotWaitedFor(t *testing.T) {
	a := resumed(t, subjectRow(oldSubject, "subject"))
	stuck := unknownRow(bpf.RolePeer, oldPeer)
	stuck.Stuck = true
	a.put(stuck)
	require.Equal(t, bpf.PrecedenceAllow, a.value(newSubject, newPeer, 6, 81).Precedence)
	require.Equal(t, bpf.PrecedenceAllow, a.value(oldSubject, newPeer, 6, 81).Precedence)
	require.Equal(t, uint32(8), a.value(oldSubject, oldPeer, 6, 80).Cookie)
	a.program()
	require.True(t, a.readiness(bpf.RoleSubject, newSubject).Ready)
	require.True(t, a.readiness(bpf.RolePeer, newPeer).Ready)
	require.False(t, a.readiness(bpf.RolePeer, oldPeer).Ready)
}

// A class of an earlier run keeps what the kernel has, whatever the rules are.
func TestUnknownMeaning(t *testing.T) {
	w := newWorld(t)
	kept := &tables.PolicyMapEntry{Key: bpf.PolicyKeyOf(1, 2, bpf.DirectionIngress, 6, 80, 16), Value: bpf.PolicyValue{Precedence: 1, Cookie: 7}}
	insert(w, w.kernel, kept)
	insert(w, w.rules, enforced([]*tables.EnforcedRule{{RuleID: ruleID("p", bpf.DirectionIngress, 0), Subject: 10, AnyPeer: true}})...)
	insert(w, w.members, classRow(bpf.RoleSubject, 1, []tables.SelectorID{10}), &tables.ClassMember{Role: bpf.RolePeer, OfClass: true, Class: 2})
	pair := tables.PolicyPair{Subject: 1, Direction: bpf.DirectionIngress, Peer: 2}
	entries := NewComputer(w.tables()).Entries(w.db.ReadTxn(), pair)
	require.Len(t, entries, 1)
	require.Equal(t, kept.Key, entries[0].Key)
	require.Equal(t, kept.Value, entries[0].Value)
	insert(w, w.members, classRow(bpf.RolePeer, 2, []tables.SelectorID{20}))
	require.Empty(t, NewComputer(w.tables()).Entries(w.db.ReadTxn(), pair))
}
