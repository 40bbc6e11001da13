// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// The bridge and the neighbour table forget pods that are silent for minutes.
// What such pods say next is treated as before, from the first packet on, and
// by an agent that starts meanwhile.
func TestTrafficBridgeForgets(t *testing.T) {
	t.Parallel()
	tr := newTraffic(t, Options{BridgeCNI: true})
	n1, n2 := tr.Nodes[0], tr.Nodes[1]
	chosen, plain := tr.pod(n1, "chosen", "a"), tr.pod(n1, "plain", "none")
	tr.policy(egress{name: "bank4", app: "a", to: []netip.Prefix{coveredIPv4}, exits: []exit{{node: n2.Name, ip: n2.EgressIPv4}}})
	tr.inForce([]string{"bank4"}, chosen)
	require.NoError(t, tr.AwaitSources(tr.ctx, true, []*Node{n2}, chosen))

	for _, again := range []bool{false, true} {
		tr.forgotten(n1, chosen, plain)
		if again {
			require.NoError(t, n1.Agent.Restart())
			require.NoError(t, tr.AwaitAgents(tr.ctx))
			require.NoError(t, n1.Agent.AwaitSettled(tr.ctx))
		}
		require.NoError(t, n1.Agent.AwaitAttached(tr.ctx, chosen, plain))
		for _, p := range []*Pod{chosen, plain} {
			source := n1.OutsideIPv4
			if p == chosen {
				source = n2.EgressIPv4
			}
			got, err := tr.ask(p.Namespace, "udp", ServerIPv4)
			require.NoError(t, err, "%s, agent restarted: %v", p.Name, again)
			require.Equal(t, source, got, "%s, agent restarted: %v", p.Name, again)
		}
		require.Zero(t, tr.count(n1, bpf.ReasonUnknownSource), "the pods are where they were")
	}
}

// forgotten has a node's kernel forget pods behind its bridge, until the agent
// has noticed.
func (tr *traffic) forgotten(n *Node, pods ...*Pod) {
	tr.t.Helper()
	macs := map[string]bool{}
	for _, p := range pods {
		link, err := p.link(PodDevice)
		require.NoError(tr.t, err)
		macs[link.Attrs().HardwareAddr.String()] = true
	}
	forget := func() error {
		for _, family := range []int{unix.AF_INET, unix.AF_INET6, unix.AF_BRIDGE} {
			entries, err := n.Handle().NeighList(0, family)
			if err != nil {
				return err
			}
			for _, e := range entries {
				if !macs[e.HardwareAddr.String()] {
					continue
				}
				if err := n.Handle().NeighDel(&e); err != nil && !errors.Is(err, unix.ENOENT) {
					return fmt.Errorf("forget %s: %w", e.String(), err)
				}
			}
		}
		return nil
	}
	tr.eventually("the agent knows of nothing that leads to the pods", func() error {
		if err := forget(); err != nil {
			return err
		}
		ports, err := Rows[tables.BridgeEntry](tr.ctx, n.Agent, "bridge-entries")
		if err != nil {
			return err
		}
		for _, e := range ports {
			if macs[e.MAC] {
				return fmt.Errorf("the bridge knows %s", e.MAC)
			}
		}
		neighbours, err := Rows[tables.Neighbour](tr.ctx, n.Agent, "neighbours")
		if err != nil {
			return err
		}
		for _, e := range neighbours {
			if macs[e.MAC] {
				return fmt.Errorf("%s is a neighbour", e.Addr)
			}
		}
		return nil
	})
}
