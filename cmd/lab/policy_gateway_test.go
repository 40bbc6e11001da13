// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
)

// What a network policy allows leaves with the egress IP, what it denies is dropped
// for that reason and not for one of the gateway's, and a change of it cuts what goes
// by the gateway, which keeps its egress IP and port when it goes on.
func TestPolicyWithEgressGateway(t *testing.T) {
	t.Parallel()
	p := newPolicyTest(t, Options{})
	n2 := p.Nodes[1]
	remote, local := p.names["client"], p.names["stranger"] // the gateway is node-2
	p.policy(
		egress{name: "bank4", app: "client", to: []netip.Prefix{coveredIPv4}, exits: []exit{{node: n2.Name, ip: n2.EgressIPv4}}},
		egress{name: "bank6", app: "client", to: []netip.Prefix{coveredIPv6}, exits: []exit{{node: n2.Name, ip: n2.EgressIPv6}}},
	)
	p.inForce([]string{"bank4", "bank6"})
	p.enforce(`
apiVersion: cilium.io/v2
kind: CiliumClusterwideNetworkPolicy
metadata: {name: closed}
spec:
  endpointSelector: {matchLabels: {app: client}}
  ingress: [{fromEndpoints: []}]
  egress: [{toEndpoints: []}]
`)
	allow := p.enforce(`
apiVersion: cilium.io/v2
kind: CiliumClusterwideNetworkPolicy
metadata: {name: bank}
spec:
  endpointSelector: {matchLabels: {app: client}}
  egress:
  - toCIDRSet: [{cidr: 198.51.100.0/24, except: [198.51.100.64/26]}, {cidr: "2001:db8:51::/64", except: ["2001:db8:51::1:0/112"]}]
`)

	for _, client := range []place{remote, local} {
		p.sees(client.Namespace, ServerIPv4, n2.EgressIPv4)
		p.sees(client.Namespace, ServerIPv6, n2.EgressIPv6)
		p.sees(client.Namespace, notCoveredIPv4, client.node.OutsideIPv4)
	}
	const denied = `
client   198.51.100.70     tcp/8000 egress closed
client   2001:db8:51::1:70 udp/8000 egress closed
client   near              tcp/80   egress closed
stranger 198.51.100.70     icmp     egress closed
stranger 2001:db8:51::1:70 tcp/8000 egress closed
near     client            tcp/80   ingress closed
`
	p.check(denied)

	var talks []*talk
	for _, text := range []string{"client world tcp/8000", "client world udp4/8000", "stranger world tcp/8000", "stranger world udp6/8000"} {
		for _, c := range p.callsOf(text) {
			talks = append(talks, p.begin(c))
		}
	}
	quiet := p.dial(remote.Namespace, "tcp", ServerIPv4)
	before, err := askSoon(p.ctx, quiet)
	require.NoError(t, err)
	require.Equal(t, n2.EgressIPv4, before.Addr())

	position := p.drops.position()
	p.withdraw(allow...)
	for _, k := range talks {
		p.cut(k, position, cannotSend)
	}
	p.check(denied + `
client   world tcp/8000 egress closed
stranger world icmp     egress closed
`)
	p.apply(allow...)
	for _, k := range talks {
		p.goesOn(k)
	}
	after, err := askSoon(p.ctx, quiet)
	require.NoError(t, err)
	require.Equal(t, before, after)
	for _, client := range []place{remote, local} {
		p.sees(client.Namespace, ServerIPv4, n2.EgressIPv4)
		p.sees(client.Namespace, ServerIPv6, n2.EgressIPv6)
	}
	for _, n := range p.Nodes {
		require.Zero(t, p.count(n, bpf.ReasonPredatesPolicy), n.Name)
		require.Zero(t, p.count(n, bpf.ReasonNoGateway), n.Name)
	}
	p.noLeaks(append(p.allOutside(), n2.EgressIPv4, n2.EgressIPv6)...)
}
