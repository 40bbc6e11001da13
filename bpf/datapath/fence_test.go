// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

// bootTime is the time of votes.
func (f *fixture) bootTime() uint64 {
	f.Helper()
	var now unix.Timespec
	require.NoError(f, unix.ClockGettime(unix.CLOCK_BOOTTIME, &now))
	return uint64(now.Nano())
}

// lease gives this node the egress address until some time from now, by the vote of one voter.
func (f *fixture) lease(left time.Duration) {
	f.Helper()
	require.NoError(f, f.AddFlags(bpf.ConfigFloating))
	f.voters(1, f.NodeIP)
	v := bpf.VotesValue{IfIndex: f.Index(packettest.EgressDevice)}
	v.Votes[1][0] = bpf.Vote{Until: f.bootTime() + uint64(left), Set: 1}
	require.NoError(f, f.Map(bpf.VotesMap).Put(bpf.ExitKey{Addr: bpf.AddressFrom(f.Egress)}, v))
}

// asked is a frame that asks for an address of the node.
func (f *fixture) asked(addr netip.Addr) []byte {
	if addr.Is4() {
		return arp{frame: packettest.RouterMAC, operation: 1, sender: f.Server, target: addr}.bytes()
	}
	return f.wireFrame(neighbour(neighbourSolicitation, f.Server, addr, addr, 0)...)
}

// told is a frame in which the node says that it has an address.
func (f *fixture) told(addr netip.Addr) []byte {
	if addr.Is4() {
		return arp{
			frame: f.MAC(packettest.EgressDevice), operation: 2, sender: addr, target: f.Server,
		}.bytes()
	}
	ethernet := packettest.Ethernet{Src: f.MAC(packettest.EgressDevice), Dst: packettest.RouterMAC}
	return packettest.Build(append([]packettest.Layer{ethernet},
		neighbour(neighbourAdvertisement, f.NodeIP, f.Server, addr, 0)...)...)
}

func (f *fixture) at(program string, frame []byte) *packettest.Result {
	f.Helper()
	return f.run(packettest.Input{Program: program, Device: packettest.EgressDevice, Packet: frame})
}

// A node neither answers for an address of which its lease has run out, nor announces it, and
// other addresses of the node stay as they are.
func TestLapsedAddressIsSilent(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		answers := func(addr netip.Addr) {
			require.Equal(f, packettest.Next, f.at("from_netdev", f.asked(addr)).Verdict)
			require.Equal(f, packettest.Next, f.at("to_netdev", f.told(addr)).Verdict)
		}
		answers(f.Egress) // it is no address that moves
		f.lease(time.Hour)
		answers(f.Egress)
		f.lease(0)
		f.dropped(f.at("from_netdev", f.asked(f.Egress)), bpf.ReasonNotOwned)
		f.dropped(f.at("to_netdev", f.told(f.Egress)), bpf.ReasonNotOwned)
		answers(f.NodeIP)
		f.lease(time.Hour)
		answers(f.Egress)
	})
}

// Connections that use the address stop both ways with the lease, whether they are pods' or
// the host's, and go on with it.
func TestLapsedAddressCarriesNothing(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		f.selected(f.Here(f.Egress))
		f.lease(time.Hour)
		sent := f.fromPod(request(transport, f.Pod, f.Server)...)
		port := portOf(f.translated(sent, f.Egress), transport)
		leaves := func() *packettest.Result {
			return f.run(packettest.Input{Program: "to_netdev", Device: packettest.EgressDevice,
				Mark: sent.Mark, Packet: sent.Out})
		}
		returns := func() *packettest.Result {
			return f.fromNetdev(response(transport, f.Server, f.Egress, port)...)
		}
		host := func() *packettest.Result {
			return f.toNetdev(0, request(transport, f.Egress, f.Server)...)
		}
		require.Equal(f, packettest.Next, leaves().Verdict)
		f.delivered(returns())
		require.Equal(f, packettest.Next, host().Verdict)

		f.lease(-time.Second)
		for _, send := range []func() *packettest.Result{leaves, returns, host} {
			f.dropped(send(), bpf.ReasonNotOwned)
		}
		f.lease(time.Hour)
		require.Equal(f, packettest.Next, leaves().Verdict)
		f.delivered(returns())
	})
}
