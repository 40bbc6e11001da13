// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

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

// labelSelectors is an [EgressSelector], parsed.
type labelSelectors struct {
	namespaces, pods, nodes labels.Selector

	// rest is without what is required of labels of the namespace, which are not known while
	// there is no object for it; nil if nothing is. The name is known.
	rest *labelSelectors
}

func (a labelSelectors) matches(set *LabelSet, namespace *Namespace) bool {
	return a.pods.Matches(podLabels{set, namespace}) &&
		(a.namespaces.Empty() || a.namespaces.Matches(namespaceLabels{set.Namespace, namespace}))
}

// withoutNamespaceLabels returns what rest is.
func (a labelSelectors) withoutNamespaceLabels() *labelSelectors {
	pods, fewer := without(a.pods, func(r labels.Requirement) bool {
		label, ofNamespace := strings.CutPrefix(r.Key(), podNamespaceLabelsPart)
		return ofNamespace && label != corev1.LabelMetadataName
	})
	namespaces, none := without(a.namespaces,
		func(r labels.Requirement) bool { return r.Key() != corev1.LabelMetadataName })
	if !fewer && !none {
		return nil
	}
	return &labelSelectors{namespaces: namespaces, pods: pods}
}

// without returns a selector without some of its requirements, and whether it has such.
func without(
	s labels.Selector, drop func(labels.Requirement) bool,
) (rest labels.Selector, has bool) {
	requirements, _ := s.Requirements()
	if !slices.ContainsFunc(requirements, drop) {
		return s, false
	}
	return labels.NewSelector().Add(slices.DeleteFunc(slices.Clone(requirements), drop)...), true
}

func (a labelSelectors) anchor() string {
	if ns, ok := required(a.pods, podNamespaceLabel); ok {
		return NamespaceAnchor(ns)
	}
	if ns, ok := required(a.namespaces, corev1.LabelMetadataName); ok {
		return NamespaceAnchor(ns)
	}
	if ns, ok := required(a.pods, podNamespaceLabelsPart+corev1.LabelMetadataName); ok {
		return NamespaceAnchor(ns)
	}
	requirements, _ := a.pods.Requirements()
	for _, r := range requirements {
		if strings.HasPrefix(r.Key(), podNamespaceLabelsPart) || r.Key() == podServiceAccountLabel ||
			r.Key() == podClusterLabel {
			continue // no label set has it for a label
		}
		if v, ok := required(a.pods, r.Key()); ok {
			return LabelAnchor(r.Key(), v)
		}
	}
	return AnyAnchor
}

// needsPodLabels reports whether it depends on more of a pod than its namespace whether the
// selector selects it.
func (a labelSelectors) needsPodLabels() bool {
	requirements, _ := a.pods.Requirements()
	return slices.ContainsFunc(requirements, func(r labels.Requirement) bool {
		return r.Key() != podNamespaceLabel && r.Key() != podClusterLabel &&
			!strings.HasPrefix(r.Key(), podNamespaceLabelsPart)
	})
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
	return l.set.Labels.Lookup(key)
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
