// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath"
	"github.com/sluice-net/sluice/cmd/lab"
)

// labTimeout is for a cluster to be ready.
const labTimeout = 5 * time.Minute

// policyName is that of the policy by which pods leave by node-2.
const policyName = "bench"

// labCluster is a cluster that is measured in.
type labCluster struct {
	*lab.Cluster
	client, near, far *lab.Pod // two on node-1, one on node-2
	outward           *lab.Pod // of node-1, sends to the world
	routed            *lab.Pod // of node-1, sends to the world by the kernel's gateway; nil with Sluice

	nearSink, farSink, worldSink *sink
}

// newLabCluster builds a cluster of two nodes; with agents it has a policy by which
// the second is the gateway.
func newLabCluster(ctx context.Context, agents bool) (c *labCluster, err error) {
	cluster, err := lab.New(ctx, lab.Options{Nodes: 2, NoAgents: !agents, NoCapture: true})
	if err != nil {
		return nil, err
	}
	c = &labCluster{Cluster: cluster}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	n1, n2 := c.Nodes[0], c.Nodes[1]
	pods, err := c.AddPods(
		lab.PodSpec{Node: n1, Name: "client"}, lab.PodSpec{Node: n1, Name: "near"}, lab.PodSpec{Node: n2, Name: "far"},
		lab.PodSpec{Node: n1, Name: "outward", Labels: map[string]string{"leaves": "by-gateway"}},
	)
	if err != nil {
		return c, err
	}
	c.client, c.near, c.far, c.outward = pods[0], pods[1], pods[2], pods[3]
	for _, s := range []struct {
		sink **sink
		ns   *lab.Namespace
	}{{&c.nearSink, c.near.Namespace}, {&c.farSink, c.far.Namespace}, {&c.worldSink, c.World.Namespace}} {
		if *s.sink, err = startSink(s.ns); err != nil {
			return c, err
		}
	}
	if !agents {
		if c.routed, err = c.AddPod(n1, "routed", nil); err != nil {
			return c, err
		}
		return c, kernelGateway(c.routed, n2)
	}
	return c, c.leaveByGateway(ctx)
}

// leaveByGateway makes the policy, and waits until all is in force.
func (c *labCluster) leaveByGateway(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, labTimeout)
	defer cancel()
	gateway := c.Nodes[1]
	err := c.ApplyYAML(fmt.Sprintf(`
apiVersion: cilium.io/v2
kind: CiliumEgressGatewayPolicy
metadata: {name: %s}
spec:
  selectors: [{podSelector: {matchLabels: {leaves: by-gateway}}}]
  destinationCIDRs: [%q]
  egressGateway:
    nodeSelector: {matchLabels: {kubernetes.io/hostname: %s}}
    egressIP: %s
`, policyName, lab.WorldIPv4, gateway.Name, gateway.EgressIPv4))
	if err != nil {
		return err
	}
	if err := c.AwaitAgents(ctx); err != nil {
		return err
	}
	if err := c.AwaitSources(ctx, true, []*lab.Node{gateway}, c.outward); err != nil {
		return err
	}
	pods := map[*lab.Node][]*lab.Pod{}
	for _, p := range []*lab.Pod{c.client, c.near, c.far, c.outward} {
		pods[p.Node] = append(pods[p.Node], p)
	}
	for _, n := range c.Nodes {
		if err := n.Agent.AwaitPolicy(ctx, policyName); err != nil {
			return err
		}
		if err := n.Agent.AwaitAttached(ctx, pods[n]...); err != nil {
			return err
		}
		if err := n.Agent.AwaitSettled(ctx); err != nil { // exits wait for what is attached
			return err
		}
	}
	return nil
}

func (c *labCluster) close() {
	for _, s := range []*sink{c.nearSink, c.farSink, c.worldSink} {
		if s != nil {
			s.close()
		}
	}
	c.Close()
}

// counter counts packets of one place on a way.
type counter struct {
	name string
	back bool // of the way back, on which datagrams have nothing
	read func() (uint64, error)
}

// evidence is what shows which way packets take.
type evidence []counter

func (e evidence) read() ([]uint64, error) {
	values := make([]uint64, len(e))
	for i, c := range e {
		var err error
		if values[i], err = c.read(); err != nil {
			return nil, fmt.Errorf("read counter %q: %w", c.name, err)
		}
	}
	return values, nil
}

// out is a device by which the traffic leaves a node, and in one by which it comes.
func (e evidence) out(n *lab.Node, device string) evidence {
	return append(e,
		counter{n.Name + " " + device + " sent", false, func() (uint64, error) { sent, _, err := packetsOf(n, device); return sent, err }},
		counter{n.Name + " " + device + " received", true, func() (uint64, error) { _, received, err := packetsOf(n, device); return received, err }})
}

func (e evidence) in(n *lab.Node, device string) evidence {
	return append(e,
		counter{n.Name + " " + device + " received", false, func() (uint64, error) { _, received, err := packetsOf(n, device); return received, err }},
		counter{n.Name + " " + device + " sent", true, func() (uint64, error) { sent, _, err := packetsOf(n, device); return sent, err }})
}

// packetsOf returns the kernel's counters of a device.
func packetsOf(n *lab.Node, device string) (sent, received uint64, err error) {
	link, err := n.Handle().LinkByName(device)
	if err != nil {
		return 0, 0, err
	}
	s := link.Attrs().Statistics
	if s == nil {
		return 0, 0, errors.New("the kernel tells no statistics")
	}
	return s.TxPackets, s.RxPackets, nil
}

// says is what a node's programs say of the packets there, or back.
func (e evidence) says(n *lab.Node, reason bpf.Reason, back bool) evidence {
	return append(e, counter{"programs of " + n.Name + ": " + reason.String(), back, func() (uint64, error) { return counted(n, reason) }})
}

// counted returns the programs' counter of a reason, in both directions.
func counted(n *lab.Node, reason bpf.Reason) (total uint64, err error) {
	path := filepath.Join(n.Agent.BPFFS(), "sluice", datapath.MetricsMap)
	m, err := ebpf.LoadPinnedMap(path, &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		return 0, err
	}
	defer m.Close()
	for direction := range uint32(bpf.Directions) {
		var cpus []bpf.Metric
		if err := m.Lookup(uint32(reason)*bpf.Directions+direction, &cpus); err != nil {
			return 0, err
		}
		for _, c := range cpus {
			total += c.Packets
		}
	}
	return total, nil
}

// drops returns what the programs of a cluster have dropped, by reason. An ICMP
// message that a packet is too big is one: path MTU discovery needs it.
func (c *labCluster) drops() (map[bpf.Reason]uint64, error) {
	found := map[bpf.Reason]uint64{}
	for _, n := range c.Nodes {
		if !n.Agent.Running() {
			continue
		}
		for reason := bpf.ReasonDrops; reason < bpf.ReasonCount; reason++ {
			count, err := counted(n, reason)
			if err != nil {
				return nil, fmt.Errorf("read drops of %s: %w", n.Name, err)
			}
			if count > 0 {
				found[reason] += count
			}
		}
	}
	return found, nil
}
