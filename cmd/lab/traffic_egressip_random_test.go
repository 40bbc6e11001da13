// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// mishap is something that may happen to a gateway, and what undoes it.
type mishap struct {
	name     string
	do, undo func(*moving, *Node)
}

// What mishaps there are.
var mishaps = []mishap{
	{"drained", says(func(s *nodeState) { s.drained = true }),
		says(func(s *nodeState) { s.drained = false })},
	{"not ready", says(func(s *nodeState) { s.notReady = true }),
		says(func(s *nodeState) { s.notReady = false })},
	{"cut off", func(m *moving, n *Node) { m.cut(n) }, func(m *moving, n *Node) { m.plugIn(n) }},
	{stopped, (*moving).pause, (*moving).resume},
	{killed, func(_ *moving, n *Node) { n.Agent.Kill() }, func(m *moving, n *Node) {
		require.NoError(m.t, n.Agent.Start())
	}},
}

func says(change func(*nodeState)) func(*moving, *Node) {
	return func(m *moving, n *Node) { m.change(n, change) }
}

// TestTrafficEgressIPRandom has things happen to both gateways in a random order, also several at a
// time, and to agents that start. At any time each address is used by one node only, and the pod's
// packets have it or are not there. In the end each address is carried. Further
// runs, as many as SLUICE_RANDOM_SEEDS says, have other orders.
func TestTrafficEgressIPRandom(t *testing.T) {
	t.Parallel()
	runs := uint64(1)
	if more, err := strconv.ParseUint(os.Getenv("SLUICE_RANDOM_SEEDS"), 10, 32); err == nil {
		runs = more
	}
	m := newMoving(t, time.Second)
	m.chat()
	for seed := range runs {
		m.schedule(rand.New(rand.NewPCG(seed, seed)), fmt.Sprintf("seed %d", seed))
	}
}

// schedule has twenty things happen or be undone, undoes all, and waits until the addresses move as
// they should.
func (m *moving) schedule(random *rand.Rand, what string) {
	m.t.Helper()
	const events = 20
	type happening struct {
		node *Node
		mishap
	}
	var all, happened []happening // the latter those that are not undone
	for _, n := range m.gateways() {
		for i, e := range mishaps {
			all = append(all, happening{n, e})
			if i < 2 { // what moves addresses shall be half of it
				all = append(all, happening{n, e})
			}
		}
	}
	is := func(n *Node, name string) int {
		return slices.IndexFunc(happened, func(h happening) bool { return h.node == n && h.name == name })
	}
	undo := func(i int) {
		h := happened[i]
		m.t.Logf("%s: %s is no longer %s", what, h.node.Name, h.name)
		h.undo(m, h.node)
		happened = slices.Delete(happened, i, i+1)
	}
	flows := m.flows()
	for range events {
		h := all[random.IntN(len(all))]
		switch i, other := is(h.node, h.name), is(h.node, stopped); {
		case len(happened) > 0 && random.IntN(3) == 0:
			undo(random.IntN(len(happened)))
		case i >= 0:
			undo(i)
		case h.name == stopped && is(h.node, killed) >= 0:
		case h.name == killed && other >= 0: // which has to go on before it may start again
			undo(other)
		default:
			m.t.Logf("%s: %s is %s", what, h.node.Name, h.name)
			h.do(m, h.node)
			happened = append(happened, h)
		}
		time.Sleep(time.Duration(random.IntN(8000)) * time.Millisecond)
		m.invariant()
	}
	for len(happened) > 0 {
		undo(0)
	}
	for _, addr := range movings {
		owner := m.owners[addr]
		m.becomesOwner(addr, owner)
		require.NoError(m.t, owner.Agent.awaitLease(m.ctx, addr))
		m.carries(addr, owner)
		m.stays(addr, flows[addr])
		for _, drained := range []bool{true, false} {
			m.change(owner, func(s *nodeState) { s.drained = drained })
			if drained {
				m.carries(addr, m.other(owner))
			} else {
				m.carries(addr, owner)
			}
		}
	}
	m.invariant()
}
