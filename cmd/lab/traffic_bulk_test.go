// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bufio"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// envBulk is how many bytes are sent each way; 100 MB if it is not set.
const envBulk = "SLUICE_TEST_BULK_BYTES"

func bulkBytes(t *testing.T) int64 {
	text := os.Getenv(envBulk)
	if text == "" {
		return 100e6
	}
	n, err := strconv.ParseInt(text, 10, 64)
	require.NoError(t, err, envBulk)
	return n
}

// Bulk transfers by a gateway on another node arrive as they were sent, with the
// offloads of a virtual machine and without; what carries them is not fragmented.
func TestTrafficBulk(t *testing.T) {
	t.Parallel()
	tr := newTraffic(t, Options{NoCapture: true})
	n1, n2 := tr.Nodes[0], tr.Nodes[1]
	p := tr.pod(n1, "a", "a")
	tr.policy(
		egress{name: "bulk4", app: "a", to: []netip.Prefix{coveredIPv4}, exits: []exit{{node: n2.Name, ip: n2.EgressIPv4}}},
		egress{name: "bulk6", app: "a", to: []netip.Prefix{coveredIPv6}, exits: []exit{{node: n2.Name, ip: n2.EgressIPv6}}},
	)
	tr.inForce([]string{"bulk4", "bulk6"}, p)
	require.NoError(t, tr.AwaitSources(tr.ctx, true, []*Node{n2}, p))
	tr.becomes(p.Namespace, ServerIPv4, n2.EgressIPv4)

	size := bulkBytes(t)
	for _, offloads := range []bool{true, false} {
		require.NoError(t, tr.SetOffloads(offloads))
		for _, to := range []netip.Addr{ServerIPv4, ServerIPv6} {
			conn := tr.dial(p.Namespace, "tcp", to)
			require.NoError(t, conn.SetDeadline(time.Now().Add(trafficTimeout)))
			begin := time.Now()
			require.NoError(t, Upload(conn, size), "offloads %t, to %s", offloads, to)
			up := time.Since(begin)
			begin = time.Now()
			require.NoError(t, Download(conn, size), "offloads %t, to %s", offloads, to)
			t.Logf("offloads %t, to %s: %d bytes up in %s, down in %s", offloads, to, size, up, time.Since(begin))
			source, err := tr.askOn(conn)
			require.NoError(t, err)
			require.Contains(t, []netip.Addr{n2.EgressIPv4, n2.EgressIPv6}, source)
			require.NoError(t, conn.Close())
		}
	}
	for _, n := range tr.Nodes {
		tr.drops(n)
	}
	for _, n := range []*Namespace{n1.Namespace, n2.Namespace, tr.World.Namespace, p.Namespace} {
		counters, err := n.snmp()
		require.NoError(t, err)
		for name, value := range counters {
			if strings.Contains(name, "Frag") || strings.Contains(name, "Reasm") || strings.Contains(name, "CsumErr") {
				require.Zero(t, value, "%s of %s", name, n.Name)
			}
		}
		require.NotZero(t, counters["Ip InReceives"], n.Name)
		require.NotZero(t, counters["Ip6InReceives"], n.Name)
	}
}

// snmp returns the counters of the namespace's stack: of IPv4 such as "Ip
// FragCreates", of IPv6 such as "Ip6FragCreates".
func (n *Namespace) snmp() (map[string]uint64, error) {
	counters := map[string]uint64{}
	err := n.Run(func() error {
		// Of the thread, which is in the namespace; the process is not.
		four, err := os.ReadFile("/proc/thread-self/net/snmp")
		if err != nil {
			return err
		}
		var names []string
		for line := range strings.Lines(string(four)) {
			fields := strings.Fields(line)
			if len(names) == 0 {
				names = fields
				continue
			}
			for i := 1; i < len(fields) && i < len(names); i++ {
				value, _ := strconv.ParseUint(fields[i], 10, 64) // some may be negative
				counters[strings.TrimSuffix(fields[0], ":")+" "+names[i]] = value
			}
			names = nil
		}
		six, err := os.Open("/proc/thread-self/net/snmp6")
		if err != nil {
			return err
		}
		defer six.Close()
		for scanner := bufio.NewScanner(six); scanner.Scan(); {
			var name string
			var value uint64
			if _, err := fmt.Sscan(scanner.Text(), &name, &value); err == nil {
				counters[name] = value
			}
		}
		return nil
	})
	return counters, err
}
