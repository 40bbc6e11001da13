// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables/policy/policytest"
)

// Policies that begin to name a port of peers deny it to no pod that they allow it to, not even
// until the peers are in classes with their numbers.
func TestFirstPolicyThatNamesPort(t *testing.T) {
	const client, server = "10.0.0.10", "10.0.1.10"
	g := newPolicyCluster(t, policytest.NewGenerator(1))
	pod := func(name, node, addr string) string {
		return fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s, namespace: shop,
			labels: {app: %s}}, spec: {nodeName: %s, containers: [{name: c,
			ports: [{name: http, containerPort: 8080}, {name: admin, containerPort: 9090}]}]},
			status: {phase: Running, podIPs: [{ip: %s}]}}`, name, name, node, addr)
	}
	g.apply(localNodeManifest, "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}",
		pod("client", policytest.LocalNode, client), pod("server", "node-2", server))
	for i := range 50 {
		g.apply(pod(fmt.Sprint("other-", i), "node-2", fmt.Sprintf("10.0.2.%d", i)))
	}
	g.begin()
	packet := func(port uint16) policytest.Packet {
		return policytest.Packet{
			Subject: netip.MustParseAddr(client), Peer: netip.MustParseAddr(server),
			Direction: bpf.DirectionEgress, Protocol: 6, Port: port,
		}
	}
	for _, to := range []string{"", "to: [{podSelector: {matchLabels: {app: server}}}], "} {
		policy := fmt.Sprintf(`{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy,
			metadata: {name: client, namespace: shop}, spec: {podSelector: {matchLabels: {app: client}},
			policyTypes: [Egress], egress: [{%sports: [{port: http}]}]}}`, to)
		for range 5 {
			g.watch([]policytest.Packet{packet(8080), packet(9090)})
			g.apply(policy)
			require.NoError(t, g.settlePolicies(t.Context()), "comes: %s", to)
			require.NoError(t, g.api.Delete([]byte(policy)))
			require.NoError(t, g.settlePolicies(t.Context()), "goes: %s", to)
		}
	}
}
