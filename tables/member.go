// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"github.com/sluice-net/sluice/bpf"
)

// Scope says what the addresses of a member are.
type Scope string

// The scopes. All addresses of [ScopeRefused] are in one class, which every ruleset drops. An
// address in a pod prefix that no pod has is ScopeCluster.
const (
	ScopePods    Scope = "pods"    // pods with a label set
	ScopeNode    Scope = "node"    // a node
	ScopeCluster Scope = "cluster" // inside the cluster, and nothing more is known
	ScopeWorld   Scope = "world"   // outside the cluster
	ScopeRefused Scope = "refused" // pods whose label set there is no room for
)

// MemberDef identifies a member.
type MemberDef struct {
	Scope    Scope      `json:"scope"`
	Family   uint8      `json:"family"`            // bpf.FamilyIPv4 or bpf.FamilyIPv6
	LabelSet LabelSetID `json:"labelSet,omitzero"` // of ScopePods
	Node     string     `json:"node,omitempty"`    // of ScopeNode

	// CIDRs are the numbers of the selectors in use that select the address by one of their
	// blocks, in order.
	CIDRs []uint32 `json:"cidrs,omitempty"`
}

// Digest identifies the definition.
func (d *MemberDef) Digest() bpf.Digest {
	b := append([]byte(d.Scope), 0, d.Family)
	b = append(append(b, d.LabelSet[:]...), d.Node...)
	b = append(b, 0)
	for _, n := range d.CIDRs {
		b = binary.BigEndian.AppendUint32(b, n)
	}
	sum := sha256.Sum256(b)
	return bpf.Digest(sum[:16])
}

func (d *MemberDef) String() string {
	text := fmt.Sprintf("%s ipv%d", d.Scope, d.Family)
	switch d.Scope {
	case ScopePods:
		text += " " + d.LabelSet.String()[:8]
	case ScopeNode:
		text += " " + d.Node
	}
	if len(d.CIDRs) > 0 {
		text += fmt.Sprintf(" selected by %v", d.CIDRs)
	}
	return text
}

// Member is a set of addresses that all policies treat in the same way. An entry of sluice_peers.
type Member struct {
	Life `yaml:",inline"`

	MemberDef `yaml:",inline"`
	Digest    bpf.Digest `json:"digest"`
	Namespace string     `json:"namespace,omitempty"` // of the label set

	// Labels is the label set of ScopePods. No pod may have it any more.
	Labels *LabelSet `json:"-" yaml:"-"`

	Class uint32 `json:"class"`

	// Made is the number of the transaction that gave the member its class: see
	// [SelectorMatch].
	Made uint64 `json:"made"`

	Reconciled `yaml:",inline"`
}

// Equal reports whether two rows want the same, whatever their status.
func (m *Member) Equal(o *Member) bool {
	return m.Life == o.Life && m.Digest == o.Digest && m.Class == o.Class && m.Made == o.Made
}

// MapKey is the key in sluice_peers.
func (m *Member) MapKey() bpf.PeerKey { return bpf.PeerKey{Member: m.Number} }

// MapValue is the value in sluice_peers.
func (m *Member) MapValue() bpf.PeerValue { return bpf.PeerValue{Class: m.Class} }

// TableHeader implements [statedb.TableWritable].
func (*Member) TableHeader() []string {
	return []string{"Number", "Member", "Class", "Undesired", "Status", "Error"}
}

// TableRow implements [statedb.TableWritable].
func (m *Member) TableRow() []string {
	return []string{
		number(m.Number), m.MemberDef.String(), number(m.Class), trueOrDash(m.Undesired),
		m.Status.Kind.String(), orDash(m.Status.GetError()),
	}
}

var (
	memberNumber = UniqueIndex("number", Uint32Keys,
		func(m *Member) uint32 { return m.Number })
	memberDigest = UniqueIndex("digest", KeysOf(memberDigestKey, index.FromString),
		func(m *Member) *Member { return m })
	memberClass = IndexIf("class", Uint32Keys,
		func(m *Member) (uint32, bool) { return m.Class, m.Class != 0 })
	memberNode = IndexIf("node", StringKeys,
		func(m *Member) (string, bool) { return m.Node, m.Node != "" })
	memberUndesired = FlagIndex("undesired", func(m *Member) bool { return m.Undesired })

	memberPending = FlagIndex("pending", func(m *Member) bool { return !isDone(m.Status) })

	// MemberByNumber queries a member by its number.
	MemberByNumber = memberNumber.Query

	// MemberByDigest queries the member with the namespace and digest of another.
	MemberByDigest = memberDigest.Query

	// MembersByClass queries the members of a class.
	MembersByClass = memberClass.Query

	// MembersByNode queries the members that are a node.
	MembersByNode = memberNode.Query

	// MembersUndesired queries, by true, the members that no address is desired in.
	MembersUndesired = memberUndesired.Query

	// MembersPending queries, by true, the members whose class the kernel does not have yet.
	MembersPending = memberPending.Query
)

// memberDigestKey has the namespace before the digest, for [MembersOfNamespace].
func memberDigestKey(m *Member) index.Key {
	return append(append(index.String(m.Namespace), 0), m.Digest[:]...)
}

// MembersOfNamespace queries, with Prefix, the members with label sets of a namespace.
func MembersOfNamespace(namespace string) statedb.Query[*Member] {
	return memberDigest.QueryFromKey(append(index.String(namespace), 0))
}

// NewMemberTable creates the table of members.
var NewMemberTable = Declare("members", memberNumber, memberDigest, memberClass, memberNode,
	memberUndesired, memberPending)

// Precision says by which selectors the members of a class are told apart.
type Precision string

// The precisions, from the best one, in the order of their texts.
const (
	Exact Precision = "" // by all

	// Coarse is by those that are not [SelectorSpec.Foreign]: no foreign selector allows anything
	// to the members, and any that denies denies them.
	Coarse Precision = "coarse"

	Refused Precision = "refused" // by none: every ruleset drops it
)

// Class is a set of members that the rulesets in use treat in the same way: the same selectors in
// use select them, and they have the same numbers for the names of ports in use.
type Class struct {
	Life `yaml:",inline"`

	Digest    bpf.Digest  `json:"digest"`
	Selectors []uint32    `json:"selectors,omitempty"` // numbers of selectors in use, in order
	Ports     []NamedPort `json:"ports,omitempty"`     // in order
	Precision Precision   `json:"precision,omitempty"`

	// Namespace is that of the pods that the class was made for: it counts for its share.
	Namespace string `json:"namespace,omitempty"`
}

// ClassDigest identifies a class.
func ClassDigest(selectors []uint32, ports []NamedPort, precision Precision) bpf.Digest {
	var b []byte
	for _, n := range selectors {
		b = binary.BigEndian.AppendUint32(b, n)
	}
	b = append(b, 0, 0, 0, 0) // no selector has this number
	for _, p := range ports {
		b = append(b, p.String()...)
		b = append(b, 0)
	}
	b = append(b, precision...)
	sum := sha256.Sum256(b)
	return bpf.Digest(sum[:16])
}

// TableHeader implements [statedb.TableWritable].
func (*Class) TableHeader() []string {
	return []string{"Number", "Selectors", "Ports", "Precision", "Undesired"}
}

// TableRow implements [statedb.TableWritable].
func (c *Class) TableRow() []string {
	return []string{
		number(c.Number), fmt.Sprint(c.Selectors), fmt.Sprint(c.Ports), orDash(string(c.Precision)),
		trueOrDash(c.Undesired),
	}
}

// Selects reports whether a selector in use selects the members of the class.
func (c *Class) Selects(selector uint32) bool {
	_, found := slices.BinarySearch(c.Selectors, selector)
	return found
}

// Omits reports whether the class does not tell whether a selector in use selects its members.
func (c *Class) Omits(s *Selector) bool {
	return c.Precision == Refused || c.Precision == Coarse && s.Foreign
}

// PortNames returns the names of ports that the class has numbers for, in the form http/tcp.
func (c *Class) PortNames() []string {
	var names []string
	for _, p := range c.Ports {
		names = append(names, p.NameText())
	}
	return slices.Compact(names) // which are in order
}

var (
	classNumber = UniqueIndex("number", Uint32Keys,
		func(c *Class) uint32 { return c.Number })
	classDigest = UniqueIndex("digest", DigestKeys,
		func(c *Class) bpf.Digest { return c.Digest })
	classSelector = IndexEach("selector", Uint32Keys,
		func(c *Class) []uint32 { return c.Selectors })
	classPort = IndexEach("port", StringKeys,
		func(c *Class) []string { return c.PortNames() })
	classNamespace = IndexIf("namespace", StringKeys,
		func(c *Class) (string, bool) { return c.Namespace, c.Namespace != "" })
	classPrecision = IndexIf("precision", KeysOf(precisionKey, index.FromString),
		func(c *Class) (Precision, bool) { return c.Precision, c.Precision != Exact })
	classUndesired = FlagIndex("undesired", func(c *Class) bool { return c.Undesired })

	// ClassByNumber queries a class by its number.
	ClassByNumber = classNumber.Query

	// ClassByDigest queries the class with a definition.
	ClassByDigest = classDigest.Query

	// ClassesBySelector queries the classes that a selector in use selects.
	ClassesBySelector = classSelector.Query

	// ClassesByPort queries the classes with a number for a port, in the form http/tcp.
	ClassesByPort = classPort.Query

	// ClassesByNamespace queries the classes that were made for pods of a namespace.
	ClassesByNamespace = classNamespace.Query

	// ClassesByPrecision queries the classes that are not [Exact], by their precision.
	ClassesByPrecision = classPrecision.Query

	// ClassesUndesired queries, by true, the classes without members.
	ClassesUndesired = classUndesired.Query
)

func precisionKey(p Precision) index.Key { return index.String(string(p)) }

// NewClassTable creates the table of classes.
var NewClassTable = Declare("peer-classes", classNumber, classDigest, classSelector, classPort,
	classNamespace, classPrecision, classUndesired)
