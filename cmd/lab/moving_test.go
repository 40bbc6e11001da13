// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	vn "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/tables"
)

// moving is a cluster of four nodes with an API server, in which an egress address of each family
// moves between node-2 and node-3.
type moving struct {
	*traffic
	api    *apiServer
	source []string // flags of agents that read from it
	uses   *uses
	pod    *Pod // on node-1
	macs   map[string]string

	fixed []netip.Addr // egress addresses that pods use beside those that move

	lease  time.Duration
	nodes  map[*Node]*nodeState
	owners map[netip.Addr]*Node // while both gateways are healthy
}

// nodeState is what a test says of a node.
type nodeState struct{ unlabeled, cordoned, drained, notReady bool }

var (
	moving4 = hostOf(OutsideIPv4, 200)
	moving6 = hostOf(OutsideIPv6, 200)
	movings = []netip.Addr{moving4, moving6}
)

// movingRate is of datagrams a second: a flow sends on however often its address moves.
const movingRate = 10

// serverFor returns the address of the server that pods reach with an egress address.
func serverFor(addr netip.Addr) netip.Addr {
	if addr.Is4() {
		return ServerIPv4
	}
	return ServerIPv6
}

// newMoving returns such a cluster with agents, where the pod's packets leave with the addresses.
func newMoving(t *testing.T, lease time.Duration, more ...string) *moving {
	t.Helper()
	m := buildMoving(t, lease, more...)
	require.NoError(t, m.StartAgents())
	m.vote(1, 1, [][]*Node{m.Nodes[:3]})
	m.pod = m.traffic.pod(m.Nodes[0], "a", "a")
	m.givePool(m.blocks()...)
	m.usePool("{}")
	m.inForce([]string{"ip32", "ip128"}, m.pod)
	for _, addr := range movings {
		m.owners[addr] = m.owner(addr)
		m.carries(addr, m.owners[addr])
	}
	return m
}

// buildMoving returns such a cluster without agents.
func buildMoving(t *testing.T, lease time.Duration, more ...string) *moving {
	t.Helper()
	m := &moving{
		traffic: newTraffic(t, Options{Nodes: 4, NoAgents: true}),
		lease:   lease, macs: map[string]string{}, nodes: map[*Node]*nodeState{},
		owners: map[netip.Addr]*Node{},
	}
	m.api, m.source = serveAPI(t, m.Cluster)
	for _, n := range m.Nodes {
		n.Agent.Flags = append(slices.Concat(m.source, more), "--egress-ips",
			"--egress-ip-lease="+lease.String(), "--overlay-accept-unsigned=false",
			"--overlay-keys="+writeKeys(t, m.Cluster, n, overlayKeyA))
		device, err := n.link(n.EgressDevice())
		require.NoError(t, err)
		m.macs[device.Attrs().HardwareAddr.String()] = n.Name
		m.nodes[n] = &nodeState{unlabeled: !slices.Contains(m.gateways(), n)}
		m.change(n, func(*nodeState) {})
	}
	m.uses = watchUses(t, m.World, movings...)
	return m
}

// block is a block of ports of the pool, which a node has.
type block struct {
	index int
	node  *Node
}

// blocks are those of the gateways, and of the pod's node.
func (m *moving) blocks() []block {
	n := m.Nodes
	return []block{{0, n[1]}, {3, n[2]}, {7, n[0]}, {8, n[0]}, {9, n[0]}, {10, n[0]}}
}

// givePool makes the pool of the addresses, or gives other blocks of it.
func (m *moving) givePool(blocks ...block) {
	m.t.Helper()
	pool := fmt.Sprintf(`
apiVersion: sluice.io/v1alpha1
kind: EgressIPPool
metadata: {name: pool}
spec:
  cidrs: ["%s/32", "%s/128"]
  nodeSelector: {matchLabels: {egress: "yes"}}
  portsPerBlock: 4096
status:
  blocks:
`, moving4, moving6)
	for _, b := range blocks {
		pool += fmt.Sprintf("  - {index: %d, node: %s}\n", b.index, b.node.Name)
	}
	require.NoError(m.t, m.ApplyYAML(pool))
}

// usePool has pods with the label "a" leave with the addresses, by policies that select nodes.
func (m *moving) usePool(nodes string) {
	m.t.Helper()
	for _, addr := range movings {
		require.NoError(m.t, m.ApplyYAML(fmt.Sprintf(`
apiVersion: cilium.io/v2
kind: CiliumEgressGatewayPolicy
metadata: {name: ip%d}
spec:
  selectors: [{podSelector: {matchLabels: {app: a}}}]
  destinationCIDRs: ["%s/%d"]
  egressGateway: {nodeSelector: %s, egressIP: "%s"}
`, addr.BitLen(), serverFor(addr), addr.BitLen(), nodes, addr)))
	}
}

func (m *moving) gateways() []*Node { return m.Nodes[1:3] }

// other returns the gateway that a node is not.
func (m *moving) other(n *Node) *Node {
	if n == m.Nodes[1] {
		return m.Nodes[2]
	}
	return m.Nodes[1]
}

// change says something else of a node.
func (m *moving) change(n *Node, change func(*nodeState)) {
	m.t.Helper()
	state := m.nodes[n]
	change(state)
	o := n.Object()
	meta := o["metadata"].(map[string]any)
	if !state.unlabeled {
		meta["labels"].(map[string]any)["egress"] = "yes"
	}
	if state.drained {
		meta["annotations"] = map[string]any{tables.DrainAnnotation: "true"}
	}
	o["spec"].(map[string]any)["unschedulable"] = state.cordoned
	if state.notReady {
		o["status"].(map[string]any)["conditions"] = []any{
			map[string]any{"type": "Ready", "status": "Unknown"},
		}
	}
	require.NoError(m.t, m.Apply(o))
}

// owner returns the node that shall have an address, as the pod's node finds.
func (m *moving) owner(addr netip.Addr) (owner *Node) {
	m.t.Helper()
	require.NoError(m.t, AwaitRows(m.ctx, m.Nodes[0].Agent, "egress-ips",
		func(rows []tables.EgressIP) error {
			for _, row := range rows {
				for _, n := range m.Nodes {
					if row.Addr == addr && row.Node == n.Name {
						owner = n
						return nil
					}
				}
			}
			return fmt.Errorf("%s has no node: %+v", addr, rows)
		}))
	return owner
}

// becomesOwner waits until a node shall have an address.
func (m *moving) becomesOwner(addr netip.Addr, n *Node) {
	m.t.Helper()
	m.eventually(fmt.Sprintf("%s is to be at %s", addr, n.Name), func() error {
		if owner := m.owner(addr); owner != n {
			return fmt.Errorf("it is to be at %s", owner.Name)
		}
		return nil
	})
}

// carries waits until the pod's new connections leave with an address by a node.
func (m *moving) carries(addr netip.Addr, n *Node) {
	m.t.Helper()
	m.becomesOwner(addr, n)
	before := len(m.uses.all())
	m.becomes(m.pod.Namespace, serverFor(addr), addr)
	m.eventually(fmt.Sprintf("packets from %s leave by %s", addr, n.Name), func() error {
		for _, u := range m.uses.all()[before:] {
			if u.addr == addr && u.what == usePacket && m.macs[u.mac] == n.Name {
				return nil
			}
		}
		return fmt.Errorf("%+v", m.uses.all()[before:])
	})
}

// neighbor returns the name of the node to which the world sends what is for an address.
func (m *moving) neighbor(addr netip.Addr) string {
	m.t.Helper()
	link, err := m.World.link(worldDevice)
	require.NoError(m.t, err)
	neighbors, err := m.World.handle.NeighList(link.Attrs().Index, 0)
	require.NoError(m.t, err)
	for _, n := range neighbors {
		if a, _ := netip.AddrFromSlice(n.IP); a.Unmap() == addr {
			return m.macs[n.HardwareAddr.String()]
		}
	}
	return ""
}

// invariant fails the test unless each address was used by its owner only, and the world has seen
// no other source, but for the fixed ones.
func (m *moving) invariant() {
	m.t.Helper()
	for _, addr := range movings {
		require.NoError(m.t, misuse(m.uses.all(), addr, m.lease, m.macs))
	}
	for flow := range m.World.Seen() {
		if !flow.housekeeping() && !flow.isICMPError() {
			require.Contains(m.t, slices.Concat(movings, m.fixed), flow.Source, flow)
		}
	}
}

// isICMPError reports whether packets say that others could not be delivered. Nodes do so with an
// address of their own, such as of a reply to an address that has just left them.
func (f Flow) isICMPError() bool {
	const unreachable, timeExceeded, informational6 = 3, 11, 128
	switch f.Protocol {
	case unix.IPPROTO_ICMP:
		return f.ICMPType == unreachable || f.ICMPType == timeExceeded
	case unix.IPPROTO_ICMPV6:
		return f.ICMPType < informational6
	}
	return false
}

// flows starts a flow with each egress address.
func (m *moving) flows() map[netip.Addr]*Stream {
	m.t.Helper()
	flows := map[netip.Addr]*Stream{}
	for _, addr := range movings {
		flow, err := m.StartStream(m.pod.Namespace, serverFor(addr), movingRate)
		require.NoError(m.t, err)
		flows[addr] = flow
	}
	return flows
}

// stays fails the test if a flow had another address than its own.
func (m *moving) stays(addr netip.Addr, flow *Stream) StreamReport {
	m.t.Helper()
	r := flow.Stop()
	for source := range r.Addresses() {
		require.Equal(m.t, addr, source)
	}
	return r
}

// chat has the pod, and others, send datagrams by new connections with each address, until the
// test ends.
func (m *moving) chat(others ...*Pod) {
	stop, stopped := make(chan struct{}), make(chan struct{})
	m.t.Cleanup(func() {
		close(stop)
		<-stopped
	})
	go func() {
		defer close(stopped)
		for {
			for _, pod := range append(others, m.pod) {
				for _, addr := range movings {
					to := netip.AddrPortFrom(serverFor(addr), Port)
					if conn, err := pod.Dial(m.ctx, "udp", to); err == nil {
						_, _ = conn.Write([]byte("anyone"))
						_ = conn.Close()
					}
				}
			}
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
}

// took logs how long after a time a node announced an address and sent with it, and returns that.
func (m *moving) took(
	what string, addr netip.Addr, n *Node, since time.Time,
) (announced, packet time.Duration) {
	for _, u := range m.uses.all() {
		if u.addr != addr || m.macs[u.mac] != n.Name || u.at.Before(since) {
			continue
		}
		first := &announced
		if u.what == usePacket {
			first = &packet
		}
		if *first == 0 {
			*first = u.at.Sub(since).Round(time.Millisecond)
		}
	}
	m.t.Logf("%s: %s at %s: announced after %s, first packet after %s",
		what, addr, n.Name, announced, packet)
	return announced, packet
}

// What happens to an agent.
const (
	stopped = "stopped"
	killed  = "killed"
)

// pause has the agent of a node stand still; resume has it go on.
func (m *moving) pause(n *Node) {
	m.t.Helper()
	require.NoError(m.t, syscall.Kill(n.Agent.PID(), syscall.SIGSTOP))
}

func (m *moving) resume(n *Node) {
	m.t.Helper()
	require.NoError(m.t, syscall.Kill(n.Agent.PID(), syscall.SIGCONT))
}

// carrier gives the device of a node to the world a carrier, or takes it.
func (m *moving) carrier(n *Node, up bool) {
	m.t.Helper()
	port, err := m.fabric.link(n.Name + "-" + n.EgressDevice())
	require.NoError(m.t, err)
	change := m.fabric.handle.LinkSetDown
	if up {
		change = m.fabric.handle.LinkSetUp
	}
	require.NoError(m.t, change(port))
}

// forget has the world ask anew which host has an address.
func (w *World) forget(t *testing.T, addr netip.Addr) {
	t.Helper()
	link, err := w.link(worldDevice)
	require.NoError(t, err)
	err = w.handle.NeighDel(&vn.Neigh{
		LinkIndex: link.Attrs().Index, IP: addr.AsSlice(), State: vn.NUD_PERMANENT,
	})
	require.True(t, err == nil || errors.Is(err, unix.ENOENT), err)
}

// hasAddress reports whether the kernel of a node has an address.
func (n *Node) hasAddress(addr netip.Addr) bool {
	link, err := n.link(n.EgressDevice())
	if err != nil {
		return false
	}
	addrs, _ := n.handle.AddrList(link, 0)
	for _, a := range addrs {
		if has, _ := netip.AddrFromSlice(a.IP); has.Unmap() == addr {
			return true
		}
	}
	return false
}
