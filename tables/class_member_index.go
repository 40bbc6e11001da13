// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"github.com/sluice-net/sluice/bpf"
)

// RoleDigest is a digest under a role.
type RoleDigest struct {
	Role   bpf.Role
	Digest bpf.Digest
}

func (d RoleDigest) key() index.Key { return append(index.Uint32(uint32(d.Role)), d.Digest[:]...) }

// RolePrefix is a prefix under a role.
type RolePrefix struct {
	Role   bpf.Role
	Prefix netip.Prefix
}

func (p RolePrefix) key() index.Key {
	return append(index.Uint32(uint32(p.Role)), index.NetIPPrefix(p.Prefix)...)
}

var (
	classMemberKeyIndex = UniqueIndex("key", KeysOf(MemberKey.key, memberKeyFromString),
		(*ClassMember).Key)

	// Only rows of egress: those of other roles are many.
	classMemberClassIndex = IndexIf("class", classKeys, func(m *ClassMember) (bpf.ClassKey, bool) {
		return bpf.ClassKey{Role: m.Role, Number: m.Class}, m.IsOfEgress() && m.Class != 0
	})

	// Only rows of classes, and of egress, which has none: members are many.
	classMemberDigestIndex = IndexIf("digest", KeysOf(RoleDigest.key, egressDigestFromString),
		func(m *ClassMember) (RoleDigest, bool) {
			has := (m.OfClass || m.IsOfEgress()) && m.Digest != bpf.Digest{}
			return RoleDigest{m.Role, m.Digest}, has
		})

	classMemberFormerIndex = IndexEach("former", classKeys, func(m *ClassMember) []bpf.ClassKey {
		classes := make([]bpf.ClassKey, len(m.Former))
		for i, number := range m.Former {
			classes[i] = bpf.ClassKey{Role: m.Role, Number: number}
		}
		return classes
	})

	classMemberNodeIndex = IndexIf("node", StringKeys,
		func(m *ClassMember) (string, bool) { return m.Node, m.Node != "" })

	classMemberPrefixIndex = IndexIf("prefix", KeysOf(RolePrefix.key, peerPrefixFromString),
		func(m *ClassMember) (RolePrefix, bool) {
			return RolePrefix{m.Role, m.Prefix}, m.Prefix.IsValid()
		})

	// Only rows of classes: members are many.
	classMemberSelectorIndex = IndexEach("selector", selectorIDKeys,
		func(m *ClassMember) []SelectorID {
			if !m.OfClass {
				return nil
			}
			return m.Selectors
		})

	classMemberOfClassIndex = classRowIndex("of-class", (*ClassMember).IsClass)
	classMemberLeavingIndex = classRowIndex("leaving", func(m *ClassMember) bool { return len(m.Leavers) > 0 })
	classMemberEndedIndex   = classRowIndex("ended", (*ClassMember).Ended)

	// Only rows that are not of members as peers: those are many.
	classMemberNoPeerIndex = classRowIndex("no-peer", func(m *ClassMember) bool { return m.Role != bpf.RolePeer || !m.IsMember() })

	// ClassRowsBySelector queries the rows of classes with a selector in their
	// signature.
	ClassRowsBySelector = classMemberSelectorIndex.Query

	// ClassRowsOfRole queries the rows of all classes of a role of network policies.
	ClassRowsOfRole = classMemberOfClassIndex.Query

	// AnyClassRow queries the index that has the rows of all classes and no others.
	AnyClassRow = ClassRowsOfRole(bpf.RolePeer)

	// AnyButPeers queries the index that has all rows but those of members as peers.
	AnyButPeers = classMemberNoPeerIndex.Query(bpf.RolePeer)

	// ClassRowsLeaving queries the rows of the classes of a role that somebody is
	// leaving, also such to whom they apply alike, by whom Leaving is not longer.
	ClassRowsLeaving = classMemberLeavingIndex.Query

	// ClassRowsEnded queries the rows of the classes of a role that have ended.
	ClassRowsEnded = classMemberEndedIndex.Query

	// ClassMembersByPrefix queries the members of a role at a prefix.
	ClassMembersByPrefix = classMemberPrefixIndex.Query

	// ClassMemberByKey queries one member.
	ClassMemberByKey = classMemberKeyIndex.Query

	// ClassMembersByClass queries the members of a class of egress, other than that of
	// those that no selector chooses.
	ClassMembersByClass = classMemberClassIndex.Query

	// ClassMembersByFormer queries the members that have left a class.
	ClassMembersByFormer = classMemberFormerIndex.Query

	// ClassMembersByDigest queries the rows of the classes with a signature that is
	// not empty, of egress the members with it.
	ClassMembersByDigest = classMemberDigestIndex.Query

	// ClassMembersByNode queries the members that are for one node.
	ClassMembersByNode = classMemberNodeIndex.Query
)

// SelectorIsEvaluated reports whether a selector is taken into account in the
// members of classes.
func SelectorIsEvaluated(txn statedb.ReadTxn, members statedb.Table[*ClassMember], role bpf.Role, id SelectorID) bool {
	_, _, found := members.Get(txn, ClassMemberByKey(MemberKey{Role: role, Evaluated: id}))
	return found
}

// SelectorIsCurrent reports whether a selector, as it is in the same snapshot, is
// taken into account in the members of classes. What [SelectorIsEvaluated] tells
// may be of one that policies have ceased to name, and named again just now.
func SelectorIsCurrent(txn statedb.ReadTxn, selectors statedb.Table[*Selector], members statedb.Table[*ClassMember], role bpf.Role, id SelectorID) bool {
	m, _, evaluated := members.Get(txn, ClassMemberByKey(MemberKey{Role: role, Evaluated: id}))
	s, _, found := selectors.Get(txn, SelectorByID(id))
	return evaluated && found && m.Version == s.Version
}

// ClassRow returns the row of what a class of a role of network policies stands
// for, nil if there is no such class.
func ClassRow(txn statedb.ReadTxn, members statedb.Table[*ClassMember], key bpf.ClassKey) *ClassMember {
	m, _, _ := members.Get(txn, ClassMemberByKey(MemberKey{Role: key.Role, OfClass: key.Number}))
	return m
}

// classRowIndex indexes some rows by role.
func classRowIndex(
	name string, indexed func(*ClassMember) bool,
) statedb.Index[*ClassMember, bpf.Role] {
	return IndexIf(name, roleKeys,
		func(m *ClassMember) (bpf.Role, bool) { return m.Role, indexed(m) })
}

var roleKeys = KeysOf(
	func(r bpf.Role) index.Key { return index.Uint32(uint32(r)) }, index.Uint32String,
)

func memberKeyFromString(s string) (index.Key, error) {
	id, err := digestFromString(s)
	return append(index.Key{byte(bpf.RoleEgress), keyOfLabelSet}, id...), err
}

func egressDigestFromString(s string) (index.Key, error) {
	d, err := digestFromString(s)
	return append(index.Uint32(uint32(bpf.RoleEgress)), d...), err
}

func peerPrefixFromString(s string) (index.Key, error) {
	prefix, err := index.NetIPPrefixString(s)
	return append(index.Uint32(uint32(bpf.RolePeer)), prefix...), err
}

// ClassMembersOfLabelSet queries, with Prefix, the members with a label set.
func ClassMembersOfLabelSet(role bpf.Role, id LabelSetID) statedb.Query[*ClassMember] {
	return classMemberKeyIndex.QueryFromKey(append(index.Key{byte(role), keyOfLabelSet}, id[:]...))
}

// ClassMembersOfNode queries, with Prefix, the members that a node itself is.
func ClassMembersOfNode(role bpf.Role, node string) statedb.Query[*ClassMember] {
	return classMemberKeyIndex.QueryFromKey(MemberKey{Role: role, Node: node}.key())
}

// NewClassMemberTable creates the table of the members of classes.
var NewClassMemberTable = Declare(
	"class-members", classMemberKeyIndex, classMemberClassIndex, classMemberFormerIndex,
	classMemberDigestIndex, classMemberNodeIndex, classMemberSelectorIndex,
	classMemberOfClassIndex, classMemberLeavingIndex, classMemberPrefixIndex,
	classMemberEndedIndex, classMemberNoPeerIndex,
)
