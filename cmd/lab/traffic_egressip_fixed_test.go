// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/statedb/reconciler"
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/stretchr/testify/require"
	vn "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// fixed is a cluster with a fixed pool: the addresses that node-4 has towards the world, one of
// which the node itself sends with.
type fixed struct {
	*moving
	gateway *Node
	pods    map[netip.Addr]*Pod // on node-1, by the egress address
}

// fixedBlockSize is how many ports the blocks of the pool have.
const fixedBlockSize = 4096

func newFixed(t *testing.T) *fixed {
	t.Helper()
	f := &fixed{moving: newMoving(t, time.Second)}
	f.gateway = f.Nodes[3]
	g := f.gateway
	require.NoError(t, f.ApplyYAML(fmt.Sprintf(`
apiVersion: sluice.io/v1alpha1
kind: EgressIPPool
metadata: {name: fixed}
spec: {cidrs: ["%s/32", "%s/128", "%s/32"], portsPerBlock: %d, fixed: true}
status:
  blocks: [{index: 2, node: %s}, {index: 5, node: %s}]
`, g.EgressIPv4, g.EgressIPv6, g.OutsideIPv4, fixedBlockSize, f.Nodes[0].Name, g.Name)))
	f.pods = map[netip.Addr]*Pod{}
	for i, addr := range []netip.Addr{g.EgressIPv4, g.EgressIPv6, g.OutsideIPv4} {
		name, to := fmt.Sprint("fixed-", i), serverFor(addr)
		f.policy(egress{name: name, app: name, to: []netip.Prefix{host(to)},
			exits: []exit{{node: g.Name, ip: addr}}})
		f.pods[addr] = f.traffic.pod(f.Nodes[0], name, name)
		f.inForce([]string{name}, f.pods[addr])
		f.becomes(f.pods[addr].Namespace, to, addr)
	}
	return f
}

// sourced is a TCP connection of a pod, with the source that the world sees.
type sourced struct {
	net.Conn
	source netip.AddrPort
}

// connectTo opens a connection of a pod to an address of the server, and fails the test if it has
// another egress address.
func (tr *traffic) connectTo(to netip.Addr, pod *Pod, egress netip.Addr) sourced {
	tr.t.Helper()
	c := sourced{Conn: tr.dial(pod.Namespace, "tcp", to)}
	var err error
	c.source, err = askSoon(tr.ctx, c)
	require.NoError(tr.t, err)
	require.Equal(tr.t, egress, c.source.Addr())
	return c
}

// haveSources fails the test unless each connection carries a question and its answer, with the
// address and port that it began with.
func (tr *traffic) haveSources(all []sourced) {
	tr.t.Helper()
	for _, c := range all {
		source, err := askSoon(tr.ctx, c)
		require.NoError(tr.t, err, "connection from %s", c.source)
		require.Equal(tr.t, c.source, source)
	}
}

// connect opens connections with each address: by ports of the pod's node.
func (f *fixed) connect(count int) (all []sourced) {
	f.t.Helper()
	for addr, pod := range f.pods {
		for range count {
			c := f.connectTo(serverFor(addr), pod, addr)
			require.Equal(f.t, 2, blockOf(c.source))
			all = append(all, c)
		}
	}
	return all
}

func blockOf(source netip.AddrPort) int {
	return (int(source.Port()) - tables.FirstPort) / fixedBlockSize
}

// hasNoGateway waits until the pods' node knows that the gateway is not ready, and has connections
// send meanwhile.
func (f *fixed) hasNoGateway(all []sourced) {
	f.t.Helper()
	require.NoError(f.t, AwaitRows(f.ctx, f.Nodes[0].Agent, "egress-blocks",
		func(rows []tables.EgressBlock) error {
			for _, row := range rows {
				if row.Fixed && (row.Node != "" || row.Status.Kind != reconciler.StatusKindDone) {
					return fmt.Errorf("%+v", row)
				}
			}
			return nil
		}))
	before := f.count(f.Nodes[0], bpf.ReasonNoGateway)
	for _, c := range all {
		_, err := io.WriteString(c, "who\n") // TCP sends it again
		require.NoError(f.t, err)
	}
	f.eventually("packets of connections are dropped", func() error {
		if n := f.count(f.Nodes[0], bpf.ReasonNoGateway); n < before+uint64(len(all)) {
			return fmt.Errorf("%d are", n-before)
		}
		return nil
	})
}

// shutDown has a node lose what a boot loses: its agent, programs, maps, the overlay's device, and
// what the kernel knows of connections. Its addresses are there again before its agent is.
func (n *Node) shutDown() error {
	n.Agent.Kill()
	overlay, err := n.link(tables.OverlayDeviceName)
	if err == nil {
		err = n.handle.LinkDel(overlay)
	}
	return errors.Join(err, os.RemoveAll(filepath.Join(n.Agent.dir, "state")),
		os.RemoveAll(filepath.Join(n.Agent.BPFFS(), "sluice")),
		n.handle.ConntrackTableFlush(vn.ConntrackTable))
}

// resetsNothing has a node reset no connection with an address: as docs/egress-addresses.md says.
func (n *Node) resetsNothing(addr netip.Addr) error {
	const rst = 1 << 2 // of the flags of TCP, in byte 13
	c, err := nftables.New(nftables.WithNetNSFd(n.FD()))
	if err != nil {
		return fmt.Errorf("open nftables of %s: %w", n.Name, err)
	}
	family := nftables.TableFamilyIPv4
	if addr.Is6() {
		family = nftables.TableFamilyIPv6
	}
	table := c.AddTable(&nftables.Table{Family: family, Name: "egress"})
	chain := c.AddChain(&nftables.Chain{
		Name: "output", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityFilter,
	})
	rule := append(within(sourceOffset, host(addr), expr.CmpOpEq),
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{rst}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{rst}},
		&expr.Verdict{Kind: expr.VerdictDrop})
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: rule})
	if err := c.Flush(); err != nil {
		return fmt.Errorf("add rule to %s: %w", n.Name, err)
	}
	return nil
}

// answers has the world send what it has for an address, or keep it.
func (w *World) answers(addr netip.Addr, answers bool) error {
	to := vn.Route{Dst: ipNet(host(addr)), Type: unix.RTN_BLACKHOLE, Priority: 1}
	if answers {
		return w.handle.RouteDel(&to)
	}
	return w.handle.RouteAdd(&to)
}

// TestTrafficEgressIPFixed: connections with fixed addresses go on with their address and port when
// the gateway has booted, without any of its maps; also where the server sends while the gateway
// boots, if that resets nothing.
func TestTrafficEgressIPFixed(t *testing.T) {
	t.Parallel()
	f := newFixed(t)
	all := f.connect(20)
	const idle, notReady, serverSends = "idle", "the Node is not ready", "the server sends"
	for _, boot := range []string{idle, notReady, serverSends} {
		sends := boot == serverSends
		for addr := range f.pods {
			if !sends {
				break
			}
			require.NoError(t, f.gateway.resetsNothing(addr))
			require.NoError(t, f.World.answers(addr, false))
		}
		asks := boot != idle // once more than it is answered before the gateway is back
		for _, c := range all {
			if sends {
				_, err := io.WriteString(c, "who\n") // the server answers when it can send
				require.NoError(t, err)
			}
		}
		f.change(f.gateway, func(s *nodeState) { s.notReady = boot == notReady })
		require.NoError(t, f.gateway.shutDown())
		for addr, pod := range f.pods {
			if sends {
				require.NoError(t, f.World.answers(addr, true))
			}
			_, err := f.askFor(pod.Namespace, "udp", serverFor(addr), time.Second)
			require.Error(t, err, "nothing sends it out")
		}
		if boot == notReady {
			f.hasNoGateway(all)
		}
		require.NoError(t, f.gateway.Agent.Start())
		require.NoError(t, f.gateway.Agent.AwaitReady(f.ctx))
		f.change(f.gateway, func(s *nodeState) { s.notReady = false })
		begin := time.Now()
		f.haveSources(all)
		t.Logf("%s: %d connections go on within %s", boot, len(all),
			time.Since(begin).Round(time.Millisecond))
		for _, c := range all {
			if asks {
				line, err := readLine(c) // there was one answer more
				require.NoError(t, err)
				require.Equal(t, c.source.String(), line)
			}
		}
		f.connect(2)
	}
	f.noLeaks(append(movings, f.gateway.EgressIPv4, f.gateway.EgressIPv6, f.gateway.OutsideIPv4)...)
}

// TestTrafficEgressIPFixedHost: what the gateway itself sends and gets with a fixed address goes
// on, beside connections of pods: by ports of its own block, and below 1024.
func TestTrafficEgressIPFixedHost(t *testing.T) {
	t.Parallel()
	f := newFixed(t)
	all := f.connect(5)
	other := f.traffic.pod(f.gateway, "other", "other")
	f.inForce(nil)
	for addr := range f.pods {
		to := netip.AddrPortFrom(serverFor(addr), Port)
		for _, network := range []string{"tcp", "udp"} {
			for port := range uint16(5) {
				conn, err := f.gateway.dialFrom(f.ctx, network,
					netip.AddrPortFrom(addr, 40000+port), to)
				require.NoError(t, err, "%s from %s", network, addr)
				defer conn.Close()
				source, err := askSoon(f.ctx, conn)
				require.NoError(t, err, "%s from %s", network, addr)
				require.Equal(t, addr, source.Addr())
				require.Equal(t, 5, blockOf(source))
			}
		}
		require.NoError(t, f.World.Ping(f.ctx, addr, 16), "the host answers")
	}
	// What the host gives its address to, as it is no policy's.
	for _, network := range []string{"tcp", "udp", "icmp"} {
		source, err := f.ask(other.Namespace, network, ServerIPv4)
		require.NoError(t, err, network)
		require.Equal(t, f.gateway.OutsideIPv4, source)
	}
	const https = 443
	server, err := startServer(f.gateway.Namespace, https)
	require.NoError(t, err)
	t.Cleanup(server.close)
	for addr := range f.pods {
		conn, err := f.World.Dial(f.ctx, "tcp", netip.AddrPortFrom(addr, https))
		require.NoError(t, err)
		defer conn.Close()
		for range 3 {
			_, err = askSoon(f.ctx, conn)
			require.NoError(t, err, "a server of the host at %s", addr)
		}
	}
	f.haveSources(all)
}
