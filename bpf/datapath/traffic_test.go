// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

// traffic is a node whose pods have network namespaces of their own, with the programs
// attached: what they send is real.
type traffic struct {
	*fixture
	pods map[string]netns.NsHandle // by the name of the device
}

// newTraffic returns a node of the test's own.
func newTraffic(t *testing.T) *traffic {
	newFixture(t, packettest.World4) // for the privileges
	spec, err := loadPrograms()
	require.NoError(t, err)
	node, err := packettest.NewNode(spec)
	require.NoError(t, err)
	t.Cleanup(node.Close)
	tr := &traffic{&fixture{Node: node, TB: t, Addresses: packettest.World4}, map[string]netns.NsHandle{}}
	tr.movePod(packettest.PodDevice, packettest.PodMAC, packettest.World4.Pod, packettest.World6.Pod)
	tr.movePod(packettest.OtherPodDevice, packettest.OtherPodMAC,
		packettest.World4.OtherPod, packettest.World6.OtherPod, packettest.World4.Service, packettest.World6.Service)
	require.NoError(t, node.Within(func() error { tr.attach(); return nil }))
	return tr
}

// movePod puts the other end of a pod's device into a namespace of its own.
func (tr *traffic) movePod(device string, mac packettest.MAC, addrs ...netip.Addr) {
	ns := tr.newNamespace()
	tr.pods[device] = ns
	require.NoError(tr, tr.Within(func() error {
		peer, err := netlink.LinkByName(device + "-peer")
		if err != nil {
			return err
		}
		return netlink.LinkSetNsFd(peer, int(ns))
	}))
	tr.in(ns, func() {
		peer, err := netlink.LinkByName(device + "-peer")
		require.NoError(tr, err)
		require.NoError(tr, netlink.LinkSetHardwareAddr(peer, mac[:]))
		require.NoError(tr, netlink.LinkSetUp(peer))
		host := tr.MAC(device)
		for _, a := range addrs {
			router := netip.MustParseAddr("10.244.255.254")
			if a.Is6() {
				router = netip.MustParseAddr("fd00:244:ffff::1")
			}
			require.NoError(tr, netlink.AddrAdd(peer, &netlink.Addr{IPNet: prefixOf(a), Flags: unix.IFA_F_NODAD}))
			require.NoError(tr, netlink.NeighSet(&netlink.Neigh{LinkIndex: peer.Attrs().Index, IP: router.AsSlice(),
				HardwareAddr: host[:], State: netlink.NUD_PERMANENT}))
			require.NoError(tr, netlink.RouteReplace(&netlink.Route{LinkIndex: peer.Attrs().Index, Gw: router.AsSlice(),
				Dst: everywhere(a), Flags: int(netlink.FLAG_ONLINK)}))
		}
	})
}

func prefixOf(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

func everywhere(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: make(net.IP, a.BitLen()/8), Mask: net.CIDRMask(0, a.BitLen())}
}

func (tr *traffic) newNamespace() netns.NsHandle {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	host, err := netns.Get()
	require.NoError(tr, err)
	defer host.Close()
	ns, err := netns.New()
	require.NoError(tr, err)
	require.NoError(tr, netns.Set(host))
	tr.Cleanup(func() { ns.Close() })
	return ns
}

// in runs a function in a namespace.
func (tr *traffic) in(ns netns.NsHandle, f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	host, err := netns.Get()
	require.NoError(tr, err)
	defer host.Close()
	require.NoError(tr, netns.Set(ns))
	defer func() { require.NoError(tr, netns.Set(host)) }()
	f()
}

// attach has the kernel run the programs; the thread is in the node's namespace.
func (tr *traffic) attach() {
	keep := func(l link.Link, err error) {
		require.NoError(tr, err)
		tr.Cleanup(func() { l.Close() })
	}
	for _, device := range []string{packettest.PodDevice, packettest.OtherPodDevice} {
		for program, at := range map[string]ebpf.AttachType{"from_pod": ebpf.AttachTCXIngress, "to_pod": ebpf.AttachTCXEgress} {
			keep(link.AttachTCX(link.TCXOptions{Interface: int(tr.Index(device)), Program: tr.Program(program), Attach: at}))
		}
	}
	for _, protocol := range []link.NetfilterProtocolFamily{link.NetfilterProtoIPv4, link.NetfilterProtoIPv6} {
		for _, hook := range []link.NetfilterInetHook{link.NetfilterInetForward, link.NetfilterInetLocalIn} {
			keep(link.AttachNetfilter(link.NetfilterOptions{Program: tr.Program("backstop"), ProtocolFamily: protocol, Hook: hook, Priority: -170}))
		}
	}
}

// translate has a port of the service lead to a backend, as kube-proxy does.
func (tr *traffic) translate(w packettest.Addresses, port uint16, to netip.AddrPort) {
	require.NoError(tr, tr.Within(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		family, offset, size := nftables.TableFamilyIPv4, uint32(16), uint32(4)
		if w.Service.Is6() {
			family, offset, size = nftables.TableFamilyIPv6, 24, 16
		}
		table := c.AddTable(&nftables.Table{Family: family, Name: "services"})
		chain := c.AddChain(&nftables.Chain{Name: "prerouting", Table: table, Type: nftables.ChainTypeNAT,
			Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest})
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: w.Service.AsSlice()},
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.BigEndian.AppendUint16(nil, port)},
			&expr.Immediate{Register: 1, Data: to.Addr().AsSlice()},
			&expr.Immediate{Register: 2, Data: binary.BigEndian.AppendUint16(nil, to.Port())},
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(family), RegAddrMin: 1, RegProtoMin: 2},
		}})
		return c.Flush()
	}))
}

// echoUDP answers datagrams at an address with themselves, until the test ends.
func (tr *traffic) echoUDP(open func(func()), at netip.AddrPort) {
	var (
		server *net.UDPConn
		err    error
	)
	open(func() { server, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at)) })
	require.NoError(tr, err)
	tr.serve(func() {
		buffer := make([]byte, 1<<16)
		for {
			n, from, err := server.ReadFromUDPAddrPort(buffer)
			if err != nil {
				return
			}
			_, _ = server.WriteToUDPAddrPort(buffer[:n], from) // who does not get it says so
		}
	}, server.Close)
}

// echoTCP answers connections at an address with what comes, until the test ends.
func (tr *traffic) echoTCP(open func(func()), at netip.AddrPort) {
	var (
		listener *net.TCPListener
		err      error
	)
	open(func() { listener, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at)) })
	require.NoError(tr, err)
	tr.serve(func() {
		for {
			c, err := listener.AcceptTCP()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(time.Minute))
				buffer := make([]byte, 4096)
				for {
					n, err := c.Read(buffer)
					if err != nil {
						return
					}
					if _, err := c.Write(buffer[:n]); err != nil {
						return
					}
				}
			}()
		}
	}, listener.Close)
}

func (tr *traffic) serve(loop func(), stop func() error) {
	var done sync.WaitGroup
	done.Go(loop)
	tr.Cleanup(func() {
		stop()
		done.Wait()
	})
}

// onNode and inPod are places to open sockets in.
func (tr *traffic) onNode(f func()) {
	require.NoError(tr, tr.Within(func() error { f(); return nil }))
}

func (tr *traffic) inPod(device string) func(func()) {
	return func(f func()) { tr.in(tr.pods[device], f) }
}

// dial opens a connection of the pod.
func (tr *traffic) dial(network string, from netip.Addr, to netip.AddrPort, timeout time.Duration) (c net.Conn, err error) {
	local := net.Addr(&net.UDPAddr{IP: from.AsSlice()})
	if network == "tcp" {
		local = &net.TCPAddr{IP: from.AsSlice()}
	}
	tr.in(tr.pods[packettest.PodDevice], func() {
		c, err = (&net.Dialer{LocalAddr: local, Timeout: timeout}).Dial(network, to.String())
	})
	return c, err
}

// echoed sends bytes and reports whether they come back.
func (tr *traffic) echoed(c net.Conn, size int, timeout time.Duration) bool {
	tr.Helper()
	require.NoError(tr, c.SetDeadline(time.Now().Add(timeout)))
	sent := packettest.Pattern(size)
	_, err := c.Write(sent)
	require.NoError(tr, err)
	got := make([]byte, size)
	n, err := c.Read(got)
	if err != nil {
		require.ErrorIs(tr, err, os.ErrDeadlineExceeded)
		return false
	}
	require.Equal(tr, []byte(sent), got[:n])
	return true
}

// routeTo gives an address a route by a device of the node; the thread is in its namespace.
func (tr *traffic) routeTo(a netip.Addr, device string, mac packettest.MAC) {
	index := int(tr.Index(device))
	require.NoError(tr, netlink.RouteReplace(&netlink.Route{LinkIndex: index, Dst: prefixOf(a), Scope: netlink.SCOPE_LINK}))
	require.NoError(tr, netlink.NeighSet(&netlink.Neigh{LinkIndex: index, IP: a.AsSlice(), HardwareAddr: mac[:], State: netlink.NUD_PERMANENT}))
}
