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
)

// envKills is how often a gateway loses its power.
const envKills = "SLUICE_TEST_KILLS"

// TestTrafficEgressIPKills has the gateway with the addresses lose its power again and again, and
// logs for how long the flows of a pod had no answers: by the default lease, one flow with each
// address.
func TestTrafficEgressIPKills(t *testing.T) {
	t.Parallel()
	kills := 2
	if text := os.Getenv(envKills); text != "" {
		var err error
		kills, err = strconv.Atoi(text)
		require.NoError(t, err, envKills)
	}
	const rate = 200
	m := newMoving(t, 250*time.Millisecond)
	var outages times
	for kill := range kills {
		var cancel context.CancelFunc
		m.ctx, cancel = context.WithTimeout(context.Background(), timeout)
		defer cancel()
		from := m.owner(moving4)
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
					if r := flows[addr].Report(); r.Answered < before+rate {
						return fmt.Errorf("%s", r)
					}
					return nil
				})
			}
		}
		answered("flows go on")
		m.powerOff(from)
		for _, addr := range movings {
			m.carries(addr, to)
		}
		answered("flows go on by another node")
		for _, addr := range movings {
			r := m.stays(addr, flows[addr])
			outage := time.Duration(r.Lost()) * time.Second / rate
			outages = append(outages, outage)
			t.Logf("kill %d: %s: no answers for %s", kill, addr, outage)
		}
		m.invariant()
		m.powerOn(from)
		// Agents that start anew have forgotten that the node was lost.
		for _, n := range m.Nodes[:3] {
			require.NoError(t, n.Agent.Restart())
			require.NoError(t, n.Agent.AwaitReady(m.ctx))
		}
		for _, addr := range movings {
			m.carries(addr, from)
		}
	}
	t.Logf("%d kills, no answers: %s", kills, outages)
}
