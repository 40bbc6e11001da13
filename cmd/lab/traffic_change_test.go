// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
)

// A connection that has an egress IP keeps it and its gateway, whatever becomes of
// the policy; new ones do as the policy says.
func TestTrafficPolicyChange(t *testing.T) {
	t.Parallel()
	tr := newTraffic(t, Options{})
	n1, n2, n3 := tr.Nodes[0], tr.Nodes[1], tr.Nodes[2]
	pods := []*Pod{tr.pod(n1, "remote", "a"), tr.pod(n2, "local", "a")}
	bank := func(gateway *Node, to netip.Prefix, ip netip.Addr) {
		name := "bank4"
		if ip.Is6() {
			name = "bank6"
		}
		tr.policy(egress{name: name, app: "a", to: []netip.Prefix{to}, exits: []exit{{node: gateway.Name, ip: ip}}})
	}
	bank(n2, coveredIPv4, n2.EgressIPv4)
	bank(n2, coveredIPv6, n2.EgressIPv6)
	tr.inForce([]string{"bank4", "bank6"}, pods...)

	type connection struct {
		net.Conn
		source netip.Addr
		port   uint16
	}
	var open []connection
	connect := func(ip4, ip6 netip.Addr) {
		t.Helper()
		for _, p := range pods {
			for _, to := range []netip.Addr{ServerIPv4, ServerIPv6} {
				want := ip4
				if to.Is6() {
					want = ip6
				}
				if !want.IsValid() {
					want = p.Node.OutsideIPv4
					if to.Is6() {
						want = p.Node.OutsideIPv6
					}
				}
				tr.becomes(p.Namespace, to, want)
				for _, network := range []string{"tcp", "udp"} {
					conn := tr.dial(p.Namespace, network, to)
					source, err := askSoon(tr.ctx, conn)
					require.NoError(t, err)
					require.Equal(t, want, source.Addr(), "new %s connection of %s to %s", network, p.Name, to)
					open = append(open, connection{conn, want, source.Port()})
				}
			}
		}
	}
	check := func(after string) {
		t.Helper()
		for _, c := range open {
			source, err := askSoon(tr.ctx, c.Conn)
			require.NoError(t, err, "after %s: connection from %s", after, c.source)
			require.Equal(t, netip.AddrPortFrom(c.source, c.port), source, "after %s", after)
		}
	}

	connect(n2.EgressIPv4, n2.EgressIPv6)
	check("nothing")
	bank(n3, coveredIPv4, n3.EgressIPv4)
	bank(n3, coveredIPv6, n3.EgressIPv6)
	connect(n3.EgressIPv4, n3.EgressIPv6)
	check("another gateway")
	bank(n3, coveredIPv4, n3.OutsideIPv4)
	bank(n3, coveredIPv6, n3.OutsideIPv6)
	connect(n3.OutsideIPv4, n3.OutsideIPv6)
	check("another egress IP of the same gateway")
	require.NoError(t, tr.Delete(Policy("bank4"), Policy("bank6")))
	require.NoError(t, tr.AwaitSources(tr.ctx, false, tr.Nodes, pods...))
	connect(netip.Addr{}, netip.Addr{})
	check("the policy is gone")
	for _, n := range tr.Nodes {
		tr.drops(n)
	}
	tr.noLeaks(append(tr.allOutside(), n2.EgressIPv4, n2.EgressIPv6, n3.EgressIPv4, n3.EgressIPv6)...)
}

// What a pod had open before a policy selected it is cut with a reason, and is not seen
// from the former source again.
func TestTrafficPredatesPolicy(t *testing.T) {
	t.Parallel()
	tr := newTraffic(t, Options{})
	n1, n2 := tr.Nodes[0], tr.Nodes[1]
	pods := []*Pod{tr.pod(n1, "remote", "a"), tr.pod(n2, "local", "a")}
	other := tr.pod(n1, "other", "none")
	tr.inForce(nil)

	var mu sync.Mutex
	late := map[netip.AddrPort]int{} // by source, once the policy is in force
	var inForce bool
	stop, err := Capture(tr.World.Namespace, worldDevice, func(p Packet) {
		mu.Lock()
		defer mu.Unlock()
		if port, to := p.Ports(); inForce && p.Protocol == unix.IPPROTO_TCP && to == Port {
			late[netip.AddrPortFrom(p.Source, port)]++
		}
	})
	require.NoError(t, err)
	defer stop()

	sources, conns := map[netip.AddrPort]bool{}, map[*Pod]net.Conn{}
	for _, p := range pods {
		for _, to := range []netip.Addr{ServerIPv4, ServerIPv6} {
			conn := tr.dial(p.Namespace, "tcp", to)
			source, err := askSoon(tr.ctx, conn)
			require.NoError(t, err)
			require.Contains(t, []netip.Addr{p.Node.OutsideIPv4, p.Node.OutsideIPv6}, source.Addr())
			sources[source] = true
			conns[p] = conn
		}
	}
	unconcerned := tr.dial(other.Namespace, "tcp", ServerIPv4)
	elsewhere := tr.dial(pods[0].Namespace, "tcp", notCoveredIPv4)
	for _, conn := range []net.Conn{unconcerned, elsewhere} {
		_, err := tr.askOn(conn)
		require.NoError(t, err)
	}

	tr.policy(
		egress{name: "bank4", app: "a", to: []netip.Prefix{coveredIPv4}, exits: []exit{{node: n2.Name, ip: n2.EgressIPv4}}},
		egress{name: "bank6", app: "a", to: []netip.Prefix{coveredIPv6}, exits: []exit{{node: n2.Name, ip: n2.EgressIPv6}}},
	)
	tr.inForce([]string{"bank4", "bank6"}, pods...)
	tr.eventually("the pods' epochs are of the policies", func() error {
		for _, p := range pods {
			for to, want := range map[netip.Addr]netip.Addr{ServerIPv4: n2.EgressIPv4, ServerIPv6: n2.EgressIPv6} {
				if got, err := tr.ask(p.Namespace, "tcp", to); err != nil || got != want {
					return fmt.Errorf("%s comes from %s: %w", p.Name, got, err)
				}
			}
		}
		return nil
	})
	mu.Lock()
	inForce = true
	mu.Unlock()

	for p, conn := range conns {
		_, err := askWithin(tr.ctx, conn, silence)
		require.Error(t, err, "the connection of %s must be cut", p.Name)
		require.NotZero(t, tr.count(p.Node, bpf.ReasonPredatesPolicy), p.Node.Name)
		tr.reported(p.Node, p.Namespace.Name, bpf.ReasonPredatesPolicy)
	}
	for _, conn := range []net.Conn{unconcerned, elsewhere} {
		_, err := tr.askOn(conn)
		require.NoError(t, err, "no policy concerns this connection")
	}
	for _, p := range pods {
		tr.sees(p.Namespace, ServerIPv4, n2.EgressIPv4)
		tr.sees(p.Namespace, ServerIPv6, n2.EgressIPv6)
	}
	mu.Lock()
	defer mu.Unlock()
	for source := range sources {
		require.Zero(t, late[source], "packets from %s after the policy", source)
	}
}

// When a gateway is not ready the pods' new connections leave by the other one, and
// its own connections with them: they cannot be kept.
func TestTrafficGatewayNotReady(t *testing.T) {
	t.Parallel()
	tr := newTraffic(t, Options{})
	n2, n3 := tr.Nodes[1], tr.Nodes[2]
	var pods []*Pod
	for i := range 4 {
		pods = append(pods, tr.pod(tr.Nodes[i%3], fmt.Sprintf("a-%d", i), "a"))
	}
	tr.policy(egress{name: "bank", app: "a", to: []netip.Prefix{coveredIPv4}, exits: []exit{
		{node: n2.Name, ip: n2.EgressIPv4}, {node: n3.Name, ip: n3.EgressIPv4},
	}})
	tr.inForce([]string{"bank"}, pods...)
	require.NoError(t, tr.AwaitSources(tr.ctx, true, []*Node{n2, n3}, pods...))

	require.NoError(t, n2.SetReady(false))
	begin := time.Now()
	longest := time.Duration(0)
	for _, p := range pods {
		tr.becomes(p.Namespace, ServerIPv4, n3.EgressIPv4)
		longest = max(longest, time.Since(begin))
	}
	t.Logf("all new connections leave by the other gateway %s after the first is not ready", longest)
	require.NoError(t, n3.SetReady(false))
	for _, p := range pods {
		tr.eventually("no gateway is left", func() error {
			ctx, cancel := context.WithTimeout(tr.ctx, 200*time.Millisecond)
			defer cancel()
			if source, err := p.Ask(ctx, "udp", ServerIPv4); err == nil {
				return fmt.Errorf("%s comes from %s", p.Name, source)
			}
			return nil
		})
	}
	require.NoError(t, n2.SetReady(true))
	for _, p := range pods {
		tr.becomes(p.Namespace, ServerIPv4, n2.EgressIPv4)
	}
	tr.noLeaks(n2.EgressIPv4, n3.EgressIPv4)
}

// Who began under a policy whose gateway cannot serve has nothing to keep: as soon as
// the policy is corrected, the same sockets are served.
func TestTrafficPolicyMended(t *testing.T) {
	t.Parallel()
	tr := newTraffic(t, Options{})
	n1, n2, n3 := tr.Nodes[0], tr.Nodes[1], tr.Nodes[2]
	pods := []*Pod{tr.pod(n1, "remote", "a"), tr.pod(n2, "local", "a")}
	// No node has this address.
	tr.policy(egress{name: "bank", app: "a", to: []netip.Prefix{coveredIPv4}, exits: []exit{{node: n3.Name, ip: addrOf("203.0.113.250")}}})
	tr.inForce([]string{"bank"}, pods...)

	var conns []net.Conn
	connected := make(chan error, len(pods))
	for _, p := range pods {
		conn := tr.dial(p.Namespace, "udp", ServerIPv4)
		conns = append(conns, conn)
		go func() { // its first SYNs are dropped
			ctx, cancel := context.WithTimeout(tr.ctx, patience)
			defer cancel()
			source, err := p.Ask(ctx, "tcp", ServerIPv4)
			if err == nil && source.Addr() != n2.EgressIPv4 {
				err = fmt.Errorf("%s comes from %s", p.Name, source)
			}
			connected <- err
		}()
	}
	short := func(conn net.Conn) (netip.AddrPort, error) {
		ctx, cancel := context.WithTimeout(tr.ctx, 200*time.Millisecond)
		defer cancel()
		return AskOn(ctx, conn)
	}
	for range 3 {
		for _, conn := range conns {
			_, err := short(conn)
			require.True(t, isTimeout(err), "%v", err)
		}
	}
	tr.policy(egress{name: "bank", app: "a", to: []netip.Prefix{coveredIPv4}, exits: []exit{{node: n2.Name, ip: n2.EgressIPv4}}})
	for i, conn := range conns {
		tr.eventually("datagrams of "+pods[i].Name+" are answered", func() error {
			source, err := short(conn)
			if err == nil && source.Addr() != n2.EgressIPv4 {
				err = fmt.Errorf("they come from %s", source)
			}
			return err
		})
	}
	for range pods {
		require.NoError(t, <-connected)
	}
	tr.noLeaks(n2.EgressIPv4)
}
