// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

// envKills is how often a gateway loses its power.
const envKills = "SLUICE_TEST_KILLS"

// TestTrafficEgressIPKills has the gateway with the addresses lose its power again and again, and
// logs for how long the flows of a pod had no answers: by the default lease, one flow with each
// address.
func TestTrafficEgressIPKills(t *testing.T) {
	t.Parallel()
	kills := 3
	if text := os.Getenv(envKills); text != "" {
		var err error
		kills, err = strconv.Atoi(text)
		require.NoError(t, err, envKills)
	}
	const rate = 200
	m := newMoving(t, 225*time.Millisecond)
	var outages times
	for kill := range kills {
		var cancel context.CancelFunc
		m.ctx, cancel = context.WithTimeout(context.Background(), timeout)
		from := m.has(moving4)
		require.Equal(t, from, m.has(moving6))
		to := m.other(from)
		flows := map[netip.Addr]*Stream{}
		for _, addr := range movings {
			flow, err := m.StartStream(m.pod.Namespace, serverFor(addr), rate)
			require.NoError(t, err)
			flows[addr] = flow
		}
		answered := func(what string) {
			for _, addr := range movings {
				before := flows[addr].Report().Answered
				m.eventually(what, func() error {
					if r := flows[addr].Report(); r.Answered < before+rate/5 {
						return fmt.Errorf("%s", r)
					}
					return nil
				})
			}
		}
		answered("flows go on")
		m.powerOff(from)
		for _, addr := range movings {
			m.eventually("another node has the address", func() error {
				if n := m.has(addr); n != to {
					return fmt.Errorf("%s is at %s", addr, n.Name)
				}
				return nil
			})
		}
		answered("flows go on by another node")
		for _, addr := range movings {
			r := m.stays(addr, flows[addr])
			outage := time.Duration(r.Lost()) * time.Second / rate
			outages = append(outages, outage)
			t.Logf("kill %d: %s: no answers for %s", kill, addr, outage)
		}
		m.powerOn(from)
		for _, n := range m.Nodes[:3] {
			if n != from {
				m.answers(n, from)
			}
		}
		m.answers(from, m.Nodes[0])
		cancel()
	}
	m.invariant()
	t.Logf("%d kills, no answers: %s", kills, outages)
}

// has returns the node that has an address, as the pod's node was told.
func (m *moving) has(addr netip.Addr) (owner *Node) {
	m.t.Helper()
	require.NoError(m.t, AwaitRows(m.ctx, m.Nodes[0].Agent, "egress-ips",
		func(rows []tables.EgressIP) error {
			for _, row := range rows {
				for _, n := range m.gateways() {
					if row.Addr == addr && row.Owner == n.Name {
						owner = n
						return nil
					}
				}
			}
			return fmt.Errorf("no node has %s: %+v", addr, rows)
		}))
	return owner
}

// answers waits until a node answers probes of another one.
func (m *moving) answers(by, node *Node) {
	m.t.Helper()
	require.NoError(m.t, AwaitRows(m.ctx, by.Agent, "gateway-health",
		func(rows []tables.GatewayHealth) error {
			for _, row := range rows {
				answers := row.State == tables.PathHealthy || row.State == tables.PathRecovering
				if row.Node == node.Name && answers {
					return nil
				}
			}
			return fmt.Errorf("%s does not answer %s: %+v", node.Name, by.Name, rows)
		}))
}
