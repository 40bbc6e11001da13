// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHasAnchor(t *testing.T) {
	set := NewLabelSet("shop", "default", map[string]string{"app": "web", "empty": ""}, nil)
	for _, anchor := range []string{AnyAnchor, NamespaceAnchor("shop"), LabelAnchor("app", "web"), LabelAnchor("empty", "")} {
		require.True(t, set.HasAnchor(anchor), anchor)
	}
	for _, anchor := range []string{NamespaceAnchor(""), NamespaceAnchor("sho"), LabelAnchor("app", ""), LabelAnchor("app", "we"), LabelAnchor("ap", "web"), LabelAnchor("none", "")} {
		require.False(t, set.HasAnchor(anchor), anchor)
	}
}
