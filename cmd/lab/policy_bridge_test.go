// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	vn "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
)

// Policies hold between the ports of a bridge too, where pods of a node reach each other
// without the node's routing.
func TestPolicyBridge(t *testing.T) {
	t.Parallel()
	p := newPolicyTest(t, Options{BridgeCNI: true})
	p.check(openChecks)
	for _, test := range slices.Concat(verdictTests, entityTests) {
		t.Run(test.name, func(t *testing.T) {
			p := p.on(t)
			p.enforce(test.manifests)
			p.check(test.checks)
		})
	}
	for name, test := range map[string]func(*policyTest){
		"revoke-ingress": (*policyTest).revokeIngress, "revoke-egress": (*policyTest).revokeEgress,
		"link-local": (*policyTest).linkLocal,
	} {
		t.Run(name, func(t *testing.T) { test(p.on(t)) })
	}
	p.check(openChecks)
}

// linkLocal has a pod try another one's address of the link, which a bridge leads to,
// from each of its own.
func (p *policyTest) linkLocal() {
	client, near := p.names["client"], p.names["near"]
	to := netip.AddrPortFrom(linkLocalOf(p.t, near.Namespace).WithZone(PodDevice), 80)
	for from, want := range map[netip.Addr]struct {
		bpf.Direction
		bpf.Reason
	}{
		client.ipv6: {bpf.DirectionIngress, bpf.ReasonUnknownDestination},
		linkLocalOf(p.t, client.Namespace).WithZone(PodDevice): {bpf.DirectionEgress, bpf.ReasonUnknownSource},
	} {
		for _, network := range []string{"tcp", "udp"} {
			ctx, cancel := context.WithTimeout(p.ctx, patience)
			position := p.drops.position()
			tried := make(chan error, 1)
			go func() {
				conn, err := client.dialFrom(ctx, network, netip.AddrPortFrom(from, 0), to)
				if err == nil {
					defer conn.Close()
					_, err = AskOn(ctx, conn)
				}
				tried <- err
			}()
			e, err := p.drops.next(ctx, position, func(e dropEvent) bool { return e.Destination.Addr == to.Addr().WithZone("") })
			require.NoError(p.t, err, "%s from %s to %s", network, from, to)
			cancel()
			require.Error(p.t, <-tried)
			require.Equal(p.t, want.Reason.String(), e.Reason, e.text)
			require.Equal(p.t, want.Direction.String(), e.Direction, e.text)
		}
	}
}

// linkLocalOf is the address of the link that a pod has given itself.
func linkLocalOf(t *testing.T, n *Namespace) netip.Addr {
	t.Helper()
	link, err := n.link(PodDevice)
	require.NoError(t, err)
	addrs, err := n.Handle().AddrList(link, vn.FAMILY_V6)
	require.NoError(t, err)
	for _, a := range addrs {
		if a.Scope == unix.RT_SCOPE_LINK {
			addr, _ := netip.AddrFromSlice(a.IP)
			return addr
		}
	}
	t.Fatalf("%s has no address of the link", n.Name)
	return netip.Addr{}
}

// Between the ports of a bridge without netfilter nothing is translated, and the backstop sees
// nothing: a service that has the address of a pod as an external IP opens no policy, whether or not
// kube-proxy would translate it.
func TestPolicyBridgeServices(t *testing.T) {
	t.Parallel()
	p := newPolicyTest(t, Options{BridgeCNI: true})
	n := p.Nodes[0]
	require.NoError(t, n.Sysctl("net.bridge.bridge-nf-call-iptables=0", "net.bridge.bridge-nf-call-ip6tables=0"))
	client, near := p.names["client"], p.names["near"]
	p.enforce(entities("egress", "toEntities: [none]"))
	const denied = `
client near tcp/80 egress CiliumNetworkPolicy/shop/entities
client near udp/80 egress CiliumNetworkPolicy/shop/entities
`
	p.check(denied)
	external := fmt.Sprintf(`, externalIPs: ["%s", "%s"]`, near.ipv4, near.ipv6)
	service := portService("mine", "shop", ", selector: {app: client}", 80,
		external+portsOf(80, 80, 0), client.ipv4, client.ipv6)
	for _, what := range []string{"headless", "translated"} {
		t.Run(what, func(t *testing.T) {
			p := p.on(t)
			objects := parsed(t, service)
			if what == "headless" {
				spec := objects[0]["spec"].(map[string]any)
				spec["clusterIP"], spec["clusterIPs"] = "None", []any{"None"}
			}
			require.NoError(t, p.Apply(objects...))
			t.Cleanup(func() {
				require.NoError(t, p.Delete(objects...))
				p.awaitServices(n, 0)
			})
			p.awaitServices(n, 1)
			p.check(denied)
		})
	}
}
