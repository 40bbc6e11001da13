// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

// TestTrafficEgressIPMoves: an address leaves by the node that has it, and goes to the other one
// when that is drained, labeled away or not ready, and back. No packet of the pod has another
// address meanwhile, and the world sends to the new node without having asked.
func TestTrafficEgressIPMoves(t *testing.T) {
	t.Parallel()
	m := newMoving(t, time.Second)
	for _, addr := range movings {
		m.sees(m.pod.Namespace, serverFor(addr), addr)
	}
	// From here on the world does not ask again which host has an address that it knows.
	for _, family := range []string{"ipv4", "ipv6"} {
		require.NoError(t, m.World.Sysctl(
			"net."+family+".neigh."+worldDevice+".delay_first_probe_time=3600"))
	}
	flows := m.flows()
	m.chat()
	for what, change := range map[string]func(*nodeState, bool){
		"cordoned":  func(s *nodeState, on bool) { s.cordoned = on },
		"drained":   func(s *nodeState, on bool) { s.drained = on },
		"unlabeled": func(s *nodeState, on bool) { s.unlabeled = on },
		"not ready": func(s *nodeState, on bool) { s.notReady = on },
	} {
		for _, addr := range movings {
			from := m.owners[addr]
			to := m.other(from)
			for _, step := range []struct {
				on bool
				to *Node
			}{{true, to}, {false, from}} {
				begin := time.Now()
				m.change(from, func(s *nodeState) { change(s, step.on) })
				m.becomesOwner(addr, step.to)
				m.eventually("the world learns where it is", func() error {
					if n := m.neighbor(addr); n != step.to.Name {
						return fmt.Errorf("%s is at %q", addr, n)
					}
					return nil
				})
				m.carries(addr, step.to)
				m.invariant()
				m.took(fmt.Sprintf("%s: %t", what, step.on), addr, step.to, begin)
			}
		}
	}
	for addr, flow := range flows {
		m.stays(addr, flow)
	}
	m.invariant()
}

// TestTrafficEgressIPAgentKilled: when the agent of the node with an address is killed, and starts
// again, the address stays by the votes of others, and no packet is lost.
func TestTrafficEgressIPAgentKilled(t *testing.T) {
	t.Parallel()
	m := newMoving(t, 5*time.Second)
	flows := m.flows()
	for _, n := range m.gateways() {
		n.Agent.Kill()
		require.NoError(t, n.Agent.Start())
		require.NoError(t, n.Agent.AwaitReady(m.ctx))
	}
	for _, addr := range movings {
		owner := m.owners[addr]
		require.NoError(t, owner.Agent.awaitLease(m.ctx, addr))
		m.carries(addr, owner)
		r := m.stays(addr, flows[addr])
		require.Zero(t, r.Lost(), r)
		for _, u := range m.uses.all() {
			require.True(t, u.addr != addr || m.macs[u.mac] == owner.Name, u)
		}
	}
	m.invariant()
}

// awaitLease waits until a node has an address.
func (a *Agent) awaitLease(ctx context.Context, addr netip.Addr) error {
	return AwaitRows(ctx, a, "egress-ip-leases", func(rows []tables.EgressIPLease) error {
		for _, row := range rows {
			if row.Addr == addr && row.Assigned && row.Held {
				return nil
			}
		}
		return fmt.Errorf("it has not %s: %+v", addr, rows)
	})
}

// TestTrafficEgressIPDeviceLost: when the device with an address has no link any more, while the
// node answers probes, the addresses go to the other node and stay there when the link is back.
func TestTrafficEgressIPDeviceLost(t *testing.T) {
	t.Parallel()
	m := newMoving(t, time.Second)
	from := m.owners[moving4]
	require.Equal(t, from, m.owners[moving6], "by chance, which simplifies the test")
	to := m.other(from)
	flows, begin := m.flows(), time.Now()
	m.carrier(from, false)
	for _, addr := range movings {
		m.carries(addr, to)
		m.took("no link", addr, to, begin)
	}
	m.carrier(from, true)
	for _, addr := range movings {
		m.World.forget(t, addr)
		m.carries(addr, to)
		m.stays(addr, flows[addr])
	}
	m.invariant()
}

// TestTrafficEgressIPOwnerLost: when the node with an address is cut off from the others, or its
// agent stands still and the Node is not ready, the other node has the address soon. The former
// one, whose kernel has the address still, neither answers for it nor sends with it, also when it
// comes back. That its agent stands still changes nothing.
func TestTrafficEgressIPOwnerLost(t *testing.T) {
	t.Parallel()
	m := newMoving(t, time.Second)
	m.chat()
	from := m.owners[moving4]
	to := m.other(from)
	require.Equal(t, from, m.owners[moving6], "by chance, which simplifies the test")
	for _, lost := range []struct {
		name            string
		goes, comesBack func()
	}{
		{stopped, func() {
			m.pause(from)
			before := time.Now()
			for time.Since(before) < 3*m.lease {
				for _, addr := range movings {
					m.carries(addr, from)
				}
			}
			m.change(from, func(s *nodeState) { s.notReady = true })
		}, func() {
			m.resume(from)
		}},
		{"cut off", func() { m.cut(from) }, func() { m.plugIn(from) }},
		{"without any link", func() { m.cut(from); m.carrier(from, false) }, func() {
			m.carrier(from, true) // which it would announce its addresses at
			for _, addr := range movings {
				m.World.forget(t, addr)
				m.carries(addr, to)
			}
			m.plugIn(from)
		}},
	} {
		flows, begin := m.flows(), time.Now()
		lost.goes()
		for _, addr := range movings {
			m.carries(addr, to)
			if lost.name == stopped {
				require.True(t, from.hasAddress(addr), "its agent cannot know")
			}
			m.World.forget(t, addr)
			m.carries(addr, to) // the world asks who has it
			m.took(lost.name, addr, to, begin)
		}
		for _, addr := range movings {
			if lost.name == stopped {
				break
			}
			m.eventually("the former owner gives it up", func() error {
				if from.hasAddress(addr) {
					return errors.New("it has it")
				}
				return nil
			})
		}
		lost.comesBack()
		m.change(from, func(s *nodeState) { s.notReady = false })
		for _, addr := range movings {
			m.carries(addr, from)
			m.stays(addr, flows[addr])
		}
		m.invariant()
	}
}
