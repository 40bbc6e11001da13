// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

// vote has nodes vote on egress addresses, as a set of a generation, and waits until all agents
// that have the API server know.
func (m *moving) vote(generation uint32, voters ...*Node) {
	m.t.Helper()
	set := tables.EgressVoterSet{Generation: int64(generation)}
	for _, n := range voters {
		set.Voters = append(set.Voters,
			tables.EgressVoterInObject{Node: n.Name, Addr: n.Internal().String()})
	}
	text, err := json.Marshal(set)
	require.NoError(m.t, err)
	require.NoError(m.t, m.Apply(Object{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": tables.EgressVotersName, "namespace": "sluice-system"},
		"data":     map[string]any{tables.EgressVotersKey: string(text)},
	}))
	for _, n := range m.Nodes {
		require.NoError(m.t, AwaitRows(m.ctx, n.Agent, "egress-voters",
			func(rows []tables.EgressVoters) error {
				if len(rows) != 1 || rows[0].Generation != generation ||
					len(rows[0].Voters) != len(voters) {
					return fmt.Errorf("%s has the set %+v, not generation %d", n.Name, rows, generation)
				}
				return nil
			}))
	}
}

// TestTrafficEgressIPVoters: agents take a set of voters over, and acknowledge it, though they
// report no policies.
func TestTrafficEgressIPVoters(t *testing.T) {
	t.Parallel()
	m := newMoving(t, time.Second)
	m.vote(2, m.Nodes...)
	for _, n := range m.Nodes {
		m.eventually(n.Name+" acknowledges the voters", func() error {
			if has := m.api.acknowledged(n.Name); has != 2 {
				return fmt.Errorf("it has acknowledged generation %v", has)
			}
			return nil
		})
	}
}
