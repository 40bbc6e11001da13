// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/cmd/api"
	"github.com/sluice-net/sluice/cmd/e2e/cluster"
)

// TestAPIServerRestarts kills the API server and starts it again: meanwhile the
// agent says so and leaves the maps alone, afterwards it sees what is new.
func TestAPIServerRestarts(t *testing.T) {
	c := startCluster(t)
	populate(c)
	c.Apply(blue)
	a := newAgent(t, c)
	a.startReady()
	k := a.kernel()
	a.converge(c, k)

	t.Run("watches go on", func(t *testing.T) {
		a := a.within(t)
		before := a.contents(k)
		c.KillAPIServer()
		a.eventually("the agent notices", func() error {
			for _, kind := range []string{"pods", "nodes", policies} {
				if _, err := a.brokenSource(kind); err != nil {
					return err
				}
			}
			return nil
		})
		report := a.health()
		require.Equal(t, "degraded", report.Status)
		require.Regexp(t, `cannot follow pods: (list|watch) pods: `, strings.Join(report.Reasons, "\n"))
		require.Equal(t, http.StatusOK, a.decode("/readyz", &api.ReadyReport{}), "it stays ready: the maps are good")
		a.requireUnchanged(k, before)

		c.StartAPIServer()
		change(c, "first")
		a.converge(c, k)
		a.awaitHealthy()
	})
	t.Run("watches have expired", func(t *testing.T) {
		// The agent sleeps through changes that the API server then has forgotten: no
		// watch tells of them, only a list. Whether a watch is refused before, or ends
		// by the restart already, depends on what the agent notices first.
		a := a.within(t)
		before := a.writes()
		require.NoError(t, a.process.Signal(syscall.SIGSTOP))
		change(c, "second")
		c.DeletePod("prod", "web-2")
		c.Delete(blue)
		c.Compact()
		c.KillAPIServer()
		c.StartAPIServer()
		c.DeletePod("test", "job-1") // an event after the compaction
		require.NoError(t, a.process.Signal(syscall.SIGCONT))
		a.converge(c, k)
		a.awaitHealthy()
		require.Greater(t, a.writes(), before)
	})
}

// change replaces a pod and adds a policy.
func change(c *cluster.Cluster, name string) {
	c.DeletePod("prod", "db-1")
	c.CreatePod(cluster.Pod{
		Namespace: "prod", Name: "db-1", Node: localNode, Labels: map[string]string{"app": name}, IPs: addrs("10.1.0.11"),
	})
	c.Apply(strings.NewReplacer("blue}", name+"}", "203.0.113.0/24", "192.0.2.0/24", "zone: b", "egress: local").Replace(blue))
}

// awaitHealthy waits until all kinds of objects are followed and nothing is degraded, but for some
// modules.
func (a *agent) awaitHealthy(except ...string) {
	a.t.Helper()
	a.eventually("the agent is healthy", func() (err error) {
		for _, s := range a.sources() {
			if s.State != "synced" {
				err = errors.Join(err, fmt.Errorf("%s is %s: %s", s.Source, s.State, s.Error))
			}
		}
		for _, m := range a.health().Modules {
			if m.Level != "OK" && !slices.Contains(except, m.ID) {
				err = errors.Join(err, fmt.Errorf("%s is %s: %s", m.ID, m.Level, m.Error))
			}
		}
		return err
	})
}
