// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
)

// envRate is how many datagrams a second are sent in total.
const envRate = "SLUICE_TEST_RATE"

const (
	defaultRate = 10000
	loadPods    = 8
)

// load is traffic of pods on all nodes by gateways.
type load struct {
	tr      *traffic
	streams []*Stream
	begin   time.Time
	dropped uint64 // by the machine, before
}

func loadRate(t *testing.T) int {
	text := os.Getenv(envRate)
	if text == "" {
		return defaultRate
	}
	rate, err := strconv.Atoi(text)
	require.NoError(t, err, envRate)
	return rate
}

func startLoad(tr *traffic, pods []*Pod, to ...netip.Addr) *load {
	tr.t.Helper()
	l := &load{tr: tr, begin: time.Now(), dropped: machineDrops(tr.t)}
	rate := loadRate(tr.t) / (len(pods) * len(to))
	for _, p := range pods {
		for _, addr := range to {
			s, err := tr.StartStream(p.Namespace, addr, rate)
			require.NoError(tr.t, err)
			l.streams = append(l.streams, s)
		}
	}
	return l
}

// more waits until more datagrams have been answered on each stream.
func (l *load) more(n uint64) {
	l.tr.t.Helper()
	start := make([]uint64, len(l.streams))
	for i, s := range l.streams {
		start[i] = s.Report().Answered
	}
	l.tr.eventually("the load goes on", func() error {
		for i, s := range l.streams {
			if r := s.Report(); r.Answered < start[i]+n {
				return fmt.Errorf("stream %d: %v", i, r)
			}
		}
		return nil
	})
}

// end stops the load and asserts that nothing is lost, and that each stream had just
// one source, one of these.
func (l *load) end(sources ...netip.Addr) {
	l.tr.t.Helper()
	allowed := map[netip.Addr]bool{}
	for _, a := range sources {
		allowed[a] = true
	}
	var sent, lost uint64
	duration := time.Since(l.begin)
	for i, r := range stopAll(l.streams) {
		sent, lost = sent+r.Sent, lost+r.Lost()
		require.Len(l.tr.t, r.Sources, 1, "stream %d: %v", i, r)
		for source := range r.Sources {
			require.True(l.tr.t, allowed[source.Addr()], "stream %d: %v", i, r)
		}
		if r.Lost()+r.Refused > 0 {
			l.tr.t.Logf("stream %d: %v, missing %v", i, r, r.Missing)
		}
	}
	rate := float64(sent) / duration.Seconds()
	l.tr.t.Logf("%d datagrams and their answers, %.0f a second, lost %d", sent, rate, lost)
	require.LessOrEqual(l.tr.t, lost, machineDrops(l.tr.t)-l.dropped, "lost, though the machine could take it")
}

// machineDrops is how many packets the machine has dropped before they were seen,
// as a CPU had too many waiting: the limit is of the machine and not of a namespace.
func machineDrops(t *testing.T) (total uint64) {
	t.Helper()
	text, err := os.ReadFile("/proc/net/softnet_stat")
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) { // of a CPU: processed, dropped, and more
		dropped, err := strconv.ParseUint(strings.Fields(line)[1], 16, 64)
		require.NoError(t, err)
		total += dropped
	}
	return total
}

func stopAll(streams []*Stream) []StreamReport {
	reports := make([]StreamReport, len(streams))
	done := make(chan struct{})
	for i, s := range streams {
		go func() { reports[i] = s.Stop(); done <- struct{}{} }()
	}
	for range streams {
		<-done
	}
	return reports
}

// loaded is a cluster of pods by two gateways.
func loaded(t *testing.T) (tr *traffic, pods []*Pod) {
	// Not beside other tests: it is the machine's limit that would be tested.
	tr = newTraffic(t, Options{})
	n2, n3 := tr.Nodes[1], tr.Nodes[2]
	for i := range loadPods {
		pods = append(pods, tr.pod(tr.Nodes[i%3], fmt.Sprintf("a-%d", i), "a"))
	}
	tr.policy(egress{name: "bank", app: "a", to: []netip.Prefix{coveredIPv4}, exits: []exit{
		{node: n2.Name, ip: n2.EgressIPv4}, {node: n3.Name, ip: n3.EgressIPv4},
	}}, egress{name: "bank6", app: "a", to: []netip.Prefix{coveredIPv6}, exits: []exit{{node: n2.Name, ip: n2.EgressIPv6}}})
	tr.inForce([]string{"bank", "bank6"}, pods...)
	require.NoError(t, tr.AwaitSources(tr.ctx, true, []*Node{n2, n3}, pods...))
	for _, p := range pods {
		for _, to := range []netip.Addr{ServerIPv4, ServerIPv6} { // neighbours are known then
			_, err := tr.ask(p.Namespace, "udp", to)
			require.NoError(t, err)
		}
	}
	return tr, pods
}

// Agents are killed, started, and replaced, on the nodes of pods and on gateways,
// and forwarding goes on without loss.
func TestTrafficRestart(t *testing.T) {
	tr, pods := loaded(t)
	n2, n3 := tr.Nodes[1], tr.Nodes[2]
	l := startLoad(tr, pods, ServerIPv4, ServerIPv6)
	const between = 300 // datagrams of each stream
	l.more(between)
	for _, n := range tr.Nodes {
		n.Agent.Kill()
		l.more(between)
		require.NoError(t, n.Agent.Start())
		require.NoError(t, n.Agent.AwaitReady(tr.ctx))
		require.NoError(t, n.Agent.AwaitSettled(tr.ctx))
		l.more(between)
		require.NoError(t, n.Agent.Restart()) // by SIGTERM, as an upgrade does
		require.NoError(t, n.Agent.AwaitReady(tr.ctx))
		require.NoError(t, n.Agent.AwaitSettled(tr.ctx))
		l.more(between)
	}
	for _, n := range tr.Nodes {
		n.Agent.Kill()
	}
	l.more(between)
	require.NoError(t, tr.StartAgents())
	tr.inForce([]string{"bank", "bank6"}, pods...)
	l.more(between)
	l.end(n2.EgressIPv4, n3.EgressIPv4, n2.EgressIPv6)
	for _, n := range tr.Nodes {
		require.Empty(t, tr.drops(n), n.Name)
	}
	tr.noLeaks(n2.EgressIPv4, n3.EgressIPv4, n2.EgressIPv6)
}

// While the policy goes from one gateway to the other and back, each connection has
// one of the two egress IPs and keeps it, and nothing is lost.
func TestTrafficGatewayChange(t *testing.T) {
	tr, pods := loaded(t)
	n2, n3 := tr.Nodes[1], tr.Nodes[2]
	l := startLoad(tr, pods, ServerIPv4)
	l.more(100)
	seen, held := map[netip.Addr]int{}, 0
	const changes = 12
	for i := range changes {
		gateway := []*Node{n2, n3}[i%2]
		tr.policy(egress{name: "bank", app: "a", to: []netip.Prefix{coveredIPv4}, exits: []exit{{node: gateway.Name, ip: gateway.EgressIPv4}}})
		// New connections, during the change and after it.
		for done := false; !done; {
			done = true
			for _, p := range pods {
				for _, network := range []string{"tcp", "udp"} {
					within := patience
					if network == "udp" {
						within = silence / 2 // it is not sent again
					}
					source, err := tr.askFor(p.Namespace, network, ServerIPv4, within)
					if isTimeout(err) && network == "udp" {
						// The gateway heard of the policy after the pod's node.
						held++
						done = false
						continue
					}
					require.NoError(t, err, "change %d: %s from %s", i, network, p.Name)
					require.Contains(t, []netip.Addr{n2.EgressIPv4, n3.EgressIPv4}, source)
					seen[source]++
					done = done && source == gateway.EgressIPv4
				}
			}
		}
		l.more(50)
	}
	t.Logf("%d changes, new connections by source: %v, datagrams that came too early: %d", changes, seen, held)
	l.end(n2.EgressIPv4, n3.EgressIPv4)
	for _, n := range tr.Nodes {
		for reason := range tr.drops(n) {
			require.Contains(t, []bpf.Reason{bpf.ReasonNoRule, bpf.ReasonNoEgressIP}, reason, n.Name)
		}
	}
	tr.noLeaks(n2.EgressIPv4, n3.EgressIPv4, n2.EgressIPv6)
}
