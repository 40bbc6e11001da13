// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

// probesTest is a cluster of four nodes with probes: node-2 and node-3 are gateways of a group,
// of which the first serves, and node-4 is a witness.
type probesTest struct {
	*traffic
	pod *Pod // on node-1
}

func newProbesTest(t *testing.T) *probesTest {
	t.Helper()
	p := &probesTest{traffic: newTraffic(t, Options{Nodes: 4, NoAgents: true})}
	for _, n := range p.Nodes {
		keys := writeKeys(t, p.Cluster, n, overlayKeyA)
		n.Agent.Flags = []string{"--overlay-keys=" + keys, "--overlay-accept-unsigned=false"}
	}
	require.NoError(t, p.StartAgents())
	p.pod = p.traffic.pod(p.Nodes[0], "a", "a")
	require.NoError(t, p.ApplyYAML(fmt.Sprintf(`
apiVersion: cilium.io/v2
kind: CiliumEgressGatewayPolicy
metadata: {name: a}
spec:
  selectors: [{podSelector: {matchLabels: {app: a}}}]
  destinationCIDRs: [%q]
  egressGateway:
    nodeSelector:
      matchExpressions:
      - {key: kubernetes.io/hostname, operator: In, values: [%s, %s]}
    interface: %s
`, WorldIPv4, p.Nodes[1].Name, p.Nodes[2].Name, p.Nodes[1].EgressDevice())))
	p.inForce([]string{"a"}, p.pod)
	for _, n := range p.Nodes {
		p.awaitPaths(n, tables.PathHealthy, p.gatewaysOf(n)...)
	}
	p.sees(p.pod.Namespace, ServerIPv4, p.Nodes[1].OutsideIPv4)
	return p
}

// gatewaysOf returns the gateways that a node probes.
func (p *probesTest) gatewaysOf(n *Node) []*Node {
	return slices.DeleteFunc(slices.Clone(p.Nodes[1:3]), func(g *Node) bool { return g == n })
}

// awaitPaths waits until the paths from a node to others have a state.
func (tr *traffic) awaitPaths(from *Node, state tables.PathState, to ...*Node) {
	tr.t.Helper()
	require.NoError(tr.t, AwaitRows(tr.ctx, from.Agent, "gateway-health",
		func(rows []tables.GatewayHealth) error {
			for _, n := range to {
				i := slices.IndexFunc(rows, func(h tables.GatewayHealth) bool { return h.Node == n.Name })
				if i < 0 || rows[i].State != state {
					return fmt.Errorf("%s of %s is not %s: %+v", n.Name, from.Name, state, rows)
				}
			}
			return nil
		}))
}

// losses returns how often a node has lost others.
func (tr *traffic) losses(from *Node) (losses int) {
	tr.t.Helper()
	rows, err := Rows[tables.GatewayHealth](tr.ctx, from.Agent, "gateway-health")
	require.NoError(tr.t, err)
	for _, h := range rows {
		losses += h.Losses
	}
	return losses
}

// TestTrafficGatewayLost: when a gateway loses its link, though its Node stays ready, flows go by
// the other one soon. When it answers again, it has to for a while, and then new flows go by it.
func TestTrafficGatewayLost(t *testing.T) {
	t.Parallel()
	p := newProbesTest(t)
	n1, n2, n3 := p.Nodes[0], p.Nodes[1], p.Nodes[2]
	const rate = 200
	stream, err := p.StartStream(p.pod.Namespace, ServerIPv4, rate)
	require.NoError(t, err)
	p.eventually("packets leave by node-2", func() error {
		if r := stream.Report(); r.Addresses()[n2.OutsideIPv4] < rate {
			return fmt.Errorf("%s", r)
		}
		return nil
	})
	p.cut(n2)
	p.eventually("packets leave by node-3", func() error {
		if r := stream.Report(); r.Addresses()[n3.OutsideIPv4] < rate {
			return fmt.Errorf("%s", r)
		}
		return nil
	})
	r := stream.Stop()
	t.Logf("outage of a flow: %d ms", r.Lost()*1000/rate)
	p.awaitPaths(n1, tables.PathLost, n2)
	p.sees(p.pod.Namespace, ServerIPv4, n3.OutsideIPv4)

	p.plugIn(n2)
	p.becomes(p.pod.Namespace, ServerIPv4, n2.OutsideIPv4)
	p.awaitPaths(n1, tables.PathHealthy, n2)
	require.Equal(t, 1, p.losses(n1))
	p.noLeaks(n2.OutsideIPv4, n3.OutsideIPv4)
}

// TestTrafficOwnLinkLost: a node that is cut off loses no gateway by that.
func TestTrafficOwnLinkLost(t *testing.T) {
	t.Parallel()
	p := newProbesTest(t)
	n1 := p.Nodes[0]
	p.cut(n1)
	p.awaitPaths(n1, tables.PathUnreachable, p.gatewaysOf(n1)...)
	p.plugIn(n1)
	p.awaitPaths(n1, tables.PathHealthy, p.gatewaysOf(n1)...)
	require.Zero(t, p.losses(n1))
	p.sees(p.pod.Namespace, ServerIPv4, p.Nodes[1].OutsideIPv4)
}

// TestTrafficGatewayBusy: a gateway whose agent is stopped, killed or held up, on a machine with
// more busy processes than processors, stays the gateway: it loses no packet.
func TestTrafficGatewayBusy(t *testing.T) {
	t.Parallel()
	p := newProbesTest(t)
	n1, n2 := p.Nodes[0], p.Nodes[1]
	stop := make(chan struct{})
	for range 8 {
		go func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
			}
		}()
	}
	t.Cleanup(func() { close(stop) })
	stream, err := p.StartStream(p.pod.Namespace, ServerIPv4, 100)
	require.NoError(t, err)
	for range 3 {
		require.NoError(t, syscall.Kill(n2.Agent.PID(), syscall.SIGSTOP))
		time.Sleep(2 * time.Second)
		require.NoError(t, syscall.Kill(n2.Agent.PID(), syscall.SIGCONT))
		require.NoError(t, syscall.Kill(n1.Agent.PID(), syscall.SIGSTOP))
		time.Sleep(2 * time.Second)
		require.NoError(t, syscall.Kill(n1.Agent.PID(), syscall.SIGCONT))
	}
	n2.Agent.Kill()
	time.Sleep(2 * time.Second)
	r := stream.Stop()
	require.Zero(t, p.losses(n1))
	require.Equal(t, []netip.Addr{n2.OutsideIPv4}, slices.Collect(maps.Keys(r.Addresses())))
	require.Zero(t, r.Lost(), r)
	require.NoError(t, n2.Agent.Start())
	p.awaitPaths(n1, tables.PathHealthy, n2)
	require.Zero(t, p.losses(n1))
}

// TestTrafficGatewayDrained: when a gateway is cordoned, connections that leave by it stay, and new
// ones leave by the other; when it is uncordoned, new ones leave by it again.
func TestTrafficGatewayDrained(t *testing.T) {
	t.Parallel()
	p := newProbesTest(t)
	n2, n3 := p.Nodes[1], p.Nodes[2]
	var conns []net.Conn
	for range 20 {
		conns = append(conns, p.dial(p.pod.Namespace, "tcp", ServerIPv4))
	}
	cordon := func(cordoned bool) {
		o := n2.Object()
		o["spec"].(map[string]any)["unschedulable"] = cordoned
		require.NoError(t, p.Apply(o))
	}
	cordon(true)
	p.becomes(p.pod.Namespace, ServerIPv4, n3.OutsideIPv4)
	for _, conn := range conns {
		source, err := p.askOn(conn)
		require.NoError(t, err)
		require.Equal(t, n2.OutsideIPv4, source)
	}
	cordon(false)
	p.becomes(p.pod.Namespace, ServerIPv4, n2.OutsideIPv4)
}
