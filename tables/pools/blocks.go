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

// reserved is the part of a pool's blocks, one of so many, that are left for nodes to come: they
// are given to no node that has one already.
const reserved = 8

// reports are what nodes have reported of one pool, by the names of nodes.
type reports map[string]tables.PoolPorts

// blockAssignment is how the blocks of a pool are given to nodes.
type blockAssignment struct {
	blocks []tables.PortBlock
	taken  []bool // by index of a block
	free   int    // blocks
	now    time.Time
}

// assignBlocks returns the blocks of a pool that has so many of them, in order, and the nodes for
// which there is none. A node keeps the blocks that it has, and gets those back that rest, when
// it returns. A node without a block gets the free one with the lowest index. Then nodes get more
// of them, or have some closed, as they have reported. A closed block is the node's until it
// reports that no connection has a port of it.
func assignBlocks(
	has []tables.PortBlock, count int, nodes []string, told reports, now time.Time,
) (blocks []tables.PortBlock, without []string) {
	a := blockAssignment{taken: make([]bool, count), free: count, now: now}
	isNode := make(map[string]bool, len(nodes))
	for _, n := range nodes {
		isNode[n] = true
	}
	own := map[string]*nodeBlocks{}
	for _, n := range nodes {
		own[n] = &nodeBlocks{}
	}
	for _, b := range has {
		if isNode[b.Node] {
			b.Released = time.Time{}
			if told[b.Node].HasDrained(b) {
				continue
			}
			own[b.Node].add(b.Closed.IsZero(), len(a.blocks))
		} else if b.Released.IsZero() || b.Released.After(now) { // that clock was ahead
			b.Released = now
		} else if now.Sub(b.Released) >= rest {
			continue
		}
		a.add(b)
	}
	for _, n := range nodes {
		if len(own[n].open) == 0 && !a.more(n, own[n], 0) {
			without = append(without, n)
		}
	}
	a.follow(nodes, own, told)
	slices.SortFunc(a.blocks, func(a, b tables.PortBlock) int { return cmp.Compare(a.Index, b.Index) })
	return a.blocks, without
}

// nodeBlocks are the blocks of a node: where they are among all.
type nodeBlocks struct{ open, closed []int }

func (n *nodeBlocks) add(isOpen bool, at int) {
	if isOpen {
		n.open = append(n.open, at)
	} else {
		n.closed = append(n.closed, at)
	}
}

func (a *blockAssignment) add(b tables.PortBlock) {
	a.blocks = append(a.blocks, b)
	a.taken[b.Index] = true
	a.free--
}

// follow closes blocks of nodes that want less, and gives those more that want it: each in turn,
// so that no node gets a third one before others have a second.
func (a *blockAssignment) follow(nodes []string, own map[string]*nodeBlocks, told reports) {
	for _, n := range nodes {
		for wants := told[n].Blocks; wants > 0 && len(own[n].open) > wants; {
			last := len(own[n].open) - 1
			at := own[n].open[last]
			a.blocks[at].Closed = a.now
			own[n].open, own[n].closed = own[n].open[:last], append(own[n].closed, at)
		}
	}
	reserve := len(a.taken) / reserved
	for has := 1; has < tables.MaxNodeBlocks; has++ {
		for _, n := range nodes {
			if len(own[n].open) == has && told[n].Blocks > has {
				a.more(n, own[n], reserve)
			}
		}
	}
}

// more gives a node one more block, if more than a reserve are free: one of its own that was
// closed, or else the free one with the lowest index.
func (a *blockAssignment) more(node string, own *nodeBlocks, reserve int) bool {
	if last := len(own.closed) - 1; last >= 0 {
		at := own.closed[last]
		a.blocks[at].Closed = time.Time{}
		own.open, own.closed = append(own.open, at), own.closed[:last]
		return true
	}
	if a.free <= reserve || len(own.open) >= tables.MaxNodeBlocks {
		return false
	}
	own.add(true, len(a.blocks))
	a.add(tables.PortBlock{Index: slices.Index(a.taken, false), Node: node})
	return true
}
