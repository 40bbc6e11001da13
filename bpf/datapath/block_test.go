// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

const blockSize = 256

// moving makes the egress address one that moves, of which this node has block 1, the second node
// block 2 and the third none.
func (f *fixture) moving(gateway netip.Addr) {
	f.Helper()
	require.NoError(f, f.AddFlags(bpf.ConfigEgressIPs))
	here := f.Config.Underlay.Addr()
	f.movesTo(gateway)
	for block, node := range map[uint32]netip.Addr{1: here, 2: second()} {
		key := bpf.OwnerKey{Egress: bpf.AddressFrom(f.Egress), Block: block}
		require.NoError(f, f.Map("sluice_owners").Put(key, bpf.OwnerValue{Node: bpf.AddressFrom(node)}))
	}
	for _, node := range []netip.Addr{here, second(), third()} {
		require.NoError(f, f.SetNode(node, bpf.NodeAlive))
	}
	require.NoError(f, f.Map("sluice_exits").Delete(bpf.ExitKey{Addr: bpf.AddressFrom(f.Egress)}))
	f.selected(f.remote(f.Egress))
}

// movesTo says which node has the address now; no node if it is not valid.
func (f *fixture) movesTo(gateway netip.Addr) {
	f.Helper()
	f.putBlock(bpf.BlockValue{Gateway: bpf.AddressFrom(gateway), Size: blockSize,
		Ports: [bpf.SharedPortRanges]bpf.PortRange{{First: firstOf(1), Last: firstOf(2) - 1}}})
}

func (f *fixture) putBlock(v bpf.BlockValue) {
	f.Helper()
	require.NoError(f, f.Map("sluice_blocks").Put(bpf.ExitKey{Addr: bpf.AddressFrom(f.Egress)}, v))
}

// firstOf returns the first port of a block.
func firstOf(block int) uint16 { return uint16(bpf.BlockPortMin + block*blockSize) }

// byBlock asserts that a packet of the pod is sent to a gateway with the egress address and a port
// of this node, which it returns.
func (f *fixture) byBlock(res *packettest.Result, gateway netip.Addr, transport string) uint16 {
	f.Helper()
	p := f.toGateway(res, gateway)
	require.Equal(f, 1, res.Reasons[bpf.ReasonTranslated], "%v", res.Reasons)
	require.Equal(f, f.Egress, p.Src)
	require.Equal(f, f.Server, p.Dst)
	port := portOf(p, transport)
	require.GreaterOrEqual(f, port, firstOf(1))
	require.Less(f, port, firstOf(2))
	return port
}

// returned asserts that a reply comes to the pod as it knows it.
func (f *fixture) returned(res *packettest.Result, transport string) {
	f.Helper()
	p := f.delivered(res)
	require.Equal(f, f.Server, p.Src)
	require.Equal(f, f.Pod, p.Dst)
	require.Equal(f, connectionOf(transport, f.Pod, f.Server).Sport, destinationPortOf(p, transport))
}

// TestBlockOfPod: the pod's node translates, and the connection goes on with the same address and
// port by whatever node has the address, also by this one.
func TestBlockOfPod(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		f.moving(second())
		send := func() *packettest.Result { return f.fromPod(request(transport, f.Pod, f.Server)...) }
		port := f.byBlock(send(), second(), transport)
		require.Equal(f, bpf.AddressFrom(f.Egress),
			f.connection(connectionOf(transport, f.Pod, f.Server)).Gateway)
		answer := response(transport, f.Server, f.Egress, port)
		f.returned(f.fromOverlay(second(), answer...), transport)

		f.movesTo(third())
		require.Equal(f, port, f.byBlock(send(), third(), transport))
		f.returned(f.fromOverlay(third(), answer...), transport)

		f.movesTo(netip.Addr{})
		f.dropped(send(), bpf.ReasonNoGateway)

		here := f.Config.Underlay.Addr()
		f.movesTo(here)
		f.dropped(send(), bpf.ReasonNotOwned) // it has not come yet
		f.lease(time.Hour)
		key, v := bpf.ExitKey{Addr: bpf.AddressFrom(f.Egress)}, f.votesFor(f.Egress)
		v.IfIndex = 0
		require.NoError(f, f.Map(bpf.VotesMap).Put(key, v))
		f.dropped(send(), bpf.ReasonNotOwned) // others may use it
		f.lease(time.Hour)
		require.Equal(f, port, portOf(f.translated(send(), f.Egress), transport))
		f.returned(f.fromNetdev(answer...), transport)

		f.movesTo(second())
		require.Equal(f, port, f.byBlock(send(), second(), transport))
		f.returned(f.fromOverlay(second(), answer...), transport)
	})
}

// TestBlockAtGateway: the gateway keeps nothing: it sends out what comes by a port of its node, and
// replies to the node that has the port.
func TestBlockAtGateway(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		f.moving(f.Config.Underlay.Addr())
		port := firstOf(2) + 7
		sent := withPort(transport, f.Egress, f.Server, port)
		answer := response(transport, f.Server, f.Egress, port)
		f.dropped(f.fromOverlay(second(), sent...), bpf.ReasonNotOwned)
		f.dropped(f.fromNetdev(answer...), bpf.ReasonNotOwned) // the host would reset it

		f.lease(time.Hour)
		p := f.translated(f.fromOverlay(second(), sent...), f.Egress)
		require.Equal(f, port, portOf(p, transport))
		require.EqualValues(f, 63, p.TTL)
		res := f.fromNetdev(answer...)
		require.Equal(f, 1, res.Reasons[bpf.ReasonReplyOverlay])
		p = f.toGateway(res, second())
		require.Equal(f, f.Egress, p.Dst)
		require.Equal(f, port, destinationPortOf(p, transport))
		require.EqualValues(f, 63, p.TTL)

		all, err := f.Connections()
		require.NoError(f, err)
		require.Empty(f, all)
		require.Nil(f, f.translation(inTuple(transport, f.Server, f.Egress, port)))

		f.dropped(f.fromOverlay(third(), sent...), bpf.ReasonOtherBlock)
		f.dropped(f.fromOverlay(second(), withPort(transport, f.Egress, f.Server, firstOf(1))...),
			bpf.ReasonOtherBlock)
		f.dropped(f.fromOverlay(second(), withPort(transport, f.Egress, f.Server, 80)...),
			bpf.ReasonOtherBlock)
		// What is inside the cluster does not get it.
		f.dropped(f.fromOverlay(second(), withPort(transport, f.Egress, f.OtherPod, port)...),
			bpf.ReasonNoRule)
		// The node of a port may not be known yet: the host would reset the connection.
		other := response(transport, f.Server, f.Egress, firstOf(3))
		f.dropped(f.fromNetdev(other...), bpf.ReasonNotOwned)
		require.NoError(f, f.Map("sluice_blocks").Delete(bpf.ExitKey{Addr: bpf.AddressFrom(f.Egress)}))
		require.NoError(f, f.Map(bpf.VotesMap).Delete(bpf.ExitKey{Addr: bpf.AddressFrom(f.Egress)}))
		require.Equal(f, packettest.Next, f.fromNetdev(other...).Verdict, "it does not move")
		f.lease(time.Hour)
		f.dropped(f.fromNetdev(other...), bpf.ReasonNotOwned)
		require.Equal(f, packettest.Next,
			f.fromNetdev(response(transport, f.Server, f.Egress, 53)...).Verdict, "the host's")
	})
}

// withPort returns a packet that a pod's node has translated.
func withPort(transport string, from, to netip.Addr, port uint16) []packettest.Layer {
	switch transport {
	case "TCP":
		return tcp(from, to, port, serverPort, packettest.SYN)
	case "UDP":
		return udp(from, to, port, serverPort)
	}
	return []packettest.Layer{packettest.IP(from, to), packettest.Echo(from, false, port, 1),
		packettest.Pattern(40)}
}

// TestBlockMissing: without ports of the address, or without that, a pod's packet is dropped.
func TestBlockMissing(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		f.moving(second())
		send := func() *packettest.Result { return f.fromPod(request(transport, f.Pod, f.Server)...) }
		f.putBlock(bpf.BlockValue{Gateway: bpf.AddressFrom(second()), Size: blockSize})
		f.dropped(send(), bpf.ReasonNoPortBlock)
		f.movesTo(netip.Addr{})
		f.dropped(send(), bpf.ReasonNoGateway)
		require.NoError(f, f.Map("sluice_blocks").Delete(bpf.ExitKey{Addr: bpf.AddressFrom(f.Egress)}))
		f.dropped(send(), bpf.ReasonNoGateway)
		f.movesTo(third())
		f.byBlock(send(), third(), transport)
	})
}

// TestBlockOfOtherFamily: what cannot leave with the address goes to the node that has it, which
// translates it, and stays with that.
func TestBlockOfOtherFamily(t *testing.T) {
	f := newFixture(t, packettest.World6)
	f.Egress = packettest.World4.Egress
	f.moving(second())
	for _, gateway := range []netip.Addr{third(), second()} {
		f.movesTo(gateway)
		p := f.toGateway(f.fromPod(request("UDP", f.Pod, f.Server)...), third())
		require.Equal(t, f.Pod, p.Src)
		f.delivered(f.fromOverlay(third(), response("UDP", f.Server, f.Pod, podPort)...))
	}
}

// TestBlockUsedUp: a node has no more connections to a destination than it has ports.
func TestBlockUsedUp(t *testing.T) {
	f := newFixture(t, packettest.World4)
	f.Config.PortShare = 0
	require.NoError(t, f.SetConfig(f.Config))
	f.moving(second())
	f.putBlock(bpf.BlockValue{Gateway: bpf.AddressFrom(second()), Size: blockSize,
		Ports: [bpf.SharedPortRanges]bpf.PortRange{{First: firstOf(1), Last: firstOf(1) + 3},
			{First: firstOf(2), Last: firstOf(2) + 3}}})
	ports := map[uint16]bool{}
	for i := range uint16(8) {
		res := f.fromPod(udp(f.Pod, f.Server, podPort+i, serverPort)...)
		ports[f.toGateway(res, second()).SrcPort] = true
	}
	require.Len(t, ports, 8)
	key, count := f.portCount()
	require.Equal(t, f.Egress, key.Egress.Addr())
	require.EqualValues(t, 8, count.Used)
	require.EqualValues(t, 8, count.Room, "the metrics of ports are about those of this node")
	f.dropped(f.fromPod(udp(f.Pod, f.Server, podPort+8, serverPort)...), bpf.ReasonNoSNATPort)
	f.toGateway(f.fromPod(udp(f.Pod, f.Server, podPort+8, serverPort+1)...), second())
}

// TestBlockClosed: of a range that the node gives back new connections get no port, also when
// others are used up, while those that have one keep it.
func TestBlockClosed(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		f.Config.PortShare = 0
		require.NoError(f, f.SetConfig(f.Config))
		f.moving(second())
		send := func() *packettest.Result { return f.fromPod(request(transport, f.Pod, f.Server)...) }
		port := f.byBlock(send(), second(), transport)
		v := bpf.BlockValue{Gateway: bpf.AddressFrom(second()), Size: blockSize, Closed: 1}
		v.Ports[0] = bpf.PortRange{First: firstOf(3), Last: firstOf(3) + 3}
		v.Ports[3] = bpf.PortRange{First: firstOf(1), Last: firstOf(2) - 1}
		f.putBlock(v)

		require.Equal(f, port, f.byBlock(send(), second(), transport))
		f.returned(f.fromOverlay(second(), response(transport, f.Server, f.Egress, port)...), transport)
		other := func(i uint16) *packettest.Result {
			return f.fromPod(udp(f.Pod, f.Server, podPort+i, serverPort+1)...)
		}
		for i := range uint16(4) {
			got := f.toGateway(other(i), second()).SrcPort
			require.GreaterOrEqual(f, got, firstOf(3))
			require.LessOrEqual(f, got, firstOf(3)+3)
		}
		f.dropped(other(4), bpf.ReasonNoSNATPort)

		v.Closed = 0
		f.putBlock(v)
		f.byBlock(other(4), second(), "UDP")
		v.Closed = 4
		f.putBlock(v)
		f.dropped(other(5), bpf.ReasonNoPortBlock)
		require.Equal(f, port, f.byBlock(send(), second(), transport))
	})
}

// TestBlockErrors: errors about a flow come by its block too, and are about what the pod knows.
func TestBlockErrors(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		f.moving(second())
		port := f.byBlock(f.fromPod(request("UDP", f.Pod, f.Server)...), second(), "UDP")
		for name, message := range icmpErrors(f) {
			failed := func(port uint16) []packettest.Layer {
				return []packettest.Layer{packettest.IP(f.Router, f.Egress), message, about(least(f),
					packettest.IP(f.Egress, f.Server), packettest.UDP{Src: port, Dst: serverPort},
					packettest.Pattern(40))}
			}
			p := f.delivered(f.fromOverlay(second(), failed(port)...))
			require.Equal(f, f.Pod, p.Dst, name)
			require.Equal(f, f.Pod, p.Inner.Src, name)
			require.EqualValues(f, podPort, p.Inner.SrcPort, name)

			f.dropped(f.fromOverlay(second(), failed(port^1)...), bpf.ReasonNoRule)
		}
		f.lease(time.Hour)
		f.movesTo(f.Config.Underlay.Addr())
		for _, message := range icmpErrors(f) {
			p := f.toGateway(f.fromNetdev(packettest.IP(f.Router, f.Egress), message, about(least(f),
				packettest.IP(f.Egress, f.Server), packettest.UDP{Src: firstOf(2), Dst: serverPort},
				packettest.Pattern(40))), second())
			require.Equal(f, f.Egress, p.Dst)
			require.Equal(f, firstOf(2), p.Inner.SrcPort)
		}
	})
}

// TestBlockProof: a packet that a pod's node has translated is proven as the gateway sees it.
func TestBlockProof(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		require.NoError(f, f.SetOverlayKeys(false, firstKey))
		f.moving(second())
		res := f.fromPod(request(transport, f.Pod, f.Server)...)
		port := f.byBlock(res, second(), transport)
		f.proves(res, firstKey, second(), bpf.DirectionEgress, flowOf(f.parse(res), transport))

		answer := response(transport, f.Server, f.Egress, port)
		f.returned(f.proven(firstKey, second(), bpf.DirectionIngress, transport, answer...), transport)
		f.dropped(f.proven(firstKey, second(), bpf.DirectionEgress, transport, answer...),
			bpf.ReasonNoRule)
	})
}
