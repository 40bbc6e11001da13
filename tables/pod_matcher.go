// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
)

// AnyAnchor is the anchor of selectors that require nothing in particular.
const AnyAnchor = "*"

// PodMatcher is an [EgressSelector], parsed: it selects pods by their labels, and those of
// their namespaces and nodes.
type PodMatcher struct{ labelSelectors }

// NewPodMatcher parses the canonical texts of a selector.
func NewPodMatcher(s EgressSelector) (*PodMatcher, error) {
	m := &PodMatcher{}
	for _, part := range []struct {
		text string
		into *labels.Selector
	}{{s.Namespaces, &m.namespaces}, {s.Pods, &m.pods}, {s.Nodes, &m.nodes}} {
		var err error
		if *part.into, err = labels.Parse(part.text); err != nil {
			return nil, fmt.Errorf("parse selector %q: %w", part.text, err)
		}
	}
	m.rest = m.withoutNamespaceLabels()
	return m, nil
}

// Matches reports whether the selector selects pods with a label set, on some node at least.
// The namespace is nil while there is no object for it: what requires something of its
// labels, even that there is none, does not match then. See [PodMatcher.MayMatch].
func (m *PodMatcher) Matches(set *LabelSet, namespace *Namespace) bool {
	return (namespace != nil || m.rest == nil) && m.matches(set, namespace)
}

// MayMatch reports whether it depends on the labels of the namespace, for which there is no
// object, whether the selector selects a label set.
func (m *PodMatcher) MayMatch(set *LabelSet) bool {
	return m.rest != nil && m.rest.matches(set, nil)
}

// NeedsNode reports whether the node that a pod is on matters.
func (m *PodMatcher) NeedsNode() bool { return !m.nodes.Empty() }

// MatchesNode reports whether the selector selects pods on a node, nil if the node is not
// known.
func (m *PodMatcher) MatchesNode(node *Node) bool {
	return m.nodes.Empty() || node != nil && m.nodes.Matches(node.Labels)
}

// Anchor is something that every label set must have to be selected, the most selective: its
// namespace, or else one of its labels. It is [AnyAnchor] if the selector requires neither.
func (m *PodMatcher) Anchor() string { return m.anchor() }

// dividesOthers reports whether the selector may select some pods of a namespace other than one,
// and not others of it.
func (m *PodMatcher) dividesOthers(namespace string) bool {
	return m.Anchor() != NamespaceAnchor(namespace) && m.needsPodLabels()
}

// AnchorsOf returns what some selectors require, each once. A selector that does not parse,
// as none in a table does, requires nothing.
func AnchorsOf(selectors []EgressSelector) []string {
	var anchors []string
	for _, s := range selectors {
		anchor := AnyAnchor
		if m, err := NewPodMatcher(s); err == nil {
			anchor = m.Anchor()
		}
		if !slices.Contains(anchors, anchor) {
			anchors = append(anchors, anchor)
		}
	}
	return anchors
}

// Anchors yields what selectors may require of the label set.
func (s *LabelSet) Anchors(yield func(string) bool) {
	if !yield(AnyAnchor) || !yield(NamespaceAnchor(s.Namespace)) {
		return
	}
	for _, label := range s.Labels {
		if !yield(LabelAnchor(label.Key, label.Value)) {
			return
		}
	}
}
