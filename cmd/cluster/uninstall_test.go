// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// testUninstall removes Sluice as docs/quick-start.md says: every node is as it
// was before, and the egress policies are still there.
func testUninstall(t *testing.T, before map[string]nodeState) {
	quickStart(t, "cleanup.enabled=true", "")
	waitFor(t, sluiceNamespace, "delete", "pod", "--all")
	for _, node := range running.Nodes {
		assert.Equal(t, before[node.Name], readNodeState(t, node), "state of %s", node.Name)
		addresses, err := node.Run(t.Context(), "ip", "-oneline", "address", "show", "to", movingIP)
		require.NoError(t, err)
		assert.Empty(t, addresses, "the address that moves, at %s", node.Name)
	}
	quickStart(t, "delete endpointslices", "")
	left := read(t, sluiceNamespace, "{.items[*].metadata.name}", "endpointslices,leases,configmaps")
	assert.Equal(t, "kube-root-ca.crt", left, "EndpointSlices, Leases and ConfigMaps")
	policies := read(t, "", "{.items[*].metadata.name}", "ciliumegressgatewaypolicies")
	assert.Contains(t, strings.Fields(policies), "checkout", "egress policies")
	source := running.Node("worker-3").IP
	assert.Equal(t, answers{"udp": source, "tcp": source}, ask(t, "checkout-3", outside))
	for _, pod := range []string{"client", "other"} {
		ip := podIP(t, pod)
		assert.Equal(t, answers{"udp": ip, "tcp": ip}, ask(t, pod, webAddress),
			"%s asks what was protected", pod)
	}
}
