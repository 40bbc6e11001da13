// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCiliumEndpoints has endpoints told by Cilium: by CiliumEndpoints, by
// slices of them, and both with identities.
func TestCiliumEndpoints(t *testing.T) {
	c := startCluster(t)
	populate(c)
	c.Apply(severalGateways)
	c.Apply(blue)
	c.Apply(ciliumObjects)
	a := newAgent(t, c, "--endpoint-source=cilium")
	a.startReady()
	k := a.kernel()
	w := a.converge(c, k)
	require.Equal(t, redirected, w.decide(localPod, netip.MustParseAddr("203.0.113.1")).kind)
	require.Equal(t, redirected, w.decide(netip.MustParseAddr("10.1.0.21"), netip.MustParseAddr("198.51.100.1")).kind)
	require.Len(t, w.endpoints, 5)
	a.awaitStates(nil)
	read := a.sources()
	delete(read, "nodereports.sluice.io") // only the operator reads them
	require.Len(t, read, 13)
	require.NotContains(t, read, "pods", "nothing is read that is not needed")

	for _, step := range []step{
		{"an endpoint changes its identity", func() { c.Apply(ciliumChangedEndpoint) }},
		{"a slice loses an endpoint", func() { c.Apply(ciliumChangedSlice) }},
		{"an identity comes after its endpoint", func() { c.Apply(ciliumLateEndpoint); c.Apply(ciliumLateIdentity) }},
		{"a node is told by Cilium only", func() { c.Apply(ciliumOtherNode) }},
		{"all go", func() { c.Delete(ciliumChangedSlice); c.Delete(ciliumChangedEndpoint); c.Delete(ciliumLateEndpoint) }},
	} {
		t.Run(step.name, func(t *testing.T) {
			a := a.within(t)
			before := a.contents(k)
			step.do()
			a.converge(c, k)
			require.NotEqual(t, before, a.contents(k), "the step changes some map")
		})
	}
	a.awaitHealthy()
}

const ciliumObjects = `
apiVersion: cilium.io/v2
kind: CiliumIdentity
metadata: {name: "1001"}
security-labels: {"k8s:app": web, "k8s:io.kubernetes.pod.namespace": prod, "k8s:io.cilium.k8s.namespace.labels.team": blue}
---
apiVersion: cilium.io/v2
kind: CiliumIdentity
metadata: {name: "1002"}
security-labels: {"k8s:app": db, "k8s:io.kubernetes.pod.namespace": prod}
---
apiVersion: cilium.io/v2
kind: CiliumIdentity
metadata: {name: "1003"}
security-labels: {"k8s:app": job, "k8s:io.kubernetes.pod.namespace": test}
---
apiVersion: cilium.io/v2
kind: CiliumNode
metadata: {name: node-1}
spec: {addresses: [{type: InternalIP, ip: 192.168.7.1}, {type: CiliumInternalIP, ip: 10.1.0.254}]}
---
apiVersion: cilium.io/v2
kind: CiliumEndpoint
metadata: {name: web, namespace: prod}
status:
  identity: {id: 1001, labels: ["k8s:app=web"]}
  networking: {addressing: [{ipv4: 10.1.0.10, ipv6: "fd00:1::10"}], node: 192.168.7.1}
---
apiVersion: cilium.io/v2
kind: CiliumEndpoint
metadata: {name: db, namespace: prod}
status:
  identity: {id: 1002}
  networking: {addressing: [{ipv4: 10.1.0.11}], node: 192.168.7.1}
---
apiVersion: cilium.io/v2alpha1
kind: CiliumEndpointSlice
metadata: {name: slice-prod}
namespace: prod
endpoints:
- {name: web-2, id: 1001, networking: {addressing: [{ipv4: 10.2.0.20}], node: 192.168.7.2}}
- {name: db-2, id: 1002, networking: {addressing: [{ipv4: 10.1.0.21}], node: 192.168.7.1}}
---
apiVersion: cilium.io/v2alpha1
kind: CiliumEndpointSlice
metadata: {name: slice-test}
namespace: test
endpoints:
- {name: job, id: 1003, networking: {addressing: [{ipv4: 10.3.0.22}], node: 192.168.7.3}}
`

const ciliumChangedEndpoint = `
apiVersion: cilium.io/v2
kind: CiliumEndpoint
metadata: {name: web, namespace: prod}
status:
  identity: {id: 1002}
  networking: {addressing: [{ipv4: 10.1.0.10, ipv6: "fd00:1::10"}], node: 192.168.7.1}
`

const ciliumChangedSlice = `
apiVersion: cilium.io/v2alpha1
kind: CiliumEndpointSlice
metadata: {name: slice-prod}
namespace: prod
endpoints:
- {name: web-2, id: 1001, networking: {addressing: [{ipv4: 10.2.0.20}], node: 192.168.7.2}}
`

const ciliumLateEndpoint = `
apiVersion: cilium.io/v2
kind: CiliumEndpoint
metadata: {name: late, namespace: test}
status:
  identity: {id: 1004}
  networking: {addressing: [{ipv4: 10.1.0.23}], node: 192.168.7.9}
`

const ciliumLateIdentity = `
apiVersion: cilium.io/v2
kind: CiliumIdentity
metadata: {name: "1004"}
security-labels: {"k8s:app": web, "k8s:io.kubernetes.pod.namespace": test}
`

// The late endpoint is on the agent's node, as it turns out.
const ciliumOtherNode = `
apiVersion: cilium.io/v2
kind: CiliumNode
metadata: {name: node-1}
spec: {addresses: [{type: InternalIP, ip: 192.168.7.1}, {type: CiliumInternalIP, ip: 10.1.0.254}, {type: InternalIP, ip: 192.168.7.9}]}
`
