// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"slices"
	"strconv"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"github.com/sluice-net/sluice/bpf"
)

// ClassMember says to which class, under one role, the endpoints with a label
// set belong. Where a selector looks at nodes, there is a row per node that
// has such endpoints; elsewhere Node is empty and the row is for all nodes. A label
// set that no egress policy chooses anywhere has no row of egress: see [MemberOf].
//
// Peers are also nodes, then LabelSet is zero, and prefixes that are neither of
// pods nor of nodes, then Node is empty too. Prefix is that prefix, or of pods
// and nodes the longest one that some selector by addresses names and that their
// address is in, invalid if there is none: a label set or node has a row for each.
//
// Two kinds of rows are of no member. A row with Evaluated says that the selector
// is taken into account in all others. So one can tell a selector that chooses
// nobody from one that is yet to be looked at. A row with OfClass, of a role of
// network policies, says what a class stands for; it stays while the kernel has
// addresses in the class. All rows of one commit agree.
type ClassMember struct {
	Role    bpf.Role `json:"role"`
	OfClass bool     `json:"ofClass,omitempty"`

	// Class is the number of the class; 0 is the class of those that no
	// selector chooses.
	Class uint32 `json:"class"`

	LabelSet  LabelSetID   `json:"labelSet"`
	Node      string       `json:"node,omitempty"`
	Prefix    netip.Prefix `json:"prefix,omitzero"`
	Evaluated SelectorID   `json:"evaluated,omitzero"`

	// NamespaceUnknown says that there is no object for the namespace of the pods, and that some
	// selector may choose them by its labels. It does not until these are known, so the pods
	// are held. It is not said of peers.
	NamespaceUnknown bool `json:"namespaceUnknown,omitempty"`

	// Version is that of the selector that is evaluated.
	Version uint64 `json:"-" yaml:"-"`

	// Selectors is the signature: the selectors that choose the endpoints, in
	// order. Digest is its digest, zero for none.
	Selectors []SelectorID `json:"selectors,omitempty"`
	Digest    bpf.Digest   `json:"digest"`

	// Ports are the numbers of the port names that some policy looks at on this
	// side, in order. They are part of the signature.
	Ports []NamedPort `json:"ports,omitempty"`

	// Former are classes that it has left, as far as the kernel had addresses
	// of it there when it last changed: see [Placement.Leaving].
	Former []uint32 `json:"former,omitempty"`

	// Leaving is of a row of a class: the selectors by which those differ from it
	// of whom the kernel still has addresses in it, or is yet to be told so. None:
	// nobody is leaving to whom the class does not apply. Leavers are these
	// addresses and prefixes, in order, and where they belong.
	Leaving []SelectorID `json:"leaving,omitempty"`
	Leavers []Leaver     `json:"leavers,omitempty"`
}

// Leaver is an address or prefix that is still in a class while it belongs to
// another one.
type Leaver struct {
	Prefix netip.Prefix `json:"prefix"`
	To     uint32       `json:"to"`
}

// Ended reports whether the row is of a class that has ended, but that somebody has come to
// by a write that was under way. Its verdicts stay as the kernel has them until he has left.
func (m *ClassMember) Ended() bool { return m.OfClass && len(m.Selectors) == 0 }

// SignatureDigest returns the digest of a sorted signature.
func SignatureDigest(selectors []SelectorID, ports []NamedPort) bpf.Digest {
	if len(selectors) == 0 && len(ports) == 0 {
		return bpf.Digest{}
	}
	sum := sha256.Sum256(AppendSignature(nil, selectors, ports))
	return bpf.Digest(sum[:16])
}

// AppendSignature appends the bytes that the digest of a sorted signature is of.
func AppendSignature(b []byte, selectors []SelectorID, ports []NamedPort) []byte {
	for _, id := range selectors {
		b = binary.BigEndian.AppendUint64(b, uint64(id))
	}
	for _, p := range ports {
		b = append(append(b, 0), p.Name...)
		b = append(b, 0, p.Protocol, byte(p.Port>>8), byte(p.Port))
	}
	return b
}

// Equal reports whether two members say the same.
func (m *ClassMember) Equal(o *ClassMember) bool {
	return m.Key() == o.Key() && m.Class == o.Class && slices.Equal(m.Selectors, o.Selectors) && slices.Equal(m.Ports, o.Ports) &&
		slices.Equal(m.Former, o.Former) && slices.Equal(m.Leaving, o.Leaving) &&
		slices.Equal(m.Leavers, o.Leavers) && m.Digest == o.Digest && m.Version == o.Version &&
		m.NamespaceUnknown == o.NamespaceUnknown
}

// TableHeader implements [statedb.TableWritable].
func (*ClassMember) TableHeader() []string {
	return []string{"Role", "LabelSet", "Node", "Prefix", "Class", "Selectors", "Ports", "Evaluated", "Leaving"}
}

// TableRow implements [statedb.TableWritable].
func (m *ClassMember) TableRow() []string { return m.Row(SelectorID.String) }

// Row is what TableRow returns, with the selectors by the names that they are given.
func (m *ClassMember) Row(name func(SelectorID) string) []string {
	if m.Evaluated != 0 {
		return []string{m.Role.String(), "-", "-", "-", "-", "-", "-", name(m.Evaluated), "-"}
	}
	set, prefix := "-", "-"
	if m.LabelSet != (LabelSetID{}) || m.Role == bpf.RoleEgress {
		set = m.LabelSet.String()[:8]
	}
	if m.Prefix.IsValid() {
		prefix = m.Prefix.String()
	}
	return []string{
		m.Role.String(), set, orDash(m.Node), prefix, strconv.FormatUint(uint64(m.Class), 10),
		selectorColumn(m.Selectors, name), listColumn(stringsOf(m.Ports), ","), "-", selectorColumn(m.Leaving, name),
	}
}

// MemberKey identifies a [ClassMember].
type MemberKey struct {
	Role      bpf.Role
	Evaluated SelectorID
	OfClass   uint32 // the row of a class, 0 for others
	LabelSet  LabelSetID
	Node      string
	Prefix    netip.Prefix
}

// What the row of a key is of, in the order in which they are in the table.
const (
	keyOfPrefix = iota
	keyOfNode
	keyOfLabelSet
	keyOfClass
	keyOfSelector
)

// key is as short as may be: all indexes of the table have it in them.
func (k MemberKey) key() index.Key {
	size := 2 + len(k.LabelSet) + len(k.Node) + 1
	if k.Prefix.IsValid() {
		size += 17
	}
	b := make(index.Key, 0, size)
	switch {
	case k.Evaluated != 0:
		return append(append(b, byte(k.Role), keyOfSelector), selectorIDKey(k.Evaluated)...)
	case k.OfClass != 0:
		return append(append(b, byte(k.Role), keyOfClass), index.Uint32(k.OfClass)...)
	case k.LabelSet != LabelSetID{}:
		b = append(append(b, byte(k.Role), keyOfLabelSet), k.LabelSet[:]...)
		b = append(append(b, k.Node...), 0)
	case k.Node != "":
		b = append(append(b, byte(k.Role), keyOfNode), k.Node...)
		b = append(b, 0)
	default:
		b = append(b, byte(k.Role), keyOfPrefix)
	}
	if k.Prefix.IsValid() {
		b = append(b, index.NetIPPrefix(k.Prefix)...)
	}
	return b
}

// Key returns the identity of the member.
func (m *ClassMember) Key() MemberKey {
	key := MemberKey{Role: m.Role, Evaluated: m.Evaluated, LabelSet: m.LabelSet, Node: m.Node, Prefix: m.Prefix}
	if m.OfClass {
		key.OfClass = m.Class
	}
	return key
}

// IsMember reports whether the row is of a member, not about a selector or a class.
func (m *ClassMember) IsMember() bool { return m.Evaluated == 0 && !m.OfClass }

// IsClass reports whether the row says what a class stands for.
func (m *ClassMember) IsClass() bool { return m.OfClass }

// HasLeft reports whether the member has left a class.
func (m *ClassMember) HasLeft() bool { return len(m.Former) > 0 }

// IsOfEgress reports whether the row is about egress policies.
func (m *ClassMember) IsOfEgress() bool { return m.Role == bpf.RoleEgress }

// IsOfPods reports whether the row is of pods as peers.
func (m *ClassMember) IsOfPods() bool { return m.Role == bpf.RolePeer && m.LabelSet != (LabelSetID{}) }

// MemberOf returns the member that an endpoint belongs to, nil while it is not known.
func MemberOf(txn statedb.ReadTxn, members statedb.Table[*ClassMember], role bpf.Role, e *Endpoint) *ClassMember {
	for _, node := range []string{"", e.Node} {
		if m, _, found := members.Get(txn, ClassMemberByKey(MemberKey{Role: role, LabelSet: e.LabelSet.ID, Node: node})); found {
			return m
		}
	}
	if role == bpf.RoleEgress && ChosenByNoEgress(txn, members, e.LabelSet.ID) {
		return &ClassMember{Role: role, LabelSet: e.LabelSet.ID}
	}
	return nil
}

// ChosenByNoEgress reports whether it is known of a label set that no selector of
// egress policies chooses it, wherever its pods are. It has no row for that; but
// the rows under all roles come with one commit.
func ChosenByNoEgress(txn statedb.ReadTxn, members statedb.Table[*ClassMember], id LabelSetID) bool {
	has := func(role bpf.Role) bool {
		for range members.Prefix(txn, ClassMembersOfLabelSet(role, id)) {
			return true
		}
		return false
	}
	return !has(bpf.RoleEgress) && (has(bpf.RolePeer) || has(bpf.RoleSubject))
}

// Placement is where the kernel has the addresses of endpoints, and where they belong.
type Placement struct {
	Endpoints     statedb.Table[*Endpoint]
	Members       statedb.Table[*ClassMember]
	SourceEntries statedb.Table[*SourceEntry]
}

// Leaving reports whether the kernel has addresses in an egress class whose
// endpoints have come to belong to another one. While it has, the class must
// not change its meaning, nor its rules: traffic would meet what is neither its
// old state nor its new one. The work is that of the members that have left, and
// of the single addresses that are on their way.
func (p Placement) Leaving(txn statedb.ReadTxn, number uint32) bool {
	for m := range p.Members.List(txn, ClassMembersByFormer(bpf.ClassKey{Role: bpf.RoleEgress, Number: number})) {
		if m.Class != number && p.Has(txn, m, number) {
			return true
		}
	}
	for entry := range p.SourceEntries.List(txn, SourceEntriesLeaving(number)) {
		if owner, _ := AddrOwner(txn, p.Endpoints, entry.Key.Addr.Addr()); owner != nil {
			return true
		}
	}
	return false
}

// LeavingTo returns the classes that the addresses that are leaving one are to go
// to, in order.
func (p Placement) LeavingTo(txn statedb.ReadTxn, number uint32) (classes []uint32) {
	add := func(m *ClassMember) {
		if m != nil && m.Class != number && m.Class != 0 && !slices.Contains(classes, m.Class) {
			classes = append(classes, m.Class)
		}
	}
	for m := range p.Members.List(txn, ClassMembersByFormer(bpf.ClassKey{Role: bpf.RoleEgress, Number: number})) {
		if p.Has(txn, m, number) {
			add(m)
		}
	}
	for entry := range p.SourceEntries.List(txn, SourceEntriesLeaving(number)) {
		if owner, _ := AddrOwner(txn, p.Endpoints, entry.Key.Addr.Addr()); owner != nil {
			add(MemberOf(txn, p.Members, bpf.RoleEgress, owner))
		}
	}
	slices.Sort(classes)
	return classes
}

// Has reports whether the kernel has an address of a member's endpoints in a class.
func (p Placement) Has(txn statedb.ReadTxn, m *ClassMember, number uint32) bool {
	for e := range p.Endpoints.List(txn, EndpointsByLabelSet(m.LabelSet)) {
		if m.Node != "" && m.Node != e.Node {
			continue
		}
		for _, addr := range e.Addrs {
			key := bpf.SourceKey{Addr: bpf.AddressFrom(addr)}
			entry, _, found := p.SourceEntries.Get(txn, MapEntryByKey[bpf.SourceKey, bpf.SourceValue](key))
			if !found || entry.Value.Class != number {
				continue
			}
			if owner, _ := AddrOwner(txn, p.Endpoints, addr); owner == e {
				return true
			}
		}
	}
	return false
}
