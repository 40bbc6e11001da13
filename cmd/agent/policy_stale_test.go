// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/sources/netlink"
	"github.com/sluice-net/sluice/tables/policy/policytest"
)

// A policy comes to name other prefixes, while the kernel does not let go of addresses
// in both the old and the new ones whose service or pod is gone. Packets of these are
// allowed by both, and are never denied.
func TestPolicyChangesAroundStaleEntries(t *testing.T) {
	g := &policyGenerator{Generator: policytest.NewGenerator(1), cluster: newCluster(t, []string{"--node-name=" + policytest.LocalNode, "--retry-min=2ms", "--retry-max=20ms"})}
	g.policies = newPolicyChecker(g.memory, true)
	network, err := netlink.ParseState([]byte(policyNetwork))
	require.NoError(t, err)
	g.netlink.Set(network)
	apply := func(manifests ...string) {
		for _, m := range manifests {
			require.NoError(t, g.api.Apply([]byte(m)))
		}
	}
	stale := []string{
		podManifest("gone", "node-1", "10.0.1.9", "app: gone"),
		"{apiVersion: v1, kind: Service, metadata: {name: gone, namespace: ns}, spec: {clusterIP: 198.51.100.10, ports: [{port: 80}]}}",
	}
	apply("{apiVersion: v1, kind: Namespace, metadata: {name: ns}}",
		"{apiVersion: v1, kind: Node, metadata: {name: "+policytest.LocalNode+"}, spec: {podCIDRs: [10.0.0.0/24]}, status: {addresses: [{type: InternalIP, address: 192.168.0.1}]}}",
		podManifest("one", policytest.LocalNode, "10.0.0.1", "app: web"),
		allowPolicy("web", "app: web", "ipBlock: {cidr: 10.0.0.0/16}", "ipBlock: {cidr: 198.51.0.0/16}"))
	apply(stale...)
	require.NoError(t, g.api.Sync())
	require.NoError(t, g.hive.Start(g.log, t.Context()))
	require.NoError(t, g.agreesOnPolicies(t.Context()))
	var packets []policytest.Packet
	for _, peer := range []string{"10.0.1.9", "198.51.100.10"} {
		packets = append(packets, policytest.Packet{
			Subject: netip.MustParseAddr("10.0.0.1"), Peer: netip.MustParseAddr(peer), Direction: bpf.DirectionIngress, Protocol: 6, Port: 80,
		})
	}
	g.memory.Read(func(r bpf.Reader) { g.policies.watch(packets, g.world(g.base.DB.ReadTxn()), r) })

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
	apply(allowPolicy("web", "app: web", "ipBlock: {cidr: 10.0.1.0/24}", "ipBlock: {cidr: 198.51.100.0/24}"))
	g.pause(func() bool { return false })
	g.memory.Inject(nil)
	require.NoError(t, g.agreesOnPolicies(t.Context()))
	for _, probe := range g.policies.probes[packets[0].Subject] {
		require.Equal(t, []string{allowed}, probe.verdicts, "%s, by %s", probe.packet, probe.writes)
	}
}
