// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

// By prefix is found what the rows say, whatever they said before.
func TestLeaving(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 0))
	x := leaving{}
	rows := map[uint32][]tables.Leaver{}
	for range 1000 {
		class := uint32(random.IntN(4))
		var is []tables.Leaver
		for i := range byte(8) { // in order
			if random.IntN(3) == 0 {
				is = append(is, tables.Leaver{Prefix: single(netip.AddrFrom4([4]byte{10, 0, 0, i})), To: random.Uint32()})
			}
		}
		x.take(class, rows[class], is)
		rows[class] = is

		want := map[netip.Prefix][]uint32{}
		for class, leavers := range rows {
			for _, l := range leavers {
				want[l.Prefix] = append(want[l.Prefix], class)
			}
		}
		require.Len(t, x, len(want))
		for prefix, classes := range want {
			require.ElementsMatch(t, classes, x[prefix])
		}
	}
	for class, was := range rows {
		x.take(class, was, nil)
	}
	require.Empty(t, x)
}
