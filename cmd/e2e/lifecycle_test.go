// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/cmd/api"
	"github.com/sluice-net/sluice/cmd/e2e/cluster"
)

// TestLifecycle follows an agent from its start without an API server to the
// cleaning up behind it.
func TestLifecycle(t *testing.T) {
	c := startCluster(t)
	populate(c)
	c.Apply(severalGateways)
	setReversePathFilter(t, uplink, "1")
	a := newAgent(t, c)

	// Without the API server nothing is known, and nothing is written.
	c.KillAPIServer()
	a.startAnswering()
	a.eventually("the agent says what is missing", func() error { _, err := a.brokenSource("pods"); return err })
	var report api.ReadyReport
	require.Equal(t, http.StatusServiceUnavailable, a.decode("/readyz", &report))
	pending := strings.Join(report.Pending, "\n")
	require.Contains(t, pending, "table endpoints: waits for pods")
	require.Contains(t, pending, "table egress-policies: waits for "+policies)
	require.Equal(t, "degraded", a.health().Status)
	k := a.kernel()
	require.Zero(t, a.writes())

	c.StartAPIServer()
	a.awaitReady()
	a.converge(c, k)
	require.Equal(t, "2", reversePathFilter(t, uplink), "egress traffic may come back by other devices")
	a.awaitHealthy()

	// A stop leaves the maps to the packets.
	before := a.contents(k)
	require.Zero(t, a.terminate())
	require.NotContains(t, a.log(), "level=ERROR")
	a.requireUnchanged(a.kernel(), before) // by the pins
	require.Equal(t, "2", reversePathFilter(t, uplink))

	// Only cleaning up takes them away.
	out, err := a.sluice(append([]string{"cleanup"}, a.locations()...)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, name := range []string{"pods", "ipcache", "sources", "egress", "gateways", "classes"} {
		require.NoFileExists(t, a.pin("sluice_"+name))
		require.Contains(t, string(out), "removed pinned map sluice_"+name)
	}
	require.Equal(t, "1", reversePathFilter(t, uplink))

	// Then all begins anew.
	a.startReady()
	a.converge(c, a.kernel())
}

// TestMissingRights shows that a right that deploy/ did not give would be found.
func TestMissingRights(t *testing.T) {
	c := startCluster(t)
	c.Apply("{apiVersion: v1, kind: ServiceAccount, metadata: {name: nobody, namespace: " + cluster.Namespace + "}}")
	a := newAgentAs(t, c.Kubeconfig("nobody"))
	a.startAnswering()
	a.eventually("the agent says what is missing", func() error { _, err := a.brokenSource("nodes"); return err })
	source, err := a.brokenSource("nodes")
	require.NoError(t, err)
	require.Contains(t, source.Error, "missing right: ")
	require.Contains(t, source.Error, `cannot list resource "nodes"`)
	require.Equal(t, http.StatusServiceUnavailable, a.decode("/readyz", &api.ReadyReport{}))
	require.Equal(t, "degraded", a.health().Status)
	require.Zero(t, a.writes())
}
