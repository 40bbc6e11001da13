// SPDX-License-Identifier: Apache-2.0

package lab

// entityTests are policies for the client that name nodes, the cluster and the world.
var entityTests = []verdictTest{
	{"egress-to-host", entities("egress", "toEntities: [host]"), `
client node-1 tcp/80   allowed
client node-1 icmp     allowed
client node-2 tcp/80   egress
client near   tcp/80   egress
client world  tcp/8000 egress
`},
	{"egress-to-remote-node", entities("egress", "toEntities: [remote-node]"), `
client node-2 tcp/80   allowed
client node-1 tcp/80   egress
client far    tcp/80   egress
client world  udp/8000 egress
`},
	{"egress-to-world", entities("egress", "toEntities: [world]"), `
client world  tcp/8000 allowed
client world  icmp     allowed
client node-1 tcp/80   egress
client node-2 tcp/80   egress
client near   tcp/80   egress
client far    tcp/80   egress
`},
	{"egress-to-world-ipv4", entities("egress", "toEntities: [world-ipv4]"), `
client world tcp4/8000 allowed
client world tcp6/8000 egress
`},
	{"egress-to-cluster", entities("egress", "toEntities: [cluster]"), `
client near     tcp/80   allowed
client stranger udp/80   allowed
client node-1   tcp/80   allowed
client node-2   tcp/80   allowed
client world    tcp/8000 egress
`},
	{"egress-to-nodes", entities("egress", "toNodes: [{matchLabels: {kubernetes.io/hostname: node-2}}]"), `
client node-2 tcp/80 allowed
client node-1 tcp/80 egress
client far    tcp/80 egress
`},
	{"ingress-from-remote-node", entities("ingress", "fromEntities: [remote-node]"), `
node-2 client tcp/80 allowed
node-1 client tcp/80 allowed
far    client tcp/80 ingress
near   client tcp/80 ingress
`},
	{"ingress-from-host", entities("ingress", "fromEntities: [host]"), `
node-1 client udp/80 allowed
node-2 client udp/80 ingress
near   client udp/80 ingress
`},
	{"ingress-from-none", entities("ingress", "fromEndpoints: []"), `
node-1 client tcp/80 allowed
near   client tcp/80 ingress
client near   tcp/80 allowed
`},
}

// entities is a policy for the client with one rule.
func entities(direction, rule string) string {
	return `
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: entities, namespace: shop}
spec:
  endpointSelector: {matchLabels: {app: client}}
  ` + direction + `:
  - ` + rule + "\n"
}
