// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

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
	return NewSelectorID(bpf.RoleSubject, subject.String())
}

// PeerSelectorID returns the identity of the selector that a peer stands for.
func PeerSelectorID(peer PolicyPeer) SelectorID { return NewSelectorID(bpf.RolePeer, peer.String()) }

// PortSelectorID returns the identity of the selector of those that have a port
// of a name: see [NamedPortRole].
func PortSelectorID(role bpf.Role, name string, protocol uint8) SelectorID {
	return NewSelectorID(role, "port "+PolicyPort{Protocol: protocol, Name: name}.String())
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

// Pseudo labels that pod selectors of Cilium's policies may name: the
// namespace of a pod, with a prefix the labels of the namespace, the service
// account, and the cluster, which is the one there is.
const (
	podNamespaceLabel      = "io.kubernetes.pod.namespace"
	podNamespaceLabelsPart = "io.cilium.k8s.namespace.labels."
	podServiceAccountLabel = "io.cilium.k8s.policy.serviceaccount"
	podClusterLabel        = "io.cilium.k8s.policy.cluster"

	clusterName = "default" // Cilium's default
)

// Selector is an expression by which policies choose pods, interned: however
// many policies use it, it is evaluated once.
type Selector struct {
	ID         SelectorID     `json:"id"`
	Role       bpf.Role       `json:"role"`
	Expression EgressSelector `json:"expression"`
	Policies   []string       `json:"policies"` // that use it, in order of name

	namespaces, pods, nodes labels.Selector
}

// NewSelector parses the canonical texts of an expression.
func NewSelector(role bpf.Role, e EgressSelector, policies []string) (*Selector, error) {
	s := &Selector{ID: NewSelectorID(role, e.String()), Role: role, Expression: e, Policies: policies}
	for _, part := range []struct {
		text string
		into *labels.Selector
	}{{e.Namespaces, &s.namespaces}, {e.Pods, &s.pods}, {e.Nodes, &s.nodes}} {
		var err error
		if *part.into, err = labels.Parse(part.text); err != nil {
			return nil, fmt.Errorf("parse selector %q: %w", part.text, err)
		}
	}
	return s, nil
}

// MatchesLabels reports whether the selector chooses a label set in a
// namespace, as far as pods and namespaces are concerned: see also [Selector.MatchesNode].
// The namespace may be nil if there is no object for it.
func (s *Selector) MatchesLabels(set *LabelSet, namespace *Namespace) bool {
	return s.pods.Matches(podLabels{set, namespace}) && (s.namespaces.Empty() || s.namespaces.Matches(namespaceLabels{set.Namespace, namespace}))
}

// NodeDependent reports whether the node that a pod is on matters.
func (s *Selector) NodeDependent() bool { return !s.nodes.Empty() }

// MatchesNode reports whether the selector chooses pods on a node, nil if the
// node is not known.
func (s *Selector) MatchesNode(node *Node) bool {
	if node == nil {
		return s.nodes.Empty()
	}
	return s.nodes.Matches(node.Labels)
}

// AnyAnchor is the anchor of selectors that require nothing in particular.
const AnyAnchor = "*"

// Anchor is something that every label set must have for the selector to
// choose it, the most selective: its namespace, or else one of its labels. It
// is [AnyAnchor] if the selector requires neither.
func (s *Selector) Anchor() string {
	if ns, ok := required(s.pods, podNamespaceLabel); ok {
		return NamespaceAnchor(ns)
	}
	if ns, ok := required(s.namespaces, corev1.LabelMetadataName); ok {
		return NamespaceAnchor(ns)
	}
	requirements, _ := s.pods.Requirements()
	for _, r := range requirements {
		if strings.HasPrefix(r.Key(), podNamespaceLabelsPart) || r.Key() == podServiceAccountLabel || r.Key() == podClusterLabel {
			continue // no label set has it for a label
		}
		if v, ok := required(s.pods, r.Key()); ok {
			return LabelAnchor(r.Key(), v)
		}
	}
	return AnyAnchor
}

// required returns the one value that a selector requires of a label.
func required(s labels.Selector, key string) (value string, ok bool) {
	requirements, _ := s.Requirements()
	for _, r := range requirements {
		switch r.Operator() {
		case selection.Equals, selection.DoubleEquals, selection.In:
			if values := r.Values().UnsortedList(); r.Key() == key && len(values) == 1 {
				return values[0], true
			}
		}
	}
	return "", false
}

// podLabels are the labels that pod selectors see of a label set.
type podLabels struct {
	set       *LabelSet
	namespace *Namespace
}

func (l podLabels) Lookup(key string) (string, bool) {
	switch key {
	case podNamespaceLabel:
		return l.set.Namespace, true
	case podServiceAccountLabel:
		return l.set.ServiceAccount, l.set.ServiceAccount != ""
	case podClusterLabel:
		return clusterName, true
	}
	if label, ok := strings.CutPrefix(key, podNamespaceLabelsPart); ok {
		return namespaceLabels{l.set.Namespace, l.namespace}.Lookup(label)
	}
	v, ok := l.set.Labels[key]
	return v, ok
}
func (l podLabels) Has(key string) bool   { _, ok := l.Lookup(key); return ok }
func (l podLabels) Get(key string) string { v, _ := l.Lookup(key); return v }

// namespaceLabels are the labels that namespace selectors see. The name is
// always among them, as the API server would have it.
type namespaceLabels struct {
	name      string
	namespace *Namespace
}

func (l namespaceLabels) Lookup(key string) (string, bool) {
	if key == corev1.LabelMetadataName {
		return l.name, true
	}
	if l.namespace == nil {
		return "", false
	}
	v, ok := l.namespace.Labels[key]
	return v, ok
}
func (l namespaceLabels) Has(key string) bool   { _, ok := l.Lookup(key); return ok }
func (l namespaceLabels) Get(key string) string { v, _ := l.Lookup(key); return v }

// TableHeader implements [statedb.TableWritable].
func (*Selector) TableHeader() []string { return []string{"ID", "Role", "Expression", "Policies"} }

// TableRow implements [statedb.TableWritable].
func (s *Selector) TableRow() []string {
	return []string{s.ID.String(), s.Role.String(), s.Expression.String(), listColumn(s.Policies, ", ")}
}

// RoleAnchor is the index key of the selectors of a role that have an anchor.
type RoleAnchor struct {
	Role   bpf.Role
	Anchor string
}

func (a RoleAnchor) key() index.Key { return append(index.Uint32(uint32(a.Role)), a.Anchor...) }

var (
	selectorIDIndex = statedb.Index[*Selector, SelectorID]{
		Name:       "id",
		FromObject: func(s *Selector) index.KeySet { return index.NewKeySet(selectorIDKey(s.ID)) },
		FromKey:    selectorIDKey,
		FromString: selectorIDFromString,
		Unique:     true,
	}

	selectorAnchorIndex = statedb.Index[*Selector, RoleAnchor]{
		Name: "anchor",
		FromObject: func(s *Selector) index.KeySet {
			return index.NewKeySet(RoleAnchor{s.Role, s.Anchor()}.key())
		},
		FromKey: RoleAnchor.key,
		FromString: func(text string) (index.Key, error) {
			return RoleAnchor{bpf.RoleEgress, text}.key(), nil
		},
	}

	// SelectorByID queries a selector by its digest.
	SelectorByID = selectorIDIndex.Query

	// SelectorsByAnchor queries the selectors that require something, or [AnyAnchor].
	SelectorsByAnchor = selectorAnchorIndex.Query
)

func selectorIDKey(id SelectorID) index.Key { return index.Uint64(uint64(id)) }

func selectorIDFromString(s string) (index.Key, error) {
	var id SelectorID
	if err := id.UnmarshalText([]byte(s)); err != nil {
		return nil, err
	}
	return selectorIDKey(id), nil
}

// NewSelectorTable creates the table of selectors.
func NewSelectorTable(db *statedb.DB) (statedb.RWTable[*Selector], error) {
	return statedb.NewTable(db, "selectors", selectorIDIndex, selectorAnchorIndex)
}
