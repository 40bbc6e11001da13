// SPDX-License-Identifier: Apache-2.0

package derive

import (
	"math/rand/v2"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
)

// Rows whose keys have one hash are told apart, whatever comes and goes.
func TestMemoryCollisions(t *testing.T) {
	table := statedb.MustNewTable(statedb.New(), "members", memberID, memberGroup)
	for _, hashes := range []uint64{1, 3, 1 << 62} {
		m := newMemory(table.PrimaryIndexer())
		hash := m.hash
		m.hash = func(key []byte) uint64 { return hash(key) % hashes }
		want := map[int]*member{}
		random := rand.New(rand.NewPCG(hashes, 0))
		for i := range 2000 {
			row := &member{ID: random.IntN(20), Weight: i}
			former := want[row.ID]
			var old *member
			var had bool
			if random.IntN(2) == 0 {
				old, had = m.forget(row)
				delete(want, row.ID)
			} else {
				old, had = m.swap(row)
				want[row.ID] = row
			}
			require.Same(t, former, old)
			require.Equal(t, former != nil, had)
		}
		require.Len(t, want, len(m.rows)+len(m.rest))
	}
}
