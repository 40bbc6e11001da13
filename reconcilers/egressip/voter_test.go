// SPDX-License-Identifier: Apache-2.0

package egressip

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOneOwner: whatever happens, no address ever has two nodes.
func TestOneOwner(t *testing.T) {
	seeds, steps := 40, 20000
	if testing.Short() {
		seeds = 5
	}
	held, moves := 0, 0
	for seed := range seeds {
		w := newNetwork(t, uint64(seed), 6, 1+2*(seed%3))
		for range steps {
			n := w.nodes[w.random.IntN(len(w.nodes))]
			addr := w.addrs[w.random.IntN(len(w.addrs))]
			switch w.random.IntN(4000) {
			case 0, 1, 2, 3:
				n.choose(addr, w.random.IntN(3))
			case 4, 5, 6, 7, 8, 9:
				w.all(addr, w.random.IntN(3))
			case 10, 11: // the agent stands still
				n.next = w.time + w.random.Uint64N(2e9)
			case 12:
				n.start()
				n.next = w.time + w.random.Uint64N(5e8)
			case 13:
				n.cut = !n.cut
			case 14:
				for _, n := range w.nodes {
					n.cut = false
				}
			case 15, 16:
				w.change()
			case 17, 18, 19: // a set that is the next, or newer
				known := int(n.set.Generation)
				n.take(w.sets[known-1+w.random.IntN(len(w.sets)-known+1)])
			case 20, 21:
				for _, n := range w.nodes {
					if w.random.IntN(4) > 0 {
						n.take(w.sets[len(w.sets)-1])
					}
				}
			case 22: // all agents start anew at once
				for _, n := range w.nodes {
					n.start()
				}
				w.all(addr, w.random.IntN(3))
			case 23: // nodes change their minds
				for i := range 2 + w.random.IntN(3) {
					w.all(addr, i%2)
					w.steps(w.random.IntN(60))
				}
			case 24, 25: // two sides, of which one follows the operator
				for _, n := range w.nodes {
					n.side = w.random.IntN(2)
				}
				for range 8 {
					for _, n := range w.nodes {
						n.choose(addr, n.side)
						if n.side == 0 && w.random.IntN(2) == 0 {
							n.take(w.sets[len(w.sets)-1])
						}
					}
					w.change()
					w.steps(w.random.IntN(200))
				}
			case 26, 27:
				for _, n := range w.nodes {
					n.side = 0
				}
			}
			w.step()
		}
		for _, addr := range w.addrs {
			held += w.held[addr]
			moves += w.moves[addr]
		}
	}
	t.Logf("an address had a node in %d of %d steps, and moved %d times",
		held, seeds*steps*2, moves)
	require.Greater(t, held, seeds*steps/4)
	require.Greater(t, moves, seeds*10)
}

// TestFailover: the next node has an address within two terms after the former one is cut off, and
// nothing else moves an address: neither lost packets nor an agent that stands still.
func TestFailover(t *testing.T) {
	const term = int(225)
	w := newNetwork(t, 1, 5, 5)
	w.all(v4, 0)
	w.all(v6, 3)
	w.steps(4 * term)
	require.Equal(t, w.nodes[0], w.owner[v4])
	require.Equal(t, w.nodes[3], w.owner[v6])
	w.nodes[0].next = w.time + 1e10 // its agent stands still
	w.steps(4 * term)
	before := w.held[v4]
	w.steps(1000)
	require.Greater(t, w.held[v4], before+950, "others vote for it")

	w.nodes[0].cut = true
	w.steps(100)
	w.all(v4, 1)
	moves := w.moves[v4]
	for range 2 * term {
		if w.step(); w.moves[v4] > moves {
			break
		}
	}
	require.Equal(t, w.nodes[1], w.owner[v4])
	require.Equal(t, w.nodes[3], w.owner[v6])
}

// TestVotersChange: while voters are replaced one after the other no address is without a node,
// though agents read each step late: those of owners until just before the former set goes.
func TestVotersChange(t *testing.T) {
	w := newNetwork(t, 2, 6, 3)
	w.isReliable = true
	w.all(v4, 0)
	w.all(v6, 5)
	w.steps(1000)
	for len(w.sets) < 60 {
		before := len(w.sets)
		for w.change(); len(w.sets) == before; w.change() {
			w.step()
		}
		object := w.sets[before]
		held, time := w.held[v4]+w.held[v6], w.time
		late := map[*simNode]bool{}
		for _, i := range w.random.Perm(len(w.nodes)) {
			n := w.nodes[i]
			late[n] = (n == w.owner[v4] || n == w.owner[v6]) && w.random.IntN(2) == 0
			if !late[n] {
				n.take(object)
				w.steps(w.random.IntN(400))
			}
		}
		w.steps(500)
		for n := range late {
			if len(object.Sets) > 1 || object.Last().Place(n.name()) >= 0 {
				n.take(object)
			}
		}
		w.steps(500)
		steps := int((w.time - time) / 1e6)
		require.Equal(t, 2*steps, w.held[v4]+w.held[v6]-held,
			"from %v to %v", w.sets[before-1].TableRow(), object.TableRow())
	}
	require.Equal(t, 1, w.moves[v4])
	require.Equal(t, 1, w.moves[v6])
}
