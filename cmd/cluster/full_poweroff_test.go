// SPDX-License-Identifier: Apache-2.0

//go:build cluster && full

package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// testPowerOff switches a gateway off while pods leave by it: another one takes
// over when Kubernetes has noticed, and it comes back when it boots. Meanwhile
// the server outside sees no third address.
func testPowerOff(t *testing.T) {
	const first, second = "worker-2", "worker-3"
	apply(t, pod("power-off", "worker-1", "power-off", "send", "-interval=100ms", "-timeout=1s",
		outside))
	defer kubectl(t, "-n", shop, "delete", "pod", "power-off")
	waitFor(t, shop, "condition=Ready", "pod", "power-off")
	egressPolicy(t, "power-off", "power-off", "", first, second)
	defer deletePolicies(t)

	// The pod may have left without the policy until here.
	awaitSource(t, running.Node(first).IP, time.Now())
	start := time.Now()
	require.NoError(t, running.Node(first).PowerOff(t.Context()))
	t.Logf("without the gateway %s for %.0f s", first,
		awaitSource(t, running.Node(second).IP, start).Seconds())
	require.NoError(t, running.Node(first).Boot(t.Context()))
	awaitSource(t, running.Node(first).IP, time.Now())

	sources := map[string]int{}
	for _, request := range running.Outside.Requests("power-off") {
		if request.Time.After(start) {
			sources[request.From.String()]++
		}
	}
	t.Logf("the server has seen %v", sources)
	for source := range sources {
		assert.Contains(t, []string{running.Node(first).IP, running.Node(second).IP}, source,
			"source address")
	}
	await(t, "all agents are ready", func() error {
		for _, node := range running.Nodes {
			if err := checkReady(t, sluiceNamespace, agentPod(t, node.Name)); err != nil {
				return fmt.Errorf("%s: %w", node.Name, err)
			}
		}
		return nil
	})
}

// awaitSource waits until the server outside has requests of the pod from an
// address, and returns how long that has taken.
func awaitSource(t *testing.T, source string, since time.Time) (took time.Duration) {
	t.Helper()
	await(t, "the pod leaves with "+source, func() error {
		for _, request := range running.Outside.Requests("power-off") {
			if request.Time.After(since) && request.From.String() == source {
				took = request.Time.Sub(since)
				return nil
			}
		}
		return fmt.Errorf("no request since %s", since.Format(time.TimeOnly))
	})
	return took
}
