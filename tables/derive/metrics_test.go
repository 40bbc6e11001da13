// SPDX-License-Identifier: Apache-2.0

package derive

import (
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
)

// The work is that of the keys that were marked, and only rows that differ are written.
func TestCounts(t *testing.T) {
	db, metrics := statedb.New(), NewMetrics()
	a, b, to := totals(db, "a"), totals(db, "b"), totals(db, "to")
	r, err := newRunner(db, copies(to, []Input[string]{
		From(a, markGroup), Feedback(From(b, markGroup)), From(a, markGroup),
	}, a, b), metrics)
	require.NoError(t, err)
	stats := metrics.All()[0]
	require.Equal(t, "to", stats.Table())
	require.Equal(t, []InputOf{{Table: "a"}, {Table: "b", Feedback: true}}, stats.Inputs())
	cost := func() (c Counts) {
		stats.total = c
		require.NoError(t, r.work(t.Context()))
		return stats.Counts()
	}
	for _, group := range []string{"x", "y", "z"} {
		insert(t, db, a, &total{group, 1})
	}
	require.Equal(t, Counts{Rounds: 1, Keys: 3, Rows: 3, Inserted: 3}, cost())
	insert(t, db, b, &total{"x", 1})
	require.Equal(t, Counts{Rounds: 1, Keys: 1, Rows: 1, Inserted: 1}, cost())
	insert(t, db, b, &total{"x", 1})
	require.Equal(t, Counts{Rounds: 1, Keys: 1, Rows: 1}, cost(), "it makes no difference")
	insert(t, db, a, &total{"y", 0})
	require.Equal(t, Counts{Rounds: 1, Keys: 1, Deleted: 1}, cost())
	require.Equal(t, Counts{}, cost())
}
