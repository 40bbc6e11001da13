// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/reconcilers/ledger"
)

// ledgerTest has the agents of a moving cluster write a ledger each.
type ledgerTest struct {
	*moving
	mu sync.Mutex
}

// seenConnection is one that the server has seen, with its source.
type seenConnection struct {
	pod     *Pod
	at      *Node // which translates it
	network string
	source  netip.AddrPort
	to      netip.AddrPort
	asked   []time.Time // when the server has answered
	conn    net.Conn
}

func (l *ledgerTest) file(n *Node) string { return filepath.Join(n.Agent.dir, "ledger.jsonl") }

// open has the pods open so many connections each, all at the same time, and keep them.
func (l *ledgerTest) open(
	network string, count int, pods map[*Pod]*Node,
) (opened []*seenConnection) {
	l.t.Helper()
	var all sync.WaitGroup
	for pod, at := range pods {
		for _, addr := range []netip.Addr{ServerIPv4, ServerIPv6} {
			all.Go(func() {
				for range count {
					c := &seenConnection{
						pod: pod, at: at, network: network, to: netip.AddrPortFrom(addr, Port),
						conn: l.dial(pod.Namespace, network, addr),
					}
					l.mu.Lock()
					opened = append(opened, c)
					l.mu.Unlock()
				}
			})
		}
	}
	all.Wait()
	require.Len(l.t, opened, 2*count*len(pods))
	l.ask(opened)
	return opened
}

// ask has the server say which source connections have: the same each time.
func (l *ledgerTest) ask(conns []*seenConnection) {
	l.t.Helper()
	for _, c := range conns {
		source, err := askSoon(l.ctx, c.conn)
		require.NoError(l.t, err, "%s of %s", c.network, c.pod.Name)
		require.True(l.t, !c.source.IsValid() || c.source == source, "%s, before %s", source, c.source)
		c.source, c.asked = source, append(c.asked, time.Now())
	}
}

// end closes connections: those of TCP by RST if that is wanted.
func (l *ledgerTest) end(conns []*seenConnection, reset bool) {
	l.t.Helper()
	for _, c := range conns {
		if reset && c.network == "tcp" {
			require.NoError(l.t, abort(c.conn))
			continue
		}
		require.NoError(l.t, c.conn.Close())
	}
}

// lookUp returns what the ledger says of a connection at a time.
func (l *ledgerTest) lookUp(c *seenConnection, at time.Time) (ledger.Answer, error) {
	return ledger.Search(l.file(c.at), ledger.Question{
		Egress: c.source.Addr(), Port: c.source.Port(), Protocol: c.network, Destination: c.to,
		From: at, To: at,
	})
}

// counted returns how many records the ledgers say are missing.
func (l *ledgerTest) counted() (missing uint64) {
	l.t.Helper()
	for _, n := range l.Nodes {
		answer, err := ledger.Search(l.file(n), ledger.Question{Egress: moving4})
		require.NoError(l.t, err)
		for _, r := range answer.Missing {
			l.t.Logf("%s: %+v", n.Name, r)
			missing += r.Count
		}
		m, err := ebpf.LoadPinnedMap(
			filepath.Join(n.Agent.BPFFS(), "sluice", bpf.MissingMap), &ebpf.LoadPinOptions{ReadOnly: true})
		require.NoError(l.t, err)
		missed, _, err := (&bpf.Ledger{Missing: m}).Missed()
		require.NoError(l.t, errors.Join(err, m.Close()))
		require.LessOrEqual(l.t, missed, missing, "what had no room is told")
	}
	return missing
}

// holds fails the test unless the ledger says of each connection, at each time when the server has
// seen it, that it was of its pod alone. It returns of how many it says nothing.
func (l *ledgerTest) holds(conns []*seenConnection) (absent int) {
	l.t.Helper()
	for i, c := range conns {
		for _, at := range c.asked {
			answer, err := l.lookUp(c, at)
			require.NoError(l.t, err)
			if len(answer.Held) == 0 {
				l.t.Logf("%d: nothing of %s of %s with %s at %s", i, c.network, c.pod.Name, c.source, at)
				absent++
				continue
			}
			require.Len(l.t, answer.Held, 1, "%d: %s with %s at %s", i, c.network, c.source, at)
			held := answer.Held[0]
			require.Equal(l.t, c.pod.Name, held.Namespace+"/"+held.Pod)
			require.Equal(l.t, c.conn.LocalAddr().String(), held.PodAddress.String())
			require.Equal(l.t, c.pod.Node.Name, held.Node)
		}
	}
	return absent
}

// allEnd waits until each connection of which the ledger says anything has a begin and an end, for
// one of some reasons.
func (l *ledgerTest) allEnd(conns []*seenConnection, reasons ...string) {
	l.t.Helper()
	l.eventually("each has an end", func() error {
		for i, c := range conns {
			answer, err := l.lookUp(c, c.asked[len(c.asked)-1])
			if err != nil {
				return err
			}
			for _, held := range answer.Held {
				if held.Event != ledger.Begin || held.Until.IsZero() ||
					!slices.Contains(reasons, held.EndReason) {
					return fmt.Errorf("%d: %+v", i, held)
				}
			}
		}
		return nil
	})
}

// pings has each pod ping the server, and waits until the ledger says so.
func (l *ledgerTest) pings(egress netip.Addr, pods map[*Pod]*Node) {
	l.t.Helper()
	for pod, at := range pods {
		before := time.Now().Add(-time.Millisecond) // clocks are read one after the other
		source, err := l.traffic.ask(pod.Namespace, "icmp", ServerIPv4)
		require.NoError(l.t, err)
		require.Equal(l.t, egress, source)
		l.eventually("the ledger has the ping", func() error {
			answer, err := ledger.Search(l.file(at), ledger.Question{
				Egress: egress, Protocol: "ICMP", Destination: netip.AddrPortFrom(ServerIPv4, 0),
				From: before, To: time.Now(),
			})
			if err != nil {
				return err
			}
			for _, held := range answer.Held {
				if !held.Time.Before(before) && held.Namespace+"/"+held.Pod == pod.Name {
					return nil
				}
			}
			return fmt.Errorf("%s: %+v", pod.Name, answer)
		})
	}
}

// TestTrafficLedger: the ledgers of the nodes say of each connection of several pods which pod it
// was, from the address, the port and the time that the server has seen: with addresses that move
// and with one of a node, over TCP and UDP, of before there was a ledger and after, while the
// address moves, and while the agent of the pods' node is dead after it was killed. Each has a
// begin and an end. What is missing is counted.
func TestTrafficLedger(t *testing.T) {
	t.Parallel()
	l := &ledgerTest{moving: newMoving(t, time.Second, "--ct-gc-interval=5s")}
	gateway := l.Nodes[1]
	ofPool, ofNode := map[*Pod]*Node{l.pod: l.Nodes[0]}, map[*Pod]*Node{}
	for i, n := range l.Nodes[:3] { // those with ports of the addresses that move
		ofPool[l.traffic.pod(n, fmt.Sprint("pool-", i), "a")] = n
		ofNode[l.traffic.pod(n, fmt.Sprint("node-", i), "n")] = gateway
	}
	l.policy(
		egress{name: "node4", app: "n", to: []netip.Prefix{host(ServerIPv4)},
			exits: []exit{{node: gateway.Name, ip: gateway.EgressIPv4}}},
		egress{name: "node6", app: "n", to: []netip.Prefix{host(ServerIPv6)},
			exits: []exit{{node: gateway.Name, ip: gateway.EgressIPv6}}},
	)
	policies := []string{"ip32", "ip128", "node4", "node6"}
	all := maps.Clone(ofPool)
	maps.Copy(all, ofNode)
	pods := slices.Collect(maps.Keys(all))
	l.inForce(policies, pods...)
	for pod := range ofNode {
		l.becomes(pod.Namespace, ServerIPv4, gateway.EgressIPv4)
		l.becomes(pod.Namespace, ServerIPv6, gateway.EgressIPv6)
	}

	old := l.open("tcp", 3, all) // before there is a ledger
	for _, n := range l.Nodes {
		require.NoError(t, n.Agent.Stop())
		n.Agent.Flags = append(n.Agent.Flags, "--ledger-file="+l.file(n))
		require.NoError(t, n.Agent.Start())
	}
	l.inForce(policies, pods...)
	l.chat()
	from := l.owner(moving4)
	for _, addr := range movings {
		l.carries(addr, from)
	}
	l.eventually("the ledger has found them", func() error {
		for _, c := range old {
			if answer, err := l.lookUp(c, time.Now()); err != nil || len(answer.Held) != 1 {
				return fmt.Errorf("%+v: %w", answer, err)
			}
		}
		return nil
	})

	kept, reset, idle := l.open("tcp", 10, all), l.open("tcp", 5, all), l.open("udp", 3, all)
	l.pings(moving4, ofPool)
	l.pings(gateway.EgressIPv4, ofNode)
	l.end(reset, true)
	l.change(from, func(s *nodeState) { s.drained = true })
	moved := l.open("tcp", 5, all)
	for _, addr := range movings {
		l.carries(addr, l.other(from))
	}
	l.ask(old)
	l.ask(moved)

	node := l.Nodes[0]
	node.Agent.Kill()
	dead, deadIdle := l.open("tcp", 5, all), l.open("udp", 3, all)
	l.end(moved, true)
	require.NoError(t, node.Agent.Start())
	require.NoError(t, node.Agent.AwaitReady(l.ctx))
	after := l.open("tcp", 5, all)
	l.ask(slices.Concat(old, kept, dead))
	l.end(slices.Concat(old, dead, after), false)

	closed := slices.Concat(old, reset, moved, dead, after)
	every := slices.Concat(closed, kept, idle, deadIdle)
	absent := l.holds(every)
	t.Logf("%d connections, of which %d are not known", len(every), absent)
	require.LessOrEqual(t, absent, int(l.counted()))
	l.allEnd(closed, "expired")
	for _, pod := range pods {
		require.NoError(t, l.RemovePod(pod))
	}
	l.allEnd(every, "expired", "released")
	require.LessOrEqual(t, l.holds(every), absent, "it does not forget")
	for _, addr := range movings {
		require.NoError(t, misuse(l.uses.all(), addr, l.lease, l.macs))
	}
}
