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

// forgetTranslation removes records of translations, as a full map does.
func (f *fixture) forgetTranslation(flags ...uint8) {
	f.Helper()
	all, err := f.Translations()
	require.NoError(f, err)
	for tuple := range all {
		for _, flag := range flags {
			if tuple.Flags == flag {
				require.NoError(f, f.DeleteTranslation(tuple))
			}
		}
	}
}

// TestBlockEvicted: a connection whose records were evicted goes on with the same port, counts for
// its policy, and has the limit of it.
func TestBlockEvicted(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		f.moving(second())
		send := func() *packettest.Result { return f.fromPod(request(transport, f.Pod, f.Server)...) }
		port := f.byBlock(send(), second(), transport)
		sent, replies := packettest.Out, packettest.In
		for _, evicted := range [][]uint8{{sent}, {replies}, {sent, replies}} {
			f.forgetTranslation(evicted...)
			counted := f.traffic()[f.Egress.String()].Sent.Packets
			require.Equal(f, port, f.byBlock(send(), second(), transport))
			require.Equal(f, counted+1, f.traffic()[f.Egress.String()].Sent.Packets)
			f.returned(f.fromOverlay(second(), response(transport, f.Server, f.Egress, port)...),
				transport)
		}
		f.limit(1, 1)
		f.setBucket(bucketOf(netip.Addr{}, bpf.DirectionEgress), time.Hour)
		f.forgetTranslation(packettest.Out, packettest.In)
		f.dropped(send(), bpf.ReasonBandwidth)
	})
}

// TestBlockOfOtherFamilyDecidedAgain: a flow of the other family that is decided again gets its
// replies.
func TestBlockOfOtherFamilyDecidedAgain(t *testing.T) {
	for _, transport := range []string{"TCP", "UDP"} {
		f := newFixture(t, packettest.World6)
		f.Egress = packettest.World4.Egress
		f.moving(third())
		send := func() *packettest.Result { return f.fromPod(request(transport, f.Pod, f.Server)...) }
		f.toGateway(send(), third())
		require.NoError(t, f.SetNode(third(), 0))
		f.movesTo(second())
		f.toGateway(send(), second())
		f.delivered(f.fromOverlay(second(), response(transport, f.Server, f.Pod, podPort)...))
	}
}

// TestBlockChanged: a flow whose port is not this node's any more gets another one.
func TestBlockChanged(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		f.moving(second())
		send := func() *packettest.Result { return f.fromPod(request(transport, f.Pod, f.Server)...) }
		port := f.byBlock(send(), second(), transport)
		ports := func(ranges ...bpf.PortRange) {
			v := bpf.BlockValue{Gateway: bpf.AddressFrom(second()), Size: blockSize}
			copy(v.Ports[:], ranges)
			f.putBlock(v)
		}
		// More ports change nothing, nor does that nothing is known of them for a while.
		ports(bpf.PortRange{First: firstOf(3), Last: firstOf(4) - 1},
			bpf.PortRange{First: firstOf(1), Last: firstOf(2) - 1})
		require.Equal(f, port, f.byBlock(send(), second(), transport))
		ports()
		require.Equal(f, port, f.byBlock(send(), second(), transport))

		ports(bpf.PortRange{First: firstOf(3), Last: firstOf(4) - 1})
		p := f.toGateway(send(), second())
		require.GreaterOrEqual(f, portOf(p, transport), firstOf(3))
		require.Less(f, portOf(p, transport), firstOf(4))
	})
}

// TestBlockForOtherNode: what a node sends that does not translate itself, as those of former
// versions, leaves with a port of the gateway's own block, so that replies come back.
func TestBlockForOtherNode(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		here := f.Config.Underlay.Addr()
		f.moving(here)
		require.NoError(f, f.SetExit(f.Egress, bpf.ExitValue{IfIndex: f.Index(packettest.EgressDevice)}))
		f.lease(time.Hour)
		row := f.Here(f.Egress)
		row.Gateway = bpf.AddressFrom(f.Egress)
		f.selected(row)
		require.NoError(f, f.SetRemotePod(f.RemotePod))
		p := f.translated(f.fromOverlay(second(), request(transport, f.RemotePod, f.Server)...), f.Egress)
		port := portOf(p, transport)
		require.GreaterOrEqual(f, port, firstOf(1))
		require.Less(f, port, firstOf(2))
		p = f.toGateway(f.fromNetdev(response(transport, f.Server, f.Egress, port)...), second())
		require.Equal(f, f.RemotePod, p.Dst)
	})
}

// TestBlockBegunBefore: a connection that this node translated before the address was one that
// moves gets its replies, also if another node has its port now.
func TestBlockBegunBefore(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		f.selected(f.Here(f.Egress))
		require.NoError(f, f.SetRemotePod(f.RemotePod))
		port := portOf(f.translated(
			f.fromOverlay(second(), request(transport, f.RemotePod, f.Server)...), f.Egress), transport)
		f.moving(f.Config.Underlay.Addr())
		f.lease(time.Hour)
		key := bpf.OwnerKey{Egress: bpf.AddressFrom(f.Egress),
			Block: uint32(port-bpf.BlockPortMin) / blockSize}
		require.NoError(f, f.Map("sluice_owners").Put(key,
			bpf.OwnerValue{Node: bpf.AddressFrom(third())}))
		p := f.toGateway(f.fromNetdev(response(transport, f.Server, f.Egress, port)...), second())
		require.Equal(f, f.RemotePod, p.Dst)
	})
}

// arrived has the frame that a program sent over the overlay arrive from a node.
func (f *fixture) arrived(node netip.Addr, frame []byte) *packettest.Result {
	f.Helper()
	return f.run(packettest.Input{Program: "from_overlay", Device: packettest.OverlayDevice,
		Overlay: node, Packet: frame})
}

// TestBlockTimeExceeded: the gateway answers a translated packet without hops left, and the pod
// gets the answer about what it knows.
func TestBlockTimeExceeded(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		f.moving(f.Config.Underlay.Addr())
		f.lease(time.Hour)
		p := f.translated(f.fromPod(request(transport, f.Pod, f.Server)...), f.Egress)
		port := portOf(p, transport)
		layers := withPort(transport, f.Egress, f.Server, firstOf(2))
		layers[0] = packettest.TTL(f.Egress, f.Server, 1)
		res := f.fromOverlay(second(), layers...)
		f.answered(res, packettest.OverlayDevice, bpf.ReasonTTLExceeded, f.Egress)
		require.Equal(f, second(), res.Tunnel.Remote)

		// Here as if from another gateway.
		layers = withPort(transport, f.Egress, f.Server, port)
		layers[0] = packettest.TTL(f.Egress, f.Server, 1)
		require.NoError(f, f.Map("sluice_owners").Put(
			bpf.OwnerKey{Egress: bpf.AddressFrom(f.Egress), Block: 1},
			bpf.OwnerValue{Node: bpf.AddressFrom(second())}))
		res = f.fromOverlay(second(), layers...)
		p = f.delivered(f.arrived(third(), res.Out))
		require.Equal(f, f.Pod, p.Dst)
		require.Equal(f, f.Pod, p.Inner.Src)
		require.Equal(f, connectionOf(transport, f.Pod, f.Server).Sport, portOf(p.Inner, transport))
	})
}

// TestBlockFragments: datagrams in fragments go both ways, at both nodes, unless the first fragment
// is not known.
func TestBlockFragments(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		f.moving(second())
		cut := func(from, to netip.Addr, source, dest uint16, id uint32) [][]byte {
			return packettest.Fragments(f.wireFrame(packettest.IP(from, to),
				packettest.UDP{Src: source, Dst: dest}, packettest.Pattern(1900)), 1000, id)
		}
		fromPod := func(frame []byte) *packettest.Result {
			copy(frame[6:12], packettest.PodMAC[:])
			return f.run(packettest.Input{
				Program: "from_pod", Device: packettest.PodDevice, Packet: frame,
			})
		}
		fromNetdev := func(frame []byte) *packettest.Result {
			return f.run(packettest.Input{
				Program: "from_netdev", Device: packettest.EgressDevice, Packet: frame,
			})
		}
		sent := cut(f.Pod, f.Server, podPort, serverPort, 1)
		f.dropped(fromPod(sent[1]), bpf.ReasonUnknownFragment)
		var out [][]byte
		for _, frame := range sent {
			res := fromPod(frame)
			require.Equal(f, f.Egress, f.toGateway(res, second()).Src)
			out = append(out, res.Out)
		}
		port := f.parse(&packettest.Result{Out: out[0]}).SrcPort
		back := cut(f.Server, f.Egress, serverPort, port, 2)
		f.dropped(f.arrived(second(), back[1]), bpf.ReasonUnknownFragment)
		for _, frame := range back {
			require.Equal(f, f.Pod, f.delivered(f.arrived(second(), frame)).Dst)
		}

		// The same at a gateway.
		f.lease(time.Hour)
		f.movesTo(f.Config.Underlay.Addr())
		for _, frame := range cut(f.Egress, f.Server, firstOf(2), serverPort, 3) {
			f.translated(f.arrived(second(), frame), f.Egress)
		}
		back = cut(f.Server, f.Egress, serverPort, firstOf(2), 4)
		require.Equal(f, packettest.Next, fromNetdev(back[1]).Verdict)
		for _, frame := range back {
			require.Equal(f, f.Egress, f.toGateway(fromNetdev(frame), second()).Dst)
		}
	})
}
