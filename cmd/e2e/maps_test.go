// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-net/sluice/cmd/e2e/cluster"
)

// startCluster starts an API server, or skips the test.
func startCluster(t *testing.T) *cluster.Cluster {
	t.Helper()
	requirePrivileges(t)
	return cluster.Start(t, cluster.Binary(t))
}

// populate creates three nodes, of which the first is the agent's, with two
// namespaces, some pods and a service.
func populate(c *cluster.Cluster) {
	c.CreateNode(cluster.Node{
		Name: localNode, Labels: map[string]string{"zone": "a", "egress": "local"}, Ready: true,
		InternalIPs: []netip.Addr{nodeIPv4, nodeIPv6}, PodCIDRs: prefixes([]string{"10.1.0.0/24", "fd00:1::/64"}),
	})
	c.CreateNode(cluster.Node{
		Name: "node-2", Labels: map[string]string{"zone": "b", "egress": "yes"}, Ready: true,
		InternalIPs: addrs("192.168.7.2", "2001:db8:7::2"), PodCIDRs: prefixes([]string{"10.2.0.0/24", "fd00:2::/64"}),
	})
	c.CreateNode(cluster.Node{
		Name: "node-3", Labels: map[string]string{"zone": "c", "egress": "yes"}, Ready: true,
		InternalIPs: addrs("192.168.7.3"), PodCIDRs: prefixes([]string{"10.3.0.0/24"}),
	})
	c.CreateNamespace("prod", map[string]string{"team": "blue"})
	c.CreateNamespace("test", map[string]string{"team": "red"})
	pod := func(name, node, namespace, app string, ips ...string) {
		c.CreatePod(cluster.Pod{Namespace: namespace, Name: name, Node: node, Labels: map[string]string{"app": app}, IPs: addrs(ips...)})
	}
	pod("web-1", localNode, "prod", "web", localPod.String(), "fd00:1::10")
	pod("web-2", "node-2", "prod", "web", "10.2.0.10", "fd00:2::10")
	pod("db-1", localNode, "prod", "db", "10.1.0.11")
	pod("web-1", localNode, "test", "web", "10.1.0.12")
	pod("job-1", "node-3", "test", "job", "10.3.0.13")
	c.Apply(`
apiVersion: v1
kind: Service
metadata: {name: web, namespace: prod}
spec: {selector: {app: web}, ports: [{port: 80}], externalIPs: [203.0.113.250]}
`)
}

// blue is a policy for the pods of team blue.
const blue = `
apiVersion: cilium.io/v2
kind: CiliumEgressGatewayPolicy
metadata: {name: blue}
spec:
  selectors: [{namespaceSelector: {matchLabels: {team: blue}}}]
  destinationCIDRs: [203.0.113.0/24, "2001:db8:100::/48"]
  excludedCIDRs: [203.0.113.64/26]
  egressGateway: {nodeSelector: {matchLabels: {zone: b}}}
`

// TestObjectsReachMaps changes objects step by step, and compares all maps with
// what all objects ask for after each.
func TestObjectsReachMaps(t *testing.T) {
	c := startCluster(t)
	populate(c)
	c.Apply(blue)
	a := newAgent(t, c)
	a.startReady()
	k := a.kernel()
	w := a.converge(c, k)
	require.Equal(t, redirected, w.decide(localPod, netip.MustParseAddr("203.0.113.1")).kind)

	for _, step := range steps(t, c) {
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

type step struct {
	name string
	do   func()
}

func steps(t *testing.T, c *cluster.Cluster) []step {
	patch := func(kind, namespace, name, labels string) func() {
		return func() {
			data := []byte(`{"metadata":{"labels":` + labels + `}}`)
			err := c.Client().CoreV1().RESTClient().Patch(types.MergePatchType).
				NamespaceIfScoped(namespace, namespace != "").Resource(kind).Name(name).Body(data).Do(t.Context()).Error()
			require.NoError(t, err)
		}
	}
	apply := func(manifests string) func() { return func() { c.Apply(manifests) } }
	return []step{
		{"gateways of several nodes, and this one by each way out", apply(severalGateways)},
		{"an older policy wins, a longer prefix wins more", apply(overlapping)},
		{"selectors of all kinds", apply(selecting)},
		{"invalid policies", apply(invalid)},
		{"a pod is relabeled", patch("pods", "prod", "db-1", `{"app":"web","extra":"yes"}`)},
		{"pods that are no endpoints, and two with one address", apply(strangePods)},
		{"a namespace is relabeled", patch("namespaces", "", "test", `{"team":"blue"}`)},
		{"a node is relabeled", patch("nodes", "", "node-3", `{"zone":"b"}`)},
		{"a gateway is not ready", func() { c.SetNodeReady("node-2", false) }},
		{"no gateway is ready", func() { c.SetNodeReady("node-3", false); c.SetNodeReady(localNode, false) }},
		{"gateways are ready again", func() { c.SetNodeReady("node-3", true); c.SetNodeReady(localNode, true) }},
		{"the egress IP moves to another device", func() {
			require.NoError(t, changeAddress(netlink.AddrDel, uplink, egressIP.String()+"/32"))
			require.NoError(t, changeAddress(netlink.AddrReplace, second, egressIP.String()+"/32"))
			t.Cleanup(func() {
				require.NoError(t, changeAddress(netlink.AddrDel, second, egressIP.String()+"/32"))
				require.NoError(t, changeAddress(netlink.AddrReplace, uplink, egressIP.String()+"/32"))
			})
		}},
		{"an address goes from one pod to another", func() {
			c.DeletePod("test", "web-1")
			c.CreatePod(cluster.Pod{Namespace: "prod", Name: "db-2", Node: localNode, Labels: map[string]string{"app": "db"}, IPs: addrs("10.1.0.12")})
		}},
		{"a node leaves", func() { c.DeletePod("prod", "web-2"); c.DeleteNode("node-2") }},
		{"a policy changes", apply(changed)},
		{"policies and pods leave", func() {
			policies := c.Dynamic().Resource(policyResource)
			require.NoError(t, policies.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
			c.DeletePod("prod", "web-1")
		}},
	}
}

const severalGateways = `
apiVersion: cilium.io/v2
kind: CiliumEgressGatewayPolicy
metadata: {name: several}
spec:
  selectors: [{podSelector: {matchLabels: {app: web}}}]
  destinationCIDRs: [198.51.100.0/24, "2001:db8:200::/48"]
  egressGateways:
  - {nodeSelector: {matchLabels: {zone: b}}}
  - {nodeSelector: {matchLabels: {zone: c}}}
  - {nodeSelector: {matchLabels: {zone: a}}}
---
apiVersion: cilium.io/v2
kind: CiliumEgressGatewayPolicy
metadata: {name: by-egress-ip}
spec:
  selectors: [{podSelector: {matchLabels: {app: db}}}]
  destinationCIDRs: [198.51.100.0/24]
  egressGateway: {nodeSelector: {matchLabels: {egress: local}}, egressIP: 192.168.7.50}
---
apiVersion: cilium.io/v2
kind: CiliumEgressGatewayPolicy
metadata: {name: by-egress-ip6}
spec:
  selectors: [{podSelector: {matchLabels: {app: db}}}]
  destinationCIDRs: ["2001:db8:300::/48"]
  egressGateway: {nodeSelector: {matchLabels: {egress: local}}, egressIP: "2001:db8:7::50"}
---
apiVersion: cilium.io/v2
kind: CiliumEgressGatewayPolicy
metadata: {name: by-interface}
spec:
  selectors: [{podSelector: {matchLabels: {app: job}}}]
  destinationCIDRs: [198.51.100.0/24]
  egressGateway: {nodeSelector: {matchLabels: {egress: local}}, interface: second-with-an-alternative-name}
`

const overlapping = `
apiVersion: cilium.io/v2
kind: CiliumEgressGatewayPolicy
metadata: {name: a-same-prefix}
spec:
  selectors: [{podSelector: {}}]
  destinationCIDRs: [203.0.113.0/24]
  excludedCIDRs: [203.0.113.7/32]
  egressGateway: {nodeSelector: {matchLabels: {zone: c}}}
---
apiVersion: cilium.io/v2
kind: CiliumEgressGatewayPolicy
metadata: {name: a-longer-prefix}
spec:
  selectors: [{podSelector: {}}]
  destinationCIDRs: [203.0.113.128/25, 0.0.0.0/0]
  egressGateway: {nodeSelector: {matchLabels: {zone: c}}}
`

const selecting = `
apiVersion: cilium.io/v2
kind: CiliumEgressGatewayPolicy
metadata: {name: all-parts-of-an-item}
spec:
  selectors:
  - namespaceSelector: {matchLabels: {team: blue}}
    podSelector: {matchExpressions: [{key: app, operator: In, values: [web, db]}]}
    nodeSelector: {matchLabels: {zone: a}}
  - podSelector: {matchLabels: {"k8s:io.kubernetes.pod.namespace": test}, matchExpressions: [{key: app, operator: NotIn, values: [web]}]}
  destinationCIDRs: [192.0.2.0/24]
  egressGateway: {nodeSelector: {matchExpressions: [{key: egress, operator: Exists}]}}
`

const invalid = `
apiVersion: cilium.io/v2
kind: CiliumEgressGatewayPolicy
metadata: {name: invalid-parts}
spec:
  selectors:
  - podSelector: {matchExpressions: [{key: app, operator: Gt}]}
  - podSelector: {matchLabels: {app: web}}
  destinationCIDRs: [192.0.2.0/24, none]
  excludedCIDRs: [192.0.2.77/32, 192.0.2.0]
  egressGateways:
  - {nodeSelector: {matchLabels: {zone: b}}, egressIP: 192.168.7.50, interface: uplink0}
  - {nodeSelector: {matchLabels: {zone: c}}}
---
apiVersion: cilium.io/v2
kind: CiliumEgressGatewayPolicy
metadata: {name: invalid-gateway}
spec:
  selectors: [{podSelector: {matchLabels: {app: job}}}]
  destinationCIDRs: [192.0.2.0/24]
  egressGateway: {nodeSelector: {matchLabels: {zone: b}}, egressIP: none}
`

const strangePods = `
apiVersion: v1
kind: Pod
metadata: {name: on-the-host, namespace: prod, labels: {app: web}}
spec: {nodeName: node-1, hostNetwork: true, containers: [{name: main, image: none}]}
status: {phase: Running, podIP: 192.168.7.1, podIPs: [{ip: 192.168.7.1}], hostIPs: [{ip: 192.168.7.1}], hostIP: 192.168.7.1}
---
apiVersion: v1
kind: Pod
metadata: {name: ended, namespace: prod, labels: {app: web}}
spec: {nodeName: node-1, containers: [{name: main, image: none}]}
status: {phase: Succeeded, podIP: 10.1.0.99, podIPs: [{ip: 10.1.0.99}]}
---
apiVersion: v1
kind: Pod
metadata: {name: without-address, namespace: prod, labels: {app: web}}
spec: {nodeName: node-1, containers: [{name: main, image: none}]}
---
apiVersion: v1
kind: Pod
metadata: {name: without-labels, namespace: prod}
spec: {nodeName: node-2, containers: [{name: main, image: none}]}
status: {phase: Running, podIP: 10.2.0.98, podIPs: [{ip: 10.2.0.98}]}
---
apiVersion: v1
kind: Pod
metadata: {name: claims-the-same, namespace: test, labels: {app: job}}
spec: {nodeName: node-1, containers: [{name: main, image: none}]}
status: {phase: Running, podIP: 10.1.0.11, podIPs: [{ip: 10.1.0.11}]}
`

const changed = `
apiVersion: cilium.io/v2
kind: CiliumEgressGatewayPolicy
metadata: {name: blue}
spec:
  selectors: [{podSelector: {matchLabels: {app: web}}}]
  destinationCIDRs: [203.0.113.0/25, 100.64.0.0/10]
  egressGateway: {nodeSelector: {matchLabels: {egress: local}}}
`
