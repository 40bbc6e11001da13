// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// The oracle itself must be right: these verdicts were worked out by hand.
func TestVerdict(t *testing.T) {
	const tcp, udp = 6, 17
	pods := func(selector string) tables.PolicyPeer {
		return tables.PolicyPeer{Kind: tables.PeerPods, Pods: tables.EgressSelector{Pods: selector}}
	}
	cidr := func(text string, matchesPods bool, except ...string) tables.PolicyPeer {
		p := tables.PolicyPeer{Kind: tables.PeerCIDR, PeerPrefixes: &tables.PeerPrefixes{CIDR: netip.MustParsePrefix(text), MatchesPods: matchesPods}}
		for _, e := range except {
			p.Except = append(p.Except, netip.MustParsePrefix(e))
		}
		return p
	}
	entity := func(e tables.PolicyEntity) tables.PolicyPeer {
		return tables.PolicyPeer{Kind: tables.PeerEntity, Entity: e}
	}
	allow := func(peers ...tables.PolicyPeer) tables.PolicyTraffic {
		return tables.PolicyTraffic{Field: "allow", Peers: peers}
	}
	deny := func(peers ...tables.PolicyPeer) tables.PolicyTraffic {
		return tables.PolicyTraffic{Field: "deny", Deny: true, Peers: peers}
	}
	at := func(t tables.PolicyTraffic, ports ...tables.PolicyPort) tables.PolicyTraffic {
		t.Ports = ports
		return t
	}
	anyPeer := tables.PolicyTraffic{Field: "anyPeer", AnyPeer: true}
	closed := func(items ...tables.PolicyTraffic) tables.PolicyDirection {
		return tables.PolicyDirection{DefaultDeny: true, Traffic: items}
	}
	open := func(items ...tables.PolicyTraffic) tables.PolicyDirection {
		return tables.PolicyDirection{Traffic: items}
	}
	http := tables.PolicyPort{Protocol: tcp, Name: "http"}

	const web, db, remote, node1, node2, outside, free = "10.0.0.1", "10.0.0.2", "10.0.1.1", "192.168.0.1", "192.168.0.2", "203.0.113.7", "10.0.1.99"
	for _, tc := range []struct {
		name    string
		ingress tables.PolicyDirection // of app=web
		egress  tables.PolicyDirection
		options Options

		direction bpf.Direction
		subject   string
		peer      string
		protocol  uint8
		port      uint16
		allowed   bool
	}{
		{name: "not selected", ingress: closed(), subject: db, peer: web, direction: bpf.DirectionIngress, allowed: true},
		{name: "default deny", ingress: closed(), subject: web, peer: db, direction: bpf.DirectionIngress},
		{name: "the other direction", ingress: closed(), subject: web, peer: db, direction: bpf.DirectionEgress, allowed: true},
		{name: "pods", ingress: closed(allow(pods("app=db"))), subject: web, peer: db, direction: bpf.DirectionIngress, allowed: true},
		{name: "other pods", ingress: closed(allow(pods("app=db"))), subject: web, peer: remote, direction: bpf.DirectionIngress},
		{name: "deny beats allow", ingress: closed(anyPeer, deny(pods("app=db"))), subject: web, peer: db, direction: bpf.DirectionIngress},
		{name: "deny beats allow, but for others", ingress: closed(anyPeer, deny(pods("app=db"))), subject: web, peer: remote, direction: bpf.DirectionIngress, allowed: true},
		{name: "deny without default deny", egress: open(deny(entity(tables.EntityWorld))), subject: web, peer: outside},
		{name: "no default deny", egress: open(deny(entity(tables.EntityWorld))), subject: web, peer: remote, allowed: true},
		{name: "no peers", egress: closed(allow()), subject: web, peer: remote},
		{name: "port", egress: closed(at(anyPeer, tables.PolicyPort{Protocol: tcp, First: 80, Last: 90})), subject: web, peer: outside, protocol: tcp, port: 90, allowed: true},
		{name: "port behind", egress: closed(at(anyPeer, tables.PolicyPort{Protocol: tcp, First: 80, Last: 90})), subject: web, peer: outside, protocol: tcp, port: 91},
		{name: "protocol", egress: closed(at(anyPeer, tables.PolicyPort{Protocol: tcp, First: 80, Last: 90})), subject: web, peer: outside, protocol: udp, port: 80},
		{name: "named port of the peer", egress: closed(at(anyPeer, http)), subject: web, peer: db, protocol: tcp, port: 8080, allowed: true},
		{name: "named port of the peer, not the subject's", egress: closed(at(anyPeer, http)), subject: web, peer: db, protocol: tcp, port: 80},
		{name: "named port of an outsider", egress: closed(at(anyPeer, http)), subject: web, peer: outside, protocol: tcp, port: 80},
		{name: "named port of the subject", ingress: closed(at(anyPeer, http)), subject: web, peer: db, protocol: tcp, port: 80, direction: bpf.DirectionIngress, allowed: true},
		{name: "ipBlock means pods", egress: closed(allow(cidr("10.0.0.0/8", true))), subject: web, peer: remote, allowed: true},
		{name: "except", egress: closed(allow(cidr("10.0.0.0/8", true, "10.0.1.0/24"))), subject: web, peer: remote},
		{name: "Cilium's CIDR does not mean pods", egress: closed(allow(cidr("0.0.0.0/0", false))), subject: web, peer: remote},
		{name: "nor where pods are to be", egress: closed(allow(cidr("0.0.0.0/0", false))), subject: web, peer: free},
		{name: "nor nodes", egress: closed(allow(cidr("0.0.0.0/0", false))), subject: web, peer: node2},
		{name: "but the outside", egress: closed(allow(cidr("0.0.0.0/0", false))), subject: web, peer: outside, allowed: true},
		{name: "pods by switch", egress: closed(allow(cidr("0.0.0.0/0", false))), options: Options{CIDRPods: true}, subject: web, peer: remote, allowed: true},
		{name: "nodes by switch", egress: closed(allow(cidr("0.0.0.0/0", false))), options: Options{CIDRNodes: true}, subject: web, peer: node2, allowed: true},
		{name: "cluster", egress: closed(allow(entity(tables.EntityCluster))), subject: web, peer: free, allowed: true},
		{name: "host", egress: closed(allow(entity(tables.EntityHost))), subject: web, peer: node1, allowed: true},
		{name: "host is no remote node", egress: closed(allow(entity(tables.EntityRemoteNode))), subject: web, peer: node1},
		{name: "remote node", egress: closed(allow(entity(tables.EntityRemoteNode))), subject: web, peer: node2, allowed: true},
		{name: "the node reaches its pods", ingress: closed(), options: Options{HostAllowed: true}, subject: web, peer: node1, direction: bpf.DirectionIngress, allowed: true},
		{name: "the node, if policy is to say", ingress: closed(), subject: web, peer: node1, direction: bpf.DirectionIngress},
		{name: "enforced always", options: Options{Enforcement: "always"}, subject: db, peer: remote},
		{name: "enforced never", ingress: closed(), options: Options{Enforcement: "never"}, subject: web, peer: db, direction: bpf.DirectionIngress, allowed: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pod := func(name, node, addr string, port uint16) *tables.Endpoint {
				return &tables.Endpoint{
					Name: tables.Name{Namespace: "prod", Name: name}, Node: node, Addrs: []netip.Addr{netip.MustParseAddr(addr)},
					LabelSet: tables.NewLabelSet("prod", "", labels.Set{"app": name}, []tables.NamedPort{{Name: "http", Protocol: tcp, Port: port}}),
				}
			}
			node := func(name, addr, podCIDR string) *tables.Node {
				return &tables.Node{Name: name, InternalIPs: []netip.Addr{netip.MustParseAddr(addr)}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix(podCIDR)}}
			}
			w := &World{
				Options: tc.options, LocalNode: "node-1",
				Nodes:     []*tables.Node{node("node-1", node1, "10.0.0.0/24"), node("node-2", node2, "10.0.1.0/24")},
				Endpoints: []*tables.Endpoint{pod("web", "node-1", web, 80), pod("db", "node-1", db, 8080), pod("remote", "node-2", remote, 80)},
				Policies: []*tables.NetworkPolicy{{Rules: []tables.PolicyRule{{
					Subject: tables.EgressSelector{Pods: "app=web,io.kubernetes.pod.namespace=prod"}, Ingress: tc.ingress, Egress: tc.egress,
				}}}},
			}
			allowed, why := w.Verdict(Packet{
				Subject: netip.MustParseAddr(tc.subject), Peer: netip.MustParseAddr(tc.peer),
				Direction: tc.direction, Protocol: tc.protocol, Port: tc.port,
			})
			require.Equal(t, tc.allowed, allowed, why)
		})
	}
}
