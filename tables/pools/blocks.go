// SPDX-License-Identifier: Apache-2.0

package pools

import (
	"cmp"
	"slices"
	"time"

	"github.com/sluice-net/sluice/tables"
)

// rest is for how long a block of a node that is gone is given to no other node: the clock by
// which it was released may have been late.
const rest = tables.BlockRest + tables.ClockInterval

// assignBlocks returns the blocks of a pool that has so many of them, in order, and the nodes for
// which there is none. A node keeps the blocks that it has, and gets those back that rest, when
// it returns. A node without a block gets the free one with the lowest index.
func assignBlocks(
	has []tables.PortBlock, count int, nodes []string, now time.Time,
) (blocks []tables.PortBlock, without []string) {
	isNode := make(map[string]bool, len(nodes))
	for _, n := range nodes {
		isNode[n] = true
	}
	served, taken := map[string]bool{}, make([]bool, count)
	for _, b := range has {
		if isNode[b.Node] {
			b.Released = time.Time{}
			served[b.Node] = true
		} else if b.Released.IsZero() || b.Released.After(now) { // that clock was ahead
			b.Released = now
		} else if now.Sub(b.Released) >= rest {
			continue
		}
		blocks = append(blocks, b)
		taken[b.Index] = true
	}
	index := 0
	for _, n := range nodes {
		if served[n] {
			continue
		}
		for index < count && taken[index] {
			index++
		}
		if index == count {
			without = append(without, n)
			continue
		}
		blocks = append(blocks, tables.PortBlock{Index: index, Node: n})
		index++
	}
	slices.SortFunc(blocks, func(a, b tables.PortBlock) int { return cmp.Compare(a.Index, b.Index) })
	return blocks, without
}
