// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-net/sluice/tables"
)

const reservedSource = "reserved:"

// subject reads the selector of a rule's own pods, and tells whether it can be
// used. A namespaced policy has only pods of its namespace, whatever it says.
// Pods have no reserved labels.
func (r *policyReader) subject(field string, s *metav1.LabelSelector) (tables.EgressSelector, bool) {
	rest, reserved := splitReserved(s)
	for _, e := range reserved {
		if e.Operator == metav1.LabelSelectorOpIn || e.Operator == metav1.LabelSelectorOpExists {
			r.unsupported.add(field, "endpoints with label "+e.Key+" are not supported")
		}
	}
	if r.namespace != "" {
		if other, named := rest.MatchLabels[labelNamespace]; named && other != r.namespace {
			r.addLate(field, "a policy selects in its own namespace: "+strconv.Quote(other)+" does not count")
		}
		rest.MatchLabels[labelNamespace] = r.namespace
	}
	selector := tables.EgressSelector{Pods: r.ciliumSelector(field, rest)}
	return selector, !r.bad(field) && len(r.unsupported.of(field)) == 0
}

// endpointPeer reads a selector of endpoints: of pods, or of those that have a
// reserved label.
func (r *policyReader) endpointPeer(field string, s *metav1.LabelSelector) tables.PolicyPeer {
	if s == nil {
		r.add(field, "required")
		return tables.PolicyPeer{}
	}
	rest, reserved := splitReserved(s)
	if len(reserved) > 0 {
		return r.reservedPeer(field, rest, reserved)
	}
	if r.namespace != "" && !namesNamespace(rest) {
		rest.MatchLabels[labelNamespace] = r.namespace
	}
	return tables.PolicyPeer{Kind: tables.PeerPods, Pods: tables.EgressSelector{Pods: r.ciliumSelector(field, rest)}}
}

// reservedPeer returns the entity that a reserved label stands for.
func (r *policyReader) reservedPeer(field string, rest *metav1.LabelSelector, reserved []metav1.LabelSelectorRequirement) tables.PolicyPeer {
	e := reserved[0]
	entity := tables.PolicyEntity(strings.TrimPrefix(e.Key, reservedSource))
	positive := e.Operator == metav1.LabelSelectorOpExists || e.Operator == metav1.LabelSelectorOpIn && slices.Equal(e.Values, []string{""})
	switch {
	case len(reserved) > 1, len(rest.MatchLabels)+len(rest.MatchExpressions) > 0, !positive:
		r.add(field, "a reserved label can only be selected on alone, and only as being there")
	case !slices.Contains(entities, entity), entity == tables.EntityAll, entity == tables.EntityCluster, entity == tables.EntityNone:
		r.add(field, e.Key+" is no label that is reserved")
	}
	return tables.PolicyPeer{Kind: tables.PeerEntity, Entity: entity}
}

// ciliumSelector returns the canonical text of a selector of pods without label
// sources.
func (r *policyReader) ciliumSelector(field string, s *metav1.LabelSelector) string {
	if source, other := otherSource(s); other {
		r.add(field, "labels of source "+strconv.Quote(source)+" cannot be selected on")
		return ""
	}
	return r.podSelector(field, s)
}

// splitReserved takes the requirements on reserved labels out of a selector, and
// the label sources out of the rest.
func splitReserved(s *metav1.LabelSelector) (rest *metav1.LabelSelector, reserved []metav1.LabelSelectorRequirement) {
	rest = &metav1.LabelSelector{MatchLabels: map[string]string{}}
	for _, key := range slices.Sorted(maps.Keys(s.MatchLabels)) {
		if value := s.MatchLabels[key]; strings.HasPrefix(key, reservedSource) {
			reserved = append(reserved, metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpIn, Values: []string{value}})
		} else {
			rest.MatchLabels[key] = value
		}
	}
	for _, e := range s.MatchExpressions {
		if strings.HasPrefix(e.Key, reservedSource) {
			reserved = append(reserved, e)
		} else {
			rest.MatchExpressions = append(rest.MatchExpressions, e)
		}
	}
	return withoutSources(rest), reserved
}

// namesNamespace reports whether a selector of pods says something of their
// namespace.
func namesNamespace(s *metav1.LabelSelector) bool {
	of := func(key string) bool { return key == labelNamespace || strings.HasPrefix(key, labelNamespacePrefix) }
	for key := range s.MatchLabels {
		if of(key) {
			return true
		}
	}
	return slices.ContainsFunc(s.MatchExpressions, func(e metav1.LabelSelectorRequirement) bool { return of(e.Key) })
}

// otherSource returns a label source that a selector names and pods' labels do
// not have.
func otherSource(s *metav1.LabelSelector) (source string, found bool) {
	keys := slices.Sorted(maps.Keys(s.MatchLabels))
	for _, e := range s.MatchExpressions {
		keys = append(keys, e.Key)
	}
	for _, key := range keys {
		if source, _, found := strings.Cut(key, ":"); found {
			return source, true
		}
	}
	return "", false
}
