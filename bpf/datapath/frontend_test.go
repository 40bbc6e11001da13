// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

const ownNamespace = "shop"

// frontend has the host, or another node, translate the port of the tests at an address.
func (f *fixture) frontend(at netip.Addr, v bpf.FrontendValue, backends ...netip.AddrPort) {
	f.Helper()
	v.Count = uint32(len(backends))
	for i, b := range backends {
		v.Backends[i] = bpf.FrontendBackendFrom(b)
	}
	require.NoError(f, f.SetFrontend(bpf.FrontendKeyFrom(at, unix.IPPROTO_TCP, serverPort), v))
}

// own writes the pod with its namespace.
func (f *fixture) own(subject uint32) {
	f.Helper()
	pod := f.LocalPod(subject)
	pod.Namespace = bpf.NamespaceDigest(ownNamespace)
	require.NoError(f, f.SetPod(f.Pod, pod))
}

func (f *fixture) postponed(res *packettest.Result) {
	f.Helper()
	f.passed(res)
	require.EqualValues(f, packettest.MarkService, res.Mark&packettest.MarkMask, "mark")
}

// TestFrontendsPastGateway: only what the host translates for the pod is exempt from its gateway: by
// address, protocol and port.
func TestFrontendsPastGateway(t *testing.T) {
	for _, w := range both {
		for name, test := range map[string]struct {
			at        netip.Addr
			namespace uint64
			exempt    bool
		}{
			"own":       {w.Server, bpf.NamespaceDigest(ownNamespace), true},
			"all":       {w.Server, bpf.AllNamespaces, true},
			"other":     {w.Server, bpf.NamespaceDigest("garden"), false},
			"disputed":  {w.Server, bpf.NoNamespace, false},
			"elsewhere": {w.Server2, bpf.AllNamespaces, false},
		} {
			t.Run(w.Family+" "+name, func(t *testing.T) {
				f := newFixture(t, w)
				f.selected(f.remote(second()))
				f.own(packettest.Routed)
				f.frontend(test.at, bpf.FrontendValue{Namespace: test.namespace})
				if res := f.fromPod(request("TCP", w.Pod, w.Server)...); test.exempt {
					f.postponed(res)
				} else {
					f.toGateway(res, second())
				}
				f.toGateway(f.fromPod(request("UDP", w.Pod, w.Server)...), second())
				f.toGateway(f.fromPod(tcp(w.Pod, w.Server, podPort, serverPort+1, packettest.SYN)...), second())
			})
		}
	}
}

// TestFrontendsAndPolicies: what the pod relies on is judged where it leads alone, all else by its
// address too.
func TestFrontendsAndPolicies(t *testing.T) {
	for _, w := range both {
		for name, test := range map[string]struct {
			to        netip.Addr
			at        netip.Addr // of the frontend
			flags     bpf.IPCacheFlags
			value     bpf.FrontendValue
			postponed bool
		}{
			"own":             {w.Server, w.Server, 0, bpf.FrontendValue{Namespace: bpf.NamespaceDigest(ownNamespace)}, true},
			"other":           {w.Server, w.Server, 0, bpf.FrontendValue{Namespace: bpf.NamespaceDigest("garden")}, false},
			"address of pod":  {w.OtherPod, w.OtherPod, bpf.IPCacheInCluster | bpf.IPCachePod, bpf.FrontendValue{}, false},
			"node port":       {w.NodeIP, bpf.AnyNode(familyOf(w)), hostFlags, bpf.FrontendValue{Flags: bpf.FrontendAtNode}, true},
			"host port":       {w.NodeIP, bpf.ThisHost(familyOf(w)), hostFlags, bpf.FrontendValue{}, true},
			"node port there": {w.SecondNode, bpf.AnyNode(familyOf(w)), nodeFlags, bpf.FrontendValue{Flags: bpf.FrontendAtNode}, false},
			"host port here":  {w.SecondNode, bpf.ThisHost(familyOf(w)), nodeFlags, bpf.FrontendValue{}, false},
		} {
			t.Run(w.Family+" "+name, func(t *testing.T) {
				f := newFixture(t, w)
				f.subject(judgedPod, packettest.Generation)
				f.own(judgedPod)
				f.peer(test.to, peerClass, test.flags)
				f.policy(0, bpf.DirectionEgress, 0, 0, 0, denyDefault)
				f.frontend(test.at, test.value)
				ask := func(port uint16) *packettest.Result {
					return f.fromPod(tcp(w.Pod, test.to, podPort, port, packettest.SYN)...)
				}
				if test.postponed {
					f.postponed(ask(serverPort))
				} else {
					f.dropped(ask(serverPort), bpf.ReasonPolicyDenied)
				}
				f.dropped(ask(serverPort+1), bpf.ReasonPolicyDenied)
				f.policy(peerClass, bpf.DirectionEgress, 0, 0, 0, allowRule)
				require.NoError(t, f.SetGeneration(packettest.Generation+1))
				f.checked(ask(serverPort + 2))
			})
		}
	}
}

const (
	nodeFlags = bpf.IPCacheInCluster | bpf.IPCacheNode
	hostFlags = nodeFlags | bpf.IPCacheHost
)

func familyOf(w packettest.Addresses) uint8 {
	if w.Pod.Is4() {
		return bpf.FamilyIPv4
	}
	return bpf.FamilyIPv6
}

// TestPortsOfOtherNodes: one backend that is denied is enough, and so is one that a gateway is for.
func TestPortsOfOtherNodes(t *testing.T) {
	for _, w := range both {
		for backends := range 4 { // bits: the first, and the second, is denied
			t.Run(fmt.Sprint(w.Family, " denied ", backends), func(t *testing.T) {
				f := newFixture(t, w)
				f.subject(judgedPod, packettest.Generation)
				f.peer(w.SecondNode, peerClass, nodeFlags)
				f.peer(w.OtherPod, peerClass+1, bpf.IPCacheInCluster)
				f.peer(w.RemotePod, peerClass+2, bpf.IPCacheInCluster)
				f.policy(0, bpf.DirectionEgress, 0, 0, 0, denyDefault)
				f.policy(peerClass, bpf.DirectionEgress, unix.IPPROTO_TCP, serverPort, 16, allowRule)
				for i := range uint32(2) {
					if backends>>i&1 == 0 {
						f.policy(peerClass+1+i, bpf.DirectionEgress, unix.IPPROTO_TCP, 8080+uint16(i), 16, allowOther)
					}
				}
				value := bpf.FrontendValue{Flags: bpf.FrontendAtNode}
				all := []netip.AddrPort{netip.AddrPortFrom(w.OtherPod, 8080), netip.AddrPortFrom(w.RemotePod, 8081)}
				f.frontend(bpf.AnyNode(familyOf(w)), value, all...)
				res := f.fromPod(request("TCP", w.Pod, w.SecondNode)...)
				if backends != 0 {
					f.dropped(res, bpf.ReasonPolicyDenied)
					return
				}
				f.postponed(res)
				require.EqualValues(t, 1, decisions(f, allowRule.Cookie), "it counts for the rule about the node")

				value.Flags |= bpf.FrontendMore
				f.frontend(bpf.AnyNode(familyOf(w)), value, all...)
				require.NoError(t, f.SetGeneration(packettest.Generation+1))
				f.dropped(f.fromPod(request("TCP", w.Pod, w.SecondNode)...), bpf.ReasonPolicyDenied)
			})
		}
		t.Run(w.Family+" outside", func(t *testing.T) {
			f := newFixture(t, w)
			f.selected(f.remote(second()))
			value := bpf.FrontendValue{Flags: bpf.FrontendAtNode}
			ask := func(generation uint32, backends ...netip.AddrPort) *packettest.Result {
				f.frontend(bpf.AnyNode(familyOf(w)), value, backends...)
				require.NoError(t, f.SetGeneration(generation))
				return f.fromPod(request("TCP", w.Pod, w.SecondNode)...)
			}
			server, excluded := netip.AddrPortFrom(w.Server, 1), netip.AddrPortFrom(w.Excluded, 1)
			f.dropped(ask(packettest.Generation+2, excluded, server), bpf.ReasonServiceOutside)
			f.postponed(ask(packettest.Generation+3, excluded, netip.AddrPortFrom(w.RemotePod, 1)))
		})
	}
}

// TestPortOfNodesIsNotHidden: what a tenant says of a node's address, by an external IP or a
// hostPort, does not hide the backends of a port of all nodes.
func TestPortOfNodesIsNotHidden(t *testing.T) {
	for _, w := range both {
		for name, hiding := range map[string]bpf.FrontendValue{
			"external IP": {Namespace: bpf.NamespaceDigest(ownNamespace)},
			"host port":   {Flags: bpf.FrontendAtNode},
		} {
			t.Run(w.Family+" "+name, func(t *testing.T) {
				f := newFixture(t, w)
				f.subject(judgedPod, packettest.Generation)
				f.own(judgedPod)
				f.peer(w.SecondNode, peerClass, nodeFlags)
				f.peer(w.OtherPod, peerClass+1, bpf.IPCacheInCluster)
				f.policy(0, bpf.DirectionEgress, 0, 0, 0, denyDefault)
				f.policy(peerClass, bpf.DirectionEgress, 0, 0, 0, allowRule)
				f.frontend(bpf.AnyNode(familyOf(w)), bpf.FrontendValue{Flags: bpf.FrontendAtNode},
					netip.AddrPortFrom(w.OtherPod, 8080))
				f.frontend(w.SecondNode, hiding)
				f.dropped(f.fromPod(request("TCP", w.Pod, w.SecondNode)...), bpf.ReasonPolicyDenied)
			})
		}
	}
}

// decisions is how many packets the rules with a cookie have decided.
func decisions(f *fixture, cookie uint32) uint64 {
	f.Helper()
	m, err := f.Decided(cookie)
	require.NoError(f, err)
	return m.Packets
}
