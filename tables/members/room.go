// SPDX-License-Identifier: Apache-2.0

package members

import (
	"net/netip"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/verdicts"
)

// Room is how many members there is room for: half of it is for label sets and nodes, the other
// half for selectors and their prefixes, which tables/subjects counts.
type Room int

func roomOf(c bpf.Config) Room { return Room(c.MapSizePeers) }

// constantMembers are those of no label set, node or prefix: of each family the refused one, the
// world and the cluster.
const constantMembers = 6

// labelSets are the members that are label sets and nodes, as far as they are counted.
type labelSets struct {
	total int // with the nodes
	of    map[string]int
}

// hasRoom reports whether there is room for one more label set of a namespace. What is of none is
// not bounded here. Members that the kernel may have count, whether or not they are desired.
func (t *transaction) hasRoom(namespace string) bool {
	half := int(t.Room) / 2
	if namespace == "" || t.Members.NumObjects(t.out) < half/2 {
		return true // all members together are no more than one namespace may have
	}
	if t.labelSets == nil {
		t.labelSets = &labelSets{of: map[string]int{}}
		for m := range t.Members.All(t.out) {
			t.countMember(m, 1)
		}
	}
	total, own := t.labelSets.total, t.labelSets.of[namespace]
	return total+constantMembers < half && verdicts.Fits(half, total, own, 1)
}

// countMember counts a member that comes or goes.
func (t *transaction) countMember(m *tables.Member, n int) {
	if isLabelSet := m.Namespace != ""; isLabelSet && n < 0 {
		t.mark(refusedKey(netip.Prefix{}))
	}
	if t.labelSets != nil && (m.Namespace != "" || m.Scope == tables.ScopeNode) {
		t.labelSets.total += n
		t.labelSets.of[m.Namespace] += n
	}
}

// refusedMember has the pods of a family whose label sets there is no room for.
func refusedMember(family uint8) *tables.Member {
	m := &tables.Member{}
	m.Scope, m.Family = tables.ScopeRefused, family
	m.Digest = m.MemberDef.Digest()
	return m
}

// refusedAddresses marks the refused addresses for which there is room now, from one of them on.
func (t *transaction) refusedAddresses(from netip.Prefix) {
	for _, family := range []uint8{bpf.FamilyIPv4, bpf.FamilyIPv6} {
		m, _, found := t.Members.Get(t.out, tables.MemberByDigest(refusedMember(family)))
		if !found {
			continue
		}
		for row := range t.IPCache.List(t.out, tables.IPCacheByMember(m.Number)) {
			if from.IsValid() && row.Prefix.Compare(from) < 0 {
				continue
			}
			if t.isFull() {
				t.mark(refusedKey(row.Prefix))
				return
			}
			t.work++
			owner, _ := tables.AddrOwner(t.in, t.Endpoints, row.Prefix.Addr())
			if owner == nil || t.hasRoom(owner.LabelSet.Namespace) {
				t.mark(addressKey(row.Prefix))
			}
		}
	}
}
