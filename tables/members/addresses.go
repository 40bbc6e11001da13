// SPDX-License-Identifier: Apache-2.0

package members

import (
	"net/netip"

	"github.com/sluice-net/sluice/tables"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/bpf"
)

// address brings the row of an address or prefix up to date, and with it its member.
func (t *transaction) address(prefix netip.Prefix) {
	old, _, found := t.IPCache.Get(t.out, tables.IPCacheByPrefix(prefix))
	f := t.facts(t.in, prefix)
	around := t.around(prefix)
	row := &tables.IPCache{Prefix: prefix, Made: t.made, Reconciled: tables.Pending()}
	if f.flags == 0 {
		if around.Prefix != prefix {
			if found {
				remove(t, t.IPCache, old)
				t.left(old.Member)
			}
			return
		}
		inherited := t.inherited(t.in, prefix)
		f, row.Inherits = &inherited, true
	}
	row.Flags, row.Tunnel, row.Origins, row.Conflicts = f.flags, f.tunnel, f.origins, f.conflicts
	row.Member = t.enter(memberOf(prefix, f, around))
	if found && old.Member == row.Member {
		row.Made = old.Made
	}
	if found && old.MapValue() == row.MapValue() {
		row.Status = old.Status // the map does not change
	}
	if found && old.Equal(row) {
		return
	}
	insert(t, t.IPCache, row)
	if found && old.Member != row.Member {
		t.left(old.Member)
	}
}

// around returns the longest row of peer-prefixes around an address or prefix. There is none only
// while the first keys are computed.
func (t *transaction) around(prefix netip.Prefix) *tables.PeerPrefix {
	if p := tables.PeerPrefixAround(t.out, t.PeerPrefixes, prefix); p != nil {
		return p
	}
	return &tables.PeerPrefix{}
}

// memberOf is where an address or prefix belongs.
func memberOf(prefix netip.Prefix, f *facts, around *tables.PeerPrefix) *tables.Member {
	m := &tables.Member{}
	m.Family = bpf.FamilyIPv4
	if prefix.Addr().Is6() {
		m.Family = bpf.FamilyIPv6
	}
	switch {
	case f.node != "":
		m.Scope, m.Node, m.CIDRs = tables.ScopeNode, f.node, around.Nodes
	case f.pod != nil:
		m.Scope, m.LabelSet, m.CIDRs = tables.ScopePods, f.pod.LabelSet.ID, around.Pods
		m.Namespace, m.Labels = f.pod.LabelSet.Namespace, f.pod.LabelSet
	case around.Cluster:
		m.Scope, m.CIDRs = tables.ScopeCluster, around.Outside
	default:
		m.Scope, m.CIDRs = tables.ScopeWorld, around.Outside
	}
	m.Digest = m.MemberDef.Digest()
	return m
}

// enter returns the number of a member, and marks it as desired.
func (t *transaction) enter(m *tables.Member) uint32 {
	old, _, found := t.Members.Get(t.out, tables.MemberByDigest(m))
	if !found && !t.hasRoom(m.Namespace) {
		m = refusedMember(m.Family)
		old, _, found = t.Members.Get(t.out, tables.MemberByDigest(m))
	}
	switch {
	case !found:
		t.number++
		t.countMember(m, 1)
		m.Number, m.Status = t.number, reconciler.StatusPending()
		t.classify(m, nil)
		return m.Number
	case old.Undesired:
		now := tables.Clone(old)
		now.Undesired = false
		t.classify(now, old)
	}
	return old.Number
}

// left notes that an address or prefix has left a member.
func (t *transaction) left(number uint32) {
	if _, _, others := t.IPCache.Get(t.out, tables.IPCacheByMember(number)); others {
		return
	}
	if m, _, found := t.Members.Get(t.out, tables.MemberByNumber(number)); found && !m.Undesired {
		now := tables.Clone(m)
		now.Undesired = true
		insert(t, t.Members, now)
		t.mark(memberKey(number))
	}
}

// member brings the class of a member up to date, or removes the member.
func (t *transaction) member(number uint32) {
	m, _, found := t.Members.Get(t.out, tables.MemberByNumber(number))
	if !found {
		return
	}
	if m.Undesired {
		if was, _, found := t.Members.Get(t.in, tables.MemberByNumber(number)); !found || !was.Undesired {
			t.mark(memberKey(number)) // of this transaction
		} else if _, _, refers := t.IPCacheMirror.Get(t.in, mirrorsToMember(number)); !refers {
			remove(t, t.Members, m)
			t.countMember(m, -1)
			t.leftClass(m.Class)
			return
		}
	}
	t.classify(tables.Clone(m), m)
}

func mirrorsToMember(number uint32) statedb.Query[*tables.IPCacheMirror] {
	return tables.MirrorsTo[bpf.IPCacheKey, bpf.IPCacheValue](number)
}
