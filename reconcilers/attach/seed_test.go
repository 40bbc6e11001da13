// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/stretchr/testify/require"
	vn "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/testdata/await"
)

// node is a node with one pod behind it and one client before it.
type node struct {
	*network
	pod, client *network
	podDevice   int
}

func newNode(t *testing.T) *node {
	n := &node{network: newNetwork(t), pod: newNetwork(t), client: newNetwork(t)}
	for _, network := range []*network{n.network, n.pod, n.client} {
		network.do(func() { // addresses are there at once
			for _, name := range []string{"all", "default"} {
				require.NoError(t, os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/accept_dad", []byte("0"), 0))
			}
		})
	}
	n.podDevice = n.connect("pod0", n.pod, "10.1.0.", "2001:db8:1::")
	n.connect("out0", n.client, "192.0.2.", "2001:db8:2::")
	n.do(func() {
		for _, name := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
			require.NoError(t, os.WriteFile("/proc/sys/"+name, []byte("1"), 0))
		}
	})
	// The kernel tracks connections where a rule asks for it.
	c, err := nftables.New(nftables.WithNetNSFd(int(n.ns)))
	require.NoError(t, err)
	table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "test"})
	chain := c.AddChain(&nftables.Chain{Name: "forward", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter})
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{&expr.Ct{Key: expr.CtKeySTATE, Register: 1}}})
	require.NoError(t, c.Flush())
	return n
}

// connect makes a link to another network, whose default route it becomes, and
// returns the index of its near end.
func (n *node) connect(name string, to *network, prefixes ...string) int {
	attrs := vn.NewLinkAttrs()
	attrs.Name = name
	require.NoError(n.t, n.LinkAdd(&vn.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: vn.NsFd(to.ns)}))
	for _, end := range []struct {
		*network
		device, host string
	}{{n.network, name, "1"}, {to, "eth0", "2"}} {
		for _, prefix := range prefixes {
			mask := "/24"
			if strings.Contains(prefix, ":") {
				mask = "/64"
			}
			addr, err := vn.ParseAddr(prefix + end.host + mask)
			require.NoError(n.t, err)
			addr.Flags = unix.IFA_F_NODAD
			require.NoError(n.t, end.AddrAdd(end.link(end.device), addr))
		}
		require.NoError(n.t, end.LinkSetUp(end.link(end.device)))
	}
	for _, prefix := range prefixes {
		require.NoError(n.t, to.RouteAdd(&vn.Route{Gw: net.ParseIP(prefix + "1")}))
	}
	return n.link(name).Attrs().Index
}

// dial connects from one network to another and returns both ends.
func dial(t *testing.T, from, to *network, addr string) (near, far net.Conn) {
	var listener net.Listener
	to.do(func() {
		var err error
		listener, err = net.Listen("tcp", net.JoinHostPort(addr, "0"))
		require.NoError(t, err)
	})
	defer listener.Close()
	from.do(func() {
		var err error
		near, err = net.DialTimeout("tcp", listener.Addr().String(), patience)
		require.NoError(t, err)
	})
	far, err := listener.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { near.Close(); far.Close() })
	return near, far
}

const (
	patience = await.Bound // for what must come
	silence  = time.Second // for what must not
)

// passes reports whether what one end sends reaches the other in time.
func passes(t *testing.T, from, to net.Conn, in time.Duration) bool {
	_, err := from.Write([]byte("x"))
	require.NoError(t, err)
	require.NoError(t, to.SetReadDeadline(time.Now().Add(in)))
	n, err := to.Read(make([]byte, 1))
	return err == nil && n == 1
}

// writeMaps makes the node one whose pod a policy chooses for all destinations,
// without a gateway: new connections are dropped. Or one that none chooses.
func (a *agent) writeMaps(t *testing.T, podDevice int, chosen bool, pods ...string) {
	must := func(_ int, err error) { t.Helper(); require.NoError(t, err) }
	must(a.maps.Config.Update([]bpf.ConfigKey{{}}, []bpf.ConfigValue{{
		MarkMask: 0x3000, MarkShift: 12, LifetimeTCP: 8000, LifetimeAny: 60, LifetimeSYN: 60, LifetimeClosing: 10,
		ReportInterval: 5, Flags: bpf.ConfigStrictSource,
	}}))
	for _, prefix := range []string{"0.0.0.0/0", "::/0"} {
		must(a.maps.Egress.Update([]bpf.EgressKey{bpf.EgressKeyFrom(1, netip.MustParsePrefix(prefix))}, []bpf.EgressValue{{Group: 1}}))
	}
	for _, pod := range pods {
		key := bpf.AddressFrom(netip.MustParseAddr(pod))
		value := bpf.PodValue{IfIndex: uint32(podDevice), Epoch: 7}
		if chosen {
			value.Flags = bpf.PodEgressSelected
			must(a.maps.Sources.Update([]bpf.SourceKey{{Addr: key}}, []bpf.SourceValue{{Class: 1}}))
		}
		must(a.maps.Pods.Update([]bpf.PodKey{{Addr: key}}, []bpf.PodValue{value}))
	}
}

func TestLiveConnections(t *testing.T) {
	for name, addrs := range map[string]struct{ pod, client string }{
		"ipv4": {"10.1.0.2", "192.0.2.2"},
		"ipv6": {"2001:db8:1::2", "2001:db8:2::2"},
	} {
		for _, chosen := range []bool{true, false} {
			t.Run(name+map[bool]string{true: "/chosen", false: "/not chosen"}[chosen], func(t *testing.T) {
				n := newNode(t)
				in, inPod := dial(t, n.client, n.pod, addrs.pod)
				outPod, out := dial(t, n.pod, n.client, addrs.client)
				a := startAgent(t, n.ns, "--bpffs="+testBPFFS(t))
				defer a.stop()
				a.writeMaps(t, n.podDevice, chosen, addrs.pod)
				a.attach(n.podDevice, bpf.ProgramFromPod, bpf.ProgramToPod)

				require.True(t, passes(t, inPod, in, patience), "what a client began goes on, with the pod's data first")
				require.True(t, passes(t, in, inPod, patience))
				if chosen {
					require.False(t, passes(t, outPod, out, silence), "what the pod began is cut when a policy chooses it")
				} else {
					require.True(t, passes(t, outPod, out, patience), "what the pod began goes on unless a policy chooses it")
				}
			})
		}
	}
}

// TestLiveConnectionsUnderPolicy: what began before there was a program is judged too.
func TestLiveConnectionsUnderPolicy(t *testing.T) {
	for _, allowed := range []bool{true, false} {
		t.Run(fmt.Sprintf("allowed=%t", allowed), func(t *testing.T) {
			n := newNode(t)
			in, inPod := dial(t, n.client, n.pod, "10.1.0.2")
			outPod, out := dial(t, n.pod, n.client, "192.0.2.2")
			a := startAgent(t, n.ns, "--bpffs="+testBPFFS(t))
			defer a.stop()
			a.writeMaps(t, n.podDevice, false, "10.1.0.2")
			key := bpf.PodKey{Addr: bpf.AddressFrom(netip.MustParseAddr("10.1.0.2"))}
			_, err := a.maps.Pods.Update([]bpf.PodKey{key}, []bpf.PodValue{{IfIndex: uint32(n.podDevice), Epoch: 7, SubjectClass: 5}})
			require.NoError(t, err)
			for _, d := range []bpf.Direction{bpf.DirectionEgress, bpf.DirectionIngress} {
				verdict := bpf.PolicyValue{}
				if !allowed {
					verdict.Deny = 1
				}
				_, err := a.maps.Policy.Update([]bpf.PolicyKey{bpf.PolicyKeyOf(5, bpf.AnyPeerClass, d, 0, 0, 0)}, []bpf.PolicyValue{verdict})
				require.NoError(t, err)
			}
			a.attach(n.podDevice, bpf.ProgramFromPod, bpf.ProgramToPod)

			within := map[bool]time.Duration{true: patience, false: silence}[allowed]
			require.Equal(t, allowed, passes(t, inPod, in, within), "the pod's data first")
			require.Equal(t, allowed, passes(t, in, inPod, within))
			require.Equal(t, allowed, passes(t, out, outPod, within), "the other side's data first")
			require.Equal(t, allowed, passes(t, outPod, out, within))
		})
	}
}

// A pod that the programs hold gets no entries: the host knows flows that they drop.
func TestHeldPodsAreNotSeeded(t *testing.T) {
	n := newNode(t)
	dial(t, n.client, n.pod, "10.1.0.2")
	a := startAgent(t, n.ns, "--bpffs="+testBPFFS(t))
	defer a.stop()
	a.writeMaps(t, n.podDevice, false, "10.1.0.2")
	key := bpf.PodKey{Addr: bpf.AddressFrom(netip.MustParseAddr("10.1.0.2"))}
	unknown := bpf.PodValue{IfIndex: uint32(n.podDevice), Epoch: 7, Flags: bpf.PodPolicyUnknown}
	_, err := a.maps.Pods.Update([]bpf.PodKey{key}, []bpf.PodValue{unknown})
	require.NoError(t, err)
	config, err := a.maps.Config.Dump()
	require.NoError(t, err)
	s := newSeeder(testLog(t), namespace(n.ns), a.datapath, a.maps, toldNone)
	for _, tc := range []struct {
		flags  bpf.ConfigFlags
		seeded int
	}{{bpf.ConfigNetworkPolicies, 0}, {0, 1}} {
		config[0].Value.Flags = tc.flags
		_, err := a.maps.Config.Update([]bpf.ConfigKey{{}}, []bpf.ConfigValue{config[0].Value})
		require.NoError(t, err)
		seeded, err := s.write()
		require.NoError(t, err)
		require.Equal(t, tc.seeded, seeded)
	}
}

// A pod that the CNI plugin told of while the agent ran gets no entries: the host knows flows
// of an earlier pod of its address. One that is older and has no programs gets them.
func TestPodsOfPluginAreNotSeeded(t *testing.T) {
	for name, tc := range map[string]struct {
		age    time.Duration
		seeded bool
	}{"new": {-time.Hour, false}, "old": {time.Hour, true}} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			dial(t, n.client, n.pod, "10.1.0.2")
			a := startAgent(t, n.ns, "--bpffs="+testBPFFS(t))
			defer a.stop()
			a.writeMaps(t, n.podDevice, true, "10.1.0.2")
			told := map[int]time.Time{n.podDevice: time.Now().Add(-tc.age)}
			s := newSeeder(testLog(t), namespace(n.ns), a.datapath, a.maps,
				func() (map[int]time.Time, error) { return told, nil })
			seeded, err := s.write()
			require.NoError(t, err)
			require.Zero(t, seeded, "it may have programs")
			s.beforeAttach(n.podDevice)
			require.Equal(t, tc.seeded, !s.last.IsZero(), "the host's connections are read")
			var key ctmap.Key4
			var entry ctmap.Entry
			connections := a.datapath.Map(ctmap.CTName(false, unix.IPPROTO_TCP)).Iterate()
			require.Equal(t, tc.seeded, connections.Next(&key, &entry))
		})
	}
}

func toldNone() (map[int]time.Time, error) { return nil, nil }

// TestLiveConnectionsOfHost: what this host began with its pod goes on, whatever policies
// say, with the pod's data first too. What it only forwards with its own address does not.
func TestLiveConnectionsOfHost(t *testing.T) {
	for name, addrs := range map[string]struct{ pod, node string }{
		"ipv4": {"10.1.0.2", "10.1.0.1"},
		"ipv6": {"2001:db8:1::2", "2001:db8:1::1"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.masquerade("pod0")
			probe, probed := dial(t, n.network, n.pod, addrs.pod)
			require.NoError(t, probe.(*net.TCPConn).SetKeepAlive(false)) // it says nothing by itself
			client, served := dial(t, n.client, n.pod, addrs.pod)
			for _, far := range []net.Conn{probed, served} {
				require.Equal(t, addrs.node, netip.MustParseAddrPort(far.RemoteAddr().String()).Addr().String())
			}
			a := startAgent(t, n.ns, "--bpffs="+testBPFFS(t))
			defer a.stop()
			a.writeMaps(t, n.podDevice, false, addrs.pod)
			must := func(_ int, err error) { t.Helper(); require.NoError(t, err) }
			must(a.maps.Pods.Update([]bpf.PodKey{{Addr: bpf.AddressFrom(netip.MustParseAddr(addrs.pod))}},
				[]bpf.PodValue{{IfIndex: uint32(n.podDevice), Epoch: 7, SubjectClass: 5}}))
			node := netip.MustParseAddr(addrs.node)
			must(a.maps.IPCache.Update([]bpf.IPCacheKey{bpf.IPCacheKeyFrom(netip.PrefixFrom(node, node.BitLen()))},
				[]bpf.IPCacheValue{{Flags: bpf.IPCacheHost | bpf.IPCacheInCluster}}))
			config, err := a.maps.Config.Dump()
			require.NoError(t, err)
			config[0].Value.Flags |= bpf.ConfigAllowLocalhost
			must(a.maps.Config.Update([]bpf.ConfigKey{{}}, []bpf.ConfigValue{config[0].Value}))
			a.attach(n.podDevice, bpf.ProgramFromPod, bpf.ProgramToPod) // nothing is allowed

			require.True(t, passes(t, probed, probe, patience), "the pod's data first")
			require.True(t, passes(t, probe, probed, patience))
			require.False(t, passes(t, served, client, silence), "of a client that the host masquerades")
		})
	}
}

// masquerade has what the node sends by a device have its own address.
func (n *node) masquerade(device string) {
	n.t.Helper()
	c, err := nftables.New(nftables.WithNetNSFd(int(n.ns)))
	require.NoError(n.t, err)
	table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "masquerade"})
	chain := c.AddChain(&nftables.Chain{Name: "postrouting", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
	name := make([]byte, unix.IFNAMSIZ)
	copy(name, device)
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
		&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: name},
		&expr.Masq{},
	}})
	require.NoError(n.t, c.Flush())
}

// Entries are those that the programs would have made.
func TestSeededEntries(t *testing.T) {
	n := newNode(t)
	_, inPod := dial(t, n.client, n.pod, "10.1.0.2")
	outPod, _ := dial(t, n.pod, n.client, "2001:db8:2::2")
	var udp net.Conn
	n.pod.do(func() {
		var err error
		udp, err = net.Dial("udp", "192.0.2.2:53")
		require.NoError(t, err)
	})
	defer udp.Close()
	_, err := udp.Write([]byte("x"))
	require.NoError(t, err)

	a := startAgent(t, n.ns, "--bpffs="+testBPFFS(t))
	defer a.stop()
	a.writeMaps(t, n.podDevice, false, "10.1.0.2", "2001:db8:1::2")
	s := newSeeder(testLog(t), namespace(n.ns), a.datapath, a.maps, toldNone)
	before, err := ctmap.Now()
	require.NoError(t, err)
	seeded, err := s.write()
	require.NoError(t, err)
	require.Equal(t, 3, seeded)
	after, err := ctmap.Now()
	require.NoError(t, err)
	tuple := func(flags ctmap.TupleFlags, protocol uint8, from, to net.Addr) ctmap.Tuple {
		return ctmap.Tuple{Flags: flags, Protocol: protocol,
			Source: netip.MustParseAddrPort(from.String()), Destination: netip.MustParseAddrPort(to.String())}
	}
	check := func(name string, key any, lifetime uint32, flags ctmap.EntryFlags) {
		var entry ctmap.Entry
		require.NoError(t, a.datapath.Map(name).Lookup(key, &entry), "%s", key)
		require.GreaterOrEqual(t, entry.Lifetime, before+lifetime)
		require.LessOrEqual(t, entry.Lifetime, after+lifetime)
		require.EqualValues(t, 7, entry.Epoch)
		require.Equal(t, flags, entry.Flags)
		require.Zero(t, entry.Gateway)
	}
	check(ctmap.CT4TCP, ctmap.NewKey4(tuple(ctmap.In, unix.IPPROTO_TCP, inPod.RemoteAddr(), inPod.LocalAddr())), 8000, ctmap.SeenNonSYN)
	check(ctmap.CT6TCP, ctmap.NewKey6(tuple(ctmap.Out, unix.IPPROTO_TCP, outPod.LocalAddr(), outPod.RemoteAddr())), 8000, ctmap.SeenNonSYN)
	check(ctmap.CT4Any, ctmap.NewKey4(tuple(ctmap.Out, unix.IPPROTO_UDP, udp.LocalAddr(), udp.RemoteAddr())), 60, 0)

	// What is there stays as it is.
	key := ctmap.NewKey4(tuple(ctmap.Out, unix.IPPROTO_UDP, udp.LocalAddr(), udp.RemoteAddr()))
	require.NoError(t, a.datapath.Map(ctmap.CT4Any).Put(key, ctmap.Entry{Lifetime: 1}))
	seeded, err = s.write()
	require.NoError(t, err)
	require.Zero(t, seeded)
	var entry ctmap.Entry
	require.NoError(t, a.datapath.Map(ctmap.CT4Any).Lookup(key, &entry))
	require.EqualValues(t, 1, entry.Lifetime)
}

func TestParseConnection(t *testing.T) {
	attr := func(typ uint16, children ...[]byte) []byte {
		var body []byte
		for _, c := range children {
			body = append(body, c...)
			body = append(body, make([]byte, (4-len(c)%4)%4)...)
		}
		return append([]byte{byte(4 + len(body)), 0, byte(typ), 0}, body...)
	}
	// Lengths in attr are of whole children: values are given as multiples or alone.
	value := func(typ uint16, b ...byte) []byte { return append([]byte{byte(4 + len(b)), 0, byte(typ), 0}, b...) }
	echo := func(typ uint16, src, dst, icmpType byte) []byte {
		return attr(typ,
			attr(ctaTupleIP, value(ctaIPv4Src, 10, 0, 0, src), value(ctaIPv4Dst, 10, 0, 0, dst)),
			attr(ctaTupleProto, value(ctaProtoNum, unix.IPPROTO_ICMP), value(ctaICMPID, 0x12, 0x34), value(ctaICMPType, icmpType)))
	}
	header := make([]byte, nfgenmsgSize)
	msg := append(append(header, echo(ctaTupleOrig, 1, 2, icmpEchoRequest)...), echo(ctaTupleReply, 3, 1, icmpEchoReply)...)
	c, ok := parseConnection(msg)
	require.True(t, ok)
	require.Equal(t, "icmp 10.0.0.1:4660 -> 10.0.0.2:0 out", c.near.String())
	require.Equal(t, "icmp 10.0.0.1:4660 -> 10.0.0.3:0 out", c.far.String(), "translated to another server")

	_, ok = parseConnection(append(msg, value(ctaZone, 0, 5)...))
	require.False(t, ok, "another zone")
	_, ok = parseConnection(append(header, echo(ctaTupleOrig, 1, 2, 13)...))
	require.False(t, ok, "no echo")
	for i := range msg {
		_, _ = parseConnection(msg[:i]) // nothing that is cut short is read beyond its end
	}
}

func TestFailureIsSaidOnce(t *testing.T) {
	n := newNetwork(t)
	a := startAgent(t, n.ns, "--bpffs="+testBPFFS(t))
	defer a.stop()
	s := newSeeder(testLog(t), namespace(n.ns), a.datapath, a.maps, toldNone)
	_, err := s.maps.Pods.Update([]bpf.PodKey{{Addr: bpf.Address{1}}}, []bpf.PodValue{{}})
	require.NoError(t, err)
	s.beforeAttach(1) // sluice_config is not written
	require.True(t, s.warned)
	s.last = time.Now().Add(time.Hour) // however long this takes
	s.beforeAttach(1)
	require.Len(t, s.again, 1, "so soon it is put off")
}
