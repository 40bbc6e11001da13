// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/tables"
)

// Whatever comes and goes, also between two looks at the table, the index has all
// that is there, and not much more.
func TestLabelIndex(t *testing.T) {
	db := statedb.New()
	table, err := tables.NewLabelSetTable(db)
	require.NoError(t, err)
	wtxn := db.WriteTxn(table)
	changes, err := table.Changes(wtxn)
	require.NoError(t, err)
	wtxn.Commit()

	x := newLabelIndex()
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		wtxn := db.WriteTxn(table)
		for range 100 {
			set := tables.NewLabelSet(fmt.Sprint(random.IntN(3)), "", labels.Set{"app": fmt.Sprint(random.IntN(200))}, nil)
			if random.IntN(2) == 0 {
				_, _, err = table.Insert(wtxn, set)
			} else {
				_, _, err = table.Delete(wtxn, set)
			}
			require.NoError(t, err)
		}
		txn := wtxn.Commit()
		some, _ := changes.Next(txn)
		for change := range some {
			x.take(txn, table, change.Object)
		}
		for set := range table.All(txn) {
			require.Contains(t, x.with(tables.NamespaceAnchor(set.Namespace)), set)
			require.Contains(t, x.with(tables.LabelAnchor("app", set.Labels.Get("app"))), set)
		}
		require.LessOrEqual(t, x.taken, 2*600+manyGone)
	}
	require.Empty(t, x.with(tables.LabelAnchor("app", "none")))
}
