// SPDX-License-Identifier: Apache-2.0

package suggest

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNearest(t *testing.T) {
	names := []string{"endpoints", "local-endpoints", "egress-rules", "egress-policies", "network-policies", "health"}
	for name, want := range map[string][]string{
		"helath":   {"health"},
		"endpoint": {"endpoints", "local-endpoints"},
		"policies": {"egress-policies", "network-policies"},
		"egress":   {"egress-rules", "egress-policies"},
		"xyz":      nil,

		strings.Repeat("endpoints", 100): nil,
	} {
		require.Equal(t, want, Nearest(name, names), name)
	}
}

func TestEditDistance(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"abc", "abc", 0},
		{"state-dir", "statedir", 1}, {"kitten", "sitting", 3}, {"ab", "ba", 2},
	} {
		require.Equal(t, tc.want, editDistance(tc.a, tc.b), "%s %s", tc.a, tc.b)
	}
}
