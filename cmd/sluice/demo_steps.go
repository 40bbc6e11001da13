// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net"
	"net/netip"

	"github.com/sluice-net/sluice/cmd/lab"
)

// demoStep is a change, and what is to be seen then.
type demoStep struct {
	title string
	text  string
	show  func(context.Context, *demo) error
}

const demoPolicyName = "bank"

// The policy of the demo, as it becomes.
const (
	demoPolicy = `apiVersion: cilium.io/v2
kind: CiliumEgressGatewayPolicy
metadata:
  name: bank
spec:
  selectors:
  - podSelector: {matchLabels: {app: checkout}}
  destinationCIDRs: [198.51.100.0/24]
`
	demoExclusion = `  excludedCIDRs: [198.51.100.128/25]
`
	demoGateway = `  egressGateway:
    nodeSelector: {matchLabels: {kubernetes.io/hostname: node-2}}
    egressIP: 203.0.113.102
`
	demoGateways = `  egressGateways:
  - nodeSelector: {matchLabels: {kubernetes.io/hostname: node-2}}
    egressIP: 203.0.113.102
  - nodeSelector: {matchLabels: {kubernetes.io/hostname: node-3}}
    egressIP: 203.0.113.103
`
)

var (
	demoExcluded   = netip.MustParsePrefix("198.51.100.128/25")
	excludedServer = netip.MustParseAddr("198.51.100.200")
)

func demoSteps() []demoStep {
	return []demoStep{
		{"1. No policy", "Pods leave the cluster with the address of their node.", showNoPolicy},
		{"2. An egress policy",
			"The checkout pods reach the bank by way of node-2, with an address of its own.", showPolicy},
		{"3. An exclusion", "A part of the bank's network is left out of the policy.", showExclusion},
		{"4. A second gateway", "The pods are spread over node-2 and node-3, each by a hash of its address.", showSecondGateway},
		{"5. A gateway fails", "node-2 is marked not ready: its pods go over to node-3.", showFailover},
		{"6. The egress policy is deleted", "New connections leave as before it. One that is alive keeps its address.", showDeletion},
		{"7. A network policy",
			"Only the web pod may reach the checkout pods. Other connections are cut, also open ones.",
			showNetworkPolicy},
	}
}

func showNoPolicy(ctx context.Context, d *demo) error {
	d.say("")
	d.observe(ctx,
		observation{d.remote, "tcp", lab.ServerIPv4, []netip.Addr{d.remote.Node.OutsideIPv4}},
		observation{d.local, "tcp", lab.ServerIPv4, []netip.Addr{d.local.Node.OutsideIPv4}},
		observation{d.other, "tcp", lab.ServerIPv4, []netip.Addr{d.other.Node.OutsideIPv4}},
	)
	return nil
}

func showPolicy(ctx context.Context, d *demo) error {
	if err := d.apply(demoPolicy + demoGateway); err != nil {
		return err
	}
	first := d.Nodes[1]
	if err := d.awaitPolicy(ctx, first); err != nil {
		return err
	}
	egressIP := []netip.Addr{first.EgressIPv4}
	d.observe(ctx,
		observation{d.remote, "tcp", lab.ServerIPv4, egressIP},
		observation{d.remote, "udp", lab.ServerIPv4, egressIP},
		observation{d.remote, "ping", lab.ServerIPv4, egressIP},
		observation{d.local, "tcp", lab.ServerIPv4, egressIP},
		observation{d.other, "tcp", lab.ServerIPv4, []netip.Addr{d.other.Node.OutsideIPv4}},
	)
	d.say("\n  The agent of %s tells what it wants, and that the kernel has it:\n", first.Name)
	return d.showTables(ctx, first, "egress-policy-status", "egress-rules", "subject-routes")
}

func showExclusion(ctx context.Context, d *demo) error {
	if err := d.apply(demoPolicy + demoExclusion + demoGateway); err != nil {
		return err
	}
	for _, n := range []*lab.Node{d.remote.Node, d.local.Node} {
		if err := n.Agent.AwaitRule(ctx, demoExcluded, true); err != nil {
			return err
		}
	}
	egressIP := []netip.Addr{d.Nodes[1].EgressIPv4}
	d.observe(ctx,
		observation{d.remote, "tcp", lab.ServerIPv4, egressIP},
		observation{d.remote, "tcp", excludedServer, []netip.Addr{d.remote.Node.OutsideIPv4}},
		observation{d.local, "tcp", excludedServer, []netip.Addr{d.local.Node.OutsideIPv4}},
	)
	return nil
}

func showSecondGateway(ctx context.Context, d *demo) error {
	if err := d.apply(demoPolicy + demoExclusion + demoGateways); err != nil {
		return err
	}
	if err := d.awaitPolicy(ctx, d.Nodes[1], d.Nodes[2]); err != nil {
		return err
	}
	either := []netip.Addr{d.Nodes[1].EgressIPv4, d.Nodes[2].EgressIPv4}
	d.observe(ctx,
		observation{d.remote, "tcp", lab.ServerIPv4, either},
		observation{d.local, "tcp", lab.ServerIPv4, either},
	)
	return nil
}

func showFailover(ctx context.Context, d *demo) error {
	failed, takesOver := d.Nodes[1], d.Nodes[2]
	if err := failed.SetReady(false); err != nil {
		return err
	}
	d.say("\n  Node %s: status.conditions: [{type: Ready, status: \"False\"}]\n", failed.Name)
	if err := d.awaitPolicy(ctx, takesOver); err != nil {
		return err
	}
	egressIP := []netip.Addr{takesOver.EgressIPv4}
	d.observe(ctx,
		observation{d.remote, "tcp", lab.ServerIPv4, egressIP},
		observation{d.local, "tcp", lab.ServerIPv4, egressIP},
	)
	d.say("")
	return d.showTables(ctx, d.remote.Node, "egress-policy-status")
}

func showDeletion(ctx context.Context, d *demo) error {
	live, err := d.remote.Dial(ctx, "tcp", netip.AddrPortFrom(lab.ServerIPv4, lab.Port))
	if err != nil {
		return err
	}
	defer live.Close()
	d.say("")
	alive := observation{d.remote, "open", lab.ServerIPv4, []netip.Addr{d.Nodes[2].EgressIPv4}}
	d.observeLive(ctx, live, alive)
	d.say("\n  Deleting policy %s, while a connection of %s is open:\n", demoPolicyName, d.remote.Name)
	if err := d.Delete(lab.Policy(demoPolicyName)); err != nil {
		return err
	}
	if err := d.AwaitSources(ctx, false, d.Nodes, d.remote, d.local); err != nil {
		return err
	}
	d.observe(ctx,
		observation{d.remote, "tcp", lab.ServerIPv4, []netip.Addr{d.remote.Node.OutsideIPv4}},
		observation{d.local, "tcp", lab.ServerIPv4, []netip.Addr{d.local.Node.OutsideIPv4}},
	)
	d.observeLive(ctx, live, alive)
	return nil
}

// apply shows a manifest and applies it.
func (d *demo) apply(manifest string) error {
	d.say("\n%s\n", indent(manifest))
	return d.ApplyYAML(manifest)
}

// awaitPolicy waits until all nodes have the policy in the kernel, with these
// gateways, and these know the pods and can send.
func (d *demo) awaitPolicy(ctx context.Context, gateways ...*lab.Node) error {
	for _, n := range d.Nodes {
		if err := n.Agent.AwaitPolicy(ctx, demoPolicyName); err != nil {
			return err
		}
	}
	if err := d.AwaitSources(ctx, true, gateways, d.remote, d.local); err != nil {
		return err
	}
	for _, n := range append([]*lab.Node{d.remote.Node, d.local.Node}, gateways...) {
		if err := n.Agent.AwaitGateways(ctx, gateways...); err != nil {
			return err
		}
	}
	for _, n := range gateways {
		if err := n.Agent.AwaitExit(ctx, n.EgressIPv4); err != nil {
			return err
		}
	}
	return nil
}

// observeLive is observe, by a connection that exists.
func (d *demo) observeLive(ctx context.Context, conn net.Conn, o observation) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	source, err := lab.AskOn(ctx, conn)
	d.report(o, source.Addr(), err)
}
