// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables/policy/policytest"
)

// A policy comes to name other prefixes, while the kernel does not let go of addresses
// in both the old and the new ones whose service or pod is gone. Packets of these are
// allowed by both, and are never denied.
func TestPolicyChangesAroundStaleEntries(t *testing.T) {
	g := newPolicyCluster(t, policytest.NewGenerator(1))
	stale := []string{
		podManifest("gone", "node-1", "10.0.1.9", "app: gone"),
		"{apiVersion: v1, kind: Service, metadata: {name: gone, namespace: ns}, spec: {clusterIP: 198.51.100.10, ports: [{port: 80}]}}",
	}
	g.apply("{apiVersion: v1, kind: Namespace, metadata: {name: ns}}", localNodeManifest,
		podManifest("one", policytest.LocalNode, "10.0.0.1", "app: web"),
		allowPolicy("web", "app: web", "ipBlock: {cidr: 10.0.0.0/16}", "ipBlock: {cidr: 198.51.0.0/16}"))
	g.apply(stale...)
	g.begin()
	packets := ingressOf("10.0.0.1", "10.0.1.9", "198.51.100.10")
	g.watch(packets)

	g.memory.Inject(func(name string, op bpf.Op) error {
		if name == "sluice_ipcache" && op == bpf.OpDelete {
			return errFault
		}
		return nil
	})
	for _, manifest := range stale {
		require.NoError(t, g.api.Delete([]byte(manifest)))
	}
	g.pause(func() bool { return false })
	g.apply(allowPolicy("web", "app: web", "ipBlock: {cidr: 10.0.1.0/24}", "ipBlock: {cidr: 198.51.100.0/24}"))
	g.pause(func() bool { return false })
	g.memory.Inject(nil)
	require.NoError(t, g.agreesOnPolicies(t.Context()))
	for _, probe := range g.policies.probes[packets[0].Subject] {
		require.Equal(t, []string{allowed}, probe.verdicts, "%s, by %s", probe.packet, probe.writes)
	}
}
