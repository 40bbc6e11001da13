// SPDX-License-Identifier: Apache-2.0

//go:build cluster && full

package main

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/sluice-net/sluice/cmd/cluster/kubernetes"
	"github.com/sluice-net/sluice/cmd/cluster/traffic"
)

// Node ports of services of the pods app=web, by externalTrafficPolicy.
const (
	clusterPort = "30080"
	localPort   = "30081"
)

// failed is when no request has an answer.
var failed = []string{traffic.Failed}

// testNodePort asks protected pods from outside, by ports of nodes. kube-proxy
// masquerades what comes in by externalTrafficPolicy Cluster, so that policies
// judge the address of a node; Local keeps the client's.
func testNodePort(t *testing.T) {
	for name, port := range map[string]string{"Cluster": clusterPort, "Local": localPort} {
		apply(t, fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: web-%s, namespace: %s}
spec:
  type: NodePort
  externalTrafficPolicy: %s
  selector: {app: web}
  ports:
  - {name: tcp, port: 80, targetPort: %d, nodePort: %s, protocol: TCP}
  - {name: udp, port: 80, targetPort: %[4]d, nodePort: %[5]s, protocol: UDP}
`, strings.ToLower(name), shop, name, traffic.Port, port))
	}
	defer kubectl(t, "-n", shop, "delete", "service", "web-cluster", "web-local")
	defer deletePolicies(t)
	client := []string{kubernetes.OutsideIP}

	// web is on worker-1, web-2 on worker-3.
	await(t, "kube-proxy serves the node ports", func() error {
		for _, node := range []string{"worker-1", "worker-3"} {
			if got := askNodePort(t, node, localPort); !slices.Equal(got, client) {
				return fmt.Errorf("answers by %s: %v", node, got)
			}
		}
		return nil
	})
	for _, node := range running.Nodes {
		got := askNodePort(t, node.Name, clusterPort)
		assert.NotContains(t, got, traffic.Failed, "Cluster by %s, without policy", node.Name)
		assert.NotContains(t, got, kubernetes.OutsideIP, "Cluster by %s, without policy", node.Name)
	}
	assert.Equal(t, failed, askNodePort(t, "worker-2", localPort),
		"Local by a node without such a pod")

	webPolicy(t, `podSelector: {matchLabels: {app: client}}`)
	for _, node := range running.Nodes {
		assert.Equal(t, failed, askNodePort(t, node.Name, clusterPort), "Cluster by %s, of no client",
			node.Name)
		assert.Equal(t, failed, askNodePort(t, node.Name, localPort), "Local by %s, of no client",
			node.Name)
	}
	webPolicy(t, `ipBlock: {cidr: 203.0.113.0/24}`)
	for _, node := range running.Nodes {
		want := client
		if node.Name == "worker-2" {
			want = failed
		}
		assert.Equal(t, want, askNodePort(t, node.Name, localPort), "Local by %s, allowed", node.Name)
		assert.Equal(t, failed, askNodePort(t, node.Name, clusterPort), "Cluster by %s, masqueraded",
			node.Name)
	}
	webPolicy(t, `ipBlock: {cidr: 203.0.113.0/24, except: [`+kubernetes.OutsideIP+`/32]}`)
	assert.Equal(t, failed, askNodePort(t, "worker-1", localPort), "Local, excepted")

	webPolicy(t, `ipBlock: {cidr: `+running.Node("worker-2").IP+`/32}`)
	assert.Equal(t, []string{running.Node("worker-2").IP}, askNodePort(t, "worker-2", clusterPort),
		"Cluster by a node that is allowed, to pods of others")
}

// testHostNetwork has pods of the host network ask protected pods, and be asked:
// policies see the node's address, whatever labels the pods have.
func testHostNetwork(t *testing.T) {
	const here, elsewhere, gateway = "worker-1", "worker-2", "worker-3"
	apply(t, hostPod("host-here", here, "client")+hostPod("host-elsewhere", elsewhere, "client")+
		hostPod("host-egress", gateway, "checkout"))
	defer kubectl(t, "-n", shop, "delete", "pod", "host-here", "host-elsewhere", "host-egress")
	defer deletePolicies(t)
	waitFor(t, shop, "condition=Ready", "pod", "host-here", "host-elsewhere", "host-egress")
	web := fmt.Sprintf("%s:%d", podIP(t, "web"), traffic.Port) // on worker-1
	node := running.Node(elsewhere).IP
	all := func(answer string) answers { return answers{"udp": answer, "tcp": answer} }

	webPolicy(t, `podSelector: {matchLabels: {app: client}}`)
	assert.Equal(t, all(podIP(t, "client")), ask(t, "client", web), "a pod that is allowed")
	assert.NotContains(t, slices.Collect(maps.Values(ask(t, "host-here", web))), traffic.Failed,
		"the host network of the pod's node")
	assert.Equal(t, all(traffic.Failed), ask(t, "host-elsewhere", web),
		"the host network of another node")
	webPolicy(t, `ipBlock: {cidr: `+node+`/32}`)
	assert.Equal(t, all(node), ask(t, "host-elsewhere", web), "the address of the node is allowed")

	server := fmt.Sprintf("%s:%d", node, traffic.Port)
	for peer, want := range map[string]bool{
		`podSelector: {matchLabels: {app: client}}`: false,
		`ipBlock: {cidr: ` + node + `/32}`:          true,
	} {
		applyPolicy(t, "other", "podSelector: {matchLabels: {app: other}}\n  policyTypes: [Egress]\n"+
			"  egress: [{to: [{"+peer+"}]}]")
		// Over TCP: on the pod's own node the server answers a datagram from
		// another address of the node than the one that was asked.
		for _, pod := range []string{"other", "other-1"} { // on the same node, on another one
			got := ask(t, pod, server)["tcp"] != traffic.Failed
			assert.Equal(t, want, got, "%s reaches the host network, with egress to %s", pod, peer)
		}
	}
	kubectl(t, "-n", shop, "delete", "networkpolicy", "other")

	egressPolicy(t, "host", "checkout", "", elsewhere)
	await(t, "a pod leaves by the gateway", func() error {
		if got := ask(t, "checkout-3", outside); !maps.Equal(got, all(node)) {
			return fmt.Errorf("the server sees %v", got)
		}
		return nil
	})
	assert.Equal(t, all(running.Node(gateway).IP), ask(t, "host-egress", outside),
		"no egress policy selects it")
}

// webPolicy lets one peer reach the pods app=web, and no other.
func webPolicy(t *testing.T, peer string) {
	t.Helper()
	applyPolicy(t, "web-from",
		"podSelector: {matchLabels: {app: web}}\n  ingress: [{from: [{"+peer+"}]}]")
}

// applyPolicy applies a network policy in the namespace shop, and waits until
// all nodes enforce it.
func applyPolicy(t *testing.T, name, spec string) {
	t.Helper()
	apply(t, "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n"+
		"metadata: {name: "+name+", namespace: "+shop+"}\nspec:\n  "+spec+"\n")
	generation := read(t, shop, "{.metadata.generation}", "networkpolicy", name)
	for _, node := range running.Nodes {
		sluice(t, node.Name, "wait", "policy", "NetworkPolicy/"+shop+"/"+name, "--generation="+generation)
	}
}

// egressPolicy has the pods of an app leave by the first of some nodes, with
// its own address or an egress IP.
func egressPolicy(t *testing.T, name, app, egressIP string, gateways ...string) {
	t.Helper()
	for _, gateway := range gateways {
		kubectl(t, "label", "node", gateway, name+"-gateway=true", "--overwrite")
	}
	if egressIP != "" {
		egressIP = ", egressIP: " + egressIP
	}
	apply(t, fmt.Sprintf(`
apiVersion: cilium.io/v2
kind: CiliumEgressGatewayPolicy
metadata: {name: %s}
spec:
  selectors: [{podSelector: {matchLabels: {app: %s}}}]
  destinationCIDRs: [203.0.113.0/24]
  egressGateway: {nodeSelector: {matchLabels: {%[1]s-gateway: "true"}}%[3]s}
`, name, app, egressIP))
	waitFor(t, "", "condition=Programmed", "ciliumegressgatewaypolicy/"+name)
}

// deletePolicies deletes every policy, so that the next step starts without.
func deletePolicies(t *testing.T) {
	t.Helper()
	kubectl(t, "-n", shop, "delete", "networkpolicies", "--all")
	kubectl(t, "delete", "ciliumegressgatewaypolicies", "--all")
}

// hostPod is the manifest of a server in the namespace shop, on the network of its node.
func hostPod(name, node, app string) string {
	return strings.Replace(pod(name, node, app, "serve"), `"containers":`,
		`"hostNetwork":true,"containers":`, 1)
}

// askNodePort has the machine outside ask a port of a node, over UDP and TCP
// several times, as there are several pods that may answer. It returns the
// different answers: what the pods have seen as the client's address.
func askNodePort(t *testing.T, node, port string) []string {
	t.Helper()
	text := run(t, "ip", "netns", "exec", "outside", filepath.Join(options.Bin, "pod"), "send",
		"-count=5", "-interval=0s", "-timeout=1s", running.Node(node).IP+":"+port)
	seen := map[string]bool{}
	for line := range strings.Lines(text) {
		words := strings.SplitN(strings.TrimSpace(line), " ", 3) // SEQUENCE PROTOCOL ANSWER
		answer, _, _ := strings.Cut(words[2], ": ")
		seen[answer] = true
	}
	return slices.Sorted(maps.Keys(seen))
}
