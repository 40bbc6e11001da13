// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"fmt"
	"math/rand/v2"
	"slices"
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
	table, err := newEndpoints(db)
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
			port := tables.NamedPort{Name: fmt.Sprint("port-", random.IntN(10)), Protocol: 6, Port: 80}
			e := &tables.Endpoint{
				Name:     tables.Name{Namespace: "a", Name: fmt.Sprint(random.IntN(300))},
				LabelSet: tables.NewLabelSet(fmt.Sprint(random.IntN(3)), "", labels.Set{"app": fmt.Sprint(random.IntN(200))}, []tables.NamedPort{port}),
			}
			if random.IntN(2) == 0 {
				_, _, err = table.Insert(wtxn, e)
			} else {
				_, _, err = table.Delete(wtxn, e)
			}
			require.NoError(t, err)
		}
		txn := wtxn.Commit()
		some, _ := changes.Next(txn)
		for change := range some {
			if !change.Deleted {
				x.take(txn, table, change.Object.LabelSet)
			}
		}
		for e := range table.All(txn) {
			set := e.LabelSet
			has := func(s *tables.LabelSet) bool { return s.ID == set.ID }
			for _, anchor := range []string{
				tables.AnyAnchor, tables.NamespaceAnchor(set.Namespace), tables.LabelAnchor("app", set.Labels.Get("app")),
				tables.PortAnchor(set.NamedPorts[0].Name, 6),
			} {
				with := slices.DeleteFunc(slices.Collect(x.with(anchor)), func(s *tables.LabelSet) bool { return !has(s) })
				require.Len(t, with, 1, "with %s", anchor)
			}
		}
		require.LessOrEqual(t, len(x.sets), 2*300+manyGone)
	}
	require.Empty(t, slices.Collect(x.with(tables.LabelAnchor("app", "none"))))
}
