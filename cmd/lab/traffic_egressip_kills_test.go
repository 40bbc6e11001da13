// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

// envKills is how often a gateway loses its power.
const envKills = "SLUICE_TEST_KILLS"

// TestTrafficEgressIPKills has the gateway with the addresses lose its power again and again, and
// logs for how long the flows of a pod had no answers: by the default lease, one flow with each
// address. For each kill it logs what agents and the world saw, and when.
func TestTrafficEgressIPKills(t *testing.T) {
	t.Parallel()
	count := 3
	if text := os.Getenv(envKills); text != "" {
		var err error
		count, err = strconv.Atoi(text)
		require.NoError(t, err, envKills)
	}
	k := kills{moving: newMoving(t, 225*time.Millisecond), line: &timeline{},
		reports: map[netip.Addr][]StreamReport{}}
	k.followAll()
	begin := time.Now()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("in the world %s is at %s, %s at %s; since the last kill began:%s", moving4,
				k.neighbor(moving4), moving6, k.neighbor(moving6), k.line.since(begin))
		}
	})
	for kill := range count {
		begin = time.Now()
		var cancel context.CancelFunc
		k.ctx, cancel = context.WithTimeout(context.Background(), timeout)
		k.kill(kill)
		cancel()
	}
	k.ended.Wait()
	for addr, reports := range k.reports {
		for _, r := range reports {
			for source := range r.Addresses() {
				require.Equal(t, addr, source)
			}
		}
	}
	k.invariant()
	t.Logf("%d kills, %d moves of an address, no answers: %s; announced after: %s", count,
		len(k.outages), k.outages, k.announced)
}

// kills are those of a test.
type kills struct {
	*moving
	line  *timeline
	ended sync.WaitGroup // flows of former kills

	outages   times // without answers
	announced times // from the last packet of the former owner to the next one's announcement

	mu      sync.Mutex
	reports map[netip.Addr][]StreamReport
}

const (
	// killRate is of datagrams a second.
	killRate = 200
	// soonest is less than it takes to lose a gateway: an address that is elsewhere by then was
	// about to go there anyway, as when a node is healthy after a former kill.
	soonest = 100 * time.Millisecond
)

// followAll has the timeline tell what it takes until the world gets packets from another node.
func (k *kills) followAll() {
	for _, n := range k.Nodes[:3] { // they vote
		follow(k.t, k.line, n, "gateway-health", func(row tables.GatewayHealth) string {
			return row.Node + " is " + string(row.State)
		})
		follow(k.t, k.line, n, "egress-ip-votes", func(row tables.EgressIPVote) string {
			return fmt.Sprintf("votes for %s at %s %s", row.Addr, row.Node, row.Wait)
		})
	}
	for _, n := range k.gateways() {
		follow(k.t, k.line, n, "egress-ip-leases", func(row tables.EgressIPLease) string {
			return fmt.Sprintf("%s: votes %s, held %t, assigned %t %s",
				row.Addr, row.Votes, row.Held, row.Assigned, row.Problem)
		})
	}
	follow(k.t, k.line, k.Nodes[0], "egress-ips", func(row tables.EgressIP) string {
		return fmt.Sprintf("%s is to be at %s, is at %s", row.Addr, row.Node, row.Owner)
	})
}

// kill has the node with the addresses lose its power, and waits until flows go on by the other
// one. Then the first one is back: it need not be healthy yet.
func (k *kills) kill(number int) {
	from := k.settled()
	to := k.other(from)
	flows := map[netip.Addr]*Stream{}
	for _, addr := range movings {
		flow, err := k.StartStream(k.pod.Namespace, serverFor(addr), killRate)
		require.NoError(k.t, err)
		flows[addr] = flow
	}
	answered := func(what string) {
		for _, addr := range movings {
			before := flows[addr].Report().Answered
			k.eventually(what, func() error {
				if r := flows[addr].Report(); r.Answered < before+killRate/5 {
					return fmt.Errorf("%s", r)
				}
				return nil
			})
		}
	}
	answered("flows go on")
	time.Sleep(rand.N(100 * time.Millisecond)) // at any time between probes
	waits := k.waits()
	begin := time.Now()
	k.powerOff(from)
	off := time.Since(begin)
	for _, addr := range movings {
		k.eventually("another node has the address", func() error {
			if n := k.has(addr); n != to {
				return fmt.Errorf("%s is at %s", addr, n.Name)
			}
			return nil
		})
	}
	answered("flows go on by another node")
	for name, wait := range k.waits() {
		waits[name] = (wait - waits[name]).Round(time.Millisecond)
	}
	for _, addr := range movings {
		died := k.lastUse(addr, from, begin)
		announced, packet := k.took(fmt.Sprintf("kill %d of %s", number, from.Name), addr, to, died)
		if outage := flows[addr].Report().Gap.Round(time.Millisecond); packet < soonest {
			k.t.Logf("kill %d: no answers for %s, not counted: it was moving already", number, outage)
		} else {
			k.outages = append(k.outages, outage)
			k.announced = append(k.announced, announced)
			k.t.Logf("kill %d: no answers for %s", number, outage)
		}
		k.ended.Go(func() {
			r := flows[addr].Stop()
			k.mu.Lock()
			defer k.mu.Unlock()
			k.reports[addr] = append(k.reports[addr], r)
		})
	}
	k.t.Logf("kill %d of %s, which took %s; waits for a processor: %v, load %s:%s", number, from.Name,
		off.Round(time.Millisecond), waits, loadAverage(k.t), k.line.since(begin, from.Name))
	k.powerOn(from)
	for _, n := range k.Nodes[:3] {
		if n != from {
			k.answers(n, from)
		}
	}
	k.answers(from, k.Nodes[0])
}

// lastUse returns when the world got the last packet from an address by a node, a time if none did
// after that.
func (k *kills) lastUse(addr netip.Addr, by *Node, last time.Time) time.Time {
	for _, u := range k.uses.all() {
		if u.addr == addr && u.what == usePacket && k.macs[u.mac] == by.Name && u.at.After(last) {
			last = u.at
		}
	}
	return last
}

// waits returns for how long the agents, and this process, have waited for a processor so far.
func (k *kills) waits() map[string]time.Duration {
	k.t.Helper()
	waits := map[string]time.Duration{"this test": waited(k.t, os.Getpid())}
	for _, n := range k.Nodes[:3] {
		waits[n.Name] = waited(k.t, n.Agent.PID())
	}
	return waits
}

// loadAverage returns the load of the machine in the last minute.
func loadAverage(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/loadavg")
	require.NoError(t, err)
	average, _, _ := strings.Cut(string(text), " ")
	return average
}

// settled returns the node that has the addresses, once it and the node of the pod want them there.
func (k *kills) settled() (owner *Node) {
	k.t.Helper()
	k.eventually("one node has the addresses", func() error {
		owner = k.has(moving4)
		for _, addr := range movings {
			for _, n := range []*Node{k.Nodes[0], owner} {
				rows, err := Rows[tables.EgressIP](k.ctx, n.Agent, "egress-ips")
				if err != nil {
					return err
				}
				for _, row := range rows {
					if row.Addr == addr && (row.Node != owner.Name || row.Owner != owner.Name) {
						return fmt.Errorf("on %s %+v", n.Name, row)
					}
				}
			}
		}
		return nil
	})
	return owner
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
