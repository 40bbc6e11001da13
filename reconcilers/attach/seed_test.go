// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/testdata/await"
)

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
				a.writeMaps(
					n.podDevice, map[bool]uint32{true: routed, false: free}[chosen], addrs.pod,
				)
				a.attach(n.podDevice, bpf.ProgramFromPod, bpf.ProgramToPod)

				require.True(t, passes(t, inPod, in, patience), "what a client began goes on, with the pod's data first")
				require.True(t, passes(t, in, inPod, patience))
				if chosen {
					require.False(
						t, passes(t, outPod, out, silence),
						"what the pod began is cut when a policy selects it",
					)
				} else {
					require.True(
						t, passes(t, outPod, out, patience),
						"what the pod began goes on unless a policy selects it",
					)
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
			a.writeMaps(n.podDevice, judged, "10.1.0.2")
			for set, d := range []bpf.Direction{bpf.DirectionEgress, bpf.DirectionIngress} {
				verdict := bpf.VerdictValue{}
				if !allowed {
					verdict.Deny = 1
				}
				put(
					a, a.maps.Policy, bpf.PolicyKey{Ruleset: judgedRuleset, Direction: d},
					bpf.PolicyValue{Set: uint32(set)},
				)
				put(a, a.maps.Verdicts, bpf.VerdictKeyOf(uint32(set), 0, 0, 0), verdict)
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
	a.writeMaps(n.podDevice, unknown, "10.1.0.2")
	s := a.newSeeder(namespace(n.ns), nil)
	for _, tc := range []struct {
		flags  bpf.ConfigFlags
		seeded int
	}{{bpf.ConfigNetworkPolicies, 0}, {0, 1}} {
		a.setFlags(tc.flags)
		seeded, err := s.write()
		require.NoError(t, err)
		require.Equal(t, tc.seeded, seeded)
	}
}

// A pod of another node has its connections there.
func TestPodsOfOtherNodesAreNotSeeded(t *testing.T) {
	n := newNode(t)
	dial(t, n.client, n.pod, "10.1.0.2")
	a := startAgent(t, n.ns, "--bpffs="+testBPFFS(t))
	defer a.stop()
	a.writeMaps(n.podDevice, routed)
	a.pods.Put(&tables.Pod{Addr: netip.MustParseAddr("10.1.0.2"), Subject: routed})
	s := a.newSeeder(namespace(n.ns), nil)
	seeded, err := s.write()
	require.NoError(t, err)
	require.Zero(t, seeded)
}

// A pod that the CNI plugin reported while the agent ran gets no entries: the host knows flows
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
			a.writeMaps(n.podDevice, routed, "10.1.0.2")
			reported := map[int]time.Time{n.podDevice: time.Now().Add(-tc.age)}
			s := a.newSeeder(namespace(n.ns), reported)
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
			a.writeMaps(n.podDevice, judged, addrs.pod)
			node := netip.MustParseAddr(addrs.node)
			put(a, a.maps.IPCache, bpf.IPCacheKeyFrom(netip.PrefixFrom(node, node.BitLen())),
				bpf.IPCacheValue{Member: 1, Flags: bpf.IPCacheHost | bpf.IPCacheInCluster})
			a.setFlags(bpf.ConfigStrictSource | bpf.ConfigAllowLocalhost)
			a.attach(n.podDevice, bpf.ProgramFromPod, bpf.ProgramToPod) // nothing is allowed

			require.True(t, passes(t, probed, probe, patience), "the pod's data first")
			require.True(t, passes(t, probe, probed, patience))
			require.False(t, passes(t, served, client, silence), "of a client that the host masquerades")
		})
	}
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
	a.writeMaps(n.podDevice, free, "10.1.0.2", "2001:db8:1::2")
	s := a.newSeeder(namespace(n.ns), nil)
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
		require.Zero(t, entry.Generation, "it is judged at its next packet")
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
	a.pods.Put(&tables.Pod{Addr: netip.MustParseAddr("10.1.0.2"), Local: true})
	s := a.newSeeder(namespace(n.ns), nil)
	s.beforeAttach(1) // sluice_config is not written
	require.True(t, s.warned)
	s.last = time.Now().Add(time.Hour) // however long this takes
	s.beforeAttach(1)
	require.Len(t, s.again, 1, "so soon it is put off")
}
