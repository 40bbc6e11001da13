// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

// envBusy is for how long there are busy processes.
const envBusy = "SLUICE_TEST_BUSY"

// TestTrafficEgressIPBusy: beside twice as many busy processes as there are processors, no node
// loses a gateway, and no address moves. It logs for how long the flows of a pod had no answers.
func TestTrafficEgressIPBusy(t *testing.T) {
	t.Parallel()
	busy := 5 * time.Second
	if text := os.Getenv(envBusy); text != "" {
		var err error
		busy, err = time.ParseDuration(text)
		require.NoError(t, err, envBusy)
	}
	m := newMoving(t, 225*time.Millisecond)
	owners := map[netip.Addr]*Node{}
	for _, addr := range movings {
		owners[addr] = m.has(addr)
	}
	line := &timeline{}
	for _, n := range m.Nodes {
		follow(t, line, n, "gateway-health", func(row tables.GatewayHealth) string {
			return row.Node + " is " + string(row.State)
		})
	}
	for _, n := range m.gateways() {
		follow(t, line, n, "egress-ip-leases", func(row tables.EgressIPLease) string {
			return fmt.Sprintf("%s: held %t", row.Addr, row.Held)
		})
	}
	for range 2 * runtime.NumCPU() {
		loop := exec.CommandContext(t.Context(), "sh", "-c", "while :; do :; done")
		require.NoError(t, loop.Start())
		t.Cleanup(func() { _ = loop.Wait() }) // it was killed
	}
	// Flows of some minutes each, as all of their datagrams are kept.
	const flowTime = 2 * time.Minute
	begin := time.Now()
	sent, lost, gap := uint64(0), uint64(0), time.Duration(0)
	for left := busy; left > 0; left -= flowTime {
		flows := map[netip.Addr]*Stream{}
		for _, addr := range movings {
			flow, err := m.StartStream(m.pod.Namespace, serverFor(addr), movingRate)
			require.NoError(t, err)
			flows[addr] = flow
		}
		time.Sleep(min(left, flowTime))
		for addr, flow := range flows {
			r := m.stays(addr, flow)
			sent, lost, gap = sent+r.Sent, lost+r.Lost(), max(gap, r.Gap)
		}
		t.Logf("after %s: %d of %d datagrams had no answer, none for %s at most; load %s",
			time.Since(begin).Round(time.Second), lost, sent, gap.Round(time.Millisecond),
			loadAverage(t))
	}
	seen := line.since(begin)
	silent := strings.Count(seen, "held false")
	t.Logf("in %s a majority was late %d times:%s", time.Since(begin).Round(time.Second), silent, seen)
	for _, u := range m.uses.all() {
		require.True(t, u.at.Before(begin) || m.macs[u.mac] == owners[u.addr].Name, "%+v", u)
	}
	require.NotContains(t, seen, " is "+string(tables.PathLost))
	m.invariant()
}
