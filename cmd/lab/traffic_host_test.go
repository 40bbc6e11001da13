// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// dialFrom connects from an address and port of the namespace; from port 0 the
// kernel chooses one. Sockets that had the port and are closed do not matter.
func (n *Namespace) dialFrom(ctx context.Context, network string, from, to netip.AddrPort) (conn net.Conn, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(from), KeepAlive: noKeepAlive}
	if from.Port() != 0 {
		dialer.Control = reuseAddress
	}
	if network == "udp" {
		dialer.LocalAddr = net.UDPAddrFromAddrPort(from)
	}
	err = n.Run(func() error {
		conn, err = dialer.DialContext(ctx, network, to.String())
		return err
	})
	return conn, err
}

func reuseAddress(_, _ string, socket syscall.RawConn) error {
	var failed error
	err := socket.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	})
	return errors.Join(err, failed)
}

// The gateway's own connections from the egress IP live beside those of pods, to the
// same server, from the same ports.
func TestTrafficHost(t *testing.T) {
	t.Parallel()
	const connections = 200 // of the host and of each pod
	const firstPort = 10000
	tr := newTraffic(t, Options{Nodes: 2})
	n1, n2 := tr.Nodes[0], tr.Nodes[1]
	pods := []*Pod{tr.pod(n1, "remote", "a"), tr.pod(n2, "local", "a")}
	tr.policy(
		egress{name: "bank4", app: "a", to: []netip.Prefix{coveredIPv4}, exits: []exit{{node: n2.Name, ip: n2.EgressIPv4}}},
		egress{name: "bank6", app: "a", to: []netip.Prefix{coveredIPv6}, exits: []exit{{node: n2.Name, ip: n2.EgressIPv6}}},
	)
	tr.inForce([]string{"bank4", "bank6"}, pods...)
	require.NoError(t, tr.AwaitSources(tr.ctx, true, []*Node{n2}, pods...))

	for _, network := range []string{"tcp", "udp"} {
		for _, to := range []netip.Addr{ServerIPv4, ServerIPv6} {
			t.Run(fmt.Sprintf("%s-%s", network, to), func(t *testing.T) {
				egressIP := n2.EgressIPv4
				if to.Is6() {
					egressIP = n2.EgressIPv6
				}
				who := []struct {
					*Namespace
					addr netip.Addr
				}{{n2.Namespace, egressIP}}
				for _, p := range pods {
					own := p.IPv4
					if to.Is6() {
						own = p.IPv6
					}
					who = append(who, struct {
						*Namespace
						addr netip.Addr
					}{p.Namespace, own})
				}
				// Who is first with a port is another one each time.
				type result struct {
					conn net.Conn
					who  string
				}
				var conns []result
				for i := range connections {
					for j := range who {
						w := who[(i+j)%len(who)]
						conn, err := w.dialFrom(tr.ctx, network, netip.AddrPortFrom(w.addr, uint16(firstPort+i)), netip.AddrPortFrom(to, Port))
						require.NoError(t, err, "%s from port %d", w.Name, firstPort+i)
						defer conn.Close()
						conns = append(conns, result{conn, w.Name})
						if network == "udp" { // is known once it has sent something
							_, err = askSoon(tr.ctx, conn)
							require.NoError(t, err, "%s from port %d", w.Name, firstPort+i)
						}
					}
				}
				// All at once, and twice: each has a source of its own, and keeps it.
				sources := make([]netip.AddrPort, len(conns))
				for round := range 2 {
					var wg sync.WaitGroup
					errs := make([]error, len(conns))
					got := make([]netip.AddrPort, len(conns))
					for i, c := range conns {
						wg.Go(func() { got[i], errs[i] = askSoon(tr.ctx, c.conn) })
					}
					wg.Wait()
					taken := map[netip.AddrPort]string{}
					for i, c := range conns {
						require.NoError(t, errs[i], "%s, %s, round %d", c.who, c.conn.LocalAddr(), round)
						require.Equal(t, egressIP, got[i].Addr(), c.who)
						require.Empty(t, taken[got[i]], "%s has the source %s of another", c.who, got[i])
						taken[got[i]] = c.who
						if round > 0 {
							require.Equal(t, sources[i], got[i], "%s, %s", c.who, c.conn.LocalAddr())
						}
						sources[i] = got[i]
					}
				}
			})
		}
	}
	for _, n := range tr.Nodes {
		tr.drops(n)
	}
}
