// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"crypto/sha256"
	"slices"
	"strconv"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"github.com/sluice-net/sluice/bpf"
)

// ClassMember says to which class, under one role, the endpoints with a label
// set belong. Where a selector looks at nodes, there is a row per node that
// has such endpoints; elsewhere Node is empty and the row is for all nodes.
type ClassMember struct {
	Role     bpf.Role   `json:"role"`
	LabelSet LabelSetID `json:"labelSet"`
	Node     string     `json:"node,omitempty"`

	// Selectors is the signature: the selectors that choose the endpoints, in
	// order. Digest is its digest, zero for none.
	Selectors []SelectorID `json:"selectors,omitempty"`
	Digest    bpf.Digest   `json:"digest"`

	// Class is the number of the class; 0 is the class of those that no
	// selector chooses.
	Class uint32 `json:"class"`
}

// SignatureDigest returns the digest of a sorted signature.
func SignatureDigest(selectors []SelectorID) bpf.Digest {
	if len(selectors) == 0 {
		return bpf.Digest{}
	}
	var b []byte
	for _, id := range selectors {
		b = append(b, selectorIDKey(id)...)
	}
	sum := sha256.Sum256(b)
	return bpf.Digest(sum[:16])
}

// Equal reports whether two members say the same.
func (m *ClassMember) Equal(o *ClassMember) bool {
	return m.Role == o.Role && m.LabelSet == o.LabelSet && m.Node == o.Node && m.Class == o.Class && slices.Equal(m.Selectors, o.Selectors)
}

// TableHeader implements [statedb.TableWritable].
func (*ClassMember) TableHeader() []string {
	return []string{"Role", "LabelSet", "Node", "Class", "Selectors"}
}

// TableRow implements [statedb.TableWritable].
func (m *ClassMember) TableRow() []string {
	return []string{
		m.Role.String(), m.LabelSet.String()[:8], orDash(m.Node), strconv.FormatUint(uint64(m.Class), 10),
		listColumn(stringsOf(m.Selectors), ","),
	}
}

// MemberKey identifies a [ClassMember].
type MemberKey struct {
	Role     bpf.Role
	LabelSet LabelSetID
	Node     string
}

func (k MemberKey) key() index.Key {
	b := append(index.Uint32(uint32(k.Role)), k.LabelSet[:]...)
	return append(b, k.Node...)
}

// Key returns the identity of the member.
func (m *ClassMember) Key() MemberKey { return MemberKey{m.Role, m.LabelSet, m.Node} }

// RoleDigest is a digest under a role.
type RoleDigest struct {
	Role   bpf.Role
	Digest bpf.Digest
}

func (d RoleDigest) key() index.Key { return append(index.Uint32(uint32(d.Role)), d.Digest[:]...) }

var (
	classMemberKeyIndex = statedb.Index[*ClassMember, MemberKey]{
		Name:       "key",
		FromObject: func(m *ClassMember) index.KeySet { return index.NewKeySet(m.Key().key()) },
		FromKey:    MemberKey.key,
		FromString: func(s string) (index.Key, error) {
			id, err := digestFromString(s)
			return append(index.Uint32(uint32(bpf.RoleEgress)), id...), err
		},
		Unique: true,
	}

	classMemberClassIndex = statedb.Index[*ClassMember, bpf.ClassKey]{
		Name: "class",
		FromObject: func(m *ClassMember) index.KeySet {
			return index.NewKeySet(classKey(bpf.ClassKey{Role: m.Role, Number: m.Class}))
		},
		FromKey:    classKey,
		FromString: classKeyFromString,
	}

	classMemberDigestIndex = statedb.Index[*ClassMember, RoleDigest]{
		Name:       "digest",
		FromObject: func(m *ClassMember) index.KeySet { return index.NewKeySet(RoleDigest{m.Role, m.Digest}.key()) },
		FromKey:    RoleDigest.key,
		FromString: func(s string) (index.Key, error) {
			d, err := digestFromString(s)
			return append(index.Uint32(uint32(bpf.RoleEgress)), d...), err
		},
	}

	classMemberNodeIndex = statedb.Index[*ClassMember, string]{
		Name:       "node",
		FromObject: func(m *ClassMember) index.KeySet { return index.NewKeySet(index.String(m.Node)) },
		FromKey:    index.String,
		FromString: index.FromString,
	}

	// ClassMemberByKey queries one member.
	ClassMemberByKey = classMemberKeyIndex.Query

	// ClassMembersByClass queries the members of a class.
	ClassMembersByClass = classMemberClassIndex.Query

	// ClassMembersByDigest queries the members with a signature.
	ClassMembersByDigest = classMemberDigestIndex.Query

	// ClassMembersByNode queries the members that are for one node.
	ClassMembersByNode = classMemberNodeIndex.Query
)

// ClassMembersOfLabelSet queries, with Prefix, the members with a label set.
func ClassMembersOfLabelSet(role bpf.Role, id LabelSetID) statedb.Query[*ClassMember] {
	return classMemberKeyIndex.QueryFromKey(MemberKey{Role: role, LabelSet: id}.key())
}

// NewClassMemberTable creates the table of the members of classes.
func NewClassMemberTable(db *statedb.DB) (statedb.RWTable[*ClassMember], error) {
	return statedb.NewTable(db, "class-members", classMemberKeyIndex, classMemberClassIndex, classMemberDigestIndex, classMemberNodeIndex)
}

// MemberOf returns the member that an endpoint belongs to, nil while it is not known.
func MemberOf(txn statedb.ReadTxn, members statedb.Table[*ClassMember], role bpf.Role, e *Endpoint) *ClassMember {
	for _, node := range []string{"", e.Node} {
		if m, _, found := members.Get(txn, ClassMemberByKey(MemberKey{role, e.LabelSet, node})); found {
			return m
		}
	}
	return nil
}
