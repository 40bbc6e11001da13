// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// externalService is a service at the address of the world's server.
type externalService struct {
	what, namespace string
	port            uint16
	spec            string // cluster address, and addresses outside
	status          string
	backend         string // condition, none: there is no slice
	// reached is set if pods of the namespace "default" get to the backend by it, and others
	// set if kube-proxy translates, so that pods of no egress policy do.
	reached, translates bool
}

const (
	clusterAddrs = `clusterIP: 172.20.0.77, clusterIPs: [172.20.0.77, "fd00:20::77"]`
	externalIPs  = `, externalIPs: ["198.51.100.10", "2001:db8:51::10"]`
	balanced     = `{loadBalancer: {ingress: [{ip: "198.51.100.10"}, {ip: "2001:db8:51::10"}]}}`
	isReady      = "{ready: true}"
	notReady     = "{ready: false, serving: false}"
)

// externalServices are what tenants can make of an address: only what kube-proxy translates leads
// there, and only if it is theirs, or the cluster's.
var externalServices = []externalService{
	{what: "own", namespace: "default", port: Port, spec: clusterAddrs + externalIPs, backend: isReady, reached: true, translates: true},
	{what: "other namespace", namespace: "evil", port: Port, spec: clusterAddrs + externalIPs, backend: isReady, translates: true},
	{what: "headless", namespace: "default", port: Port, spec: "clusterIP: None" + externalIPs, backend: isReady},
	{what: "headless of another namespace", namespace: "evil", port: Port, spec: "clusterIP: None" + externalIPs, backend: isReady},
	{what: "other port", namespace: "default", port: 9999, spec: clusterAddrs + externalIPs, backend: isReady},
	{what: "not ready", namespace: "default", port: Port, spec: clusterAddrs + externalIPs, backend: notReady},
	{what: "no backend", namespace: "default", port: Port, spec: clusterAddrs + externalIPs},
	{what: "load balancer of another namespace", namespace: "evil", port: Port, spec: clusterAddrs, status: balanced,
		backend: isReady, reached: true, translates: true},
	{what: "asks for the load balancer's address", namespace: "evil", port: Port,
		spec: clusterAddrs + `, type: LoadBalancer, loadBalancerIP: "198.51.100.10"`, backend: isReady},
}

func (s externalService) objects(backend *Pod) string {
	status := s.status
	if status == "" {
		status = "{}"
	}
	text := fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: bank, namespace: %s}
spec: {%s, selector: {app: backend}, ports: [{name: t, protocol: TCP, port: %d, targetPort: %d}, {name: u, protocol: UDP, port: %d, targetPort: %d}]}
status: %s
`, s.namespace, s.spec, s.port, Port, s.port, Port, status)
	if s.backend == "" {
		return text
	}
	for family, a := range map[string]netip.Addr{"IPv4": backend.IPv4, "IPv6": backend.IPv6} {
		text += fmt.Sprintf(`
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: bank-%s, namespace: %s, labels: {kubernetes.io/service-name: bank}}
addressType: %s
endpoints: [{addresses: ["%s"], conditions: %s, targetRef: {kind: Pod, name: backend}}]
ports: [{name: t, protocol: TCP, port: %d}, {name: u, protocol: UDP, port: %d}]
`, map[string]string{"IPv4": "4", "IPv6": "6"}[family], s.namespace, family, a, s.backend, Port, Port)
	}
	return text
}

// What other tenants' Services say of an address does not take pods away from their gateway, nor does
// what kube-proxy does not translate. What it does, of the pods' own namespace or of a load balancer,
// leads to the backend.
func TestTrafficExternalIPs(t *testing.T) {
	t.Parallel()
	tr := newTraffic(t, Options{Nodes: 2})
	n1, n2 := tr.Nodes[0], tr.Nodes[1]
	require.NoError(t, tr.ApplyYAML("{apiVersion: v1, kind: Namespace, metadata: {name: evil}}"))
	chosen, plain, backend := tr.pod(n1, "chosen", "a"), tr.pod(n1, "plain", "none"), tr.pod(n1, "backend", "backend")
	require.NoError(t, backend.Serve())
	t.Cleanup(backend.server.close)
	tr.policy(
		egress{name: "bank4", app: "a", to: []netip.Prefix{coveredIPv4}, exits: []exit{{node: n2.Name, ip: n2.EgressIPv4}}},
		egress{name: "bank6", app: "a", to: []netip.Prefix{coveredIPv6}, exits: []exit{{node: n2.Name, ip: n2.EgressIPv6}}},
	)
	tr.inForce([]string{"bank4", "bank6"}, chosen)
	require.NoError(t, tr.AwaitSources(tr.ctx, true, []*Node{n2}, chosen))
	tr.sees(chosen.Namespace, ServerIPv4, n2.EgressIPv4)

	for _, s := range externalServices {
		t.Run(s.what, func(t *testing.T) {
			tr := tr.sub(t)
			objects := parsed(t, s.objects(backend))
			require.NoError(t, tr.Apply(objects...))
			t.Cleanup(func() {
				require.NoError(t, tr.Delete(objects...))
				tr.awaitServices(n1, 0)
			})
			tr.awaitServices(n1, 1)
			var rules []translation
			if s.translates {
				rules = []translation{
					{netip.AddrPortFrom(ServerIPv4, Port), netip.AddrPortFrom(backend.IPv4, Port), false},
					{netip.AddrPortFrom(ServerIPv6, Port), netip.AddrPortFrom(backend.IPv6, Port), false},
				}
			}
			require.NoError(t, n1.translate(rules...))
			for to, egress := range map[netip.Addr]netip.Addr{ServerIPv4: n2.EgressIPv4, ServerIPv6: n2.EgressIPv6} {
				own, outside := chosen.IPv4, n1.OutsideIPv4
				if to.Is6() {
					own, outside = chosen.IPv6, n1.OutsideIPv6
				}
				for _, network := range []string{"tcp", "udp", "icmp"} {
					want := egress
					if s.reached && network != "icmp" {
						want = own // as the backend sees it
					}
					got, err := tr.ask(chosen.Namespace, network, to)
					require.NoError(t, err, "%s to %s", network, to)
					require.Equal(t, want, got, "%s to %s", network, to)
				}
				if !s.translates {
					tr.sees(plain.Namespace, to, outside)
				}
			}
		})
	}
	require.NoError(t, n1.translate())
	tr.noLeaks(append(tr.allOutside(), n2.EgressIPv4, n2.EgressIPv6)...)
}

// awaitServices waits until an agent has so many services, and the kernel all that follows.
func (tr *traffic) awaitServices(n *Node, want int) {
	tr.t.Helper()
	require.NoError(tr.t, AwaitRows(tr.ctx, n.Agent, "services", func(rows []map[string]any) error {
		if len(rows) != want {
			return fmt.Errorf("%s knows %d services", n.Name, len(rows))
		}
		return nil
	}))
	require.NoError(tr.t, n.Agent.AwaitSettled(tr.ctx))
}
