// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
	"github.com/sluice-net/sluice/testdata/await"
)

// pushed is a connection of the pod to a service whose backend sends by itself.
type pushed struct {
	*traffic
	pod  net.Conn
	push func([]byte)
}

// pushUDP begins one of datagrams.
func (tr *traffic) pushUDP(open func(func()), service, backend netip.AddrPort) pushed {
	var (
		server *net.UDPConn
		err    error
	)
	open(func() { server, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(backend)) })
	require.NoError(tr, err)
	tr.Cleanup(func() { server.Close() })
	pod, err := tr.dial("udp", tr.Pod, service, soon)
	require.NoError(tr, err)
	tr.Cleanup(func() { pod.Close() })
	_, err = pod.Write([]byte("begin"))
	require.NoError(tr, err)
	require.NoError(tr, server.SetReadDeadline(time.Now().Add(soon)))
	_, to, err := server.ReadFromUDPAddrPort(make([]byte, 10))
	require.NoError(tr, err)
	return pushed{tr, pod, func(b []byte) {
		_, err := server.WriteToUDPAddrPort(b, to)
		require.NoError(tr, err)
	}}
}

// pushTCP begins one of a stream.
func (tr *traffic) pushTCP(open func(func()), service, backend netip.AddrPort) pushed {
	var (
		listener *net.TCPListener
		err      error
	)
	open(func() { listener, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(backend)) })
	require.NoError(tr, err)
	tr.Cleanup(func() { listener.Close() })
	pod, err := tr.dial("tcp", tr.Pod, service, soon)
	require.NoError(tr, err)
	tr.Cleanup(func() { pod.Close() })
	require.NoError(tr, listener.SetDeadline(time.Now().Add(soon)))
	server, err := listener.AcceptTCP()
	require.NoError(tr, err)
	tr.Cleanup(func() { server.Close() })
	return pushed{tr, pod, func(b []byte) {
		_, err := server.Write(b)
		require.NoError(tr, err)
	}}
}

// gets reports whether a byte comes to the pod.
func (p *pushed) gets(want byte, timeout time.Duration) bool {
	p.Helper()
	require.NoError(p, p.pod.SetReadDeadline(time.Now().Add(timeout)))
	got := make([]byte, 1)
	if _, err := p.pod.Read(got); err != nil {
		require.ErrorIs(p, err, os.ErrDeadlineExceeded)
		return false
	}
	require.Equal(p, want, got[0])
	return true
}

// replyDrop asserts that a reply is dropped on its way to the pod: a stream's when it is
// sent again, at the latest.
func (p *pushed) replyDrop(cookie uint32, protocol uint8, service netip.AddrPort) {
	p.Helper()
	require.EventuallyWithT(p, func(c *assert.CollectT) {
		events, err := p.Events()
		require.NoError(c, err)
		at := slices.IndexFunc(events, func(e bpf.Event) bool {
			return e.Kind == bpf.EventDrop && e.Program == bpf.ProgramToPod && e.Protocol == protocol && e.Source.Addr() == service.Addr()
		})
		require.GreaterOrEqual(c, at, 0, "no event of the drop")
		require.Equal(c, bpf.ReasonPolicyRule, events[at].Reason)
		require.Equal(c, cookie, events[at].Cookie)
	}, soon, 10*time.Millisecond)
}

// TestRepliesOfServices: what a service's backend goes on sending by itself is cut when
// policies forbid the pod to reach the backend, also while the pod goes on trying.
func TestRepliesOfServices(t *testing.T) {
	eachBackend(t, 82, func(tr *traffic, network string, protocol uint8, service netip.AddrPort, b backend) {
		tr.subject(judgedPod, packettest.Generation)
		tr.peer(b.to.Addr(), peerClass, bpf.IPCacheInCluster)
		tr.policy(0, bpf.DirectionIngress, 0, 0, 0, allowDefault)
		tr.policy(0, bpf.DirectionEgress, 0, 0, 0, denyDefault)
		tr.policy(peerClass, bpf.DirectionEgress, protocol, b.to.Port(), 16, allowRule)
		begin := tr.pushUDP
		if network == "tcp" {
			begin = tr.pushTCP
		}
		p := begin(b.open, service, b.to)
		p.testRevocation(protocol, service, b.to)
	})
}

// TestRepliesOfServiceThatIsGone: the host goes on translating a connection to a service
// that is deleted, and its address is one of the outside then, which policies may allow.
func TestRepliesOfServiceThatIsGone(t *testing.T) {
	tr := newTraffic(t)
	for _, w := range both {
		t.Run(w.Family, func(t *testing.T) {
			tr := &traffic{&fixture{Node: tr.Node, TB: t, Addresses: w}, tr.pods}
			require.NoError(t, tr.Reset())
			service, backend := netip.AddrPortFrom(w.Service, 85), netip.AddrPortFrom(w.OtherPod, 8085)
			tr.translate(w, service.Port(), backend)
			tr.subject(judgedPod, packettest.Generation)
			tr.peer(backend.Addr(), peerClass, bpf.IPCacheInCluster)
			tr.policy(0, bpf.DirectionIngress, 0, 0, 0, allowDefault)
			tr.policy(0, bpf.DirectionEgress, 0, 0, 0, allowDefault)
			p := tr.pushUDP(tr.inPod(packettest.OtherPodDevice), service, backend)
			p.push([]byte("1"))
			require.True(t, p.gets('1', soon))

			tr.peer(service.Addr(), peerClass+1, 0)
			tr.policy(peerClass, bpf.DirectionEgress, 0, 0, 0, denyRule)
			tr.subject(judgedPod, packettest.Generation+1)
			p.push([]byte("2"))
			require.False(t, p.gets('2', never))
			p.replyDrop(denyRule.Cookie, unix.IPPROTO_UDP, service)
		})
	}
}

// TestRepliesOfOneself: policies cannot keep a pod from itself, also where its own service
// has led it back.
func TestRepliesOfOneself(t *testing.T) {
	tr := newTraffic(t)
	for _, w := range both {
		t.Run(w.Family, func(t *testing.T) {
			tr := &traffic{&fixture{Node: tr.Node, TB: t, Addresses: w}, tr.pods}
			require.NoError(t, tr.Reset())
			service, backend := netip.AddrPortFrom(w.Service, 84), netip.AddrPortFrom(w.Pod, 8084)
			tr.translate(w, service.Port(), backend)
			tr.masquerade(w.Pod)
			tr.subject(judgedPod, packettest.Generation)
			tr.policy(0, bpf.DirectionIngress, 0, 0, 0, allowDefault)
			tr.policy(0, bpf.DirectionEgress, 0, 0, 0, denyDefault)
			p := tr.pushUDP(tr.inPod(packettest.PodDevice), service, backend)
			for i := range uint32(3) {
				tr.subject(judgedPod, packettest.Generation+i)
				p.push([]byte("1"))
				require.True(t, p.gets('1', soon))
			}
		})
	}
}

// masquerade has what a pod sends itself come from an address of the node, as kube-proxy
// does: else the pod would not answer.
func (tr *traffic) masquerade(pod netip.Addr) {
	tr.Helper()
	require.NoError(tr, tr.Within(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		family, source, destination, size := nftables.TableFamilyIPv4, uint32(12), uint32(16), uint32(4)
		if pod.Is6() {
			family, source, destination, size = nftables.TableFamilyIPv6, 8, 24, 16
		}
		table := c.AddTable(&nftables.Table{Family: family, Name: "hairpin"})
		chain := c.AddChain(&nftables.Chain{Name: "postrouting", Table: table, Type: nftables.ChainTypeNAT,
			Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: source, Len: size},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: pod.AsSlice()},
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: destination, Len: size},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: pod.AsSlice()},
			&expr.Masq{},
		}})
		return c.Flush()
	}))
}

func (p *pushed) testRevocation(protocol uint8, service, backend netip.AddrPort) {
	own := netip.MustParseAddrPort(p.pod.LocalAddr().String())
	key := packettest.Tuple{Daddr: own.Addr(), Saddr: service.Addr(), Dport: service.Port(), Sport: own.Port(), Protocol: protocol}
	p.push([]byte("1"))
	require.True(p, p.gets('1', soon))

	// Something else is revoked: all goes on, and is judged once.
	p.subject(judgedPod, packettest.Generation+1)
	p.push([]byte("2"))
	require.True(p, p.gets('2', soon))
	_, err := p.pod.Write([]byte("on"))
	require.NoError(p, err)
	await.True(p, func() bool { return p.connection(key).Generation == packettest.Generation+1 })

	p.policy(peerClass, bpf.DirectionEgress, protocol, backend.Port(), 16, denyRule)
	p.subject(judgedPod, packettest.Generation+2)
	for range 2 {
		_, err := p.Events()
		require.NoError(p, err)
		p.push([]byte("3"))
		require.False(p, p.gets('3', never))
		p.replyDrop(denyRule.Cookie, protocol, service)
		require.EqualValues(
			p, packettest.Generation+1, p.connection(key).Generation, "it is still to be judged",
		)
		_, err = p.pod.Write([]byte("on")) // which the backstop drops
		require.NoError(p, err)
	}

	p.policy(peerClass, bpf.DirectionEgress, protocol, backend.Port(), 16, allowOther)
	p.subject(judgedPod, packettest.Generation+3)
	if protocol == unix.IPPROTO_TCP { // it has kept what was dropped
		require.True(p, p.gets('3', soon))
		require.True(p, p.gets('3', soon))
	}
	p.push([]byte("4"))
	require.True(p, p.gets('4', soon))
}
