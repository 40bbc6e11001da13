// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
)

// Ports of nodes in these tests. No process of a node has them.
const (
	nodePort   = 30080 // leads to the servers
	escapePort = 30081 // leads out of the cluster
	hostPort   = 8480  // of the pod "near" of node-1
	farPort    = 8481  // of the pod "far" of node-2
)

// portService is a service with a port of the nodes, and the slices of its backends.
func portService(name, namespace, selector string, port uint16, spec string, backends ...netip.Addr) string {
	ip := 60 + len(name)
	text := fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %s, namespace: %s}
spec: {clusterIP: 172.20.0.%d, clusterIPs: [172.20.0.%d, "fd00:20::%d"]%s}
`, name, namespace, ip, ip, ip, selector+spec)
	for _, family := range []string{"IPv4", "IPv6"} {
		var endpoints []string
		for _, a := range backends {
			if a.Is4() == (family == "IPv4") {
				target := ""
				if selector != "" {
					target = ", targetRef: {kind: Pod}"
				}
				endpoints = append(endpoints, fmt.Sprintf(`{addresses: ["%s"]%s}`, a, target))
			}
		}
		text += fmt.Sprintf(`
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %s-%s, namespace: %s, labels: {kubernetes.io/service-name: %s}}
addressType: %s
endpoints: [%s]
ports: [{name: tcp, protocol: TCP, port: %d}, {name: udp, protocol: UDP, port: %d}]
`, name, strings.ToLower(family), namespace, name, family, strings.Join(endpoints, ", "), port, port)
	}
	return text
}

// portsOf are the ports of a service, by either protocol.
func portsOf(port, to, nodePort uint16) string {
	node := ""
	if nodePort != 0 {
		node = fmt.Sprintf(", nodePort: %d", nodePort)
	}
	return fmt.Sprintf(`, ports: [{name: tcp, protocol: TCP, port: %d, targetPort: %d%s}, {name: udp, protocol: UDP, port: %d, targetPort: %d%s}]`,
		port, to, node, port, to, node)
}

// newNodePorts has the nodes translate ports of their addresses, and tells the agents of what
// does: services, and pods with ports of their nodes.
func newNodePorts(p *policyTest) {
	p.t.Helper()
	n1, n2 := p.Nodes[0], p.Nodes[1]
	near, far, world := p.names["near"], p.names["far"], p.names["world"]
	require.NoError(p.t, p.ApplyYAML(
		portService("ports", "shop", ", selector: {app: server}", 80, portsOf(80, 80, nodePort),
			near.ipv4, near.ipv6, far.ipv4, far.ipv6)+"---"+
			portService("escape", "shop", "", Port, portsOf(80, Port, escapePort), world.ipv4, world.ipv6)))
	for pod := range p.pods {
		if port := map[string]int64{"near": hostPort, "far": farPort}[pod.Spec.Name]; port != 0 {
			o := pod.Object()
			o["spec"].(map[string]any)["containers"] = []any{map[string]any{"name": "main", "ports": []any{
				map[string]any{"containerPort": int64(80), "hostPort": port},
				map[string]any{"containerPort": int64(80), "hostPort": port, "protocol": "UDP"},
			}}}
			require.NoError(p.t, p.Apply(o))
		}
	}
	for n, to := range map[*Node]struct {
		backend  place
		hostPort uint16
	}{n1: {near, hostPort}, n2: {far, farPort}} {
		var rules []translation
		for _, v6 := range []bool{false, true} {
			node := place{ipv4: n.IPv4, ipv6: n.IPv6}.addr(v6)
			for port, backend := range map[uint16]netip.AddrPort{
				nodePort:    netip.AddrPortFrom(to.backend.addr(v6), 80),
				escapePort:  netip.AddrPortFrom(world.addr(v6), Port),
				to.hostPort: netip.AddrPortFrom(to.backend.addr(v6), 80),
			} {
				rules = append(rules, translation{netip.AddrPortFrom(node, port), backend, true})
			}
		}
		require.NoError(p.t, n.translate(rules...))
	}
	p.names["port-here"] = place{nil, n1.IPv4, n1.IPv6, nil, &target{near, 80}}
	p.names["port-there"] = place{nil, n2.IPv4, n2.IPv6, nil, nil}
	p.names["escape-here"] = place{nil, n1.IPv4, n1.IPv6, nil, &target{world, Port}}
	p.awaitFrontends(n1, 16)
	p.awaitFrontends(n2, 16)
}

// awaitFrontends waits until the kernel knows so many ports that are translated, by either
// protocol and of either family.
func (p *policyTest) awaitFrontends(n *Node, want int) {
	p.t.Helper()
	require.NoError(p.t, AwaitRows(p.ctx, n.Agent, "map-services", func(rows []MapRow) error {
		if len(rows) != want {
			return fmt.Errorf("the kernel of %s knows %d of %d ports", n.Name, len(rows), want)
		}
		return nil
	}))
	require.NoError(p.t, n.Agent.AwaitSettled(p.ctx))
}

// nodePortTests are of the client's egress policies. A port of its own node is its backend to
// them; one of another node is that node, and each of its backends.
var nodePortTests = []struct{ name, manifests, checks string }{
	{"to-nodes-only", entities("egress", "toEntities: [host, remote-node]"), `
client port-here   tcp/30080 egress CiliumNetworkPolicy/shop/entities
client port-here   udp/30080 egress CiliumNetworkPolicy/shop/entities
client port-here   tcp/8480  egress CiliumNetworkPolicy/shop/entities
client escape-here udp/30081 egress CiliumNetworkPolicy/shop/entities
client port-there  tcp/30080 egress CiliumNetworkPolicy/shop/entities
client port-there  udp/8481  egress CiliumNetworkPolicy/shop/entities
client port-there  tcp/30081 egress CiliumNetworkPolicy/shop/entities
client port-there  tcp/80    allowed
client node-1      udp/80    allowed
other  port-here   tcp/30080 allowed
other  port-there  udp/8481  allowed
`},
	{"to-backends", `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: calls, namespace: shop}
spec:
  podSelector: {matchLabels: {app: client}}
  policyTypes: [Egress]
  egress:
  - to: [{podSelector: {matchLabels: {app: server}}}]
    ports: [{port: 80}]
`, `
client port-here   tcp/30080 allowed
client port-here   tcp/8480  allowed
client port-here   udp/30080 egress NetworkPolicy/shop/calls
client escape-here tcp/30081 egress NetworkPolicy/shop/calls
client port-there  tcp/30080 egress NetworkPolicy/shop/calls
client node-1      tcp/80    egress NetworkPolicy/shop/calls
`},
	{"to-backends-by-nodes", entities("egress", "toEntities: [remote-node]\n  - toEndpoints: [{matchLabels: {app: server}}]"), `
client port-there tcp/30080 allowed
client port-there udp/8481  allowed
client port-there tcp/30081 egress CiliumNetworkPolicy/shop/entities
`},
	{"deny", `
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: no-servers, namespace: shop}
spec:
  endpointSelector: {matchLabels: {app: client}}
  egress: [{toEntities: [all]}]
  egressDeny: [{toEndpoints: [{matchLabels: {app: server}}]}]
`, `
client port-here   tcp/30080 egress-rule CiliumNetworkPolicy/shop/no-servers
client port-here   udp/8480  egress-rule CiliumNetworkPolicy/shop/no-servers
client port-there  udp/30080 egress-rule CiliumNetworkPolicy/shop/no-servers
client port-there  tcp/8481  egress-rule CiliumNetworkPolicy/shop/no-servers
client escape-here tcp/30081 allowed
client port-there  tcp/30081 allowed
`},
}

const nodePortsOpen = `
client port-here   tcp/30080 allowed
client port-here   udp/8480  allowed
client port-there  udp/30080 allowed
client port-there  tcp/8481  allowed
client escape-here tcp/30081 allowed
`

// A port of a node that is translated is no way past policies, whichever node has it, and whether
// kube-proxy or the CNI translates it.
func TestPolicyNodePorts(t *testing.T) {
	t.Parallel()
	p := newPolicyTest(t, Options{})
	newNodePorts(p)
	p.check(nodePortsOpen)
	for _, test := range nodePortTests {
		t.Run(test.name, func(t *testing.T) {
			p := p.on(t)
			p.enforce(test.manifests)
			p.check(test.checks)
		})
	}
	t.Run("gateway", func(t *testing.T) { p.on(t).portsPastGateway() })
	p.check(nodePortsOpen)
	t.Run("unknown", func(t *testing.T) { p.on(t).unknownTranslation() })
}

// unknownTranslation has the node translate what no object tells of: it is judged by where it
// leads, when it begins and when policies change.
func (p *policyTest) unknownTranslation() {
	n := p.Nodes[0]
	require.NoError(p.t, p.ApplyYAML(`{apiVersion: v1, kind: Service, metadata: {name: ports, namespace: shop}, spec: {clusterIP: 172.20.0.65}}`))
	p.awaitFrontends(n, 12)
	p.check("client port-here tcp/30080 allowed")
	talks := []*talk{p.begin(p.callsOf("client port-here tcp4/30080")[0]), p.begin(p.callsOf("client port-here udp6/30080")[0])}
	position := p.drops.position()
	p.enforce(entities("egress", "toEntities: [host]"))
	for _, k := range talks {
		p.cut(k, position, cannotSend)
	}
	for _, c := range p.callsOf("client port-here tcp/30080") {
		p.judge(c, cannotSend)
	}
	p.check("client node-1 tcp/80 allowed")
}

// portsPastGateway has a pod try to leave without its egress address.
func (p *policyTest) portsPastGateway() {
	n2 := p.Nodes[1]
	gateway := []egress{
		{name: "bank4", app: "client", to: []netip.Prefix{coveredIPv4}, exits: []exit{{node: n2.Name, ip: n2.EgressIPv4}}},
		{name: "bank6", app: "client", to: []netip.Prefix{coveredIPv6}, exits: []exit{{node: n2.Name, ip: n2.EgressIPv6}}},
	}
	p.policy(gateway...)
	p.inForce([]string{"bank4", "bank6"})
	defer func() {
		require.NoError(p.t, p.Delete(Policy("bank4"), Policy("bank6")))
		p.inForce(nil)
		for _, n := range p.Nodes { // entries go after the status
			require.NoError(p.t, n.Agent.AwaitSettled(p.ctx))
		}
	}()
	outside := verdict{direction: bpf.DirectionEgress, reason: bpf.ReasonServiceOutside.String()}
	for _, text := range []string{"client escape-here tcp/30081", "client port-there udp/30081"} {
		for _, c := range p.callsOf(text) {
			p.judge(c, outside)
		}
	}
	p.check("client port-here tcp/30080 allowed\nclient port-there udp/30080 allowed")
}
