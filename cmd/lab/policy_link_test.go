// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	vn "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

// A pod gets what is addressed to it, and speaks of itself only, on a bridge that other pods are
// at, and on a link of its own.
func TestPolicyLink(t *testing.T) {
	t.Parallel()
	for _, bridge := range []bool{true, false} {
		t.Run(fmt.Sprintf("bridge=%v", bridge), func(t *testing.T) {
			t.Parallel()
			p := newPolicyTest(t, Options{BridgeCNI: bridge})
			if bridge {
				t.Run("broadcast", func(t *testing.T) { p.on(t).broadcasts() })
				t.Run("misled", func(t *testing.T) { p.on(t).misled() })
			}
			t.Run("stolen", func(t *testing.T) { p.on(t).stolen() })
			t.Run("tunnel", func(t *testing.T) { p.on(t).tunnelsByNeighbours() })
			t.Run("resolution", func(t *testing.T) { p.on(t).resolves() })
		})
	}
}

const attackMagic = 0x61747461

// attackPayload is data that a pod has no business to get.
func attackPayload() []byte {
	return binary.BigEndian.AppendUint32(nil, attackMagic)
}

// arrivals counts what gets into a pod with data of an attack.
func (p *policyTest) arrivals(name string) *atomic.Int64 {
	p.t.Helper()
	var count atomic.Int64
	stop, err := Capture(p.names[name].Namespace, PodDevice, func(packet Packet) {
		const headers = 8
		for _, at := range []int{headers, headers + 16} { // behind UDP, or a target
			if len(packet.Payload) >= at+4 && binary.BigEndian.Uint32(packet.Payload[at:]) == attackMagic {
				count.Add(1)
			}
		}
	})
	require.NoError(p.t, err)
	p.t.Cleanup(stop)
	return &count
}

// rises waits until a node has dropped so many packets more for a reason.
func (p *policyTest) rises(n *Node, reason bpf.Reason, before, by uint64) {
	p.t.Helper()
	p.eventually(fmt.Sprintf("%s drops %d for %s", n.Name, by, reason), func() error {
		now, err := n.packets(reason)
		if err == nil && now < before+by {
			err = fmt.Errorf("%d of %d", now-before, by)
		}
		return err
	})
}

// datagrams sends from an unprivileged socket that may broadcast.
func (p *policyTest) datagrams(from string, to netip.Addr, count int) {
	p.t.Helper()
	require.NoError(p.t, p.names[from].Run(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1); err != nil {
			return err
		}
		for range count {
			err := unix.Sendto(fd, attackPayload(), 0, &unix.SockaddrInet4{Port: sinkPort, Addr: to.As4()})
			if err != nil {
				return err
			}
		}
		return nil
	}))
}

// broadcasts: what a pod sends to all on its bridge gets to those that policies let it reach.
func (p *policyTest) broadcasts() {
	const count = 10
	n1 := p.Nodes[0]
	near, client := p.arrivals("near"), p.arrivals("client")
	ingress := func(from string) []Object {
		return p.enforce(`
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: servers, namespace: shop}
spec: {podSelector: {matchLabels: {app: server}}, policyTypes: [Ingress], ingress: [` + from + `]}
`)
	}
	all := []netip.Addr{addrOf("10.1.255.255"), addrOf("255.255.255.255"), addrOf("224.0.0.1")}
	ingress("")
	for _, to := range all {
		denied, open := p.count(n1, bpf.ReasonPolicyDenied), client.Load()
		p.datagrams("other", to, count)
		p.rises(n1, bpf.ReasonPolicyDenied, denied, count)
		p.eventually("a pod without policies gets them", func() error {
			if got := client.Load() - open; got != count {
				return fmt.Errorf("%d of %d to %s", got, count, to)
			}
			return nil
		})
		require.Zero(p.t, near.Load(), "to %s", to)
	}
	ingress("{from: [{podSelector: {matchLabels: {app: other}}}]}")
	p.datagrams("other", all[0], count) // the others are masqueraded
	p.eventually("a pod whose policies allow it gets them", func() error {
		if got := near.Load(); got != count {
			return fmt.Errorf("%d of %d", got, count)
		}
		return nil
	})
	// A pod that policies let send nothing sends no broadcasts either.
	p.enforce(`
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: other-is-silent, namespace: shop}
spec: {podSelector: {matchLabels: {app: other}}, policyTypes: [Egress]}
`)
	before := near.Load()
	for _, to := range all {
		denied := p.count(n1, bpf.ReasonPolicyDenied)
		p.datagrams("other", to, count)
		p.rises(n1, bpf.ReasonPolicyDenied, denied, count)
	}
	require.Equal(p.t, before, near.Load())
}

// misled: frames for a pod that others send to another pod's MAC address do not get in there.
func (p *policyTest) misled() {
	const count = 50
	n1, near, other := p.Nodes[0], p.names["near"], p.names["other"]
	got := p.arrivals("other")
	client := p.names["client"]
	link, err := client.link(PodDevice)
	require.NoError(p.t, err)
	wrong := &vn.Neigh{LinkIndex: link.Attrs().Index, IP: near.ipv4.AsSlice(),
		HardwareAddr: macOf(p.t, other.Namespace), State: vn.NUD_PERMANENT}
	require.NoError(p.t, client.handle.NeighSet(wrong))
	before := p.count(n1, bpf.ReasonUnknownDestination)
	p.datagrams("client", near.ipv4, count)
	p.rises(n1, bpf.ReasonUnknownDestination, before, count)
	require.Zero(p.t, got.Load())
	require.NoError(p.t, client.handle.NeighDel(wrong))
	p.check("client near udp/80 allowed")
}

func macOf(t *testing.T, n *Namespace) []byte {
	t.Helper()
	link, err := n.link(PodDevice)
	require.NoError(t, err)
	return link.Attrs().HardwareAddr
}

// frames sends frames as they are.
func (p *policyTest) frames(from string, count int, frame []byte) {
	p.t.Helper()
	n := p.names[from].Namespace
	link, err := n.link(PodDevice)
	require.NoError(p.t, err)
	require.NoError(p.t, n.Run(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for range count {
			if err := unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: link.Attrs().Index}); err != nil {
				return err
			}
		}
		return nil
	}))
}

// stolen: a pod that sends from the MAC address of another one, or says that it has the address of
// another one, or of the node, is not heard.
func (p *policyTest) stolen() {
	const count = 50
	n1, near, other := p.Nodes[0], p.names["near"], p.names["other"]
	p.check("client near tcp/80 allowed\nother near tcp/80 allowed") // the MAC addresses are known
	p.eventually("the MAC address of the pod is known", func() error {
		rows, err := Rows[struct{ Addr, MAC string }](p.ctx, n1.Agent, "pods")
		if err != nil {
			return err
		}
		for _, r := range rows {
			if r.Addr == other.ipv4.String() && r.MAC != "" {
				return nil
			}
		}
		return errors.New("it is not")
	})
	broadcast := packettest.MAC{255, 255, 255, 255, 255, 255}
	own, theirs := packettest.MAC(macOf(p.t, other.Namespace)), packettest.MAC(macOf(p.t, near.Namespace))
	host4, host6 := hostForPods4, hostForPods6
	if p.options.BridgeCNI {
		v4, v6 := podNetworks(n1.number)
		host4, host6 = hostOf(v4, routerHost), hostOf(v6, routerHost)
	}
	announce4 := func(a netip.Addr) []byte {
		b := packettest.Build(
			packettest.Ethernet{Dst: broadcast, Src: own, Type: packettest.EtherTypeARP})
		b = append(b, 0, 1, 8, 0, 6, 4, 0, 2)
		b = append(append(b, own[:]...), a.AsSlice()...)
		return append(append(b, broadcast[:]...), a.AsSlice()...)
	}
	announce6 := func(a netip.Addr) []byte {
		const override, targetMAC = 1 << 29, 2
		body := append(packettest.Payload(a.AsSlice()), targetMAC, 1)
		return packettest.Build(packettest.Ethernet{Dst: broadcast, Src: own},
			packettest.TTL(other.ipv6, addrOf("ff02::1"), 255),
			packettest.ICMP{Version: 6, Type: 136, Rest: override}, append(body, own[:]...))
	}
	for what, frame := range map[string][]byte{
		"a frame from the MAC address of another pod": packettest.Build(
			packettest.Ethernet{Dst: packettest.MAC(macOf(p.t, p.names["client"].Namespace)), Src: theirs},
			packettest.IP(other.ipv4, p.names["client"].ipv4), packettest.UDP{Src: 1, Dst: sinkPort},
			packettest.Payload(attackPayload())),
		"ARP with the address of another pod": announce4(near.ipv4),
		"ARP with the address of the node":    announce4(host4),
		"an answer with that of another pod":  announce6(near.ipv6),
		"an answer with that of the node":     announce6(host6),
		"an answer with that of another one":  announce6(p.names["far"].ipv6),
		"a frame that is not IP, not from there": append(packettest.Build(packettest.Ethernet{
			Dst: broadcast, Src: theirs, Type: packettest.EtherTypeLLDP}), packettest.Pattern(50)...),
	} {
		before := p.count(n1, bpf.ReasonUnknownSource)
		p.frames("other", count, frame)
		p.rises(n1, bpf.ReasonUnknownSource, before, count)
		p.t.Logf("%s: %d of %d dropped", what, count, count)
	}
	p.check(openChecks)
}

// tunnelsByNeighbours: neighbor discovery carries no data past a default deny.
func (p *policyTest) tunnelsByNeighbours() {
	const count = 5
	n1, client := p.Nodes[0], p.names["client"]
	arrived := []*atomic.Int64{p.arrivals("near"), p.arrivals("far"), p.arrivals("other")}
	p.enforce(`
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: silent, namespace: shop}
spec: {podSelector: {matchLabels: {app: client}}, policyTypes: [Egress]}
`)
	send := func(kind byte, to, target netip.Addr, hops, length int) {
		p.t.Helper()
		message := append([]byte{kind, 0, 0, 0, 0, 0, 0, 0}, target.AsSlice()...)
		message = append(append(message, attackPayload()...), make([]byte, length)...)
		require.NoError(p.t, client.Run(func() error {
			fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			if err := errors.Join(
				unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, hops),
				unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, hops),
			); err != nil {
				return err
			}
			for range count {
				if err := unix.Sendto(fd, message, 0, &unix.SockaddrInet6{Addr: to.As16()}); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	near, far := p.names["near"].ipv6, p.names["far"].ipv6
	for _, to := range []netip.Addr{near, far, ServerIPv6, p.Nodes[1].IPv6} {
		onLink := to == near
		for _, kind := range []byte{133, 134, 135, 136, 137} {
			for _, length := range []int{0, 200} {
				if onLink && length == 0 && kind == 135 {
					continue // as long as what a neighbor has to say
				}
				ctx, cancel := context.WithTimeout(p.ctx, patience)
				before := p.drops.position()
				send(kind, to, to, 255, length)
				for range count {
					e, err := p.drops.next(ctx, before, func(e dropEvent) bool {
						return e.Destination.Addr == to && e.Protocol == "ICMPv6" && e.node == n1
					})
					require.NoError(p.t, err, "%d to %s", kind, to)
					require.Contains(p.t, []string{
						bpf.ReasonUnknownSource.String(), bpf.ReasonUnknownDestination.String(), bpf.ReasonMalformed.String(),
					}, e.Reason, e.text)
					require.Equal(p.t, bpf.DirectionEgress.String(), e.Direction, e.text)
					before = e.after
				}
				cancel()
			}
		}
	}
	for _, kind := range []byte{135, 136} {
		before := p.count(n1, bpf.ReasonPolicyDenied)
		send(kind, far, far, 64, 200) // like any ICMP
		p.rises(n1, bpf.ReasonPolicyDenied, before, count)
	}
	for _, a := range arrived {
		require.Zero(p.t, a.Load())
	}
}

// resolves: pods and nodes find each other, also after they have forgotten all, and a pod that
// looks whether another one has its address takes it.
func (p *policyTest) resolves() {
	n1 := p.Nodes[0]
	before := map[bpf.Reason]uint64{}
	for _, reason := range []bpf.Reason{bpf.ReasonUnknownSource, bpf.ReasonMalformed} {
		before[reason] = p.count(n1, reason)
	}
	position := p.drops.position()
	for range 2 {
		for _, name := range []string{"client", "near", "other", "node-1"} {
			p.forgetNeighbours(p.names[name].Namespace)
		}
		p.check(openChecks + `
near   client udp/80 allowed
node-1 near   icmp   allowed
near   other  icmp   allowed
`)
	}
	client := p.names["client"]
	require.NoError(p.t, client.Sysctl("net.ipv6.conf.eth0.accept_dad=1", "net.ipv6.conf.eth0.dad_transmits=1"))
	link, err := client.link(PodDevice)
	require.NoError(p.t, err)
	addrs, err := client.handle.AddrList(link, vn.FAMILY_V6)
	require.NoError(p.t, err)
	for _, a := range addrs {
		if addr, _ := netip.AddrFromSlice(a.IP); addr != client.ipv6 {
			continue
		}
		routes, err := client.handle.RouteList(link, vn.FAMILY_V6)
		require.NoError(p.t, err)
		require.NoError(p.t, client.handle.AddrDel(link, &a))
		require.NoError(p.t, client.handle.AddrAdd(link, &vn.Addr{IPNet: a.IPNet}))
		for _, r := range routes {
			require.NoError(p.t, client.handle.RouteReplace(&r))
		}
	}
	p.eventually("the address is the pod's", func() error {
		addrs, err := client.handle.AddrList(link, vn.FAMILY_V6)
		if err != nil {
			return err
		}
		for _, a := range addrs {
			if a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0 {
				return fmt.Errorf("%s has flags %x", a.IP, a.Flags)
			}
		}
		return nil
	})
	p.check("client near tcp/80 allowed\nclient far tcp/81 allowed\nnode-1 client icmp allowed")
	for reason, count := range before {
		require.Equal(p.t, count, p.count(n1, reason), "%s: %v", reason, texts(p.drops.since(position, anyDrop)))
	}
}

// forgetNeighbours has a namespace look for all its neighbors again.
func (p *policyTest) forgetNeighbours(n *Namespace) {
	p.t.Helper()
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		entries, err := n.handle.NeighList(0, family)
		require.NoError(p.t, err)
		for _, e := range entries {
			if e.State&(vn.NUD_PERMANENT|vn.NUD_NOARP) != 0 {
				continue
			}
			if err := n.handle.NeighDel(&e); err != nil && !errors.Is(err, unix.ENOENT) {
				require.NoError(p.t, err)
			}
		}
	}
}
