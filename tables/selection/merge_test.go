// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// alike are two classes of peers that stand for the same, but for a policy that
// chooses those of one of them only.
type alike struct {
	*harness
	early, late bpf.ClassKey // the policy chooses those of early
	policy      *tables.NetworkPolicy
	digest      bpf.Digest // what both stand for without it
}

// newAlike has three early pods, and some late ones. The policy is there, and the kernel
// does not know the class of the late ones yet.
func newAlike(t *testing.T, late int) *alike {
	h, early := twoKinds(t)
	a := &alike{harness: h, early: early, policy: policy("q", "app=none", pods("app=web,!late")), digest: h.meaning(early)}
	put(h, h.ClassEntries, a.entry(early))
	a.part()
	for i := range late {
		put(h, h.Endpoints, pod(fmt.Sprint("a/late", i), "there", fmt.Sprintf("10.1.0.1%d", i), labels.Set{"app": "web", "late": "yes"}))
	}
	a.marker(1)
	a.late = bpf.ClassKey{Role: bpf.RolePeer, Number: h.peerClass("10.1.0.10")}
	require.Less(t, early.Number, a.late.Number)
	a.awaitRecord(a.late, a.digest)
	return a
}

// part has the policy tell them apart, unite has it gone.
func (a *alike) part() {
	put(a.harness, a.NetworkPolicies, a.policy)
	a.awaitMeaning(a.early, false)
}

func (a *alike) unite() {
	remove(a.harness, a.NetworkPolicies, a.policy)
	a.awaitMeaning(a.early, true)
}

// awaitMeaning returns when a class stands for what it does without the policy, or
// does not.
func (a *alike) awaitMeaning(class bpf.ClassKey, is bool) {
	a.t.Helper()
	a.await(func(txn statedb.ReadTxn) string {
		if row := tables.ClassRow(txn, a.members, class); row != nil && (row.Digest == a.digest) != is {
			return fmt.Sprintf("class %s stands for %s", class, row.Digest)
		}
		return ""
	})
}

// awaitRecord returns when a class is to be recorded for a signature.
func (a *alike) awaitRecord(class bpf.ClassKey, digest bpf.Digest) {
	a.t.Helper()
	a.await(func(statedb.ReadTxn) string {
		if is := a.classDigest(class); is != digest {
			return fmt.Sprintf("class %s is to be recorded for %s", class, is)
		}
		return ""
	})
}

// entry is one by which the kernel knows a class by what both stand for.
func (a *alike) entry(class bpf.ClassKey) *tables.ClassEntry {
	return &tables.ClassEntry{Key: class, Value: bpf.ClassValue{Digest: a.digest}}
}

// holdClasses keeps what classes are to be recorded for as it is.
func (a *alike) holdClasses() (release func()) {
	return a.db.WriteTxn(a.classes.(statedb.RWTable[*tables.Class])).Abort
}

// awaitMerged returns when some addresses are in one class.
func (a *alike) awaitMerged(addrs ...string) {
	a.t.Helper()
	a.await(func(txn statedb.ReadTxn) string {
		classes := map[uint32]string{}
		for _, addr := range addrs {
			m := a.places.Member(txn, single(netip.MustParseAddr(addr)))
			if m == nil {
				return "no peer at " + addr
			}
			classes[m.Class] = addr
		}
		if len(classes) > 1 {
			return fmt.Sprintf("there are classes with %v", classes)
		}
		return ""
	})
}

// classDigest is what a class is to be recorded for.
func (h *harness) classDigest(key bpf.ClassKey) (digest bpf.Digest) {
	if c, _, found := h.classes.Get(h.db.ReadTxn(), tables.ClassByKey(key)); found {
		digest = c.Digest
	}
	return digest
}

// meaning is what a class stands for.
func (h *harness) meaning(key bpf.ClassKey) bpf.Digest {
	return tables.ClassRow(h.db.ReadTxn(), h.members, key).Digest
}

// Two classes that come to stand for the same by no news of the kernel's are merged.
func TestMergedWithoutNews(t *testing.T) {
	a := newAlike(t, 1)
	a.awaitRecord(a.early, a.meaning(a.early))
	put(a.harness, a.ClassEntries, a.entry(a.late))
	a.marker(2)
	a.unite()
	a.awaitMerged("10.1.0.0", "10.1.0.10")
}

// Who comes while two classes are merged joins the one that goes on.
func TestJoinsWhileMerged(t *testing.T) {
	a := newAlike(t, 4)
	a.unite()
	a.awaitRecord(a.early, a.digest)

	wtxn := a.db.WriteTxn(a.ClassEntries, a.Endpoints)
	_, _, err := a.ClassEntries.Insert(wtxn, a.entry(a.late))
	require.NoError(t, err)
	_, _, err = a.Endpoints.Insert(wtxn, pod("a/new", "there", "10.1.0.9", labels.Set{"app": "web", "new": "yes"}))
	require.NoError(t, err)
	wtxn.Commit()
	a.awaitMerged("10.1.0.0", "10.1.0.10", "10.1.0.9")
}

// Classes that cannot be merged when the kernel gets to know the second one, as another
// change of the first is not over, are merged when it is.
func TestMergedAfterAnotherChange(t *testing.T) {
	a := newAlike(t, 1)
	a.awaitRecord(a.early, a.meaning(a.early))
	release := a.holdClasses()
	defer release()
	a.unite()
	put(a.harness, a.ClassEntries, a.entry(a.late))
	a.marker(2)
	require.NotEqual(t, a.peerClass("10.1.0.0"), a.peerClass("10.1.0.10"))
	release()
	a.awaitMerged("10.1.0.0", "10.1.0.10")
}

// So are classes of which one has been meant to change, and nobody has heard of it.
func TestMergedAfterAChangeUnheardOf(t *testing.T) {
	a := newAlike(t, 1)
	a.unite()
	a.awaitRecord(a.early, a.digest)
	release := a.holdClasses()
	defer release()
	a.part()
	put(a.harness, a.ClassEntries, a.entry(a.late))
	a.marker(2)
	require.NotEqual(t, a.peerClass("10.1.0.0"), a.peerClass("10.1.0.10"))
	a.unite()
	release()
	a.awaitMerged("10.1.0.0", "10.1.0.10")
}
