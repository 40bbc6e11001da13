// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

// shareRoom is the room of each map in the tests of shares. A pod gets connections while it
// has no more than is free: of 20 it gets 11. Another then gets 5 of the 9 that are left.
const (
	shareRoom = 20
	firstGets = 11
	nextGets  = 5
)

// newShared returns a node where pods have shares of maps with little room.
func newShared(f *fixture) *fixture {
	f.Helper()
	require.NoError(f, f.SetRoom(shareRoom))
	require.NoError(f, f.SetShares(100, 100))
	return f
}

// opening returns what begins a flow.
func opening(transport string, from, to netip.Addr, sport, dport uint16) []packettest.Layer {
	if transport == "TCP" {
		return tcp(from, to, sport, dport, packettest.SYN)
	}
	return udp(from, to, sport, dport)
}

// limitedMap returns the number of the map of a flow.
func (f *fixture) limitedMap(transport string) (limited uint32) {
	if transport != "TCP" {
		limited++
	}
	if f.Pod.Is6() {
		limited += bpf.LimitedCT6TCP
	}
	return limited
}

func (f *fixture) limitedNAT() uint32 {
	if f.Pod.Is6() {
		return bpf.LimitedNAT6
	}
	return bpf.LimitedNAT4
}

func (f *fixture) share(pod netip.Addr, limited, reached uint32) int {
	f.Helper()
	n, err := f.Share(pod, limited, reached)
	require.NoError(f, err)
	return int(n)
}

// fromOtherPod sends a packet of the other pod of the node.
func (f *fixture) fromOtherPod(layers ...packettest.Layer) *packettest.Result {
	f.Helper()
	ethernet := packettest.Ethernet{Dst: f.MAC(packettest.OtherPodDevice), Src: packettest.OtherPodMAC}
	return f.run(packettest.Input{Program: "from_pod", Device: packettest.OtherPodDevice,
		Packet: packettest.Build(append([]packettest.Layer{ethernet}, layers...)...)})
}

// admitted begins flows, with one source port after the other, until one is dropped. It
// returns how many were not.
func (f *fixture) admitted(reason bpf.Reason, begin func(sport uint16) *packettest.Result) (n int) {
	f.Helper()
	for sport := uint16(20000); sport < 20100; sport++ {
		res := begin(sport)
		if res.Verdict == packettest.Drop {
			f.dropped(res, reason)
			return n
		}
		n++
	}
	f.Fatal("there is no limit")
	return n
}

func eachShared(t *testing.T, test func(f *fixture, transport string)) {
	for _, transport := range []string{"TCP", "UDP"} {
		t.Run(transport, func(t *testing.T) {
			eachFamily(t, func(f *fixture) { test(newShared(f), transport) })
		})
	}
}

// TestConnectionShare: a pod begins no more connections when it has its share. Those that it
// has go on, and other pods begin theirs.
func TestConnectionShare(t *testing.T) {
	eachShared(t, func(f *fixture, transport string) {
		flood := func(sport uint16) *packettest.Result {
			return f.fromPod(opening(transport, f.Pod, f.Uncovered, sport, 80)...)
		}
		require.Equal(f, firstGets, f.admitted(bpf.ReasonConnectionShare, flood))
		limited := f.limitedMap(transport)
		require.Equal(f, firstGets, f.share(f.Pod, limited, 0))
		require.Equal(f, firstGets, f.share(netip.Addr{}, limited, 0), "of all")
		connections, err := f.Connections()
		require.NoError(f, err)
		require.Len(f, connections, firstGets, "what was refused has no entry")

		for sport := uint16(20000); sport < 20000+firstGets; sport++ {
			f.checked(flood(sport)) // again
			reply := udp(f.Uncovered, f.Pod, 80, sport)
			if transport == "TCP" {
				reply = tcp(f.Uncovered, f.Pod, 80, sport, packettest.SYN|packettest.ACK)
			}
			f.passed(f.toPod(reply...))
		}
		if transport == "TCP" {
			f.checked(f.fromPod(tcp(f.Pod, f.Uncovered, 21000, 80, packettest.ACK)...))
			require.Nil(f, f.connection(packettest.Tuple{
				Daddr: f.Pod, Saddr: f.Uncovered, Sport: 80, Dport: 21000, Protocol: packettest.TCPProtocol,
			}), "a connection from before goes on without an entry")
		}

		require.Equal(f, nextGets, f.admitted(bpf.ReasonConnectionShare, func(sport uint16) *packettest.Result {
			return f.fromOtherPod(opening(transport, f.OtherPod, f.Uncovered, sport, 80)...)
		}))
	})
}

// TestConnectionShareOfReachedPod: connections that others begin with a pod count apart from
// those that it begins. They cannot keep it from beginning its own, nor this host from
// reaching it, and what a pod of this node begins counts in that pod's share.
func TestConnectionShareOfReachedPod(t *testing.T) {
	eachShared(t, func(f *fixture, transport string) {
		limited := f.limitedMap(transport)
		require.Equal(f, firstGets, f.admitted(bpf.ReasonConnectionShare, func(sport uint16) *packettest.Result {
			return f.toPod(opening(transport, f.Uncovered, f.Pod, sport, 80)...)
		}))
		require.Equal(f, firstGets, f.share(f.Pod, limited, 1))
		require.Zero(f, f.share(f.Pod, limited, 0))

		f.checked(f.fromPod(opening(transport, f.Pod, f.Uncovered, 5000, 443)...))
		ethernet := packettest.Ethernet{Dst: packettest.PodMAC, Src: f.MAC(packettest.PodDevice)}
		layers := append([]packettest.Layer{ethernet}, opening(transport, f.OtherPod, f.Pod, 5000, 80)...)
		f.dropped(f.toPod(layers[1:]...), bpf.ReasonConnectionShare) // from outside, with its address
		require.Zero(f, f.share(f.OtherPod, limited, 0))
		f.passed(f.run(packettest.Input{
			Program: "to_pod", Device: packettest.PodDevice, Ingress: packettest.OtherPodDevice,
			Mark: packettest.MarkChecked, Packet: packettest.Build(layers...),
		}))
		require.Equal(f, 1, f.share(f.OtherPod, limited, 0))
		require.Equal(f, firstGets, f.share(f.Pod, limited, 1))

		layers = append([]packettest.Layer{ethernet}, opening(transport, f.NodeIP, f.Pod, 5000, 80)...)
		f.passed(f.run(packettest.Input{
			Program: "to_pod", Device: packettest.PodDevice, Packet: packettest.Build(layers...),
		}))
		require.Equal(f, firstGets, f.share(f.Pod, limited, 1), "of this host")
		require.Equal(f, firstGets+3, f.share(netip.Addr{}, limited, 0), "of all")
	})
}

// TestConnectionShareOnGateway: on a gateway pods of other nodes have shares too.
func TestConnectionShareOnGateway(t *testing.T) {
	eachShared(t, func(f *fixture, transport string) {
		f.selected(f.Here(f.Egress))
		require.NoError(f, f.SetRemotePod(f.RemotePod))
		// The maps of translations have less room than they: two entries each.
		gets := f.admitted(bpf.ReasonConnectionShare, func(sport uint16) *packettest.Result {
			return f.fromOverlay(second(), opening(transport, f.RemotePod, f.Server, sport, 80)...)
		})
		require.Equal(f, (firstGets+1)/2, gets)
		require.Equal(f, 2*gets, f.share(f.RemotePod, f.limitedNAT(), 0))
		require.Equal(f, gets, f.share(f.RemotePod, f.limitedMap(transport), 0))
		f.translated(f.fromOverlay(second(), opening(transport, f.RemotePod, f.Server, 20000, 80)...), f.Egress)
		f.translated(f.fromPod(opening(transport, f.Pod, f.Server, 20000, 80)...), f.Egress)

		// What it has of connections is looked at too.
		f.selected(f.Here(f.Egress))
		shares := f.Map(bpf.SharesMap)
		key := bpf.ShareKey{Pod: bpf.AddressFrom(f.RemotePod), Map: f.limitedNAT()}
		require.NoError(f, shares.Delete(key))
		key.Map = f.limitedMap(transport)
		require.NoError(f, shares.Put(key, bpf.ShareValue{Used: shareRoom}))
		f.dropped(f.fromOverlay(second(), opening(transport, f.RemotePod, f.Server, 30000, 80)...),
			bpf.ReasonConnectionShare)
	})
}

// TestPortShare: a pod gets no more ports of an egress address towards a destination when it
// has its share; others get theirs, and other destinations have ports of their own.
func TestPortShare(t *testing.T) {
	const ports = packettest.SharedLast - packettest.SharedFirst + 1
	eachFamily(t, func(f *fixture) {
		require.NoError(f, f.SetShares(0, 100))
		f.selected(f.Here(f.SharedEgress))
		require.NoError(f, f.SetRemotePod(f.RemotePod))
		to := func(server netip.Addr) func(uint16) *packettest.Result {
			return func(sport uint16) *packettest.Result {
				return f.fromPod(udp(f.Pod, server, sport, 53)...)
			}
		}
		require.Equal(f, ports/2+1, f.admitted(bpf.ReasonPortShare, to(f.Server)))
		f.translated(to(f.Server)(20000), f.SharedEgress)
		require.Equal(f, ports/2+1, f.admitted(bpf.ReasonPortShare, to(f.Server2)))
		next := func(sport uint16) *packettest.Result {
			return f.fromOverlay(second(), udp(f.RemotePod, f.Server, sport+10000, 53)...)
		}
		require.Equal(f, 8, f.admitted(bpf.ReasonPortShare, next), "of the 15 that are left")

		// A flow that begins again with its ports takes none more.
		for range 3 {
			f.expired(100)
			f.age(200)
			for sport := uint16(20000); sport <= 20000+ports/2; sport++ {
				f.translated(to(f.Server)(sport), f.SharedEgress)
			}
		}
		f.dropped(to(f.Server)(25000), bpf.ReasonPortShare)
	})
}

// portCount returns the only count of ports of an egress address towards a destination.
func (f *fixture) portCount() (key bpf.PortKey, count bpf.ShareValue) {
	f.Helper()
	entries, found := f.Map(bpf.PortsMap).Iterate(), 0
	for k, v := (bpf.PortKey{}), (bpf.ShareValue{}); entries.Next(&k, &v); {
		if k.Pod == (bpf.Address{}) {
			key, count = k, v
			found++
		}
	}
	require.NoError(f, entries.Err())
	require.Equal(f, 1, found)
	return key, count
}

// TestPortsUsedUpCostNoSearch: when all ports are taken a flow is refused by their count. No
// port is tried, so one that is free is not found.
func TestPortsUsedUpCostNoSearch(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		f.selected(f.Here(f.SharedEgress))
		send := func(sport uint16) *packettest.Result {
			return f.fromPod(udp(f.Pod, f.Server, sport, 53)...)
		}
		f.translated(send(5000), f.SharedEgress)
		key, all := f.portCount()
		require.EqualValues(f, 1, all.Used)
		require.EqualValues(f, packettest.SharedLast-packettest.SharedFirst+1, all.Room)
		all.Used = all.Room
		require.NoError(f, f.Map(bpf.PortsMap).Put(key, all))
		f.dropped(send(5001), bpf.ReasonNoSNATPort)
		f.translated(send(5000), f.SharedEgress)
	})
}

// TestNoShares: with 0 there is no limit, nor is there one if nothing can be counted.
func TestNoShares(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		send := func(sport uint16) { f.checked(f.fromPod(udp(f.Pod, f.Uncovered, sport, 53)...)) }
		require.NoError(f, f.SetRoom(shareRoom))
		require.NoError(f, f.SetShares(0, 0))
		for sport := uint16(20000); sport < 20000+2*shareRoom; sport++ {
			send(sport)
		}
		require.NoError(f, f.SetShares(100, 100))
		require.NoError(f, f.SetRoom(0))
		send(30000)
	})
}
