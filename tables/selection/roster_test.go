// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"slices"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// Members come, go and change their class; one that says the same stays the row that
// the table has.
func TestRoster(t *testing.T) {
	member := func(node string, class uint32) *tables.ClassMember {
		return &tables.ClassMember{Role: bpf.RolePeer, LabelSet: tables.LabelSetID{1}, Node: node, Class: class}
	}
	a, b, nobodys := member("a", 1), member("b", 1), member("c", 0)
	table, err := tables.NewClassMemberTable(statedb.New())
	require.NoError(t, err)
	x := newRoster(table)
	require.Nil(t, x.any(1))
	x.take(&evaluation{wanted: []*tables.ClassMember{a, b, nobodys}})
	require.ElementsMatch(t, []*tables.ClassMember{a, b}, slices.Collect(x.of(1)))
	require.Len(t, x.classes, 1)

	of := &evaluation{former: []*tables.ClassMember{a, b, nobodys}, wanted: []*tables.ClassMember{member("a", 1), member("b", 2)}}
	x.take(of)
	require.Same(t, a, of.wanted[0])
	require.Same(t, a, x.any(1))
	require.Same(t, of.wanted[1], x.any(2))
	require.Len(t, x.classes, 2)

	x.take(&evaluation{former: of.wanted})
	require.Empty(t, x.classes)
}
