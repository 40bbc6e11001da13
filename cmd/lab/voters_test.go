// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

// vote has nodes vote on egress addresses: sets of these nodes, the numbers of which begin with
// one. It waits until agents have acknowledged that, but for those of some nodes.
func (m *moving) vote(generation, number uint32, sets [][]*Node, but ...*Node) {
	m.t.Helper()
	object := tables.EgressVotersInObject{Generation: int64(generation)}
	for i, nodes := range sets {
		set := tables.VoterSetInObject{Number: int64(number) + int64(i)}
		for _, n := range nodes {
			set.Voters = append(set.Voters,
				tables.EgressVoterInObject{Node: n.Name, Addr: n.Internal().String()})
		}
		object.Sets = append(object.Sets, set)
	}
	text, err := json.Marshal(object)
	require.NoError(m.t, err)
	require.NoError(m.t, m.Apply(Object{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": tables.EgressVotersName, "namespace": "sluice-system"},
		"data":     map[string]any{tables.EgressVotersKey: string(text)},
	}))
	for _, n := range m.Nodes {
		if slices.Contains(but, n) {
			continue
		}
		m.eventually(n.Name+" acknowledges the voters", func() error {
			if has := m.api.acknowledged(n.Name); has != float64(generation) {
				return fmt.Errorf("it has acknowledged generation %v", has)
			}
			return nil
		})
	}
}

// TestTrafficEgressIPVoters: one set of voters replaces another, of which no node but the one with
// the address stays, though that one is the last to know of each step. No packet is lost.
func TestTrafficEgressIPVoters(t *testing.T) {
	t.Parallel()
	m := newMoving(t, time.Second)
	flows := m.flows()
	owner := m.owners[moving4]
	n := m.Nodes
	generation := uint32(1)
	for number, sets := range [][2][]*Node{
		{{n[0], n[1], n[2]}, n},
		{n, {n[1], n[2], n[3]}},
	} {
		for _, sets := range [][][]*Node{sets[:], sets[1:]} {
			generation++
			m.pause(owner)
			m.vote(generation, uint32(number+3-len(sets)), sets, owner)
			time.Sleep(2 * m.lease)
			m.resume(owner)
			m.vote(generation, uint32(number+3-len(sets)), sets)
		}
	}
	for _, addr := range movings {
		r := m.stays(addr, flows[addr])
		require.Zero(t, r.Lost(), r)
	}
	m.invariant()
}
