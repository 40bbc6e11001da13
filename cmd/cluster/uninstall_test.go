// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// testUninstall removes Sluice as docs/quick-start.md says: every node is as it
// was before, and the egress policies are still there.
func testUninstall(t *testing.T, before map[string]nodeState) {
	quickStart(t, "cleanup.enabled=true", "")
	waitFor(t, sluiceNamespace, "delete", "pod", "--all")
	for _, node := range running.Nodes {
		assert.Equal(t, before[node.Name], readNodeState(t, node), "state of %s", node.Name)
	}
	quickStart(t, "delete endpointslices", "")
	left := read(t, sluiceNamespace, "{.items[*].metadata.name}", "endpointslices,leases")
	assert.Empty(t, left, "EndpointSlices and Leases")
	policies := read(t, "", "{.items[*].metadata.name}", "ciliumegressgatewaypolicies")
	assert.Equal(t, "checkout", policies, "egress policies")
	source := running.Node("worker-3").IP
	assert.Equal(t, answers{"udp": source, "tcp": source}, ask(t, "checkout-3", outside))
	for _, pod := range []string{"client", "other"} {
		ip := podIP(t, pod)
		assert.Equal(t, answers{"udp": ip, "tcp": ip}, ask(t, pod, webAddress),
			"%s asks what was protected", pod)
	}
}
