// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/bpf"
)

// While there is no object for a namespace nothing matches by its labels, also not by what it
// would not have. Whether a selector may choose its pods is told by the rest of it.
func TestSelectorOfUnknownNamespace(t *testing.T) {
	const yes, may, no = "chooses", "may choose", "does not choose"
	set := NewLabelSet("shop", "web", labels.Set{"app": "web"}, nil)
	for _, test := range []struct{ namespaces, pods, unknown, known string }{
		{"", "", yes, yes},
		{"", "app=web", yes, yes},
		{"", "app=db", no, no},
		{"", "!app", no, no},
		{"kubernetes.io/metadata.name=shop", "", yes, yes},
		{"kubernetes.io/metadata.name=other", "", no, no},
		{"kubernetes.io/metadata.name!=other", "app=web", yes, yes},
		{"", "io.kubernetes.pod.namespace=shop", yes, yes},
		{"", "io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name=shop", yes, yes},
		{"team=blue", "", may, yes},
		{"team=red", "", may, no},
		{"team", "", may, yes},
		{"!team", "", may, no},
		{"!mood", "", may, yes},
		{"team notin (red)", "", may, yes},
		{"!mood", "app=db", no, no},
		{"!mood,kubernetes.io/metadata.name=other", "", no, no},
		{"", "io.cilium.k8s.namespace.labels.team=blue", may, yes},
		{"", "!io.cilium.k8s.namespace.labels.mood,app=web", may, yes},
		{"", "!io.cilium.k8s.namespace.labels.mood,app=db", no, no},
		{"", "!io.cilium.k8s.namespace.labels.team,io.kubernetes.pod.namespace=shop", may, no},
	} {
		pods := EgressSelector{Namespaces: test.namespaces, Pods: test.pods}
		s, err := NewSelector(PodSelector(bpf.RoleSubject, pods),
			Resolution{Pods: []EgressSelector{pods}})
		require.NoError(t, err)
		text := func(namespace *Namespace) string {
			switch {
			case s.MatchesLabels(set, namespace):
				return yes
			case namespace == nil && s.MayMatch(set):
				return may
			}
			return no
		}
		require.Equal(t, test.unknown, text(nil), "%v without a namespace", pods)
		require.Equal(t, test.known, text(&Namespace{Name: "shop", Labels: labels.Set{"team": "blue"}}),
			"%v", pods)
	}

	// One of several alternatives decides alone.
	both := []EgressSelector{{Namespaces: "team=blue"}, {Pods: "app=web"}}
	s, err := NewSelector(PodSelector(bpf.RoleSubject, both[0]), Resolution{Pods: both})
	require.NoError(t, err)
	require.True(t, s.MatchesLabels(set, nil))
	require.False(t, s.MayMatch(set))
}
