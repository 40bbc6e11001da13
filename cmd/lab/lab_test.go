// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
)

// topologies are the ways in which a cluster can be built.
var topologies = map[string]Options{
	"routed":           {},
	"bridged":          {BridgeCNI: true},
	"single-interface": {SingleInterface: true},
	"ipv6-underlay":    {IPv6Underlay: true},
	"jumbo":            {MTU: 9000},
}

// Without agents it is an ordinary cluster: the world sees the node's address,
// pods see each other's own.
func TestConnectivity(t *testing.T) {
	for name, options := range topologies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			options.NoAgents = true
			ctx, c := newCluster(t, options)
			a, err := c.AddPod(c.Nodes[0], "a", nil)
			require.NoError(t, err)
			b, err := c.AddPod(c.Nodes[1], "b", nil)
			require.NoError(t, err)
			d, err := c.AddPod(c.Nodes[0], "d", nil)
			require.NoError(t, err)

			for _, p := range []*Pod{a, b} {
				for _, network := range []string{"tcp", "udp"} {
					got, err := p.Ask(ctx, network, ServerIPv4)
					require.NoError(t, err)
					require.Equal(t, p.Node.OutsideIPv4, got.Addr())
					got, err = p.Ask(ctx, network, ServerIPv6.Next()) // any address of the world
					require.NoError(t, err)
					require.Equal(t, p.Node.OutsideIPv6, got.Addr())
				}
				source, err := c.PingWorld(ctx, p.Namespace, ServerIPv4, 100)
				require.NoError(t, err)
				require.Equal(t, p.Node.OutsideIPv4, source)
				source, err = c.PingWorld(ctx, p.Namespace, ServerIPv6, 4000) // in fragments
				require.NoError(t, err)
				require.Equal(t, p.Node.OutsideIPv6, source)
			}
			for _, peer := range []*Pod{b, d} {
				require.NoError(t, a.Ping(ctx, peer.IPv4, 100))
				require.NoError(t, a.Ping(ctx, peer.IPv6, 100))
			}
			for source := range c.World.Sources() {
				require.False(t, PodsIPv4.Contains(source) || PodsIPv6.Contains(source), source)
			}
		})
	}
}

// The world has no way to pods, and sees when a packet comes from one.
func TestLeaksAreSeen(t *testing.T) {
	t.Parallel()
	ctx, c := newCluster(t, Options{NoAgents: true, Nodes: 1})
	// A pod with an address that the node does not masquerade.
	foreign := netip.MustParseAddr("172.16.0.10")
	pods, err := c.AddPods(PodSpec{Node: c.Nodes[0], Name: "a", IPv4: foreign})
	require.NoError(t, err)
	s, err := c.StartStream(pods[0].Namespace, ServerIPv4, 1000)
	require.NoError(t, err)
	require.NoError(t, eventually(ctx, "the leak is seen", func() error {
		if c.World.Sources()[foreign] == 0 {
			return fmt.Errorf("sources are %v", c.World.Sources())
		}
		return nil
	}))
	r := s.Stop()
	require.NotZero(t, r.Received)
	require.Zero(t, r.Answered)
	require.Equal(t, map[netip.Addr]uint64{foreign: r.Received}, r.Addresses())
}

func TestStreamAndTransfer(t *testing.T) {
	t.Parallel()
	ctx, c := newCluster(t, Options{NoAgents: true, Nodes: 1})
	p, err := c.AddPod(c.Nodes[0], "a", nil)
	require.NoError(t, err)
	for _, on := range []bool{true, false} {
		require.NoError(t, c.SetOffloads(on))
		s, err := c.StartStream(p.Namespace, ServerIPv4, 2000)
		require.NoError(t, err)

		conn, err := p.Dial(ctx, "tcp", netip.AddrPortFrom(ServerIPv6, Port))
		require.NoError(t, err)
		for range 2 {
			require.NoError(t, Upload(conn, 1<<20))
			require.NoError(t, Download(conn, 1<<20))
		}
		source, err := AskOn(ctx, conn)
		require.NoError(t, err)
		require.Equal(t, c.Nodes[0].OutsideIPv6, source.Addr())
		require.NoError(t, conn.Close())

		require.NoError(t, eventually(ctx, "some datagrams are sent", func() error {
			if r := s.Report(); r.Sent < 200 {
				return fmt.Errorf("%v", r)
			}
			return nil
		}))
		r := s.Stop()
		require.Equal(t, r.Sent, r.Answered, "%v", r)
		require.Equal(t, r.Sent, r.Received, "%v", r)
		require.Zero(t, r.Twice+r.Refused, "%v", r) // the sender may change its CPU: reordered is no fault
		require.Equal(t, map[netip.Addr]uint64{c.Nodes[0].OutsideIPv4: r.Sent}, r.Addresses())
	}
}

func TestPodsComeAndGo(t *testing.T) {
	t.Parallel()
	ctx, c := newCluster(t, Options{NoAgents: true, Nodes: 2})
	var specs []PodSpec
	for i := range 20 {
		specs = append(specs, PodSpec{Node: c.Nodes[i%2], Name: fmt.Sprintf("pod-%d", i)})
	}
	pods, err := c.AddPods(specs...)
	require.NoError(t, err)
	require.NoError(t, pods[0].Ping(ctx, pods[19].IPv4, 16))
	again := pods[19].Spec
	require.NoError(t, c.RemovePod(pods[19]))
	replaced, err := c.AddPods(again) // with the same addresses, on another device
	require.NoError(t, err)
	require.NotEqual(t, pods[19].HostDevice, replaced[0].HostDevice)
	require.NoError(t, pods[0].Ping(ctx, pods[19].IPv4, 16))
}

const policy = `
apiVersion: cilium.io/v2
kind: CiliumEgressGatewayPolicy
metadata: {name: bank, creationTimestamp: "2025-01-10T09:00:00Z"}
spec:
  selectors: [{podSelector: {matchLabels: {app: a}}}]
  destinationCIDRs: [198.51.100.0/24]
  egressGateway:
    nodeSelector: {matchLabels: {kubernetes.io/hostname: node-2}}
    egressIP: 203.0.113.102
`

// Each node has an agent of its own that follows the objects; it can be stopped,
// killed and started again.
func TestAgents(t *testing.T) {
	t.Parallel()
	ctx, c := newCluster(t, Options{Nodes: 2})
	a, err := c.AddPod(c.Nodes[0], "a", map[string]string{"app": "a"})
	require.NoError(t, err)
	require.NoError(t, c.AwaitAgents(ctx))
	require.NoError(t, c.ApplyYAML(policy))
	for _, n := range c.Nodes {
		require.NoError(t, n.Agent.AwaitPolicy(ctx, "bank"))
	}
	require.NoError(t, c.AwaitSources(ctx, true, c.Nodes[1:], a))

	gateway := c.Nodes[1].Agent
	text, err := gateway.Table(ctx, "egress-gateways")
	require.NoError(t, err)
	require.Contains(t, text, "203.0.113.102")
	require.DirExists(t, gateway.BPFFS()+"/sluice")
	require.NoFileExists(t, gateway.BPFFS()+"/sluice/nosuch")

	gateway.Kill()
	require.False(t, gateway.Running())
	sources, err := bpf.OpenActive(bpf.MapsDir(gateway.BPFFS()), "sluice_pods")
	require.NoError(t, err, "it outlives the agent")
	require.NoError(t, sources.Close())
	require.ErrorContains(t, gateway.AwaitReady(ctx), "ended")
	require.NoError(t, gateway.Start())
	require.ErrorContains(t, gateway.Start(), "runs already")
	require.NoError(t, gateway.AwaitReady(ctx))
	require.NoError(t, gateway.Restart())
	require.NoError(t, gateway.AwaitReady(ctx))

	require.NoError(t, c.Delete(Policy("bank")))
	require.NoError(t, c.AwaitSources(ctx, false, c.Nodes, a))
	require.NoError(t, gateway.AwaitSettled(ctx))
	require.NoError(t, gateway.Stop())
}
