// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/hive/script"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/cmd/api"
)

// graph asks the agent how data flows in it.
func (c *cluster) graph() (g api.Graph) {
	state, err := script.NewState(c.t.Context(), c.t.TempDir(), nil)
	require.NoError(c.t, err)
	wait, err := c.agent["http/get"].Run(state, "/graph")
	require.NoError(c.t, err)
	text, _, err := wait(state)
	require.NoError(c.t, err)
	_, body, found := strings.Cut(text, "\n")
	require.True(c.t, found)
	require.NoError(c.t, json.Unmarshal([]byte(body), &g))
	return g
}

// The graph is made from what the modules say, and has everything: each table is
// filled by some module, what is wanted in the kernel comes to a map and a mirror, and
// each map to a program.
func TestGraph(t *testing.T) {
	c := newCluster(t, []string{"--node-name=node-1", "--object-status"})
	require.NoError(t, c.api.Sync())
	require.NoError(t, c.api.Apply(lateNode("node-1", 1, "egress: a")))
	require.NoError(t, c.hive.Start(c.log, t.Context()))
	require.NoError(t, c.quiet(t.Context()))
	g := c.graph()

	nodes := map[string]api.GraphNode{}
	for _, n := range g.Nodes {
		require.NotContains(t, nodes, n.Name)
		nodes[n.Name] = n
	}
	into, from := map[string][]api.GraphEdge{}, map[string][]api.GraphEdge{}
	for _, e := range g.Edges {
		require.Contains(t, nodes, e.From)
		require.Contains(t, nodes, e.To)
		require.NotEmpty(t, e.By)
		require.False(t, slices.Contains(into[e.To], e), "%v twice", e)
		into[e.To], from[e.From] = append(into[e.To], e), append(from[e.From], e)
	}
	// But with --endpoint-source=cilium, --egress-ips, and --egress-bgp.
	unread := []string{"cilium-endpoints", "cilium-nodes", "identities", "egress-ip-pools",
		"egress-voters", "egress-bgp-peers"}
	for name, n := range nodes {
		switch n.Kind {
		case api.KindSource:
			require.NotEmpty(t, from[name], name)
		case api.KindTable:
			require.Equal(t, slices.Contains(unread, name), len(into[name]) == 0, name)
		case api.KindMap:
			require.Len(t, into[name], 1, name)
			require.Equal(t, "map-"+strings.TrimPrefix(name, "sluice_"), from[name][0].To)
			require.Greater(t, len(from[name]), 1, "%s is looked up by no program", name)
		case api.KindProgram:
			require.NotEmpty(t, into[name], name)
		}
	}
	for _, e := range []api.GraphEdge{
		{From: "kubernetes", To: "endpoints", By: "pods"},
		{From: "egress-policies", To: "egress-rules", By: "derive"},
		{From: "egress-rules", To: "sluice_egress", By: "mapsync"},
		{From: "sluice_egress", To: "from_pod", By: "load"},
		{From: "attachments", To: "from_pod", By: "attach"},
		{From: "map-subjects", To: "rulesets", By: "derive", Feedback: true},
	} {
		require.True(t, slices.Contains(g.Edges, e), e)
	}
	require.Equal(t, 1, nodes["nodes"].Rows)
	require.True(t, nodes["nodes"].Initialized)
	require.Equal(t, "object-sources", nodes["kubernetes"].Table)
}

// Before the objects are known the graph says what is waited for.
func TestGraphIncomplete(t *testing.T) {
	c := newCluster(t, []string{"--node-name=node-1"})
	require.NoError(t, c.hive.Start(c.log, t.Context()))
	for _, n := range c.graph().Nodes {
		switch n.Name {
		case "endpoints":
			require.False(t, n.Initialized)
			require.Equal(t, []string{"pods"}, n.Waits)
		case "kubernetes":
			require.False(t, n.Initialized)
			require.Contains(t, n.Waits, "pods")
		case "sluice_egress":
			require.False(t, n.Initialized)
		case "health":
			require.True(t, n.Initialized)
		}
	}
}
