// SPDX-License-Identifier: Apache-2.0

package core

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// Scope says what the addresses of a member are.
type Scope string

// The scopes. An address in a pod prefix that no pod has is ScopeCluster.
const (
	ScopePods    Scope = "pods"    // pods with a label set
	ScopeNode    Scope = "node"    // a node
	ScopeCluster Scope = "cluster" // inside the cluster, and nothing more is known
	ScopeWorld   Scope = "world"   // outside the cluster
	ScopeRefused Scope = "refused" // what a namespace has no room for: every ruleset drops it
)

// MemberDef is what a member stands for.
type MemberDef struct {
	Scope    Scope             `json:"scope"`
	Family   uint8             `json:"family"`            // bpf.FamilyIPv4 or bpf.FamilyIPv6
	LabelSet tables.LabelSetID `json:"labelSet,omitzero"` // of ScopePods
	Node     string            `json:"node,omitempty"`    // of ScopeNode

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

// Member is a set of addresses that no policy can tell apart. An entry of sluice_peers.
type Member struct {
	Life `yaml:",inline"`

	MemberDef `yaml:",inline"`
	Digest    bpf.Digest `json:"digest"`
	Namespace string     `json:"namespace,omitempty"` // of the label set

	// Labels is the label set of ScopePods. No pod may have it any more.
	Labels *tables.LabelSet `json:"-" yaml:"-"`

	Class uint32 `json:"class"`

	// Made is the number of the transaction that gave the member its class: see
	// [SelectorMatch].
	Made uint64 `json:"made"`

	Status reconciler.Status `json:"status"`
}

// Equal reports whether two rows want the same, whatever their status.
func (m *Member) Equal(o *Member) bool {
	return m.Life == o.Life && m.Digest == o.Digest && m.Class == o.Class && m.Made == o.Made
}

// MapKey is the key in sluice_peers.
func (m *Member) MapKey() PeerKey { return PeerKey{m.Number} }

// MapValue is the value in sluice_peers.
func (m *Member) MapValue() PeerValue { return PeerValue{m.Class} }

// Clone returns a shallow copy.
func (m *Member) Clone() *Member { c := *m; return &c }

// SetStatus sets the reconciliation status.
func (m *Member) SetStatus(s reconciler.Status) *Member { m.Status = s; return m }

// GetStatus returns the reconciliation status.
func (m *Member) GetStatus() reconciler.Status { return m.Status }

// TableHeader implements [statedb.TableWritable].
func (*Member) TableHeader() []string {
	return []string{"Number", "Member", "Class", "Undesired", "Status", "Error"}
}

// TableRow implements [statedb.TableWritable].
func (m *Member) TableRow() []string {
	return []string{
		number(m.Number), m.MemberDef.String(), number(m.Class), trueOrDash(m.Undesired),
		m.Status.Kind.String(), tables.OrDash(m.Status.GetError()),
	}
}

var (
	memberNumber = statedb.Index[*Member, uint32]{
		Name: "number", Unique: true, FromKey: index.Uint32, FromString: index.Uint32String,
		FromObject: func(m *Member) index.KeySet { return index.NewKeySet(index.Uint32(m.Number)) },
	}
	memberDigest = statedb.Index[*Member, bpf.Digest]{
		Name: "digest", Unique: true, FromKey: tables.DigestKey, FromString: tables.DigestFromString,
		FromObject: func(m *Member) index.KeySet { return index.NewKeySet(tables.DigestKey(m.Digest)) },
	}
	memberClass = statedb.Index[*Member, uint32]{
		Name: "class", FromKey: index.Uint32, FromString: index.Uint32String,
		FromObject: func(m *Member) index.KeySet { return nonZero(m.Class) },
	}
	memberNamespace = statedb.Index[*Member, string]{
		Name: "namespace", FromKey: index.String, FromString: index.FromString,
		FromObject: func(m *Member) index.KeySet {
			if m.Namespace == "" {
				return index.NewKeySet()
			}
			return index.NewKeySet(index.String(m.Namespace))
		},
	}
	memberNode = statedb.Index[*Member, string]{
		Name: "node", FromKey: index.String, FromString: index.FromString,
		FromObject: func(m *Member) index.KeySet {
			if m.Node == "" {
				return index.NewKeySet()
			}
			return index.NewKeySet(index.String(m.Node))
		},
	}
	memberUndesired = statedb.Index[*Member, bool]{
		Name: "undesired", FromKey: index.Bool, FromString: index.BoolString,
		FromObject: func(m *Member) index.KeySet { return marked(m.Undesired) },
	}

	memberPending = statedb.Index[*Member, bool]{
		Name: "pending", FromKey: index.Bool, FromString: index.BoolString,
		FromObject: func(m *Member) index.KeySet { return marked(!isDone(m.Status)) },
	}

	// MemberByNumber queries a member by its number.
	MemberByNumber = memberNumber.Query

	// MemberByDigest queries the member with a definition.
	MemberByDigest = memberDigest.Query

	// MembersByClass queries the members of a class.
	MembersByClass = memberClass.Query

	// MembersByNamespace queries the members with label sets of a namespace.
	MembersByNamespace = memberNamespace.Query

	// MembersByNode queries the members that are a node.
	MembersByNode = memberNode.Query

	// MembersUndesired queries, by true, the members that no address is desired in.
	MembersUndesired = memberUndesired.Query

	// MembersPending queries, by true, the members whose class the kernel does not have yet.
	MembersPending = memberPending.Query
)

// NewMemberTable creates the table of members.
func NewMemberTable(db *statedb.DB) (statedb.RWTable[*Member], error) {
	return statedb.NewTable(db, "members", memberNumber, memberDigest, memberClass,
		memberNamespace, memberNode, memberUndesired, memberPending)
}

// Class is a set of members that the rulesets in use cannot tell apart: the same selectors
// in use select them, and they have the same numbers for the names of ports in use.
type Class struct {
	Life `yaml:",inline"`

	Digest    bpf.Digest         `json:"digest"`
	Selectors []uint32           `json:"selectors,omitempty"` // numbers of selectors in use, in order
	Ports     []tables.NamedPort `json:"ports,omitempty"`     // in order
	Refused   bool               `json:"refused,omitempty"`   // every ruleset drops it
}

// ClassDigest identifies a class.
func ClassDigest(selectors []uint32, ports []tables.NamedPort, refused bool) bpf.Digest {
	var b []byte
	for _, n := range selectors {
		b = binary.BigEndian.AppendUint32(b, n)
	}
	b = append(b, 0, 0, 0, 0) // no selector has this number
	for _, p := range ports {
		b = append(b, p.String()...)
		b = append(b, 0)
	}
	if refused {
		b = append(b, 1)
	}
	sum := sha256.Sum256(b)
	return bpf.Digest(sum[:16])
}

// TableHeader implements [statedb.TableWritable].
func (*Class) TableHeader() []string {
	return []string{"Number", "Selectors", "Ports", "Undesired"}
}

// TableRow implements [statedb.TableWritable].
func (c *Class) TableRow() []string {
	selectors := fmt.Sprint(c.Selectors)
	if c.Refused {
		selectors = "refused"
	}
	return []string{number(c.Number), selectors, fmt.Sprint(c.Ports), trueOrDash(c.Undesired)}
}

// Selects reports whether a selector in use selects the members of the class.
func (c *Class) Selects(selector uint32) bool {
	_, found := slices.BinarySearch(c.Selectors, selector)
	return found
}

// PortNames returns the names of ports that the class has numbers for, in the form http/tcp.
func (c *Class) PortNames() []string {
	var names []string
	for _, p := range c.Ports {
		names = append(names, tables.PolicyPort{Name: p.Name, Protocol: p.Protocol}.String())
	}
	return slices.Compact(names) // which are in order
}

var (
	classNumber = statedb.Index[*Class, uint32]{
		Name: "number", Unique: true, FromKey: index.Uint32, FromString: index.Uint32String,
		FromObject: func(c *Class) index.KeySet { return index.NewKeySet(index.Uint32(c.Number)) },
	}
	classDigest = statedb.Index[*Class, bpf.Digest]{
		Name: "digest", Unique: true, FromKey: tables.DigestKey, FromString: tables.DigestFromString,
		FromObject: func(c *Class) index.KeySet { return index.NewKeySet(tables.DigestKey(c.Digest)) },
	}
	classSelector = statedb.Index[*Class, uint32]{
		Name: "selector", FromKey: index.Uint32, FromString: index.Uint32String,
		FromObject: func(c *Class) index.KeySet { return uint32Keys(c.Selectors) },
	}
	classPort = statedb.Index[*Class, string]{
		Name: "port", FromKey: index.String, FromString: index.FromString,
		FromObject: func(c *Class) index.KeySet { return index.StringSlice(c.PortNames()) },
	}
	classRefused = statedb.Index[*Class, bool]{
		Name: "refused", FromKey: index.Bool, FromString: index.BoolString,
		FromObject: func(c *Class) index.KeySet { return marked(c.Refused) },
	}
	classUndesired = statedb.Index[*Class, bool]{
		Name: "undesired", FromKey: index.Bool, FromString: index.BoolString,
		FromObject: func(c *Class) index.KeySet { return marked(c.Undesired) },
	}

	// ClassByNumber queries a class by its number.
	ClassByNumber = classNumber.Query

	// ClassByDigest queries the class with a definition.
	ClassByDigest = classDigest.Query

	// ClassesBySelector queries the classes that a selector in use selects.
	ClassesBySelector = classSelector.Query

	// ClassesByPort queries the classes with a number for a port, in the form http/tcp.
	ClassesByPort = classPort.Query

	// ClassesRefused queries, by true, the classes that every ruleset drops.
	ClassesRefused = classRefused.Query

	// ClassesUndesired queries, by true, the classes without members.
	ClassesUndesired = classUndesired.Query
)

func uint32Keys(numbers []uint32) index.KeySet {
	keys := make([]index.Key, len(numbers))
	for i, n := range numbers {
		keys[i] = index.Uint32(n)
	}
	return index.NewKeySet(keys...)
}

// NewClassTable creates the table of classes.
func NewClassTable(db *statedb.DB) (statedb.RWTable[*Class], error) {
	return statedb.NewTable(db, "peer-classes", classNumber, classDigest, classSelector, classPort,
		classRefused, classUndesired)
}
