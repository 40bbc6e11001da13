// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// A pod reaches an address of a node that no Node object has, although all that it sends leaves by
// an egress gateway, once the agent of that node has told of the address: also that of its gateway.
func TestTrafficToNodeAddresses(t *testing.T) {
	t.Parallel()
	tr := newTraffic(t, Options{})
	n1, n2, n3 := tr.Nodes[0], tr.Nodes[1], tr.Nodes[2]
	pod := tr.pod(n1, "client", "client")
	tr.policy(egress{
		name: "all", app: "client", to: []netip.Prefix{anywhere(false)},
		exits: []exit{{node: n2.Name, ip: n2.EgressIPv4}},
	})
	tr.inForce([]string{"all"}, pod)
	tr.sees(pod.Namespace, ServerIPv4, n2.EgressIPv4)
	reaches := func(to netip.Addr) error {
		ctx, cancel := context.WithTimeout(tr.ctx, silence)
		defer cancel()
		return pod.Ping(ctx, to, 100)
	}
	require.Error(t, reaches(n2.OutsideIPv4))
	for _, n := range []*Node{n2, n3} {
		require.NoError(t, tr.ApplyYAML(fmt.Sprintf(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: sluice-%[1]s-ipv4, namespace: sluice-system,
  labels: {endpointslice.kubernetes.io/managed-by: sluice.net}}
addressType: IPv4
endpoints:
- {addresses: [%[2]s], nodeName: %[1]s, conditions: {ready: false},
   targetRef: {kind: Node, name: %[1]s, uid: u}}
`, n.Name, n.OutsideIPv4)))
		tr.eventually("the pod reaches "+n.Name, func() error { return reaches(n.OutsideIPv4) })
	}
	tr.sees(pod.Namespace, ServerIPv4, n2.EgressIPv4)
}
