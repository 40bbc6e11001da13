// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

// fixed makes the egress address a fixed one, with the blocks of [fixture.moving].
func (f *fixture) fixed(gateway netip.Addr) {
	f.Helper()
	f.moving(gateway)
	f.fixedAt(gateway)
	require.NoError(f, f.AddFlags(bpf.ConfigFloating)) // there may be others that move
}

func (f *fixture) fixedAt(gateway netip.Addr) {
	f.Helper()
	f.putBlock(bpf.BlockValue{Gateway: bpf.AddressFrom(gateway), Size: blockSize,
		Flags: bpf.BlockFixed,
		Ports: [bpf.SharedPortRanges]bpf.PortRange{{First: firstOf(1), Last: firstOf(2) - 1}}})
}

// hasExit gives this node the address.
func (f *fixture) hasExit(flags bpf.ExitFlags) {
	f.Helper()
	require.NoError(f, f.SetExit(f.Egress,
		bpf.ExitValue{IfIndex: f.Index(packettest.EgressDevice), Flags: flags}))
}

// TestFixedBlockOfPod: the pod's node translates to a fixed address, for another gateway and for
// itself, which has it without votes.
func TestFixedBlockOfPod(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		f.fixed(second())
		send := func() *packettest.Result { return f.fromPod(request(transport, f.Pod, f.Server)...) }
		port := f.byBlock(send(), second(), transport)
		answer := response(transport, f.Server, f.Egress, port)
		f.returned(f.fromOverlay(second(), answer...), transport)

		f.fixedAt(f.Config.Underlay.Addr())
		f.dropped(send(), bpf.ReasonNoEgressIP) // it is not configured
		f.hasExit(0)
		require.Equal(f, port, portOf(f.translated(send(), f.Egress), transport))
		f.returned(f.fromNetdev(answer...), transport)
	})
}

// TestFixedBlockAtGateway: the gateway of a fixed address keeps nothing of connections, so it goes
// on with them when its maps are empty.
func TestFixedBlockAtGateway(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		f.fixed(f.Config.Underlay.Addr())
		port := firstOf(2) + 7
		sent := withPort(transport, f.Egress, f.Server, port)
		answer := response(transport, f.Server, f.Egress, port)
		f.dropped(f.fromOverlay(second(), sent...), bpf.ReasonNoEgressIP)
		require.Equal(f, packettest.Next, f.fromNetdev(answer...).Verdict, "it is not here")

		f.hasExit(bpf.ExitShared)
		require.Equal(f, port,
			portOf(f.translated(f.fromOverlay(second(), sent...), f.Egress), transport))
		p := f.toGateway(f.fromNetdev(answer...), second())
		require.Equal(f, f.Egress, p.Dst)
		require.Equal(f, port, destinationPortOf(p, transport))

		all, err := f.Connections()
		require.NoError(f, err)
		require.Empty(f, all)
		require.Empty(f, f.entries())
		f.dropped(f.fromOverlay(third(), sent...), bpf.ReasonOtherBlock)
		f.dropped(f.fromNetdev(response(transport, f.Server, f.Egress, firstOf(3))...),
			bpf.ReasonNotOwned) // its node may not be known yet
	})
}

// TestFixedBlockOfHost: what the host of a gateway sends with a fixed address gets replies: it has
// ports of this node's block. From a port of services, and to one, it is left alone.
func TestFixedBlockOfHost(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		for _, flags := range []bpf.ExitFlags{0, bpf.ExitShared} {
			require.NoError(f, f.Reset())
			f.fixed(f.Config.Underlay.Addr())
			f.hasExit(flags)
			send := func(port uint16) *packettest.Result {
				return f.toNetdev(0, withPort(transport, f.Egress, f.Server, port)...)
			}
			reply := func(port uint16) uint16 {
				f.Helper()
				res := f.fromNetdev(response(transport, f.Server, f.Egress, port)...)
				require.Equal(f, packettest.Next, res.Verdict, "it is for the host")
				require.Equal(f, f.Egress, f.parse(res).Dst)
				return destinationPortOf(f.parse(res), transport)
			}
			own := firstOf(1) + 3
			for _, port := range []uint16{40000, own, firstOf(2) + 1} {
				res := send(port)
				require.Equal(f, packettest.Next, res.Verdict)
				got := portOf(f.parse(res), transport)
				require.GreaterOrEqual(f, got, firstOf(1))
				require.Less(f, got, firstOf(2))
				require.True(f, port != own || got == own, "it keeps one that it may have")
				require.Equal(f, port, reply(got))
				require.Equal(f, got, portOf(f.parse(send(port)), transport), "the same one again")
			}
			before := len(f.entries())
			f.hostLeaves(withPort(transport, f.Egress, f.Server, 443)...)
			require.EqualValues(f, 443, reply(443))
			require.Len(f, f.entries(), before)
		}
	})
}

// TestFixedBlockBesidePods: the host gets no port that a pod has to the same server, nor a pod one
// of the host.
func TestFixedBlockBesidePods(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		f.fixed(f.Config.Underlay.Addr())
		f.hasExit(0)
		pods := portOf(f.translated(f.fromPod(request(transport, f.Pod, f.Server)...), f.Egress),
			transport)
		res := f.toNetdev(0, withPort(transport, f.Egress, f.Server, pods)...)
		hosts := portOf(f.parse(res), transport)
		require.NotEqual(f, pods, hosts)
		require.GreaterOrEqual(f, hosts, firstOf(1))
		require.Less(f, hosts, firstOf(2))
		f.returned(f.fromNetdev(response(transport, f.Server, f.Egress, pods)...), transport)
		res = f.fromNetdev(response(transport, f.Server, f.Egress, hosts)...)
		require.Equal(f, packettest.Next, res.Verdict)
		require.Equal(f, pods, destinationPortOf(f.parse(res), transport))
	})
}
