// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"math/rand/v2"
	"os"
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

// mishaps are in an order in which they may be undone: an agent that is stopped has to go on before
// it starts again.
var mishaps = []mishap{
	{"drained", says(func(s *nodeState) { s.drained = true }),
		says(func(s *nodeState) { s.drained = false })},
	{"not ready", says(func(s *nodeState) { s.notReady = true }),
		says(func(s *nodeState) { s.notReady = false })},
	{"cut off", func(m *moving, n *Node) { m.cut(n) }, func(m *moving, n *Node) { m.plugIn(n) }},
	{stopped, (*moving).pause, (*moving).resume},
	{"agent killed", func(_ *moving, n *Node) { n.Agent.Kill() }, func(m *moving, n *Node) {
		require.NoError(m.t, n.Agent.Start())
	}},
}

func says(change func(*nodeState)) func(*moving, *Node) {
	return func(m *moving, n *Node) { m.change(n, change) }
}

// TestTrafficEgressIPRandom has things happen to both gateways in a random order, also several at a
// time, and to agents that start. At any time each address is used by the node that has its Lease
// only, and the pod's packets have it or are not there. In the end each address is carried. Further
// runs, as many as SLUICE_RANDOM_SEEDS says, have other orders.
func TestTrafficEgressIPRandom(t *testing.T) {
	t.Parallel()
	runs := uint64(1)
	if more, err := strconv.ParseUint(os.Getenv("SLUICE_RANDOM_SEEDS"), 10, 32); err == nil {
		runs = more
	}
	m := newMoving(t, "10s")
	m.chat()
	for seed := range runs {
		m.schedule(rand.New(rand.NewPCG(seed, seed)), fmt.Sprintf("seed %d", seed))
	}
}

// schedule has twenty things happen or be undone, undoes all, and waits until all is well.
func (m *moving) schedule(random *rand.Rand, what string) {
	m.t.Helper()
	const events = 20
	flows := m.flows()
	happened := map[*Node]map[string]bool{}
	for _, n := range m.gateways() {
		happened[n] = map[string]bool{}
	}
	toggle := func(n *Node, e mishap) {
		happens := !happened[n][e.name]
		m.t.Logf("%s: %s %s: %t", what, n.Name, e.name, happens)
		if happened[n][e.name] = happens; happens {
			e.do(m, n)
		} else {
			e.undo(m, n)
		}
	}
	for range events {
		n := m.gateways()[random.IntN(2)]
		e := mishaps[random.IntN(len(mishaps))]
		if e.name == stopped && happened[n]["agent killed"] {
			continue
		}
		if e.name == "agent killed" && happened[n][stopped] {
			happened[n][stopped] = false // it goes with the process
		}
		toggle(n, e)
		time.Sleep(time.Duration(random.IntN(5000)) * time.Millisecond)
		m.invariant()
	}
	for _, n := range m.gateways() {
		for _, e := range mishaps {
			if happened[n][e.name] {
				toggle(n, e)
			}
		}
	}
	for _, addr := range movings {
		owner := m.owner(addr)
		require.NoError(m.t, owner.Agent.awaitLease(m.ctx, addr))
		m.carries(addr, owner)
		m.stays(addr, flows[addr])
		m.t.Logf("%s: %s has had %d owners", what, addr, len(m.api.holdings(addr)))
	}
	m.invariant()
}
