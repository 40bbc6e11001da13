// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

const overlayPort = 8474

var (
	overlayKeyA = []byte("0123456789abcdef")
	overlayKeyB = []byte("fedcba9876543210")
)

// overlayTest is a cluster of three nodes, whose CNI gives pods' packets the node's address also
// towards other nodes.
//
//	node-1  attacker, victim (leaves by node-2)
//	node-2  guarded (accepts nothing)
type overlayTest struct {
	*traffic
	attacker, victim, guarded *Pod
	forged                    byte // of the last destination of a forged packet
}

func newOverlayTest(t *testing.T, flags ...string) *overlayTest {
	t.Helper()
	o := &overlayTest{traffic: newTraffic(t, Options{MasqueradeNodes: true, AgentFlags: flags})}
	o.attacker = o.pod(o.Nodes[0], "attacker", "attacker")
	o.victim = o.pod(o.Nodes[0], "victim", "victim")
	o.guarded = o.pod(o.Nodes[1], "guarded", "guarded")
	o.policy(egress{
		name: "victim", app: "victim", to: []netip.Prefix{WorldIPv4},
		exits: []exit{{node: o.Nodes[1].Name, ip: o.Nodes[1].EgressIPv4}},
	})
	require.NoError(t, o.ApplyYAML(`
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: guarded, namespace: default}
spec: {podSelector: {matchLabels: {app: guarded}}, policyTypes: [Ingress]}
`))
	o.inForce([]string{"victim"}, o.victim)
	o.sees(o.victim.Namespace, ServerIPv4, o.Nodes[1].EgressIPv4) // the gateway knows it
	return o
}

// encapsulated is what is in a datagram to the overlay's port.
func encapsulated(layers ...packettest.Layer) []byte {
	vxlan := []byte{8, 0, 0, 0, 0, 0, 7, 0}
	return append(vxlan, packettest.Build(layers...)...)
}

// toOutside is a forged packet of the victim, to a destination that nothing else is sent to.
func (o *overlayTest) toOutside(proof *bpf.OverlayKey) (packet []byte, to netip.Addr) {
	o.forged++
	to = netip.AddrFrom4([4]byte{198, 51, 100, 100 + o.forged})
	ethernet := packettest.Ethernet{Dst: packettest.MAC{2, 1}, Src: packettest.MAC{2, 2, 2}}
	if proof != nil {
		ethernet = packettest.Proof(*proof, o.Nodes[0].IPv4, o.Nodes[1].IPv4, bpf.DirectionEgress, packettest.Flow{
			Src: o.victim.IPv4, Dst: to, SrcPort: 4000, DstPort: 9, Protocol: packettest.UDPProtocol,
		})
	}
	return encapsulated(ethernet, packettest.IP(o.victim.IPv4, to), packettest.UDP{Src: 4000, Dst: 9}, packettest.Pattern(20)), to
}

// arrived is with which sources the world has seen packets to an address.
func (o *overlayTest) arrived(to netip.Addr) (sources []netip.Addr) {
	for flow := range o.World.Seen() {
		if flow.Destination == to {
			sources = append(sources, flow.Source)
		}
	}
	return sources
}

// send sends a datagram.
func (o *overlayTest) send(from *Namespace, to netip.AddrPort, data []byte) {
	o.t.Helper()
	conn, err := from.Dial(o.ctx, "udp", to)
	require.NoError(o.t, err)
	defer conn.Close()
	_, err = conn.Write(data)
	require.NoError(o.t, err)
}

// isDropped asserts that what is sent comes to nothing, and that a node says why.
func (o *overlayTest) isDropped(at *Node, reason bpf.Reason, to netip.Addr, what string, send func()) {
	o.t.Helper()
	before := o.count(at, reason)
	send()
	o.eventually(what+" is dropped", func() error {
		switch {
		case len(o.arrived(to)) > 0:
			return fmt.Errorf("the world has it, from %v", o.arrived(to))
		case o.count(at, reason) == before:
			return fmt.Errorf("%s has dropped nothing with reason %q: %v", at.Name, reason, o.drops(at))
		}
		return nil
	})
	require.Empty(o.t, o.arrived(to), what)
}

// No pod reaches the overlay, though its node gives what it sends there its own address: neither
// directly, nor by services and ports of nodes, nor in fragments.
func TestOverlayForgedByPod(t *testing.T) {
	t.Parallel()
	o := newOverlayTest(t)
	n1, n2, n3 := o.Nodes[0], o.Nodes[1], o.Nodes[2]
	for what, to := range map[string]netip.Addr{"to another node": n2.IPv4, "to its own": n1.IPv4, "by IPv6": n2.IPv6} {
		packet, outside := o.toOutside(nil)
		o.isDropped(n1, bpf.ReasonOverlayPort, outside, what, func() {
			o.send(o.attacker.Namespace, netip.AddrPortFrom(to, overlayPort), packet)
		})
	}

	service, local := netip.MustParseAddrPort("172.20.0.10:443"), netip.MustParseAddrPort("172.20.0.11:443")
	require.NoError(t, n1.translate(
		translation{service, netip.AddrPortFrom(n2.IPv4, overlayPort), false},
		translation{local, netip.AddrPortFrom(n1.IPv4, overlayPort), false},
	))
	for what, to := range map[string]netip.AddrPort{"by a service": service, "by a service to its own node": local} {
		packet, outside := o.toOutside(nil)
		o.isDropped(n1, bpf.ReasonOverlayPort, outside, what, func() { o.send(o.attacker.Namespace, to, packet) })
	}

	// Ports of other nodes, to which the packet comes with the address of the attacker's node.
	require.NoError(t, n2.translate(translation{
		netip.AddrPortFrom(n2.IPv4, 30474), netip.AddrPortFrom(n2.IPv4, overlayPort), false,
	}))
	require.NoError(t, n3.translate(translation{
		netip.AddrPortFrom(n3.IPv4, 30474), netip.AddrPortFrom(n2.IPv4, overlayPort), true,
	}))
	for _, by := range []*Node{n2, n3} {
		packet, outside := o.toOutside(nil)
		o.isDropped(by, bpf.ReasonOverlayPort, outside, "by a port of "+by.Name, func() {
			o.send(o.attacker.Namespace, netip.AddrPortFrom(by.IPv4, 30474), packet)
		})
	}

	// A reply to a pod that accepts nothing.
	listener := o.listen(o.guarded)
	reply := o.toGuarded(nil)
	o.isDropped(n1, bpf.ReasonOverlayPort, netip.Addr{}, "a reply", func() {
		o.send(o.attacker.Namespace, netip.AddrPortFrom(n2.IPv4, overlayPort), reply)
	})
	o.hearsNothing(listener)

	// In fragments.
	link, err := o.attacker.link(PodDevice)
	require.NoError(t, err)
	require.NoError(t, o.attacker.Handle().LinkSetMTU(link, 576))
	packet, outside := o.toOutside(nil)
	o.isDropped(n1, bpf.ReasonOverlayPort, outside, "in fragments", func() {
		o.send(o.attacker.Namespace, netip.AddrPortFrom(n2.IPv4, overlayPort), append(packet, make([]byte, 900)...))
	})

	// What nodes themselves send goes on.
	o.sees(o.victim.Namespace, ServerIPv4, n2.EgressIPv4)
}

// toGuarded is a forged reply to the guarded pod.
func (o *overlayTest) toGuarded(proof *bpf.OverlayKey) []byte {
	ethernet := packettest.Ethernet{Dst: packettest.MAC{2, 1}, Src: packettest.MAC{2, 2, 2}}
	if proof != nil {
		ethernet = packettest.Proof(*proof, o.Nodes[0].IPv4, o.Nodes[1].IPv4, bpf.DirectionIngress, packettest.Flow{
			Src: ServerIPv4, Dst: o.guarded.IPv4, SrcPort: 53, DstPort: 5353, Protocol: packettest.UDPProtocol,
		})
	}
	return encapsulated(ethernet, packettest.IP(ServerIPv4, o.guarded.IPv4), packettest.UDP{Src: 53, Dst: 5353}, packettest.Pattern(20))
}

// listen opens the port of the guarded pod that forged replies are for.
func (o *overlayTest) listen(p *Pod) (conn net.PacketConn) {
	o.t.Helper()
	require.NoError(o.t, p.Run(func() (err error) {
		conn, err = net.ListenPacket("udp4", ":5353")
		return err
	}))
	o.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// hearsNothing asserts that nothing has come: what was sent has been dropped by now.
func (o *overlayTest) hearsNothing(conn net.PacketConn) {
	o.t.Helper()
	require.NoError(o.t, conn.SetReadDeadline(time.Now().Add(time.Millisecond)))
	_, from, err := conn.ReadFrom(make([]byte, 2048))
	require.ErrorIs(o.t, err, os.ErrDeadlineExceeded, "a packet from %v", from)
}

// spoofer is a host on the network of the nodes that sends from the address of another one.
type spoofer struct {
	*Namespace
	socket int
}

func (o *overlayTest) spoofer() *spoofer {
	o.t.Helper()
	ns, err := newNamespace("spoofer")
	require.NoError(o.t, err)
	o.t.Cleanup(ns.Close)
	require.NoError(o.t, o.connect(ns, UnderlayDevice, switchBridge))
	require.NoError(o.t, ns.AddAddress(UnderlayDevice, inNetwork(UnderlayIPv4, 66)))
	s := &spoofer{Namespace: ns}
	require.NoError(o.t, ns.Run(func() (err error) {
		s.socket, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		return err
	}))
	o.t.Cleanup(func() { _ = unix.Close(s.socket) })
	return s
}

// send sends a packet to a node's overlay as if it came from another one.
func (s *spoofer) send(t *testing.T, from, to *Node, data []byte) {
	t.Helper()
	packet := packettest.Build(packettest.IP(from.IPv4, to.IPv4), packettest.UDP{Src: 40000, Dst: overlayPort}, packettest.Payload(data))
	require.NoError(t, unix.Sendto(s.socket, packet, 0, &unix.SockaddrInet4{Addr: to.IPv4.As4()}))
}

// writeKeys writes the keys of a node, and returns the file's name.
func writeKeys(t *testing.T, c *Cluster, n *Node, keys ...[]byte) string {
	t.Helper()
	path := filepath.Join(c.Dir(), n.Name, "overlay-keys")
	text := ""
	for _, key := range keys {
		text += hex.EncodeToString(key) + "\n"
	}
	require.NoError(t, os.WriteFile(path+".new", []byte(text), 0o400))
	require.NoError(t, os.Rename(path+".new", path))
	return path
}

func overlayKey(key []byte) *bpf.OverlayKey {
	k := bpf.NewOverlayKey([bpf.OverlayKeySize]byte(key))
	return &k
}

// keysInForce waits until the kernel of a node has keys.
func (tr *traffic) keysInForce(n *Node, keys ...[]byte) {
	tr.t.Helper()
	want := []string{}
	for _, key := range keys {
		want = append(want, overlayKey(key).String())
	}
	type row struct {
		Keys   []string
		Status struct{ Kind string }
	}
	require.NoError(tr.t, AwaitRows(tr.ctx, n.Agent, "overlay-keys", func(rows []row) error {
		if len(rows) != 1 || !slices.Equal(rows[0].Keys, want) || rows[0].Status.Kind != "Done" {
			return fmt.Errorf("keys are %v, not %v", rows, want)
		}
		return nil
	}))
}

// rotateKeys replaces key A by key B in three steps, in each of them node after node, and calls a
// function after each node. It fails the test if a node drops anything for its key.
func (tr *traffic) rotateKeys(then func()) {
	tr.t.Helper()
	for step, keys := range [][][]byte{
		{overlayKeyA, overlayKeyB}, {overlayKeyB, overlayKeyA}, {overlayKeyB},
	} {
		for i := range tr.Nodes {
			n := tr.Nodes[(i+step)%len(tr.Nodes)] // each step begins with another one
			writeKeys(tr.t, tr.Cluster, n, keys...)
			tr.keysInForce(n, keys...)
			then()
		}
	}
	for _, n := range tr.Nodes {
		require.Zero(tr.t, tr.count(n, bpf.ReasonOverlayKey))
		require.Zero(tr.t, tr.count(n, bpf.ReasonOverlayUnsigned))
	}
}

// restartWithKeys restarts the agents with keys, each with a file of its own.
func (tr *traffic) restartWithKeys(unsigned bool, keys ...[]byte) {
	tr.t.Helper()
	for _, n := range tr.Nodes {
		n.Agent.Flags = []string{
			"--overlay-keys=" + writeKeys(tr.t, tr.Cluster, n, keys...), fmt.Sprintf("--overlay-accept-unsigned=%t", unsigned),
		}
		require.NoError(tr.t, n.Agent.Restart())
	}
	for _, n := range tr.Nodes {
		require.NoError(tr.t, n.Agent.AwaitReady(tr.ctx))
		tr.keysInForce(n, keys...)
		require.NoError(tr.t, n.Agent.AwaitSettled(tr.ctx))
	}
}

// A host on the network of the nodes that sends from the address of one is a node to the others
// without keys, and nothing with them; and even a node begins nothing at a pod.
func TestOverlayForgedByHost(t *testing.T) {
	t.Parallel()
	o := newOverlayTest(t)
	n1, n2 := o.Nodes[0], o.Nodes[1]
	s := o.spoofer()
	listener := o.listen(o.guarded)
	gets := func(key *bpf.OverlayKey, what string) {
		t.Helper()
		packet, outside := o.toOutside(key)
		o.eventually(what, func() error {
			s.send(t, n1, n2, packet)
			if sources := o.arrived(outside); !slices.Contains(sources, n2.EgressIPv4) {
				return fmt.Errorf("it has come from %v", sources)
			}
			return nil
		})
	}

	gets(nil, "a forged packet leaves without keys")
	require.NotZero(t, o.count(n2, bpf.ReasonOverlayUnsigned))
	// A reply is none even then, as the pod has not asked.
	o.isDropped(n2, bpf.ReasonNoRule, netip.Addr{}, "a reply", func() { s.send(t, n1, n2, o.toGuarded(nil)) })
	o.hearsNothing(listener)
	// Nor does the pod's own node count for another pod's.
	packet, outside := o.toOutside(nil)
	o.isDropped(n2, bpf.ReasonUnknownNode, outside, "a packet of a pod from another node", func() { s.send(t, o.Nodes[2], n2, packet) })

	o.restartWithKeys(false, overlayKeyA)
	o.sees(o.victim.Namespace, ServerIPv4, n2.EgressIPv4)
	for what, key := range map[string]*bpf.OverlayKey{"without a proof": nil, "with another key": overlayKey(overlayKeyB)} {
		packet, outside := o.toOutside(key)
		o.isDropped(n2, bpf.ReasonOverlayKey, outside, what, func() { s.send(t, n1, n2, packet) })
	}
	unsigned := o.count(n2, bpf.ReasonOverlayUnsigned)
	gets(overlayKey(overlayKeyA), "with the key it leaves")
	require.Equal(t, unsigned, o.count(n2, bpf.ReasonOverlayUnsigned))
	o.isDropped(n2, bpf.ReasonNoRule, netip.Addr{}, "a reply with the key", func() { s.send(t, n1, n2, o.toGuarded(overlayKey(overlayKeyA))) })
	o.hearsNothing(listener)
}

// A key is replaced under traffic, node after node, and no packet is lost; neither TCP, whose
// packets the kernel cuts and merges.
func TestOverlayKeysRotate(t *testing.T) {
	t.Parallel()
	tr := newTraffic(t, Options{Nodes: 2, NoAgents: true})
	for _, n := range tr.Nodes {
		n.Agent.Flags = []string{"--overlay-keys=" + writeKeys(t, tr.Cluster, n, overlayKeyA), "--overlay-accept-unsigned=false"}
	}
	require.NoError(t, tr.StartAgents())
	pod := tr.pod(tr.Nodes[0], "a", "a")
	gateway := tr.Nodes[1]
	tr.policy(
		egress{name: "a4", app: "a", to: []netip.Prefix{WorldIPv4}, exits: []exit{{node: gateway.Name, ip: gateway.EgressIPv4}}},
		egress{name: "a6", app: "a", to: []netip.Prefix{WorldIPv6}, exits: []exit{{node: gateway.Name, ip: gateway.EgressIPv6}}},
	)
	tr.inForce([]string{"a4", "a6"}, pod)
	tr.sees(pod.Namespace, ServerIPv4, gateway.EgressIPv4)
	tr.sees(pod.Namespace, ServerIPv6, gateway.EgressIPv6)
	// In fragments, which have to fit the overlay first.
	tr.eventually("a ping in fragments is answered", func() error {
		ctx, cancel := context.WithTimeout(tr.ctx, silence)
		defer cancel()
		_, err := tr.PingWorld(ctx, pod.Namespace, ServerIPv4, 4000)
		return err
	})

	bulk := tr.dial(pod.Namespace, "tcp", ServerIPv4)
	l := startLoad(tr, []*Pod{pod}, ServerIPv4, ServerIPv6)
	tr.rotateKeys(func() {
		l.more(100)
		require.NoError(t, Upload(bulk, 1<<18))
		require.NoError(t, Download(bulk, 1<<18))
	})
	l.end(gateway.EgressIPv4, gateway.EgressIPv6)
}
