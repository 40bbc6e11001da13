// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/binary"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// Over a WireGuard network of the nodes, egress gateways and policies work, and the network between
// nodes sees only encrypted packets.
func TestTrafficWireGuard(t *testing.T) {
	t.Parallel()
	tr := newTraffic(t, Options{vpn: newWireGuard(), NoAgents: true})
	for _, n := range tr.Nodes {
		n.Agent.Flags = []string{
			"--overlay-keys=" + writeKeys(t, tr.Cluster, n, overlayKeyA),
			"--overlay-accept-unsigned=false",
		}
	}
	require.NoError(t, tr.StartAgents())
	n1, n2 := tr.Nodes[0], tr.Nodes[1]
	client := tr.pod(n1, "client", "client")
	allowed, denied := tr.pod(n2, "allowed", "allowed"), tr.pod(n2, "denied", "denied")
	tr.policy(egress{
		name: "out", app: "client", to: []netip.Prefix{WorldIPv4, WorldIPv6},
		exits: []exit{{node: n2.Name, ip: n2.EgressIPv4}, {node: n2.Name, ip: n2.EgressIPv6}},
	})
	var plain, encrypted atomic.Int64
	for _, n := range []*Node{n1, n2} {
		stop, err := Capture(n.Namespace, UnderlayDevice, func(p Packet) {
			switch {
			case p.Protocol == 58 || p.Destination.IsMulticast(): // neighbor discovery, groups
			case p.Protocol == 17 && len(p.Payload) > 4 &&
				binary.BigEndian.Uint16(p.Payload[2:]) == wireGuardPort:
				encrypted.Add(1)
			default:
				t.Errorf("%s got protocol %d from %s to %s", n.Name, p.Protocol, p.Source, p.Destination)
				plain.Add(1)
			}
		})
		require.NoError(t, err)
		defer stop()
	}
	require.NoError(t, tr.ApplyYAML(`
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: denied, namespace: default}
spec: {podSelector: {matchLabels: {app: denied}}, policyTypes: [Ingress]}
`))
	tr.inForce([]string{"out"}, client)
	tr.sees(client.Namespace, ServerIPv4, n2.EgressIPv4)
	tr.sees(client.Namespace, ServerIPv6, n2.EgressIPv6)
	require.NoError(t, client.Ping(tr.ctx, allowed.IPv4, 100))
	require.NoError(t, client.Ping(tr.ctx, allowed.IPv6, 100))
	ctx, cancel := context.WithTimeout(tr.ctx, silence)
	defer cancel()
	require.Error(t, client.Ping(ctx, denied.IPv4, 100))
	require.Positive(t, encrypted.Load())
	require.Zero(t, plain.Load())
}
