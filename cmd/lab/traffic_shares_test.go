// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
)

// flood is a pod that sends packets as fast as it may.
type flood struct {
	rounds atomic.Int32 // that it has sent them all
	stop   context.CancelFunc
	done   sync.WaitGroup
	err    error
}

// flood has a pod send packets again and again, until it is stopped.
func (tr *traffic) flood(from *Pod, packets [][]byte) *flood {
	tr.t.Helper()
	fd := -1
	require.NoError(tr.t, from.Run(func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		return err
	}))
	ctx, cancel := context.WithCancel(tr.ctx)
	f := &flood{stop: cancel}
	f.done.Go(func() {
		defer unix.Close(fd)
		for ; ctx.Err() == nil; f.rounds.Add(1) {
			for i, packet := range packets {
				if i%50 == 0 {
					time.Sleep(time.Millisecond) // the queues of the lab are short
				}
				err := unix.Sendto(fd, packet, 0, &unix.SockaddrInet4{Addr: [4]byte(packet[16:20])})
				if err != nil && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EINTR) {
					f.err = err
					return
				}
			}
		}
	})
	tr.t.Cleanup(f.end)
	return f
}

func (f *flood) end() {
	f.stop()
	f.done.Wait()
}

// askUntilHeard asks by a flow of UDP, again and again, as a datagram may be lost in the flood.
func (tr *traffic) askUntilHeard(conn net.Conn) (source netip.Addr) {
	tr.t.Helper()
	tr.eventually("the server answers a flow of UDP", func() error {
		heard, err := askWithin(tr.ctx, conn, 2*time.Second)
		source = heard.Addr()
		return err
	})
	return source
}

// A pod that takes all ports of a shared egress IP towards a server gets its share. Another
// one begins flows while it tries, and it goes on with those that it has.
func TestTrafficPortsAreShared(t *testing.T) {
	t.Parallel()
	const ports = 200
	tr := newTraffic(t, Options{Nodes: 2, AgentFlags: []string{"--shared-ports=10000-10199"}})
	n1, n2 := tr.Nodes[0], tr.Nodes[1]
	attacker, victim := tr.pod(n1, "attacker", "a"), tr.pod(n1, "victim", "a")
	tr.policy(egress{name: "bank", app: "a", to: []netip.Prefix{coveredIPv4}, exits: []exit{{node: n2.Name, ip: n2.OutsideIPv4}}})
	tr.inForce([]string{"bank"}, attacker, victim)
	require.NoError(t, tr.AwaitSources(tr.ctx, true, []*Node{n2}, attacker, victim))

	own := tr.dial(attacker.Namespace, "udp", ServerIPv4)
	tr.askUntilHeard(own)

	var datagrams [][]byte
	for port := range uint16(10 * ports) {
		datagrams = append(datagrams, ipv4UDP(attacker.IPv4, ServerIPv4, 20000+port, Port, []byte("take")))
	}
	attack := tr.flood(attacker, datagrams)
	tr.eventually("the attacker has sent from all its ports", func() error {
		if n := attack.rounds.Load(); n < 2 {
			return fmt.Errorf("%d rounds", n)
		}
		return nil
	})
	for range 20 {
		require.Equal(t, n2.OutsideIPv4, tr.askUntilHeard(tr.dial(victim.Namespace, "udp", ServerIPv4)))
	}
	tr.askUntilHeard(own) // from before
	require.NotZero(t, tr.count(n2, bpf.ReasonPortShare))
	require.Zero(t, tr.count(n2, bpf.ReasonNoSNATPort), "there are always free ones")
	tr.reported(n2, attacker.Name, bpf.ReasonPortShare)
	attack.end()
	require.NoError(t, attack.err)

	// What has ended does not count. Of TCP it ends soon.
	var conns []net.Conn
	for range ports/2 + 1 {
		conn := tr.dial(attacker.Namespace, "tcp", ServerIPv4)
		_, err := askSoon(tr.ctx, conn)
		require.NoError(t, err)
		conns = append(conns, conn)
	}
	_, err := tr.askFor(attacker.Namespace, "tcp", ServerIPv4, 2*time.Second)
	require.True(t, isTimeout(err), "%v", err)
	for _, conn := range conns {
		require.NoError(t, conn.Close())
	}
	tr.eventually("the attacker may begin connections again", func() error {
		_, err := tr.askFor(attacker.Namespace, "tcp", ServerIPv4, 2*time.Second)
		return err
	})
	tr.noLeaks(n2.OutsideIPv4)
}

// A pod that opens more connections than there is room for gets its share. Idle connections of
// another one, which the maps would have evicted, go on, and it opens new ones.
func TestTrafficConnectionsAreShared(t *testing.T) {
	t.Parallel()
	const room = 4096
	tr := newTraffic(t, Options{Nodes: 2, AgentFlags: []string{
		fmt.Sprintf("--map-size-ct-tcp=%d", room), fmt.Sprintf("--map-size-nat=%d", room),
		"--shared-ports=10000-29999", // none of them is a port of the victim's, which it could have again
	}})
	n1, n2 := tr.Nodes[0], tr.Nodes[1]
	attacker, victim := tr.pod(n1, "attacker", "a"), tr.pod(n1, "victim", "a")
	tr.policy(egress{name: "bank", app: "a", to: []netip.Prefix{coveredIPv4}, exits: []exit{{node: n2.Name, ip: n2.OutsideIPv4}}})
	tr.inForce([]string{"bank"}, attacker, victim)
	require.NoError(t, tr.AwaitSources(tr.ctx, true, []*Node{n2}, attacker, victim))

	var idle []net.Conn
	for range 20 {
		conn := tr.dial(victim.Namespace, "tcp", ServerIPv4)
		_, err := askSoon(tr.ctx, conn)
		require.NoError(t, err)
		idle = append(idle, conn)
	}
	var opening [][]byte
	for i := range uint16(3 * room) {
		opening = append(opening, ipv4SYN(attacker.IPv4, ServerIPv4, 10000+i%128, 1+i/128))
	}
	attack := tr.flood(attacker, opening)
	tr.eventually("the attacker has opened more than there is room for", func() error {
		if n := attack.rounds.Load(); n < 2 {
			return fmt.Errorf("%d rounds", n)
		}
		return nil
	})
	for range 20 {
		source, err := tr.ask(victim.Namespace, "tcp", ServerIPv4)
		require.NoError(t, err, "a new connection of the victim")
		require.Equal(t, n2.OutsideIPv4, source)
	}
	for _, conn := range idle {
		_, err := askSoon(tr.ctx, conn)
		require.NoError(t, err, "an idle connection of the victim")
	}
	attack.end()
	require.NoError(t, attack.err)
	require.NotZero(t, tr.count(n1, bpf.ReasonConnectionShare)+tr.count(n2, bpf.ReasonConnectionShare))
	tr.noLeaks(n2.OutsideIPv4)
}
