// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
)

// The agents come to a cluster with live connections: none breaks that no policy
// concerns, and what a pod answers to who connected to it is not redirected.
func TestTrafficInstall(t *testing.T) {
	t.Parallel()
	tr := newTraffic(t, Options{NoAgents: true})
	n1, n2 := tr.Nodes[0], tr.Nodes[1]
	free := []*Pod{tr.pod(n1, "free", "none"), tr.pod(n2, "free-2", "none")}
	chosen := []*Pod{tr.pod(n1, "chosen", "a"), tr.pod(n2, "chosen-2", "a")}
	pods := append(append([]*Pod{}, free...), chosen...)
	// For once the world knows a way to the pods.
	for _, n := range []*Node{n1, n2} {
		v4, v6 := podNetworks(n.number)
		require.NoError(t, tr.World.addRoute(v4, n.OutsideIPv4, worldDevice))
		require.NoError(t, tr.World.addRoute(v6, n.OutsideIPv6, worldDevice))
	}

	type live struct {
		what   string
		check  func(time.Duration) error
		broken bool // it is to break
		pod    *Pod
	}
	var all []live
	for _, p := range pods {
		isChosen := p.Spec.Labels["app"] == "a"
		for _, to := range []netip.Addr{ServerIPv4, ServerIPv6, notCoveredIPv4, notCoveredIPv6} {
			conn := tr.dial(p.Namespace, "tcp", to)
			covered := coveredIPv4.Contains(to) || coveredIPv6.Contains(to)
			all = append(all, live{
				what: p.Name + " to " + to.String(), pod: p, broken: isChosen && covered,
				check: func(timeout time.Duration) error { _, err := askWithin(tr.ctx, conn, timeout); return err },
			})
		}
		for _, ends := range [][2]netip.Addr{{ServerIPv4, p.IPv4}, {ServerIPv6, p.IPv6}} {
			client, server := connectIn(tr, p, ends[0], ends[1])
			// What is said first once there are programs comes from the client, or,
			// as a database's keep-alive or a chat, from the pod.
			all = append(all,
				live{what: ends[0].String() + " to " + p.Name, pod: p, check: func(timeout time.Duration) error { return exchange(client, server, timeout) }},
			)
			client2, server2 := connectIn(tr, p, ends[0], ends[1])
			all = append(all,
				live{what: p.Name + " answering " + ends[0].String(), pod: p, check: func(timeout time.Duration) error { return exchange(server2, client2, timeout) }},
			)
		}
	}
	for _, l := range all {
		require.NoError(t, l.check(patience), l.what)
	}
	tr.policy(
		egress{name: "bank4", app: "a", to: []netip.Prefix{coveredIPv4}, exits: []exit{{node: n2.Name, ip: n2.EgressIPv4}}},
		egress{name: "bank6", app: "a", to: []netip.Prefix{coveredIPv6}, exits: []exit{{node: n2.Name, ip: n2.EgressIPv6}}},
	)
	require.NoError(t, tr.StartAgents())
	tr.inForce([]string{"bank4", "bank6"}, chosen...)
	for _, p := range chosen {
		tr.becomes(p.Namespace, ServerIPv4, n2.EgressIPv4)
		tr.becomes(p.Namespace, ServerIPv6, n2.EgressIPv6)
	}
	for _, l := range all {
		if l.broken {
			require.Error(t, l.check(silence), "%s has no egress IP: it must be cut", l.what)
		} else if err := l.check(patience); err != nil {
			t.Errorf("%s is broken: %v", l.what, err)
		}
	}
	for _, p := range chosen {
		tr.drops(p.Node)
		require.NotZero(t, tr.count(p.Node, bpf.ReasonPredatesPolicy)+tr.count(n2, bpf.ReasonNoRule), p.Node.Name)
	}
}

// connectIn connects from an address of the world to a pod that listens.
func connectIn(tr *traffic, p *Pod, from, to netip.Addr) (client, server net.Conn) {
	tr.t.Helper()
	var listener net.Listener
	require.NoError(tr.t, p.Run(func() (err error) {
		listener, err = net.Listen("tcp", netip.AddrPortFrom(to, 0).String())
		return err
	}))
	defer listener.Close()
	there := listener.Addr().(*net.TCPAddr).AddrPort()
	client, err := tr.World.dialFrom(tr.ctx, "tcp", netip.AddrPortFrom(from, 0), there)
	require.NoError(tr.t, err)
	server, err = listener.Accept()
	require.NoError(tr.t, err)
	tr.t.Cleanup(func() { _ = client.Close(); _ = server.Close() })
	return client, server
}

// exchange sends something there and something else back.
func exchange(a, b net.Conn, timeout time.Duration) error {
	for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
		for _, end := range way {
			if err := end.SetDeadline(time.Now().Add(timeout)); err != nil {
				return err
			}
		}
		if _, err := io.WriteString(way[0], "hello"); err != nil {
			return err
		}
		if _, err := io.ReadFull(way[1], make([]byte, len("hello"))); err != nil {
			return err
		}
	}
	return nil
}
