// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
)

// What the policies of the tests cover of the world; the rest of it no policy covers.
var (
	coveredIPv4  = netip.MustParsePrefix("198.51.100.0/25")
	coveredIPv6  = netip.MustParsePrefix("2001:db8:51::/96")
	excludedIPv4 = netip.MustParsePrefix("198.51.100.64/26")
	excludedIPv6 = netip.MustParsePrefix("2001:db8:51::1:0/112")

	inExcludedIPv4  = netip.MustParseAddr("198.51.100.70")
	inExcludedIPv6  = netip.MustParseAddr("2001:db8:51::1:70")
	notCoveredIPv4  = netip.MustParseAddr("198.51.100.200")
	notCoveredIPv6  = netip.MustParseAddr("2001:db8:51:0:ffff::200")
	everywhere4And6 = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
)

// The server sees the egress IP, whichever way the policy names it, wherever the
// pod is, and by each protocol; what is excluded, not covered or in the cluster
// goes its ordinary way; and errors find their way through translation. So it is without keys
// of the overlay, and where nodes accept nothing without a proof.
func TestTrafficEgress(t *testing.T) {
	keys := filepath.Join(t.TempDir(), "keys")
	require.NoError(t, os.WriteFile(keys, []byte(hex.EncodeToString(overlayKeyA)), 0o400))
	withKeys := []string{"--overlay-keys=" + keys, "--overlay-accept-unsigned=false"}
	for name, options := range map[string]Options{
		"routed-two-interfaces":    {},
		"bridged-single-interface": {BridgeCNI: true, SingleInterface: true, AgentFlags: withKeys},
		"ipv6-underlay":            {IPv6Underlay: true, AgentFlags: withKeys},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tr := newTraffic(t, options)
			e := newEgressTest(tr)
			for _, test := range []struct {
				name string
				run  func(*traffic)
			}{
				{"given", e.given}, {"interface", e.byInterface}, {"several", e.several},
				{"excluded", e.excluded}, {"in-cluster", e.inCluster},
				{"port-unreachable", e.portUnreachable}, {"pod-unreachable", e.podUnreachable}, {"hops", e.hops},
				{"fragments", e.fragments}, {"path-mtu", e.pathMTU},
			} {
				t.Run(test.name, func(t *testing.T) { test.run(tr.sub(t)) })
			}
			if !options.SingleInterface && !options.IPv6Underlay {
				t.Run("other-device", func(t *testing.T) { e.otherDevice(tr.sub(t)) })
			}
			for _, n := range tr.Nodes {
				tr.countsTraffic(n)
			}
			require.NotZero(t, tr.count(e.gateway, bpf.ReasonTranslated))
			require.NoError(t, e.gateway.Agent.Restart())
			tr.countsTraffic(e.gateway) // from before the restart too
			for _, n := range tr.Nodes {
				require.NotContains(t, tr.drops(n), bpf.ReasonOverlayKey)
				if options.AgentFlags != nil {
					require.Zero(t, tr.count(n, bpf.ReasonOverlayUnsigned))
				}
			}
			for source := range tr.World.Sources() {
				require.False(t, PodsIPv4.Contains(source) || PodsIPv6.Contains(source), "the world saw pod %s", source)
			}
		})
	}
}

// egressTest is a cluster with policies and pods: remote ones on node-1, others on
// their gateway.
type egressTest struct {
	gateway       *Node // of the pods of app given
	remote, local *Pod
	byDevice      []*Pod
	byDefault     []*Pod
	many          []*Pod
	manyIPs       map[netip.Addr]bool
	all           *Pod
	peers         []*Pod // without policy, on two nodes
	far           *farWorld
}

func newEgressTest(tr *traffic) *egressTest {
	tr.t.Helper()
	n1, n2, n3 := tr.Nodes[0], tr.Nodes[1], tr.Nodes[2]
	e := &egressTest{gateway: n2, manyIPs: map[netip.Addr]bool{n2.EgressIPv4: true, n3.EgressIPv4: true}}
	e.far = newFarWorld(tr)

	// Further egress IPs, two on each of two nodes.
	var exits []exit
	for i, n := range []*Node{n2, n3} {
		network, _ := tr.worldNetworks()
		second := hostOf(network, 150+i)
		require.NoError(tr.t, n.AddAddress(n.EgressDevice(), host(second)))
		e.manyIPs[second] = true
		exits = append(exits, exit{node: n.Name, ip: n.EgressIPv4}, exit{node: n.Name, ip: second})
	}

	e.remote, e.local = tr.pod(n1, "remote", "given"), tr.pod(n2, "local", "given")
	for i, n := range []*Node{n1, n3} {
		e.byDevice = append(e.byDevice, tr.pod(n, fmt.Sprintf("device-%d", i), "device"))
		e.byDefault = append(e.byDefault, tr.pod(n, fmt.Sprintf("default-%d", i), "default"))
		e.peers = append(e.peers, tr.pod(n, fmt.Sprintf("peer-%d", i), "none"))
	}
	var specs []PodSpec
	for i := range 12 {
		specs = append(specs, PodSpec{Node: tr.Nodes[i%3], Name: fmt.Sprintf("many-%d", i), Labels: map[string]string{"app": "many"}})
	}
	var err error
	e.many, err = tr.AddPods(specs...)
	require.NoError(tr.t, err)
	e.all = tr.pod(n1, "all", "all")

	far4, far6 := e.far.networks()
	to4, to6 := []netip.Prefix{coveredIPv4, far4}, []netip.Prefix{coveredIPv6, far6}
	both := append(append([]netip.Prefix{}, to4...), to6...)
	tr.policy(
		egress{name: "given4", app: "given", to: to4, not: []netip.Prefix{excludedIPv4}, exits: []exit{{node: n2.Name, ip: n2.EgressIPv4}}},
		egress{name: "given6", app: "given", to: to6, not: []netip.Prefix{excludedIPv6}, exits: []exit{{node: n2.Name, ip: n2.EgressIPv6}}},
		egress{name: "device", app: "device", to: both, exits: []exit{{node: n3.Name, dev: n3.EgressDevice()}}},
		egress{name: "default", app: "default", to: both, exits: []exit{{node: n3.Name}}},
		egress{name: "many", app: "many", to: to4, exits: exits},
		egress{name: "all", app: "all", to: everywhere4And6, exits: []exit{{node: n3.Name}}},
	)
	chosen := append([]*Pod{e.remote, e.local, e.all}, e.many...)
	chosen = append(append(chosen, e.byDevice...), e.byDefault...)
	tr.inForce([]string{"given4", "given6", "device", "default", "many", "all"}, chosen...)
	require.NoError(tr.t, tr.AwaitSources(tr.ctx, true, []*Node{n2}, e.remote, e.local))
	require.NoError(tr.t, tr.AwaitSources(tr.ctx, true, []*Node{n3}, e.all, e.byDevice[0], e.byDefault[0]))
	require.NoError(tr.t, tr.AwaitSources(tr.ctx, true, []*Node{n2, n3}, e.many...))
	return e
}

func (e *egressTest) given(tr *traffic) {
	for _, p := range []*Pod{e.remote, e.local} {
		tr.sees(p.Namespace, ServerIPv4, e.gateway.EgressIPv4)
		tr.sees(p.Namespace, ServerIPv6, e.gateway.EgressIPv6)
	}
}

// Replies reach the gateway by another device than the one with the egress address, which packets
// left by.
func (e *egressTest) otherDevice(tr *traffic) {
	world := tr.World.Namespace
	// Nodes answer no request for a neighbor from an address that they have another route to.
	require.NoError(tr.t, world.Sysctl("net.ipv4.conf.all.arp_announce=2"))
	require.NoError(tr.t, tr.connect(world, "eth1", switchBridge))
	require.NoError(tr.t, world.AddAddress("eth1", inNetwork(UnderlayIPv4, 98)))
	back := host(e.gateway.EgressIPv4)
	require.NoError(tr.t, world.addRoute(back, e.gateway.IPv4, "eth1"))
	for _, p := range []*Pod{e.remote, e.local} {
		tr.sees(p.Namespace, ServerIPv4, e.gateway.EgressIPv4)
	}
	require.NoError(tr.t, world.addRoute(back, netip.Addr{}, "eth0"))
	tr.sees(e.remote.Namespace, ServerIPv4, e.gateway.EgressIPv4)
}

func (e *egressTest) byInterface(tr *traffic) {
	n := tr.Nodes[2]
	for _, p := range append(append([]*Pod{}, e.byDevice...), e.byDefault...) {
		tr.sees(p.Namespace, ServerIPv4, n.OutsideIPv4)
		tr.sees(p.Namespace, ServerIPv6, n.OutsideIPv6)
	}
}

// Each pod has one of the egress IPs, and all are in use.
func (e *egressTest) several(tr *traffic) {
	used := map[netip.Addr]int{}
	for _, p := range e.many {
		source, err := tr.ask(p.Namespace, "tcp", ServerIPv4)
		require.NoError(tr.t, err)
		used[source]++
		again, err := tr.ask(p.Namespace, "udp", ServerIPv4)
		require.NoError(tr.t, err)
		require.Equal(tr.t, source, again)
	}
	for ip := range e.manyIPs {
		require.Contains(tr.t, used, ip)
	}
	require.Len(tr.t, used, len(e.manyIPs))
}

func (e *egressTest) excluded(tr *traffic) {
	for _, p := range []*Pod{e.remote, e.local} {
		for _, to := range []netip.Addr{inExcludedIPv4, notCoveredIPv4} {
			tr.sees(p.Namespace, to, p.Node.OutsideIPv4)
		}
		for _, to := range []netip.Addr{inExcludedIPv6, notCoveredIPv6} {
			tr.sees(p.Namespace, to, p.Node.OutsideIPv6)
		}
	}
	for _, p := range e.peers {
		tr.sees(p.Namespace, ServerIPv4, p.Node.OutsideIPv4)
		tr.sees(p.Namespace, ServerIPv6, p.Node.OutsideIPv6)
	}
}

// A policy for everything leaves alone what is in the cluster.
func (e *egressTest) inCluster(tr *traffic) {
	n3 := tr.Nodes[2]
	tr.sees(e.all.Namespace, ServerIPv4, n3.OutsideIPv4)
	tr.sees(e.all.Namespace, ServerIPv6, n3.OutsideIPv6)

	type target struct {
		at    *Namespace
		addrs []netip.Addr
	}
	targets := []target{{tr.Nodes[1].Namespace, []netip.Addr{tr.Nodes[1].IPv4, tr.Nodes[1].IPv6}}} // another node
	targets = append(targets, target{e.all.Node.Namespace, []netip.Addr{e.all.Node.IPv4, e.all.Node.IPv6, e.all.Node.OutsideIPv4}})
	for _, p := range e.peers {
		targets = append(targets, target{p.Namespace, []netip.Addr{p.IPv4, p.IPv6}})
	}
	for _, to := range targets {
		s, err := startServer(to.at)
		require.NoError(tr.t, err)
		tr.t.Cleanup(s.close)
		for _, addr := range to.addrs {
			if !addr.IsValid() {
				continue
			}
			own := e.all.IPv4
			if addr.Is6() {
				own = e.all.IPv6
			}
			for _, network := range []string{"tcp", "udp"} {
				got, err := tr.ask(e.all.Namespace, network, addr)
				require.NoError(tr.t, err, "%s to %s of %s", network, addr, to.at.Name)
				require.Equal(tr.t, own, got, "%s to %s of %s", network, addr, to.at.Name)
			}
			require.NoError(tr.t, e.all.Ping(tr.ctx, addr, 64))
		}
	}
}
