// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/cilium/statedb/index"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/bpf"
)

// SelectorID identifies a [Selector]: a digest of its role and canonical text,
// so that it is the same on every node and after every restart.
type SelectorID uint64

// NewSelectorID returns the identity of the selector with a canonical text.
func NewSelectorID(role bpf.Role, text string) SelectorID {
	sum := sha256.Sum256([]byte(role.String() + " " + text))
	return SelectorID(binary.BigEndian.Uint64(sum[:]))
}

// SubjectSelectorID returns the identity of the selector of a rule's subject.
func SubjectSelectorID(subject EgressSelector) SelectorID {
	return PodSelector(bpf.RoleSubject, subject).ID()
}

// PeerSelectorID returns the identity of the selector that a peer stands for.
func PeerSelectorID(peer PolicyPeer) SelectorID { return PeerSelector(peer).ID() }

// PortSelectorID returns the identity of the selector of those that have a port
// of a name: see [NamedPortRole].
func PortSelectorID(role bpf.Role, name string, protocol uint8) SelectorID {
	return PortSelector(role, name, protocol).ID()
}

func (id SelectorID) String() string { return fmt.Sprintf("%016x", uint64(id)) }

// MarshalText implements [encoding.TextMarshaler]: JavaScript cannot hold 64 bits in a number.
func (id SelectorID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (id *SelectorID) UnmarshalText(text []byte) error {
	n, err := strconv.ParseUint(string(text), 16, 64)
	*id = SelectorID(n)
	return err
}

// SelectorSpec is what a policy says of a selector.
type SelectorSpec struct {
	Role bpf.Role `json:"role"`
	Text string   `json:"text"` // canonical: selectors of a role with the same text are one

	// Peer is whom it means. Subjects and sources of egress gateways are pods
	// too. It is zero for the name of a port, which Port is.
	Peer PolicyPeer `json:"peer,omitzero"`
	Port PolicyPort `json:"port,omitzero"`
}

// ID returns the identity of the selector.
func (s SelectorSpec) ID() SelectorID { return NewSelectorID(s.Role, s.Text) }

// PodSelector is the selector of pods under a role that is not that of peers.
func PodSelector(role bpf.Role, pods EgressSelector) SelectorSpec {
	return SelectorSpec{Role: role, Text: pods.String(), Peer: PolicyPeer{Kind: PeerPods, Pods: pods}}
}

// PeerSelector is the selector that a peer stands for.
func PeerSelector(peer PolicyPeer) SelectorSpec {
	return SelectorSpec{Role: bpf.RolePeer, Text: peer.String(), Peer: peer}
}

// EntitySelector is the selector of an entity.
func EntitySelector(entity PolicyEntity) SelectorSpec {
	return PeerSelector(PolicyPeer{Kind: PeerEntity, Entity: entity})
}

// PortSelector is the selector of those that have a port of a name: see [NamedPortRole].
func PortSelector(role bpf.Role, name string, protocol uint8) SelectorSpec {
	port := PolicyPort{Protocol: protocol, Name: name}
	return SelectorSpec{Role: role, Text: "port " + port.String(), Port: port}
}

// Resolution is what a selector comes to, with the objects that it names as they
// are now: pods by labels and whoever is at some addresses.
type Resolution struct {
	Pods []EgressSelector `json:"pods,omitempty"` // chosen by any of them

	// What is inside one of Prefixes and in none of Except; both are in order.
	Prefixes []netip.Prefix `json:"prefixes,omitempty"`
	Except   []netip.Prefix `json:"except,omitempty"`

	// Whether the prefixes mean pods and nodes that are there, not only what is
	// outside the cluster.
	MatchesPods  bool `json:"matchesPods,omitempty"`
	MatchesNodes bool `json:"matchesNodes,omitempty"`
}

// Equal reports whether two resolutions are the same.
func (r *Resolution) Equal(o *Resolution) bool {
	return r.MatchesPods == o.MatchesPods && r.MatchesNodes == o.MatchesNodes && slices.Equal(r.Pods, o.Pods) &&
		slices.Equal(r.Prefixes, o.Prefixes) && slices.Equal(r.Except, o.Except)
}

// Contains reports whether a prefix is among those that the selector means.
func (r *Resolution) Contains(p netip.Prefix) bool {
	return isInside(p, r.Prefixes) && !isInside(p, r.Except)
}

// isInside reports whether a prefix is one of some in order, or inside one.
func isInside(p netip.Prefix, ordered []netip.Prefix) bool {
	if len(ordered) == 0 {
		return false
	}
	for bits := p.Bits(); bits >= 0; bits-- {
		if _, found := slices.BinarySearchFunc(ordered, netip.PrefixFrom(p.Addr(), bits).Masked(), netip.Prefix.Compare); found {
			return true
		}
	}
	return false
}

// Selector is an expression by which policies choose pods, nodes, addresses or
// those that have a port of a name; interned: however many policies use it, it is
// evaluated once. Which do is told by the indexes of their tables, so that one that
// comes or goes changes nothing here while there are others.
type Selector struct {
	ID           SelectorID `json:"id"`
	SelectorSpec `yaml:",inline"`
	Resolution   `yaml:",inline"`

	// Version is another one whenever the resolution is, and when the selector
	// was away meanwhile: see [SelectorIsCurrent].
	Version uint64 `json:"-" yaml:"-"`

	alternatives []labelSelectors // of Pods
	nodes        labels.Selector  // of a selector of nodes
}

// NewSelector parses the canonical texts of what a selector comes to.
func NewSelector(spec SelectorSpec, resolved Resolution) (*Selector, error) {
	s := &Selector{ID: spec.ID(), SelectorSpec: spec, Resolution: resolved}
	for _, pods := range s.Pods {
		var a labelSelectors
		for _, part := range []struct {
			text string
			into *labels.Selector
		}{{pods.Namespaces, &a.namespaces}, {pods.Pods, &a.pods}, {pods.Nodes, &a.nodes}} {
			var err error
			if *part.into, err = labels.Parse(part.text); err != nil {
				return nil, fmt.Errorf("parse selector %q: %w", part.text, err)
			}
		}
		a.rest = a.withoutNamespaceLabels()
		s.alternatives = append(s.alternatives, a)
	}
	if spec.Peer.Kind == PeerNodes {
		var err error
		if s.nodes, err = labels.Parse(spec.Peer.Labels); err != nil {
			return nil, fmt.Errorf("parse selector %q: %w", spec.Peer.Labels, err)
		}
	}
	return s, nil
}

// MatchesLabels reports whether the selector chooses a label set in a
// namespace, as far as pods and namespaces are concerned: see also [Selector.MatchesNode].
// The namespace is nil while there is no object for it: what requires something of
// its labels, even that there is none, does not match then. See [Selector.MayMatch].
func (s *Selector) MatchesLabels(set *LabelSet, namespace *Namespace) bool {
	for _, a := range s.alternatives {
		if (namespace != nil || a.rest == nil) && a.matches(set, namespace) {
			return true
		}
	}
	return false
}

// MayMatch reports whether it depends on the labels of the namespace, for which there is no
// object, whether the selector chooses a label set.
func (s *Selector) MayMatch(set *LabelSet) bool {
	return !s.MatchesLabels(set, nil) && slices.ContainsFunc(s.alternatives, func(a labelSelectors) bool {
		return a.rest != nil && a.rest.matches(set, nil)
	})
}

// ChoosesNode reports whether a selector of nodes chooses one.
func (s *Selector) ChoosesNode(node labels.Set) bool { return s.nodes != nil && s.nodes.Matches(node) }

// NodeDependent reports whether the node that a pod is on matters.
func (s *Selector) NodeDependent() bool {
	return slices.ContainsFunc(s.alternatives, func(a labelSelectors) bool { return !a.nodes.Empty() })
}

// MatchesNode reports whether the selector chooses pods on a node, nil if the
// node is not known.
func (s *Selector) MatchesNode(node *Node) bool {
	return slices.ContainsFunc(s.alternatives, func(a labelSelectors) bool {
		return a.nodes.Empty() || node != nil && a.nodes.Matches(node.Labels)
	})
}

// AnyAnchor is the anchor of selectors that require nothing in particular.
const AnyAnchor = "*"

// Anchors are, for each alternative, something that every label set must have
// to be chosen by it, the most selective: its namespace, or else one of its
// labels. It is [AnyAnchor] if the alternative requires neither.
func (s *Selector) Anchors() []string {
	var anchors []string
	for _, a := range s.alternatives {
		if anchor := a.anchor(); !slices.Contains(anchors, anchor) {
			anchors = append(anchors, anchor)
		}
	}
	return anchors
}

// TableHeader implements [statedb.TableWritable].
func (*Selector) TableHeader() []string { return []string{"ID", "Role", "Expression"} }

// TableRow implements [statedb.TableWritable].
func (s *Selector) TableRow() []string {
	return []string{s.ID.String(), s.Role.String(), s.Text}
}

// RoleAnchor is the index key of the selectors of a role that have an anchor.
type RoleAnchor struct {
	Role   bpf.Role
	Anchor string
}

func (a RoleAnchor) key() index.Key { return append(index.Uint32(uint32(a.Role)), a.Anchor...) }

var (
	selectorIDIndex = UniqueIndex("id", selectorIDKeys,
		func(s *Selector) SelectorID { return s.ID })

	selectorAnchorIndex = IndexEach("anchor", KeysOf(RoleAnchor.key, egressAnchorFromString),
		func(s *Selector) []RoleAnchor {
			var anchors []RoleAnchor
			for _, anchor := range s.Anchors() {
				anchors = append(anchors, RoleAnchor{s.Role, anchor})
			}
			return anchors
		})

	selectorPrefixIndex = IndexEach("prefix", PrefixKeys,
		func(s *Selector) []netip.Prefix { return append(slices.Clone(s.Prefixes), s.Except...) })

	// Only of peers that are found by none of the other indexes.
	selectorKindIndex = IndexIf("kind", KeysOf(peerKindKey, index.FromString),
		func(s *Selector) (PeerKind, bool) {
			switch s.Peer.Kind {
			case PeerCIDRGroups, PeerServices, PeerNodes:
				return s.Peer.Kind, true
			}
			return "", false
		})

	// SelectorsByPrefix queries the selectors that name exactly a prefix, or except it.
	SelectorsByPrefix = selectorPrefixIndex.Query

	// SelectorsByKind queries the selectors of [PeerCIDRGroups], [PeerServices]
	// or [PeerNodes].
	SelectorsByKind = selectorKindIndex.Query

	// SelectorByID queries a selector by its digest.
	SelectorByID = selectorIDIndex.Query

	// SelectorsByAnchor queries the selectors that require something, or [AnyAnchor].
	SelectorsByAnchor = selectorAnchorIndex.Query
)

var selectorIDKeys = KeysOf(selectorIDKey, selectorIDFromString)

func egressAnchorFromString(text string) (index.Key, error) {
	return RoleAnchor{bpf.RoleEgress, text}.key(), nil
}

func peerKindKey(k PeerKind) index.Key { return index.String(string(k)) }

func selectorIDKey(id SelectorID) index.Key { return index.Uint64(uint64(id)) }

func selectorIDFromString(s string) (index.Key, error) {
	var id SelectorID
	if err := id.UnmarshalText([]byte(s)); err != nil {
		return nil, err
	}
	return selectorIDKey(id), nil
}

// NewSelectorTable creates the table of selectors.
var NewSelectorTable = Declare(
	"selectors", selectorIDIndex, selectorAnchorIndex, selectorPrefixIndex, selectorKindIndex,
)
