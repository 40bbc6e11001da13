// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// lead is a service of the tests and the backend that the nodes choose for it.
type lead struct {
	name       string
	ipv4, ipv6 netip.Addr
	backend    target
	pods       string // label app of the pods that it selects, if it does
	masquerade bool   // the backend sees the node's address
}

const servicePort = 8443 // no backend has it

// newServices has the nodes translate addresses of services, and tells the agents
// of the services.
func newServices(p *policyTest) {
	p.t.Helper()
	var rules []translation
	for i, s := range []lead{
		{name: "svc-near", backend: target{p.names["near"], 80}, pods: "server"},
		{name: "svc-far", backend: target{p.names["far"], 80}, pods: "server"},
		{name: "svc-masked", backend: target{p.names["far"], 81}, pods: "server", masquerade: true},
		{name: "svc-host", backend: target{p.names["node-1"], 80}},
		{name: "svc-node", backend: target{p.names["node-2"], 80}},
		{name: "svc-world", backend: target{p.names["world"], Port}},
	} {
		s.ipv4, s.ipv6 = addrOf(fmt.Sprintf("172.20.0.%d", 10+i)), addrOf(fmt.Sprintf("fd00:20::%d", 10+i))
		p.names[s.name] = place{nil, s.ipv4, s.ipv6, nil, &s.backend}
		require.NoError(p.t, p.Apply(s.objects()...))
		for _, v6 := range []bool{false, true} {
			rules = append(rules, translation{
				netip.AddrPortFrom(p.names[s.name].addr(v6), servicePort),
				netip.AddrPortFrom(s.backend.addr(v6), s.backend.port), s.masquerade,
			})
		}
	}
	for _, n := range p.Nodes {
		require.NoError(p.t, n.translate(rules...))
		require.NoError(p.t, AwaitRows(p.ctx, n.Agent, "map-ipcache", func(rows []MapRow) error {
			services := 0
			for _, r := range rows {
				if strings.Contains(fmt.Sprint(r.Value["Flags"]), "service") {
					services++
				}
			}
			if services < len(rules) {
				return fmt.Errorf("the kernel knows %d of %d addresses of services", services, len(rules))
			}
			return nil
		}))
	}
}

func (s lead) objects() []Object {
	metadata := map[string]any{"name": s.name, "namespace": "shop"}
	spec := map[string]any{
		"clusterIP": s.ipv4.String(), "clusterIPs": []any{s.ipv4.String(), s.ipv6.String()},
		"ports": []any{map[string]any{"port": int64(servicePort), "targetPort": int64(s.backend.port)}},
	}
	service := Object{"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}
	if s.pods != "" {
		spec["selector"] = map[string]any{"app": s.pods}
		return []Object{service}
	}
	objects := []Object{service}
	for family, addr := range map[string]netip.Addr{"IPv4": s.backend.ipv4, "IPv6": s.backend.ipv6} {
		objects = append(objects, Object{
			"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family,
			"metadata": map[string]any{
				"name": fmt.Sprintf("%s-%s", s.name, map[string]string{"IPv4": "4", "IPv6": "6"}[family]), "namespace": "shop",
				"labels": map[string]any{"kubernetes.io/service-name": s.name},
			},
			"endpoints": []any{map[string]any{"addresses": []any{addr.String()}}},
			"ports":     []any{map[string]any{"port": int64(s.backend.port)}},
		})
	}
	return objects
}

// serviceTests are of the client's egress policies. What they say of a service they
// say of its backend.
var serviceTests = []struct{ name, manifests, checks string }{
	{"default-deny", entities("egress", "toEntities: [none]"), `
client svc-near   tcp/8443 egress CiliumNetworkPolicy/shop/entities
client svc-far    udp/8443 egress CiliumNetworkPolicy/shop/entities
client svc-masked tcp/8443 egress CiliumNetworkPolicy/shop/entities
client svc-host   tcp/8443 egress CiliumNetworkPolicy/shop/entities
client svc-node   tcp/8443 egress CiliumNetworkPolicy/shop/entities
client svc-world  udp/8443 egress CiliumNetworkPolicy/shop/entities
other  svc-near   tcp/8443 allowed
other  svc-world  udp/8443 allowed
`},
	{"to-backends", `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: calls, namespace: shop}
spec:
  podSelector: {matchLabels: {app: client}}
  policyTypes: [Egress, Ingress]
  egress:
  - to: [{podSelector: {matchLabels: {app: server}}}]
    ports: [{port: 80}]
`, `
client svc-near   tcp/8443 allowed
client svc-far    tcp/8443 allowed
client svc-near   udp/8443 egress NetworkPolicy/shop/calls
client svc-masked tcp/8443 egress NetworkPolicy/shop/calls
client svc-host   tcp/8443 egress NetworkPolicy/shop/calls
client svc-world  tcp/8443 egress NetworkPolicy/shop/calls
client near       tcp/80   allowed
`},
	{"to-port-of-the-service", entities("egress", `toPorts: [{ports: [{port: "8443", protocol: ANY}]}]`), `
client svc-near  tcp/8443 egress
client svc-far   udp/8443 egress
client svc-host  tcp/8443 egress
client svc-world tcp/8443 egress
`},
	{"to-host", entities("egress", "toEntities: [host]"), `
client svc-host tcp/8443 allowed
client svc-host udp/8443 allowed
client svc-node tcp/8443 egress
client svc-near tcp/8443 egress
`},
	{"to-remote-node", entities("egress", "toEntities: [remote-node]"), `
client svc-node tcp/8443 allowed
client svc-host tcp/8443 egress
client svc-far  tcp/8443 egress
`},
	{"to-world", entities("egress", "toCIDR: [198.51.100.0/25, \"2001:db8:51::/96\"]"), `
client svc-world tcp/8443 allowed
client svc-world udp/8443 allowed
client svc-near  tcp/8443 egress
client svc-host  tcp/8443 egress
`},
	{"to-service-of-pods", entities("egress", "toServices: [{k8sService: {serviceName: svc-near, namespace: shop}}]"), `
client svc-near  tcp/8443 allowed
client svc-far   udp/8443 allowed
client far       tcp/81   allowed
client svc-host  tcp/8443 egress
client svc-world tcp/8443 egress
`},
	{"to-service-outside", entities("egress", "toServices: [{k8sService: {serviceName: svc-world, namespace: shop}}]"), `
client svc-world tcp/8443 allowed
client world     udp/8000 allowed
client svc-near  tcp/8443 egress
client 198.51.100.11 tcp/8000 egress
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
client svc-near  tcp/8443 egress-rule CiliumNetworkPolicy/shop/no-servers
client svc-far   udp/8443 egress-rule CiliumNetworkPolicy/shop/no-servers
client svc-host  tcp/8443 allowed
client svc-world tcp/8443 allowed
`},
	{"ingress-of-the-backend", ingressPolicy("web", 80), `
client svc-near tcp/8443 allowed
client svc-far  udp/8443 allowed
other  svc-near tcp/8443 ingress NetworkPolicy/shop/web
other  svc-far  udp/8443 ingress NetworkPolicy/shop/web
`},
}

// With the translation of kube-proxy an egress policy of a client is about the
// backend, wherever that is, and whether or not the client is masqueraded for it.
func TestPolicyServices(t *testing.T) {
	t.Parallel()
	p := newPolicyTest(t, Options{})
	newServices(p)
	const open = `
client svc-near   tcp/8443 allowed
client svc-far    udp/8443 allowed
client svc-masked tcp/8443 allowed
client svc-host   tcp/8443 allowed
client svc-node   udp/8443 allowed
client svc-world  tcp/8443 allowed
`
	p.check(open)
	for _, test := range serviceTests {
		t.Run(test.name, func(t *testing.T) {
			p := p.on(t)
			p.enforce(test.manifests)
			p.check(test.checks)
		})
	}
	t.Run("revoke", func(t *testing.T) { p.on(t).revokeService() })
	p.check(open)
}

// revokeService takes away what connections to services are allowed by.
func (p *policyTest) revokeService() {
	p.enforce(entities("egress", "toEntities: [none]"))
	allow := p.enforce(`
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: allow, namespace: shop}
spec:
  endpointSelector: {matchLabels: {app: client}}
  egress: [{toEndpoints: [{matchLabels: {app: server}}]}, {toEntities: [host, world]}]
`)
	var talks []*talk
	for _, text := range []string{
		"client svc-near tcp/8443", "client svc-far tcp/8443", "client svc-far udp4/8443", "client svc-masked tcp4/8443",
		"client svc-host tcp/8443", "client svc-world tcp/8443", "client svc-world udp6/8443",
	} {
		for _, c := range p.callsOf(text) {
			talks = append(talks, p.begin(c))
		}
	}
	position := p.drops.position()
	require.NoError(p.t, p.Delete(allow...))
	for _, k := range talks {
		p.cut(k, position, cannotSend)
	}
	require.NoError(p.t, p.Apply(allow...))
	for _, k := range talks {
		p.goesOn(k)
	}
}
