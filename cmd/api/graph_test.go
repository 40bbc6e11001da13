// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/cilium/hive/cell"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/condition"
)

// An agent without rules and maps has its tables and sources all the same, and counts
// follow the rows. Of all the agent it is asked in cmd/agent.
func TestGraph(t *testing.T) {
	f := newFixture(t)
	flow, err := newDataflow(params{Sources: []tables.Source{
		{Name: "orchard", Tables: []tables.SourceTable{{Table: f.fruits, What: "trees"}}},
		tables.NewSourceOut("modules", f.rows).Source,
	}})
	require.NoError(t, err)
	f.flow = flow
	graph := func() (g Graph) {
		status, body := f.get("/graph")
		require.Equal(t, http.StatusOK, status)
		require.NoError(t, json.Unmarshal([]byte(body), &g))
		return g
	}
	fruits := GraphNode{Name: "fruits", Kind: KindTable, Table: "fruits", Rows: 2, Waits: []string{"orchard"}}
	health := GraphNode{Name: "health", Kind: KindTable, Table: "health", Initialized: true}
	require.Equal(t, Graph{
		Nodes: []GraphNode{
			{Name: "modules", Kind: KindSource, Initialized: true},
			{Name: "orchard", Kind: KindSource, Rows: 2, Waits: []string{"orchard"}},
			fruits, health,
		},
		Edges: []GraphEdge{{From: "modules", To: "health", By: "modules"}, {From: "orchard", To: "fruits", By: "trees"}},
	}, graph())

	set := func(rows ...*tables.Health) {
		wtxn := f.db.WriteTxn(f.rows)
		defer wtxn.Abort()
		for _, row := range rows {
			_, _, err := f.rows.Insert(wtxn, row)
			require.NoError(t, err)
		}
		wtxn.Commit()
	}
	set(&tables.Health{ID: "a", Level: cell.StatusDegraded}, &tables.Health{ID: "b", Level: cell.StatusOK})
	health.Rows, health.Counts = 2, condition.Counts{Errors: 1}
	require.Contains(t, graph().Nodes, health)
	set(&tables.Health{ID: "a", Level: cell.StatusOK})
	health.Counts = condition.Counts{}
	require.Contains(t, graph().Nodes, health)
}

func TestNoTrace(t *testing.T) {
	f := newFixture(t)
	status, body := f.get("/trace?policy=NetworkPolicy/shop/web")
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.Contains(t, body, "has no policies")
}
