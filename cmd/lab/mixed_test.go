// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// mixedPolicies are about peers of the other node, in each direction.
const mixedPolicies = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: client-hears-replies-only, namespace: shop}
spec: {podSelector: {matchLabels: {app: client}}, policyTypes: [Ingress]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: server-to-world, namespace: shop}
spec:
  podSelector: {matchLabels: {app: server}}
  policyTypes: [Egress]
  egress:
  - to: [{ipBlock: {cidr: 198.51.100.0/24}}, {ipBlock: {cidr: "2001:db8:51::/64"}}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: stranger, namespace: garden}
spec:
  podSelector: {matchLabels: {app: client}}
  policyTypes: [Egress]
  egress:
  - to: [{namespaceSelector: {matchLabels: {team: red}}, podSelector: {matchLabels: {app: server}}}]
  - to: [{ipBlock: {cidr: 198.51.100.0/24}}, {ipBlock: {cidr: "2001:db8:51::/64"}}]
`

// mixedServers is a policy that has clients reach a port that has a number on each server,
// and further ones.
func mixedServers(ports string) string {
	return `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: servers, namespace: shop}
spec:
  podSelector: {matchLabels: {app: server}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: client}}}]
    ports: [{port: web}, {port: 8005, protocol: UDP}` + ports + `]
`
}

// mixed is a cluster whose nodes have agents of several versions. Each node has pods of the
// other one's gateway.
type mixed struct {
	*policyTest
	talks   []*talk          // between the nodes, allowed all the time
	byGate  []net.Conn       // by gateways
	sources []netip.AddrPort // that these have
}

// Nodes of the former and of this version work together while a cluster is upgraded, and
// after that is taken back.
func TestMixedVersions(t *testing.T) {
	t.Parallel()
	former := buildFormer(t)
	m := &mixed{policyTest: newPolicyTest(t, Options{Agent: former})}
	m.drops.close()
	m.prepare()

	m.turn("upgraded-1", nil, former)
	idle := m.connect(m.callOf("client near tcp4/8000"))
	_, err := askSoon(m.ctx, idle.conn)
	require.NoError(t, err)

	m.turn("upgraded-2", former, nil)
	m.apply(parsed(t, mixedServers(""))...)
	m.turn("both", nil, nil)
	position := m.drops.position()
	_, err = idle.conn.Write([]byte("who\n"))
	require.NoError(t, err)
	_, err = m.drops.next(m.ctx, position, idle.asked)
	require.NoError(t, err, "it was forbidden while an agent of the former version ran")

	m.turn("taken-back-2", nil, former)
	m.turn("taken-back", former, former)
	for _, k := range m.talks {
		k.close()
	}
	m.noLeaks(append(m.allOutside(), m.gateways()...)...)
}

// gateways are the egress addresses.
func (m *mixed) gateways() (addrs []netip.Addr) {
	for _, n := range m.Nodes {
		addrs = append(addrs, n.EgressIPv4, n.EgressIPv6)
	}
	return addrs
}

// prepare applies the policies and begins the connections that go on all the time.
func (m *mixed) prepare() {
	m.t.Helper()
	for app, n := range map[string]*Node{"client": m.Nodes[1], "server": m.Nodes[0]} {
		m.policy(
			egress{
				name: app + "4", app: app, to: []netip.Prefix{coveredIPv4},
				exits: []exit{{node: n.Name, ip: n.EgressIPv4}},
			},
			egress{
				name: app + "6", app: app, to: []netip.Prefix{coveredIPv6},
				exits: []exit{{node: n.Name, ip: n.EgressIPv6}},
			},
		)
	}
	m.inForce([]string{"client4", "client6", "server4", "server6"})
	for name, n := range map[string]*Node{
		"client": m.Nodes[1], "stranger": m.Nodes[1], "near": m.Nodes[0], "far": m.Nodes[0],
	} {
		m.leaves(name, n)
		for _, to := range []netip.Addr{ServerIPv4, ServerIPv6} {
			conn := m.dial(m.names[name].Namespace, "tcp", to)
			source, err := askSoon(m.ctx, conn)
			require.NoError(m.t, err)
			require.Contains(m.t, []netip.Addr{n.EgressIPv4, n.EgressIPv6}, source.Addr())
			m.byGate, m.sources = append(m.byGate, conn), append(m.sources, source)
		}
	}
	m.apply(parsed(m.t, mixedPolicies+"---"+mixedServers(", {port: 8000}"))...)
	for _, text := range []string{"client far tcp/81", "client far udp/8005"} {
		for _, c := range m.callsOf(text) {
			m.talks = append(m.talks, m.begin(c))
		}
	}
}

// turn gives the nodes agents of versions, and asserts that all goes on and that what is
// new works, also with pods that are new.
func (m *mixed) turn(name string, commands ...[]string) {
	m.t.Helper()
	m.t.Log(name)
	m.drops.close()
	for i, n := range m.Nodes {
		if (len(n.Agent.Command) > 0) == (len(commands[i]) > 0) {
			continue
		}
		require.NoError(m.t, n.Agent.Stop())
		n.Agent.Command = commands[i]
		require.NoError(m.t, n.Agent.Start())
	}
	m.inForce(nil) // the former version is ready before that
	var err error
	m.drops, err = watchDrops(m.Nodes)
	require.NoError(m.t, err)
	m.t.Cleanup(m.drops.close)
	m.goOn()
	m.judged("client", "far", "81")

	client, server := "client-"+name, "server-"+name
	n1, n2 := m.Nodes[0], m.Nodes[1]
	m.addPods(
		PodSpec{Node: n1, Namespace: "shop", Name: client, Labels: map[string]string{"app": "client"}},
		PodSpec{
			Node: n2, Namespace: "shop", Name: server, Labels: map[string]string{"app": "server"},
			Ports: map[string]uint16{"web": 7999},
		},
	)
	m.inForce(nil)
	m.policyTest.becomes(client+" far tcp/81", isAllowed)
	m.policyTest.becomes("client "+server+" tcp/7999", isAllowed)
	m.policyTest.becomes("stranger near tcp/80", isDropped)
	// The other node learns of a pod later.
	m.leaves(client, n2)
	m.leaves(server, n1)
	m.judged(client, server, "7999")
	m.goOn()
}

// leaves waits until a pod has the egress addresses of a node.
func (m *mixed) leaves(pod string, gateway *Node) {
	m.t.Helper()
	m.traffic.becomes(m.names[pod].Namespace, ServerIPv4, gateway.EgressIPv4)
	m.traffic.becomes(m.names[pod].Namespace, ServerIPv6, gateway.EgressIPv6)
}

// goOn asserts that old connections go on, with the source that they had.
func (m *mixed) goOn() {
	m.t.Helper()
	for _, k := range m.talks {
		m.goesOn(k)
	}
	for i, conn := range m.byGate {
		source, err := askSoon(m.ctx, conn)
		require.NoError(m.t, err)
		require.Equal(m.t, m.sources[i], source)
	}
}

// judged asserts what becomes of new connections of a client of node-1 to a server of node-2,
// and of those of others.
func (m *mixed) judged(client, server, web string) {
	m.t.Helper()
	m.check(fmt.Sprintf(`
%[1]s    %[2]s    tcp/%[3]s allowed
%[1]s    %[2]s    udp/8005  allowed
%[1]s    %[2]s    tcp/8010  ingress
%[1]s    near     tcp/80    allowed
stranger %[2]s    tcp/%[3]s ingress
stranger near     tcp/80    ingress
stranger %[1]s    tcp/80    egress
other    %[2]s    udp/8005  ingress
%[2]s    %[1]s    tcp/80    egress
`, client, server, web))
	for name, n := range map[string]*Node{
		client: m.Nodes[1], "stranger": m.Nodes[1], server: m.Nodes[0], "near": m.Nodes[0],
	} {
		m.sees(m.names[name].Namespace, ServerIPv4, n.EgressIPv4)
		m.sees(m.names[name].Namespace, ServerIPv6, n.EgressIPv6)
	}
}
