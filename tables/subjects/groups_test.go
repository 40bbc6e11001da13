// SPDX-License-Identifier: Apache-2.0

package subjects

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/tables"
)

// TestMarksOfNode says which groups are elected anew when a node changes: those of which it becomes
// or ceases to be a candidate, and those of a candidate that is ready or not, or moves.
func TestMarksOfNode(t *testing.T) {
	h := cluster(t, 2, 3)
	h.work()
	groups := h.Groups.NumObjects(h.db.ReadTxn())
	require.Positive(t, groups)
	marks := func(old, new *tables.Node) (n int) {
		h.markNode(h.db.ReadTxn(), old, new, func(k key) {
			if k.kind == ofGroup {
				n++
			}
		})
		return n
	}
	var gateway *tables.Node
	for n := range h.Nodes.All(h.db.ReadTxn()) {
		if marks(n, nil) == groups {
			gateway = n
			break
		}
	}
	require.NotNil(t, gateway, "a candidate of all groups")
	changed := func(change func(*tables.Node)) *tables.Node {
		n := *gateway
		n.Labels = labels.Merge(gateway.Labels, nil)
		change(&n)
		return &n
	}
	labeled := changed(func(n *tables.Node) { n.Labels["unrelated"] = "x" })
	require.Zero(t, marks(gateway, labeled))
	require.Equal(t, groups, marks(gateway, changed(func(n *tables.Node) { n.Labels = nil })))
	require.Equal(t, groups, marks(gateway, changed(func(n *tables.Node) { n.Ready = !n.Ready })))
	require.Equal(t, groups, marks(gateway, changed(func(n *tables.Node) { n.InternalIPs = nil })))
}
