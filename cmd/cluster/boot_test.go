// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/cmd/cluster/kubernetes"
	"github.com/sluice-net/sluice/cmd/cluster/traffic"
	"github.com/sluice-net/sluice/reconcilers/taint"
)

// testBoot boots a node with pods that send all the time, from their first
// instruction: the server outside sees none of them with the node's address.
// Meanwhile a pod asks one on that node that is protected from it, and never
// has an answer. The agent removes the taint that keeps new pods from the node.
func testBoot(t *testing.T) {
	const node, replicas = "worker-1", 3
	apply(t, pod("boot-denied", "worker-2", "other", deniedArgs...)+fmt.Sprintf(`---
apiVersion: apps/v1
kind: Deployment
metadata: {name: boot-egress, namespace: %s}
spec:
  replicas: %d
  selector: {matchLabels: {name: boot-egress}}
  template:
    metadata: {labels: {name: boot-egress, app: checkout}}
    spec: %s
`, shop, replicas, podSpec(node, "Always", "send", outside)))
	awaitEgress(t, time.Time{}, replicas)

	require.True(t, hasPlugin(t, running.Node(node)), "the chart installs the CNI plugin")
	off := time.Now()
	require.NoError(t, running.Node(node).PowerOff(t.Context()))
	kubectl(t, "taint", "node", node, taint.Key+"=:NoSchedule")
	require.NoError(t, running.Node(node).Boot(t.Context()))
	awaitEgress(t, off, replicas)
	await(t, "the agent runs again", func() error {
		return checkReady(t, sluiceNamespace, agentPod(t, node))
	})
	await(t, "the protected pod runs again", func() error {
		return checkReady(t, shop, "web")
	})
	await(t, "the agent removes the taint", func() error {
		taints := read(t, "", "{.spec.taints[*].key}", "node", node)
		if strings.Contains(taints, taint.Key) {
			return fmt.Errorf("the taints of %s are %s", node, taints)
		}
		return nil
	})

	wrong := map[string]int{}
	for _, request := range bootRequests(off) {
		if from := request.From.String(); from != egressIP {
			wrong[from]++
		}
	}
	answered := 0
	for _, line := range trafficLog(t, "boot-denied") {
		if !strings.Contains(line, traffic.Failed) {
			answered++
		}
	}
	kubectl(t, "-n", shop, "delete", "--wait=true", "deployment/boot-egress", "pod/boot-denied")
	assert.Empty(t, wrong, "requests from other addresses than the egress IP, of a node that boots")
	assert.Zero(t, answered, "answers from a pod of a node that boots, to a pod that a policy denies")
}

// checkReady fails unless the container of a pod is ready.
func checkReady(t *testing.T, namespace, pod string) error {
	t.Helper()
	if ready := read(t, namespace, readyPath, "pod", pod); ready != "true" {
		return fmt.Errorf("ready: %q", ready)
	}
	return nil
}

// hasPlugin reports whether the CNI configuration of a node has Sluice's plugin.
func hasPlugin(t *testing.T, node *kubernetes.Node) bool {
	t.Helper()
	files, err := filepath.Glob(node.Path("/etc/cni/net.d/*"))
	require.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		if strings.Contains(string(text), "sluice-cni") {
			return true
		}
	}
	return false
}

func bootRequests(since time.Time) (requests []traffic.Request) {
	for _, request := range running.Outside.Requests("boot-egress-") {
		if request.Time.After(since) {
			requests = append(requests, request)
		}
	}
	return requests
}

// awaitEgress waits until all pods of the deployment leave with the egress IP,
// again and again.
func awaitEgress(t *testing.T, since time.Time, replicas int) {
	t.Helper()
	const enough = 10
	await(t, "the pods leave with the egress IP", func() error {
		byName := map[string]int{}
		for _, request := range bootRequests(since) {
			if request.From.String() == egressIP && request.Protocol == "tcp" {
				byName[request.Name]++
			}
		}
		for name, n := range byName {
			if n < enough {
				return fmt.Errorf("%d requests of %s", n, name)
			}
		}
		if len(byName) != replicas {
			return fmt.Errorf("requests of %d pods", len(byName))
		}
		return nil
	})
}
