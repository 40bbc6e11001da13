// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
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
func (l *ledgerTest) open(network string, count int, pods map[*Pod]*Node) (opened []*seenConnection) {
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
		if tcp, ok := c.conn.(*net.TCPConn); ok && reset {
			require.NoError(l.t, tcp.SetLinger(0))
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

// TestTrafficLedger: the ledgers of the nodes say of each connection of several pods which pod it
// was, from the address, the port and the time that the server has seen: with addresses that move
// and with one of a node, over TCP and UDP, of before there was a ledger and after, while the
// address moves, and while the agent of the pods' node is dead after it was killed. Each has a
// begin and an end. What is missing is counted.
func TestTrafficLedger(t *testing.T) {
	t.Parallel()
	l := &ledgerTest{moving: newMoving(t, time.Second, "--ct-gc-interval=5s")}
	pods, ofNode := map[*Pod]*Node{l.pod: l.Nodes[0]}, map[*Pod]*Node{}
	gateway := l.Nodes[1]
	for i, n := range []*Node{l.Nodes[0], l.Nodes[1], l.Nodes[2]} {
		pods[l.traffic.pod(n, fmt.Sprint("pool-", i), "a")] = n
		ofNode[l.traffic.pod(n, fmt.Sprint("node-", i), "n")] = gateway
	}
	l.policy(
		egress{name: "node4", app: "n", to: []netip.Prefix{host(ServerIPv4)},
			exits: []exit{{node: gateway.Name, ip: gateway.EgressIPv4}}},
		egress{name: "node6", app: "n", to: []netip.Prefix{host(ServerIPv6)},
			exits: []exit{{node: gateway.Name, ip: gateway.EgressIPv6}}},
	)
	var every []*Pod
	for pod := range pods {
		every = append(every, pod)
	}
	l.inForce([]string{"ip32", "ip128"}, every...)
	var ofNodes []*Pod
	for pod := range ofNode {
		ofNodes = append(ofNodes, pod)
		l.becomes(pod.Namespace, ServerIPv4, gateway.EgressIPv4)
		l.becomes(pod.Namespace, ServerIPv6, gateway.EgressIPv6)
	}
	all := map[*Pod]*Node{}
	for _, some := range []map[*Pod]*Node{pods, ofNode} {
		for pod, at := range some {
			all[pod] = at
		}
	}

	old := l.open("tcp", 3, all) // before there is a ledger
	for _, n := range l.Nodes {
		require.NoError(t, n.Agent.Stop())
		n.Agent.Flags = append(n.Agent.Flags, "--ledger-file="+l.file(n))
		require.NoError(t, n.Agent.Start())
		require.NoError(t, n.Agent.AwaitReady(l.ctx))
	}
	for _, c := range old { // answers of before are of no ledger
		l.eventually("the ledger has found it", func() error {
			if answer, err := l.lookUp(c, time.Now()); err != nil || len(answer.Held) != 1 {
				return fmt.Errorf("%+v: %w", answer, err)
			}
			return nil
		})
	}
	l.inForce([]string{"ip32", "ip128"}, every...)
	for _, addr := range movings {
		require.NoError(t, l.owner(addr).Agent.awaitLease(l.ctx, addr))
		l.carries(addr, l.owner(addr))
	}

	seen := append(old, l.open("tcp", 10, all)...)
	short, idle := l.open("tcp", 5, all), l.open("udp", 3, all)
	l.end(short, true)
	seen = append(append(seen, short...), idle...)

	l.chat()
	from := l.owner(moving4)
	l.change(from, func(s *nodeState) { s.drained = true })
	meanwhile := l.open("tcp", 5, all)
	for _, addr := range movings {
		l.carries(addr, l.other(from))
	}
	l.ask(old)
	l.ask(meanwhile)
	seen = append(seen, meanwhile...)

	node := l.Nodes[0]
	node.Agent.Kill()
	dead := l.open("tcp", 5, all)
	l.end(meanwhile, true)
	seen = append(append(seen, dead...), l.open("udp", 3, all)...)
	require.NoError(t, node.Agent.Start())
	require.NoError(t, node.Agent.AwaitReady(l.ctx))
	l.ask(old)
	after := l.open("tcp", 5, all)
	l.ask(dead)
	seen = append(seen, after...)
	l.end(append(append(append([]*seenConnection{}, old...), dead...), after...), false)

	absent := 0
	for i, c := range seen {
		for _, at := range c.asked {
			answer, err := l.lookUp(c, at)
			require.NoError(t, err)
			if len(answer.Held) == 0 {
				t.Logf("%d: nothing of %s of %s with %s at %s", i, c.network, c.pod.Name, c.source, at)
				absent++
				continue
			}
			require.Len(t, answer.Held, 1, "%d: %s with %s at %s", i, c.network, c.source, at)
			held := answer.Held[0]
			require.Equal(t, c.pod.Name, held.Namespace+"/"+held.Pod)
			require.Equal(t, c.conn.LocalAddr().String(), held.PodAddress.String())
			require.Equal(t, c.pod.Node.Name, held.Node)
		}
	}
	require.LessOrEqual(t, absent, int(l.counted()))
	t.Logf("%d connections", len(seen))

	for _, pod := range append(every, ofNodes...) {
		require.NoError(t, l.RemovePod(pod))
	}
	reasons := map[string]int{}
	l.eventually("each has an end", func() error {
		clear(reasons)
		for i, c := range seen {
			answer, err := l.lookUp(c, c.asked[len(c.asked)-1])
			if err != nil {
				return err
			}
			for _, held := range answer.Held {
				if held.Event != ledger.Begin || held.Until.IsZero() {
					return fmt.Errorf("%d: %+v", i, held)
				}
				reasons[held.EndReason]++
			}
		}
		return nil
	})
	t.Logf("ends: %v", reasons)
	for _, addr := range movings {
		require.NoError(t, misuse(l.uses.all(), addr, l.lease, l.macs))
	}
}
