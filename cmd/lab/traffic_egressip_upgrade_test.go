// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// version is what agent a node runs.
type version struct {
	command []string // of another version, empty: this one
	flags   func(*Node) []string
}

// rollout is a cluster whose agents get addresses that move, and probes, node by node. Pods of
// node-1 and node-4 use an address that node-2 has, as before, and those that move.
type rollout struct {
	*moving
	start, off, on version
	probed         tables.PathState // what probes find of nodes as at the start
	pods           []*Pod
	conns          []sourced // connections with the address of node-2
	load           *load     // likewise
}

// TestTrafficEgressIPSwitchedOn: --egress-ips and probes are switched on, node by node, and off
// again. No packet with the address of a node is lost.
func TestTrafficEgressIPSwitchedOn(t *testing.T) {
	t.Parallel()
	r := newRollout(t, nil)
	r.switchOn()
	r.moves()
	r.switchOff()
	r.load.end(r.Nodes[1].EgressIPv4)
}

// TestTrafficEgressIPUpgrade: the same with agents of a former version, which know neither, before
// and after that.
func TestTrafficEgressIPUpgrade(t *testing.T) {
	t.Parallel()
	r := newRollout(t, buildFormer(t))
	r.switchOn()
	r.load.end(r.Nodes[1].EgressIPv4)
	r.switchOff()
	for _, n := range r.Nodes {
		r.replace(n, r.start)
	}
	r.isSilent()
}

// newRollout returns the cluster with agents of a former version, or of this one without addresses
// that move and probes.
func newRollout(t *testing.T, former []string) *rollout {
	t.Helper()
	r := &rollout{moving: buildMoving(t, time.Second), probed: tables.PathHealthy}
	on := map[*Node][]string{}
	for _, n := range r.Nodes {
		on[n] = append(n.Agent.Flags, "--overlay-accept-unsigned=true")
	}
	r.on.flags = func(n *Node) []string { return on[n] }
	r.off.flags = func(n *Node) []string {
		return append(slices.Clone(on[n]), "--egress-ips=false", "--gateway-probe-interval=0")
	}
	if r.start = r.off; former != nil {
		r.start = version{former, func(*Node) []string { return r.source }}
		r.probed = tables.PathUnprobed
	}
	for _, n := range r.Nodes {
		n.Agent.Command, n.Agent.Flags = r.start.command, r.start.flags(n)
	}
	require.NoError(t, r.StartAgents())
	gateway := r.Nodes[1]
	r.pod = r.traffic.pod(r.Nodes[0], "a", "a")
	r.pods = []*Pod{r.pod, r.traffic.pod(r.Nodes[3], "b", "a")}
	r.policy(egress{name: "fixed", app: "a", to: []netip.Prefix{host(inExcludedIPv4)},
		exits: []exit{{node: gateway.Name, ip: gateway.EgressIPv4}}})
	r.fixed = []netip.Addr{gateway.EgressIPv4}
	r.givePool()
	r.usePool(`{matchLabels: {egress: "yes"}}`)
	r.vote(1, 1, [][]*Node{r.Nodes[:3]}, r.Nodes...)
	r.inForce([]string{"fixed", "ip32", "ip128"})
	r.load = &load{tr: r.traffic, begin: time.Now(), dropped: machineDrops(t)}
	for _, pod := range r.pods {
		r.becomes(pod.Namespace, inExcludedIPv4, gateway.EgressIPv4)
		r.conns = append(r.conns, r.connectTo(inExcludedIPv4, pod, gateway.EgressIPv4))
		s, err := r.StartStream(pod.Namespace, inExcludedIPv4, 100)
		require.NoError(t, err)
		r.load.streams = append(r.load.streams, s)
	}
	r.chat(r.pods[1])
	r.goesOn()
	return r
}

// goesOn fails the test unless connections with the address of node-2 go on, new ones begin, and
// each address that moves was used by one node at a time.
func (r *rollout) goesOn() {
	r.t.Helper()
	r.haveSources(r.conns)
	for _, pod := range r.pods {
		r.conns = append(r.conns, r.connectTo(inExcludedIPv4, pod, r.Nodes[1].EgressIPv4))
	}
	r.invariant()
}

// replace has an agent of another version take the place of a node's.
func (r *rollout) replace(n *Node, v version) {
	r.t.Helper()
	r.t.Log(n.Name)
	require.NoError(r.t, n.Agent.Stop())
	r.haveSources(r.conns)
	n.Agent.Command, n.Agent.Flags = v.command, v.flags(n)
	require.NoError(r.t, n.Agent.Start())
	require.NoError(r.t, n.Agent.AwaitReady(r.ctx))
	r.goesOn()
}

// drops waits until a node drops packets for a reason: those with addresses that move.
func (r *rollout) drops(n *Node, reason bpf.Reason) {
	r.t.Helper()
	before := r.count(n, reason)
	const some = 20
	r.eventually(fmt.Sprintf("%s drops what has an address that moves: %s", n.Name, reason),
		func() error {
			if more := r.count(n, reason) - before; more < some {
				return fmt.Errorf("%d packets", more)
			}
			return nil
		})
	r.invariant()
}

// lacks waits until a node has no address that moves at a device.
func (r *rollout) lacks(n *Node) {
	r.t.Helper()
	r.eventually(n.Name+" gives its addresses up", func() error {
		if slices.ContainsFunc(movings, n.hasAddress) {
			return errors.New("it has one")
		}
		return nil
	})
}

// isSilent fails the test unless addresses that move are dropped, where none has them, and no node
// uses them.
func (r *rollout) isSilent() {
	r.t.Helper()
	for _, addr := range movings {
		r.World.forget(r.t, addr)
	}
	before := len(r.uses.all())
	for _, addr := range movings {
		conn, err := r.World.Dial(r.ctx, "udp", netip.AddrPortFrom(addr, Port))
		require.NoError(r.t, err)
		_, err = conn.Write([]byte("anyone")) // the world asks who has it
		require.NoError(r.t, err)
		require.NoError(r.t, conn.Close())
	}
	r.drops(r.Nodes[1], bpf.ReasonNoEgressIP)
	require.Len(r.t, r.uses.all(), before)
}

// switchOn has the nodes get addresses that move. Before a node has ports its pods' packets are
// dropped; those of a node without --egress-ips leave by the gateway that it elects, if that has
// the address. They never leave with another one.
func (r *rollout) switchOn() {
	r.t.Helper()
	n1, n2, n3, n4 := r.Nodes[0], r.Nodes[1], r.Nodes[2], r.Nodes[3]
	r.drops(n2, bpf.ReasonNoEgressIP)
	r.replace(n2, r.on)
	r.drops(n2, bpf.ReasonNoEgressIP)
	require.Empty(r.t, r.uses.all(), "one of three voters is no majority")
	r.replace(n1, r.on)
	for _, addr := range movings {
		require.NoError(r.t, n2.Agent.awaitLease(r.ctx, addr))
	}
	r.awaitPaths(n1, r.probed, n3)
	r.drops(n1, bpf.ReasonNoPortBlock)
	r.givePool(append(r.blocks(), block{11, n4})...)
	for _, addr := range movings {
		for _, pod := range r.pods {
			r.becomes(pod.Namespace, serverFor(addr), addr)
		}
	}
	all := r.connect(3)
	r.replace(n3, r.on)
	r.awaitPaths(n1, tables.PathHealthy, n2, n3)
	r.goOn(all)
	r.replace(n4, r.on)
	for _, addr := range movings {
		for _, pod := range r.pods {
			r.becomes(pod.Namespace, serverFor(addr), addr)
		}
	}
	r.goOn(all)
	r.goesOn()
	r.losesNone(r.Nodes...)
}

// losesNone fails the test if a node has taken another one for lost.
func (r *rollout) losesNone(nodes ...*Node) {
	r.t.Helper()
	for _, n := range nodes {
		require.Zero(r.t, r.losses(n), "%s has lost another node", n.Name)
	}
}

// moves has --egress-ips switched off at the node of a pod, and at that with the addresses. These
// go to the other gateway, and connections go on.
func (r *rollout) moves() {
	r.t.Helper()
	all := r.connect(3)
	r.replace(r.Nodes[3], r.off)
	r.goOn(all)
	from := r.owner(moving4)
	r.replace(from, r.off)
	r.lacks(from)
	for _, addr := range movings {
		r.carries(addr, r.other(from))
	}
	r.goOn(all)
	r.losesNone(r.Nodes[0], r.other(from))
}

// switchOff has no node get addresses that move any more.
func (r *rollout) switchOff() {
	r.t.Helper()
	for _, n := range slices.Backward(r.Nodes) {
		r.replace(n, r.off)
		r.lacks(n)
	}
	r.isSilent()
}
