// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// A gate may see of a class of network policies that it is being left while no round
// of class-readiness does. What waits for it is looked at again all the same.
func TestReadinessFollowsEachRowOfAClass(t *testing.T) {
	db := statedb.New()
	members, err := tables.NewClassMemberTable(db)
	require.NoError(t, err)
	classes, err := tables.NewClassTable(db)
	require.NoError(t, err)
	entries, err := tables.NewClassEntryTable(db)
	require.NoError(t, err)
	r := &readinessParams{Members: members, Classes: classes, ClassEntries: entries}
	key := bpf.ClassKey{Role: bpf.RolePeer, Number: 1}
	readiness := func(leaving ...tables.SelectorID) tables.ClassReadiness {
		wtxn := db.WriteTxn(members, classes)
		defer wtxn.Abort()
		_, _, err := members.Insert(wtxn, &tables.ClassMember{Role: key.Role, OfClass: true, Class: key.Number, Leaving: leaving})
		require.NoError(t, err)
		_, _, err = classes.Insert(wtxn, &tables.Class{ClassKey: key})
		require.NoError(t, err)
		rows := r.rows(wtxn.Commit(), key)
		require.Len(t, rows, 1)
		return *rows[0]
	}
	before := readiness()
	require.True(t, readiness(1).Leaving)
	after := readiness()
	require.False(t, after.Leaving)
	require.NotEqual(t, before, after)
}
