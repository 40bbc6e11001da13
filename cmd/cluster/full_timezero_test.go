// SPDX-License-Identifier: Apache-2.0

//go:build cluster && full

package main

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/cmd/cluster/traffic"
)

var zeroPods = flag.Int("pods", 200, "pods of each part of the step TimeZero")

// bootNode is the node that boots, which then runs all of the pods.
const bootNode = "worker-1"

// testManyTimeZero starts many pods at once that send with their first
// instruction, and are sent to before they exist. Half of them leave by a
// gateway, and anyone may send to them; the others may neither send nor
// receive. It does so with and without the CNI plugin, and with agents that run,
// that do not, that start, and on a node that boots.
func testManyTimeZero(t *testing.T) {
	require.NoError(t, running.Node(gatewayNode).AddAddress(egressIP))
	egressPolicy(t, "zero", "zero-open", egressIP, gatewayNode)
	defer deletePolicies(t)
	applyPolicy(t, "zero",
		"podSelector: {matchLabels: {app: zero-closed}}\n  policyTypes: [Ingress, Egress]")
	for _, plugin := range []bool{false, true} {
		t.Run(fmt.Sprintf("plugin=%t", plugin), func(t *testing.T) { testTimeZeroPlugin(t, plugin) })
	}
}

func testTimeZeroPlugin(t *testing.T, plugin bool) {
	if !setPlugin(t, plugin) {
		t.Skip("the chart has no flags.cni-plugin")
	}
	startSweepers(t)
	defer kubectl(t, "-n", shop, "delete", "pod", "--selector=app=sweeper")
	prefix := fmt.Sprintf("zero-%t-", plugin)
	for _, part := range []struct {
		agents string
		node   string
		before func(*testing.T) // the pods are created
		after  func(*testing.T)
	}{
		{agents: "up"},
		{agents: "down", before: stopAgents, after: startAgents},
		{agents: "starting", before: func(t *testing.T) { stopAgents(t); allowAgents(t) },
			after: startAgents},
		{
			agents: "booting", node: bootNode,
			before: func(t *testing.T) { require.NoError(t, running.Node(bootNode).PowerOff(t.Context())) },
			after:  func(t *testing.T) { require.NoError(t, running.Node(bootNode).Boot(t.Context())) },
		},
	} {
		t.Run("agents="+part.agents, func(t *testing.T) {
			if part.before != nil {
				part.before(t)
			}
			name := prefix + part.agents
			apply(t, zeroJob(name+"-open", "zero-open", part.node, "-insist")+
				zeroJob(name+"-closed", "zero-closed", part.node))
			if part.agents == "down" {
				awaitRunning(t, name+"-open")
			}
			if part.after != nil {
				part.after(t)
			}
			kubectl(t, "-n", shop, "wait", "--for=condition=Complete", "job", "--selector=job="+name,
				"--timeout=30m")
			result := readZero(t, name)
			kubectl(t, "-n", shop, "delete", "job", "--selector=job="+name)
			t.Logf("%d pods: %+v", *zeroPods, result)
			require.NotZero(t, result.swept, "datagrams that pods received that may: the sweep reaches none")
			require.NotZero(t, result.sources[egressIP], "requests with the egress IP")
			if part.agents == "booting" && !plugin {
				t.Skip("a node that boots leaks without the CNI plugin")
			}
			assert.Equal(t, []string{egressIP}, slices.Collect(maps.Keys(result.sources)),
				"source addresses")
			assert.Zero(t, result.sent, "requests of pods that may not send")
			assert.Empty(t, result.received, "what pods received that may not, by source and pod")
		})
	}
}

// setPlugin installs the chart with the CNI plugin or without. It returns false
// if the chart has none.
func setPlugin(t *testing.T, plugin bool) bool {
	t.Helper()
	values, err := os.ReadFile(filepath.Join("..", "..", "deploy", "helm", "sluice", "values.yaml"))
	require.NoError(t, err)
	if !strings.Contains(string(values), "cni-plugin:") {
		return !plugin
	}
	upgradeChart(t, fmt.Sprintf("--set=flags.cni-plugin=%t", plugin))
	awaitAgents(t)
	await(t, "the CNI configuration is as wanted", func() error {
		for _, node := range running.Nodes {
			if hasPlugin(t, node) != plugin {
				return fmt.Errorf("%s has the plugin: %t", node.Name, !plugin)
			}
		}
		return nil
	})
	return true
}

func awaitAgents(t *testing.T) {
	t.Helper()
	kubectl(t, "-n", sluiceNamespace, "rollout", "status", "daemonset/sluice",
		"--timeout="+settleTimeout.String())
}

// stopAgents ends all agents, as if their image could not be pulled.
func stopAgents(t *testing.T) {
	t.Helper()
	kubectl(t, "-n", sluiceNamespace, "patch", "daemonset", "sluice", "--type=merge",
		`--patch={"spec": {"template": {"spec": {"nodeSelector": {"no": "such"}}}}}`)
	waitFor(t, sluiceNamespace, "delete", "pod", "--all")
}

// allowAgents has agents start, and does not wait for them.
func allowAgents(t *testing.T) {
	t.Helper()
	kubectl(t, "-n", sluiceNamespace, "patch", "daemonset", "sluice", "--type=merge",
		`--patch={"spec": {"template": {"spec": {"nodeSelector": {"no": null}}}}}`)
}

func startAgents(t *testing.T) {
	t.Helper()
	allowAgents(t)
	awaitAgents(t)
}

// startSweepers starts pods that send to every address of pods, from a node that
// boots no pods, and from each of those that do.
func startSweepers(t *testing.T) {
	t.Helper()
	var manifests string
	for _, node := range running.Nodes {
		args := []string{"sweep"}
		for _, target := range running.Nodes {
			args = append(args, fmt.Sprintf("%s:%d", target.PodCIDR, traffic.Port))
		}
		manifests += pod("sweeper-"+node.Name, node.Name, "sweeper", args...)
	}
	apply(t, manifests)
	waitFor(t, shop, "condition=Ready", "pod", "--selector=app=sweeper")
}

// zeroJob is a job with half of the pods. Without a node the scheduler selects one for each.
func zeroJob(name, app, node string, flags ...string) string {
	half := *zeroPods / 2
	args := append([]string{"send", "-interval=0s", "-timeout=1s", "-listen=5s",
		"-count=" + strconv.Itoa(zeroRequests)}, append(flags, outside)...)
	return fmt.Sprintf(`---
apiVersion: batch/v1
kind: Job
metadata: {name: %s, namespace: %s, labels: {job: %s}}
spec:
  completions: %d
  parallelism: %[4]d
  template:
    metadata: {labels: {app: %s}}
    spec: %s
`, name, shop, name[:strings.LastIndex(name, "-")], half, app,
		podSpec(node, "Never", args...))
}

// awaitRunning waits until all pods of a job run, or have run.
func awaitRunning(t *testing.T, job string) {
	t.Helper()
	await(t, "the pods of "+job+" run", func() error {
		phases := read(t, shop, "{.items[*].status.phase}", "pods", "--selector=job-name="+job)
		if n := strings.Count(phases, "Running") + strings.Count(phases, "Succeeded"); n < *zeroPods/2 {
			return fmt.Errorf("%d of them", n)
		}
		return nil
	})
}

// zeroRequests is how often each pod sends, over UDP and over TCP; those that may send, until
// that many were answered.
const zeroRequests = 3

// zeroResult counts what pods have sent and received.
type zeroResult struct {
	sources  map[string]int // addresses that the server saw, of pods that leave by the gateway
	lost     int            // their requests without an answer
	swept    int            // datagrams that they received
	sent     int            // requests of the closed pods that the server has
	received map[string]int // what the closed pods received, by source and pod
}

func readZero(t *testing.T, name string) zeroResult {
	t.Helper()
	result := zeroResult{
		sources:  running.Outside.Sources(name + "-open-"),
		sent:     len(running.Outside.Requests(name + "-closed-")),
		received: map[string]int{},
	}
	for _, job := range []string{"open", "closed"} {
		pods := strings.Fields(read(t, shop, "{.items[*].metadata.name}", "pods",
			"--selector=job-name="+name+"-"+job))
		require.Len(t, pods, *zeroPods/2)
		for _, pod := range pods {
			for _, line := range trafficLog(t, pod) {
				words := strings.Fields(line) // received PROTOCOL SOURCE TEXT
				switch received := words[0] == "received"; {
				case received && job == "open":
					result.swept++
				case received:
					result.received[words[2]+" to "+pod]++
				case job == "open" && strings.Contains(line, traffic.Failed):
					result.lost++
				}
			}
		}
	}
	return result
}
