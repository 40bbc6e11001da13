// SPDX-License-Identifier: Apache-2.0

package lab

import "testing"

const closedShop = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed, namespace: shop}
spec: {podSelector: {}, policyTypes: [Ingress, Egress]}
`

// With --allow-localhost=policy nodes reach their own pods if policies allow it, as
// all other peers.
func TestPolicyLocalhost(t *testing.T) {
	t.Parallel()
	p := newPolicyTest(t, Options{AgentFlags: []string{"--allow-localhost=policy"}})
	p.check(openChecks)
	live := []*talk{p.begin(p.callOf("node-1 client tcp4/80")), p.begin(p.callOf("node-1 client udp6/81"))}

	allow := p.enforce(entities("ingress", "fromEntities: [host]"))
	p.check(`
node-1 client tcp/80 allowed
node-1 client icmp   allowed
node-2 client tcp/80 ingress CiliumNetworkPolicy/shop/entities
near   client udp/80 ingress CiliumNetworkPolicy/shop/entities
`)
	for _, k := range live {
		p.goesOn(k)
	}
	p.enforce(closedShop)
	position := p.drops.position()
	p.withdraw(allow...)
	for _, k := range live {
		p.cut(k, position, isDropped)
	}
	p.check(`
node-1 client tcp/80 ingress NetworkPolicy/shop/closed
node-1 near   udp/80 ingress NetworkPolicy/shop/closed
node-1 near   icmp   ingress NetworkPolicy/shop/closed
node-2 far    tcp/80 ingress NetworkPolicy/shop/closed
node-2 near   tcp/80 ingress NetworkPolicy/shop/closed
client node-1 tcp/80 egress NetworkPolicy/shop/closed
`)
}

// With --enforcement=always what no policy allows is denied, also to pods that none
// selects.
func TestPolicyEnforcementAlways(t *testing.T) {
	t.Parallel()
	p := newPolicyTest(t, Options{AgentFlags: []string{"--enforcement=always"}})
	const closed = `
client   near     tcp/80   egress -
client   far      icmp     egress -
client   world    udp/8000 egress -
client   node-1   tcp/80   egress -
stranger near     udp/80   egress -
node-2   near     tcp/80   ingress -
node-1   stranger icmp     ingress -
node-1   near     tcp/80   allowed
node-2   far      udp/80   allowed
`
	p.check(closed)
	t.Run("one side", func(t *testing.T) {
		p := p.on(t)
		p.enforce(ingressPolicy("web", 80))
		p.check(`
client near   tcp/80 egress -
node-2 near   tcp/80 ingress NetworkPolicy/shop/web
near   client tcp/80 egress -
`)
	})
	t.Run("both sides", func(t *testing.T) {
		p := p.on(t)
		p.enforce(ingressPolicy("web", 80) + "---" + egressPolicy("calls", 80))
		p.check(`
client near  tcp/80   allowed
client far   udp/80   allowed
client near  tcp/81   egress NetworkPolicy/shop/calls
client other tcp/80   egress NetworkPolicy/shop/calls
client world tcp/8000 egress NetworkPolicy/shop/calls
other  near  tcp/80   egress -
near   far   tcp/80   egress -
node-2 other tcp/80   ingress -
`)
	})
	p.check(closed)
}

// With --enforcement=never policies are read, and nothing is denied.
func TestPolicyEnforcementNever(t *testing.T) {
	t.Parallel()
	p := newPolicyTest(t, Options{AgentFlags: []string{"--enforcement=never"}})
	k := p.begin(p.callOf("client near udp4/80"))
	p.enforce(closedShop)
	p.check(openChecks)
	p.goesOn(k)
}
