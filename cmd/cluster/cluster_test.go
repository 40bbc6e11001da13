// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package main

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/cmd/cluster/traffic"
)

// Addresses that pods leave the cluster with.
const (
	gatewayNode = "worker-2"    // docs/quick-start.md makes it the gateway
	gatewayIP   = "192.0.2.12"  // its own address
	egressIP    = "192.0.2.102" // another one of it, which only the gateway uses
)

// webAddress is the service of the pods app=web.
const webAddress = "10.96.80.80:80"

// webPods are those that the network policy of docs/quick-start.md protects.
var webPods = []string{"web", "web-2"}

// TestCluster installs Sluice on a cluster with running pods, uses it, and
// removes it. The steps build on each other: with -run, keep the first ones.
func TestCluster(t *testing.T) {
	createPods(t)
	before := map[string]nodeState{}
	for _, node := range running.Nodes {
		before[node.Name] = readNodeState(t, node)
	}
	for _, step := range []struct {
		name string
		test func(*testing.T)
	}{
		{"Install", testInstall},
		{"Egress", testEgress},
		{"NetworkPolicy", testNetworkPolicy},
		{"TimeZero", testTimeZero},
		{"Probes", testProbes}, // of all that has run until here
		{"Restart", testRestart},
		{"Boot", testBoot},
		{"EgressIPs", testEgressIPs},
		{"Upstream", testUpstream},
		{"Uninstall", func(t *testing.T) { testUninstall(t, before) }},
	} {
		if !t.Run(step.name, step.test) && step.name == "Install" {
			return
		}
	}
}

// createPods makes the pods that docs/quick-start.md speaks of, and some beside
// them: on other nodes, or in no policy.
func createPods(t *testing.T) {
	manifests := fmt.Sprintf(`
{apiVersion: v1, kind: Namespace, metadata: {name: %s}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: %[1]s}
spec:
  clusterIP: 10.96.80.80
  selector: {app: web}
  ports:
  - {name: tcp, port: 80, targetPort: %[2]d, protocol: TCP}
  - {name: udp, port: 80, targetPort: %[2]d, protocol: UDP}
`, shop, traffic.Port)
	for _, p := range []struct{ name, node, app string }{
		{"checkout-1", "worker-1", "checkout"}, {"checkout-2", "worker-2", "checkout"},
		{"checkout-3", "worker-3", "checkout"},
		{"plain-1", "worker-1", "plain"},
		{"web", "worker-1", "web"}, {"web-2", "worker-3", "web"},
		{"client", "worker-2", "client"}, {"client-1", "worker-1", "client"},
		{"other", "worker-2", "other"}, {"other-1", "worker-1", "other"},
	} {
		manifests += pod(p.name, p.node, p.app, "serve")
	}
	// The controller manager makes the service account of a namespace some time after it.
	await(t, "the pods are created", func() error { return running.Apply(t.Context(), manifests) })
	waitFor(t, shop, "condition=Ready", "pod", "--all")
}

// testInstall installs Sluice as docs/quick-start.md says.
func testInstall(t *testing.T) {
	quickStart(t, "helm install", "")
	quickStart(t, "rollout status daemonset/sluice\n", "")
	requireNoRestarts(t)
}

// testEgress has pods leave by a gateway, whichever node they are on.
func testEgress(t *testing.T) {
	want := map[string]string{
		"checkout-1": running.Node("worker-1").IP, "checkout-2": running.Node("worker-2").IP,
		"checkout-3": running.Node("worker-3").IP, "plain-1": running.Node("worker-1").IP,
	}
	requireSources := func(when string) {
		t.Helper()
		for pod, source := range want {
			seen := answers{"udp": source, "tcp": source}
			assert.Equal(t, seen, ask(t, pod, outside), "source of %s %s", pod, when)
		}
	}
	requireSources("without policy")

	quickStart(t, "kind: CiliumEgressGatewayPolicy", "")
	waitFor(t, "", "condition=Programmed", "ciliumegressgatewaypolicy/checkout")
	quickStart(t, "sluice explain egress", "worker-1")
	for _, pod := range []string{"checkout-1", "checkout-2", "checkout-3"} {
		want[pod] = gatewayIP
	}
	requireSources("with the policy of the quick start")

	// From here on with an address that no pod has without the gateway.
	require.NoError(t, running.Node(gatewayNode).AddAddress(egressIP))
	kubectl(t, "patch", "ciliumegressgatewaypolicy", "checkout", "--type=merge",
		`--patch={"spec": {"egressGateway": {"egressIP": "`+egressIP+`"}}}`)
	for _, pod := range []string{"checkout-1", "checkout-2", "checkout-3"} {
		want[pod] = egressIP
		await(t, pod+" leaves with the egress IP", func() error {
			if got := ask(t, pod, outside); got["udp"] != egressIP || got["tcp"] != egressIP {
				return fmt.Errorf("the server sees %v", got)
			}
			return nil
		})
	}
	requireSources("with an egress IP")
}

// testNetworkPolicy asks the pods that a network policy protects, by their own
// addresses and by their service.
func testNetworkPolicy(t *testing.T) {
	quickStart(t, "kind: NetworkPolicy", "worker-1")
	for _, node := range running.Nodes {
		sluice(t, node.Name, "wait", "policy", "shop/web")
	}

	servers := []string{webAddress}
	for _, pod := range webPods {
		servers = append(servers, fmt.Sprintf("%s:%d", podIP(t, pod), traffic.Port))
	}
	for pod, want := range map[string]answers{
		"client":   {"tcp": podIP(t, "client"), "udp": traffic.Failed}, // its port is one of TCP
		"client-1": {"tcp": podIP(t, "client-1"), "udp": traffic.Failed},
		"other":    {"tcp": traffic.Failed, "udp": traffic.Failed},
		"other-1":  {"tcp": traffic.Failed, "udp": traffic.Failed},
	} {
		t.Run(pod, func(t *testing.T) {
			t.Parallel() // what is denied takes until it is given up
			for _, server := range servers {
				assert.Equal(t, want, ask(t, pod, server), "%s asks %s", pod, server)
			}
		})
	}
}

// testProbes finds agents that have never been restarted, and pods that are
// ready although a policy denies what is not from certain pods: kubelets are
// not denied.
func testProbes(t *testing.T) {
	requireNoRestarts(t)
	// A slow machine may have some, as probes have timeouts.
	unhealthy := read(t, sluiceNamespace, "{.items[*].message}", "events",
		"--field-selector=reason=Unhealthy")
	t.Logf("Unhealthy events of agents: %q", unhealthy)
	for _, pod := range webPods {
		assert.Equal(t, "true 0", read(t, shop, readyPath+" "+restartsPath, "pod", pod),
			"%s: ready, restarts", pod)
	}
}
