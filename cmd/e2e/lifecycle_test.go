// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
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
	require.Empty(t, a.programs(k), "no packet is touched before it is known what to do with it")

	c.StartAPIServer()
	a.awaitReady()
	a.converge(c, k)
	a.eventually("egress traffic may come back by other devices", func() error {
		if value := reversePathFilter(t, uplink); value != "2" {
			return fmt.Errorf("rp_filter is %s", value)
		}
		return nil
	})
	a.awaitHealthy()
	a.awaitAttached()

	// Killed it leaves maps and programs to the packets, and the next one
	// fills others.
	before, running := a.contents(k), a.programs(k)
	a.kill()
	a.requireUnchanged(k, before)
	a.requireRunning(k, running)
	a.startReady()
	a.converge(c, k)
	require.Equal(t, atDevices(running), atDevices(a.programs(k)), "programs are replaced in their links")

	// So does one that is stopped.
	a.awaitAttached()
	before, running = a.contents(k), a.programs(k)
	require.Zero(t, a.terminate())
	require.NotContains(t, a.log(), "level=ERROR")
	a.requireUnchanged(k, before)
	a.requireRunning(k, running)
	require.Equal(t, "2", reversePathFilter(t, uplink))

	// Only cleaning up takes them away.
	a.cleanUpNode(k)
	require.Equal(t, "1", reversePathFilter(t, uplink))

	// Then all begins anew.
	a.startReady()
	a.converge(c, k)
}

// cleanUpNode runs sluice cleanup, and looks for what it may have left.
func (a *agent) cleanUpNode(k *kernel) {
	a.t.Helper()
	pins, err := os.ReadDir(a.pin("."))
	require.NoError(a.t, err)
	require.Len(a.t, pins, 35, "32 maps, and the directories of slots, links and programs")
	out, err := a.sluice(append([]string{"cleanup"}, a.locations()...)...).CombinedOutput()
	require.NoError(a.t, err, "%s", out)
	for _, pin := range pins {
		if !pin.IsDir() {
			require.Contains(a.t, string(out), "removed pin "+pin.Name()+"\n")
		}
	}
	for _, line := range []string{
		"detached program from_pod_", "detached program to_netdev_", "detached program backstop4_", "detached program backstop6_",
		"removed overlay device " + overlayDevice + "\n", "restored kernel parameter net/ipv4/conf/" + uplink + "/rp_filter=1\n",
	} {
		require.Contains(a.t, string(out), line)
	}
	require.NoDirExists(a.t, a.pin("."))
	require.Empty(a.t, a.programs(k))
	n, err := loadNetwork()
	require.NoError(a.t, err)
	require.Nil(a.t, n.device(overlayDevice))
	require.NoDirExists(a.t, filepath.Join(a.dir, "state"))
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
