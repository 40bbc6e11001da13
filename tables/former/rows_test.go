// SPDX-License-Identifier: Apache-2.0

package former

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

func namespace(n int) *tables.Namespace { return &tables.Namespace{Name: fmt.Sprint("ns-", n)} }

// Rows whose keys have one hash are told apart, whatever comes and goes.
func TestRowsCollide(t *testing.T) {
	table, err := tables.NewNamespaceTable(statedb.New())
	require.NoError(t, err)
	for _, apart := range []uint32{1<<32 - 1, 1 << 30, 1} { // one hash, a few near the end, many
		r := NewRows(table.PrimaryIndexer())
		hash := r.hash
		r.hash = func(key []byte) uint32 { return hash(key) / apart * apart }
		want := map[string]*tables.Namespace{}
		random := rand.New(rand.NewPCG(uint64(apart), 0))
		for range 2000 {
			row := namespace(random.IntN(20))
			former := want[row.Name]
			var old *tables.Namespace
			var had bool
			if random.IntN(2) == 0 {
				old, had = r.Forget(row)
				delete(want, row.Name)
			} else {
				old, had = r.Swap(row)
				want[row.Name] = row
			}
			require.Same(t, former, old)
			require.Equal(t, former != nil, had)
		}
		require.Equal(t, len(want), r.Len())
		for row := range r.All {
			require.Same(t, want[row.Name], row)
			delete(want, row.Name)
		}
		require.Empty(t, want)
	}
}

func TestRowsReserve(t *testing.T) {
	table, err := tables.NewNamespaceTable(statedb.New())
	require.NoError(t, err)
	r := NewRows(table.PrimaryIndexer())
	_, had := r.Forget(namespace(1))
	require.False(t, had, "of none")
	r.Reserve(1000)
	slots := len(r.rows)
	require.LessOrEqual(t, slots, 1251)
	for i := range 1000 {
		_, had := r.Swap(namespace(i))
		require.False(t, had)
	}
	require.Equal(t, slots, len(r.rows), "it has grown")
	for i := range 1000 {
		_, had := r.Swap(namespace(i))
		require.True(t, had)
	}
	require.Equal(t, slots, len(r.rows), "it has grown, though no row has come")
	r.Swap(namespace(1000))
	require.LessOrEqual(t, len(r.rows), 1600, "one more has come")
	_, had = r.Forget(namespace(1000))
	require.True(t, had)
	r.Reserve(10)
	for i := range 1000 {
		row, had := r.Forget(namespace(i))
		require.True(t, had)
		require.Equal(t, namespace(i), row)
	}
	require.Zero(t, r.Len())
}
