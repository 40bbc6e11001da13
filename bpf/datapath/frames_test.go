// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

// Frames as a pod can send them that may open raw sockets.

// rawFrame is what a pod sends from its device.
type rawFrame struct {
	bytes []byte
	// The kernel is asked to write the checksum of what follows sumStart sumOffset behind it,
	// unless both are 0.
	sumStart, sumOffset int
}

// send sends a frame from a pod.
func (tr *traffic) send(device string, f rawFrame) {
	tr.Helper()
	header := make([]byte, 10) // struct virtio_net_hdr
	if f.sumStart != 0 {
		header[0] = unix.VIRTIO_NET_HDR_F_NEEDS_CSUM
		binary.NativeEndian.PutUint16(header[6:], uint16(f.sumStart))
		binary.NativeEndian.PutUint16(header[8:], uint16(f.sumOffset))
	}
	tr.in(tr.pods[device], func() {
		peer, err := netlink.LinkByName(device + "-peer")
		require.NoError(tr, err)
		s, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		require.NoError(tr, err)
		defer unix.Close(s)
		to := &unix.SockaddrLinklayer{Ifindex: peer.Attrs().Index, Halen: 6}
		require.NoError(tr, errors.Join(
			unix.SetsockoptInt(s, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1),
			unix.Sendto(s, append(header, f.bytes...), 0, to),
		))
	})
}

// ofPod returns the bytes of a frame of the pod.
func (tr *traffic) ofPod(layers ...packettest.Layer) []byte {
	ethernet := packettest.Ethernet{Dst: tr.MAC(packettest.PodDevice), Src: packettest.PodMAC}
	return packettest.Build(append([]packettest.Layer{ethernet}, layers...)...)
}

// wire is what leaves the node by the egress device.
type wire struct {
	tr     *traffic
	socket int
}

func (tr *traffic) newWire() *wire {
	var s int
	tr.onNode(func() {
		peer, err := netlink.LinkByName(packettest.EgressDevice + "-peer")
		require.NoError(tr, err)
		all := binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})
		s, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		require.NoError(tr, err)
		at := &unix.SockaddrLinklayer{Ifindex: peer.Attrs().Index, Protocol: all}
		require.NoError(tr, unix.Bind(s, at))
	})
	tr.Cleanup(func() { unix.Close(s) })
	return &wire{tr, s}
}

// send has a frame arrive at the egress device.
func (w *wire) send(frame []byte) {
	w.tr.Helper()
	require.NoError(w.tr, unix.Send(w.socket, frame, 0))
}

// next returns the next packet from an address, nil if none comes.
func (w *wire) next(from netip.Addr, patience time.Duration) *packettest.Packet {
	w.tr.Helper()
	b := make([]byte, 1<<16)
	for end := time.Now().Add(patience); ; {
		left := unix.NsecToTimeval(max(time.Until(end), time.Microsecond).Nanoseconds())
		require.NoError(w.tr,
			unix.SetsockoptTimeval(w.socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &left))
		n, _, err := unix.Recvfrom(w.socket, b, 0)
		if errors.Is(err, unix.EAGAIN) {
			return nil
		}
		if errors.Is(err, unix.EINTR) {
			continue
		}
		require.NoError(w.tr, err)
		if p, err := packettest.Parse(b[:n]); err == nil && p.Src == from {
			return p
		}
	}
}

// writeChecksums has a device of the node not write checksums itself, as many do: the kernel
// does so instead, when a packet leaves.
func (tr *traffic) writeChecksums(device string) {
	value := &struct{ command, on uint32 }{command: unix.ETHTOOL_STXCSUM}
	request := &struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(value)}
	copy(request.name[:unix.IFNAMSIZ-1], device)
	tr.onNode(func() {
		s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		require.NoError(tr, err)
		defer unix.Close(s)
		_, _, errno := unix.Syscall(
			unix.SYS_IOCTL, uintptr(s), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(request)))
		runtime.KeepAlive(value)
		require.Zero(tr, errno)
	})
}

// sumUp changes two bytes of a frame so that the checksum of what follows start is a port.
func sumUp(frame []byte, start, at int, port uint16) {
	frame[at], frame[at+1] = 0, 0
	sum := uint32(^port) + uint32(packettest.Checksum(frame[start:]))
	binary.BigEndian.PutUint16(frame[at:], uint16(sum+sum>>16))
}

// TestChecksumsWrittenLater: a pod cannot have the kernel write a checksum over what the programs
// have judged, after they have.
func TestChecksumsWrittenLater(t *testing.T) {
	const allowed, denied = 53, 22
	tr := newTraffic(t)
	tr.writeChecksums(packettest.EgressDevice)
	wire := tr.newWire()
	for _, w := range both {
		for _, transport := range []string{"UDP", "TCP"} {
			t.Run(w.Family+" "+transport, func(t *testing.T) {
				tr := &traffic{&fixture{Node: tr.Node, TB: t, Addresses: w}, tr.pods}
				require.NoError(t, tr.Reset())
				tr.subject(judgedPod, packettest.Generation)
				tr.policy(0, bpf.DirectionEgress, 0, 0, 0, denyDefault)
				protocol, sum, least := uint8(unix.IPPROTO_UDP), 6, 8
				if transport == "TCP" {
					protocol, sum, least = unix.IPPROTO_TCP, 16, 20
				}
				tr.policy(0, bpf.DirectionEgress, protocol, allowed, 16, allowRule)
				bytes := tr.ofPod(append(opening(transport, w.Pod, w.Uncovered, podPort, allowed),
					packettest.Pattern(64))...)
				l4 := 14 + 20
				if w.Pod.Is6() {
					l4 = 14 + 40
				}
				send := func(offset int) *packettest.Packet {
					sumUp(bytes, l4, len(bytes)-2, denied)
					tr.send(packettest.PodDevice, rawFrame{bytes, l4, offset})
					return wire.next(w.Pod, never)
				}
				require.Nil(t, send(2), "of the port that is judged")
				p := send(sum)
				require.NotNil(t, p, "of the checksum")
				require.EqualValues(t, allowed, p.DstPort)
				p = send(least + 12)
				require.NotNil(t, p, "of payload, as of a tunnel")
				require.EqualValues(t, allowed, p.DstPort)

				at := 14 + 16 // an address, of IPv4
				if w.Pod.Is6() {
					at = 14 + 24
				}
				tr.send(packettest.PodDevice, rawFrame{bytes, 20, at - 20})
				require.Nil(t, wire.next(w.Pod, never), "of the address that is judged")
			})
		}
	}
}

// TestTaggedFrames: nothing of a pod leaves by a gateway in a VLAN that the pod names.
func TestTaggedFrames(t *testing.T) {
	tr := newTraffic(t)
	wire := tr.newWire()
	for _, w := range both {
		t.Run(w.Family, func(t *testing.T) {
			tr := &traffic{&fixture{Node: tr.Node, TB: t, Addresses: w}, tr.pods}
			require.NoError(t, tr.Reset())
			tr.selected(tr.Here(tr.Egress))
			plain := tr.ofPod(request("UDP", w.Pod, w.Server)...)
			for _, tag := range [][]byte{{0x81, 0, 0, 100}, {0x88, 0xa8, 0, 100}, {0x81, 0, 0, 0}} {
				tagged := append(append(append([]byte(nil), plain[:12]...), tag...), plain[12:]...)
				tr.send(packettest.PodDevice, rawFrame{bytes: tagged})
				require.Nil(t, wire.next(w.Egress, never), "%x", tag)
			}
			tr.send(packettest.PodDevice, rawFrame{bytes: plain})
			require.NotNil(t, wire.next(w.Egress, soon))
		})
	}
}

// leaveAs has what goes to an address leave the node with a source, as kube-proxy has it.
func (tr *traffic) leaveAs(to, source netip.Addr) {
	require.NoError(tr, tr.Within(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		family, offset, size := nftables.TableFamilyIPv4, uint32(16), uint32(4)
		if to.Is6() {
			family, offset, size = nftables.TableFamilyIPv6, 24, 16
		}
		table := c.AddTable(&nftables.Table{Family: family, Name: "masquerade"})
		chain := c.AddChain(&nftables.Chain{Name: "postrouting", Table: table,
			Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting,
			Priority: nftables.ChainPriorityNATSource})
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: to.AsSlice()},
			&expr.Immediate{Register: 1, Data: source.AsSlice()},
			&expr.NAT{Type: expr.NATTypeSourceNAT, Family: uint32(family), RegAddrMin: 1},
		}})
		return c.Flush()
	}))
}

// fragments returns the frames of a datagram in three fragments, the first with a long header
// before the fragment header if it is of IPv6. So the kernel does not find room for headers in
// the others, and makes new packets of them when it forwards.
func (tr *traffic) fragments(from, to netip.Addr, datagram []byte) (frames [][]byte) {
	const size, options = 1000, 30
	for at := 0; at < len(datagram); at += size {
		part, more := datagram[at:], false
		if len(part) > size {
			part, more = part[:size], true
		}
		if from.Is4() {
			frames = append(frames, tr.ofPod(packettest.IPv4{Src: from, Dst: to, ID: 5, More: more,
				Offset: at, Protocol: unix.IPPROTO_UDP}, packettest.Payload(part)))
			continue
		}
		header := packettest.Fragment{ID: 5, Offset: at, More: more, Next: unix.IPPROTO_UDP}
		if at > 0 {
			frames = append(frames, tr.ofPod(packettest.IP(from, to), header, packettest.Payload(part)))
			continue
		}
		long := packettest.Options{Kind: packettest.Destination, Words: options}
		f := tr.ofPod(packettest.IP(from, to), long, header, packettest.Payload(part))
		const ip = 14 + 40
		f[20] = unix.IPPROTO_HOPOPTS
		f[ip+2], f[ip+3] = 0x1e, options*8+4 // an option that is passed over, of all that is left
		frames = append(frames, f)
	}
	return frames
}

// TestFragmentsAreNotTheHosts: what the host forwards to a pod with its own address is not the
// host's own, in fragments neither.
func TestFragmentsAreNotTheHosts(t *testing.T) {
	const port, backend = 80, 8080
	tr := newTraffic(t)
	for _, w := range both {
		t.Run(w.Family, func(t *testing.T) {
			tr := &traffic{&fixture{Node: tr.Node, TB: t, Addresses: w}, tr.pods}
			require.NoError(t, tr.Reset())
			tr.translate(w, port, netip.AddrPortFrom(w.OtherPod, backend))
			tr.leaveAs(w.OtherPod, w.NodeIP)
			require.NoError(t, tr.AddFlags(bpf.ConfigAllowLocalhost))
			isolated := bpf.PodValue{Subject: judgedPod, Flags: bpf.PodLocal,
				IfIndex: tr.Index(packettest.OtherPodDevice), MAC: packettest.OtherPodMAC}
			require.NoError(t, errors.Join(
				tr.SetSubject(judgedPod, judgedRules), tr.SetPod(w.OtherPod, isolated)))
			tr.policy(0, bpf.DirectionIngress, 0, 0, 0, denyDefault)
			tr.policy(0, bpf.DirectionEgress, 0, 0, 0, denyDefault)

			var server *net.UDPConn
			at := net.UDPAddrFromAddrPort(netip.AddrPortFrom(w.OtherPod, backend))
			tr.inPod(packettest.OtherPodDevice)(func() {
				var err error
				server, err = net.ListenUDP("udp", at)
				require.NoError(t, err)
			})
			defer server.Close()
			arrives := func(patience time.Duration) bool {
				require.NoError(t, server.SetReadDeadline(time.Now().Add(patience)))
				_, err := server.Read(make([]byte, 1<<16))
				return err == nil
			}
			for _, size := range []int{100, 2500} {
				datagram := packettest.Build(packettest.IP(w.Pod, w.Service),
					packettest.UDP{Src: podPort, Dst: port}, packettest.Pattern(size))
				datagram = datagram[len(datagram)-size-8:]
				for _, f := range tr.fragments(w.Pod, w.Service, datagram) {
					tr.send(packettest.PodDevice, rawFrame{bytes: f})
				}
				require.False(t, arrives(never), "%d bytes of a pod", size)
			}
			tr.onNode(func() {
				c, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(w.NodeIP, 0)), at)
				require.NoError(t, err)
				defer c.Close()
				for _, size := range []int{100, 2500} {
					_, err = c.Write(make([]byte, size))
					require.NoError(t, err)
					require.True(t, arrives(soon), "%d bytes of the host itself", size)
				}
			})
		})
	}
}

// TestServiceEntriesAreShared: what begins no connection takes no more entries than a pod's share
// where a service has led it.
func TestServiceEntriesAreShared(t *testing.T) {
	tr := newTraffic(t)
	for _, w := range both {
		t.Run(w.Family, func(t *testing.T) {
			tr := &traffic{&fixture{Node: tr.Node, TB: t, Addresses: w}, tr.pods}
			require.NoError(t, tr.Reset())
			newShared(tr.fixture)
			tr.translate(w, 80, netip.AddrPortFrom(w.OtherPod, 8080))
			tr.subject(judgedPod, packettest.Generation)
			tr.policy(0, bpf.DirectionEgress, 0, 0, 0, allowRule)
			for sport := uint16(20000); sport < 20000+2*shareRoom; sport++ {
				layers := tcp(w.Pod, w.Service, sport, 80, packettest.ACK)
				tr.send(packettest.PodDevice, rawFrame{bytes: tr.ofPod(layers...)})
			}
			// The backstop counts each for the rule.
			require.Eventually(t, func() bool {
				passed, err := tr.Decided(allowRule.Cookie)
				require.NoError(t, err)
				return passed.Packets >= 2*shareRoom
			}, soon, time.Millisecond)
			entries := len(tr.serviceEntries())
			require.NotZero(t, entries)
			require.LessOrEqual(t, entries, firstGets)
		})
	}
}
