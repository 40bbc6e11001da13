// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

// TestHostAnswersWithoutRecords: packets from outside that have the host answer from an egress
// address make no entries, so that they evict none of pods: refused connections, and ports that no
// pod gets.
func TestHostAnswersWithoutRecords(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		f.selected(f.Here(f.Egress, f.SharedEgress))
		port := f.Config.SharedPorts[0].First
		for _, egress := range []netip.Addr{f.Egress, f.SharedEgress} {
			f.hostLeaves(tcp(egress, f.Server, port, podPort, packettest.RST|packettest.ACK)...)
			f.hostLeaves(tcp(egress, f.Server, 443, podPort, packettest.ACK)...)
			f.hostLeaves(udp(egress, f.Server, 53, podPort)...)
		}
		f.hostLeaves(udp(f.SharedEgress, f.Server, port-1, podPort)...)
		require.Zero(f, len(f.entries()))
	})
}

// TestHostShareOfRecords: what the host answers from a port that pods may get has its share of the
// translations, and goes on without a record.
func TestHostShareOfRecords(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		f.selected(f.Here(f.Egress))
		require.NoError(f, f.SetRoom(40))
		require.NoError(f, f.SetShares(100, 0))
		for i := range uint16(100) {
			f.hostLeaves(udp(f.Egress, f.Server, 30053, podPort+i)...)
		}
		require.Equal(f, 22, len(f.entries()), "the first that is more than what is free")

		// A pod still gets what it wants, and the host's next packet another port than the pod.
		taken := f.translated(f.fromPod(udp(f.Pod, f.Server, podPort, serverPort)...), f.Egress).SrcPort
		res := f.toNetdev(0, udp(f.Egress, f.Server, taken, serverPort)...)
		require.NotEqual(f, taken, f.parse(res).SrcPort)
	})
}

// hostLeaves asserts that the host's packet leaves as it is.
func (f *fixture) hostLeaves(layers ...packettest.Layer) {
	f.Helper()
	res := f.toNetdev(0, layers...)
	require.Equal(f, packettest.Next, res.Verdict)
	require.Empty(f, res.Reasons)
}

// entries are all translations.
func (f *fixture) entries() map[packettest.Tuple]packettest.Translation {
	f.Helper()
	all, err := f.Translations()
	require.NoError(f, err)
	return all
}

// TestForgedReset: a reset that the pod does not accept ends no connection, as its sequence number
// is not known here; one that nothing follows does.
func TestForgedReset(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		key := connectionOf("TCP", f.Pod, f.Server)
		sends := func(flags uint8) {
			f.passed(f.fromPod(tcp(f.Pod, f.Server, key.Sport, key.Dport, flags)...))
		}
		gets := func(flags uint8) {
			f.passed(f.toPod(tcp(f.Server, f.Pod, key.Dport, key.Sport, flags)...))
		}
		lives := func() uint32 { return f.connection(key).Lifetime - f.since }
		sends(packettest.SYN)
		gets(packettest.SYN | packettest.ACK)
		sends(packettest.ACK)
		require.InDelta(f, f.Config.LifetimeTCP, lives(), 1)
		for _, next := range []func(uint8){sends, gets} {
			gets(packettest.RST)
			require.InDelta(f, f.Config.LifetimeClosing, lives(), 1)
			next(packettest.ACK)
			require.InDelta(f, f.Config.LifetimeTCP, lives(), 1)
		}
		gets(packettest.RST)
		gets(packettest.RST)
		require.InDelta(f, f.Config.LifetimeClosing, lives(), 1)
	})
}

// TestEndedIsNotRevived: a server that goes on sending after a connection has ended does not keep
// its entry, and so the pod's share, for as long as that of one that lives.
func TestEndedIsNotRevived(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		f.selected(f.Here(f.Egress))
		require.NoError(f, f.SetRemotePod(f.RemotePod))
		key := connectionOf("TCP", f.RemotePod, f.Server)
		sends := func(flags uint8) {
			f.translated(f.fromOverlay(second(),
				tcp(f.RemotePod, f.Server, key.Sport, key.Dport, flags)...), f.Egress)
		}
		gets := func(flags uint8) {
			f.toGateway(f.fromNetdev(tcp(f.Server, f.Egress, key.Dport, key.Sport, flags)...), second())
		}
		sends(packettest.SYN)
		gets(packettest.SYN | packettest.ACK)
		sends(packettest.FIN | packettest.ACK)
		gets(packettest.FIN | packettest.ACK)
		f.expire()
		ended := f.connection(key)
		gets(packettest.ACK)
		require.Equal(f, ended, f.connection(key))

		// One that has only expired lives again, as one whose entry was lost.
		sends(packettest.SYN)
		gets(packettest.SYN | packettest.ACK)
		f.expire()
		gets(packettest.ACK)
		require.InDelta(f, f.Config.LifetimeTCP, f.connection(key).Lifetime-f.since, 1)
	})
}

// TestForgedFragmentGivesNoPorts: the first fragment of a datagram that a program drops because of
// where it comes from does not give its ports to the fragments of others.
func TestForgedFragmentGivesNoPorts(t *testing.T) {
	f := newFixture(t, packettest.World4)
	require.NoError(f, f.SetOverlayKeys(false, firstKey))
	f.selected(f.remote(second()))
	data := packettest.Payload(packettest.Build(packettest.IPv4{},
		packettest.UDP{Src: serverPort, Dst: podPort}, packettest.Pattern(600))[20:])
	first := func(from, to netip.Addr) packettest.Layer {
		return packettest.IPv4{Src: from, Dst: to, ID: 7, More: true, Protocol: packettest.UDPProtocol}
	}
	stranger := netip.MustParseAddr("172.16.0.77")
	f.dropped(f.fromOverlay(stranger, first(f.Server, f.Pod), data), bpf.ReasonUnknownNode)
	f.dropped(f.fromOverlay(second(), first(f.Server, f.Pod), data), bpf.ReasonOverlayKey)
	f.dropped(f.fromPod(first(f.OtherPod, f.Server), data), bpf.ReasonUnknownSource)
	f.passed(f.fromNetdev(first(f.Server, f.Egress), data))
	require.False(f, f.Map("sluice_frag4").Iterate().Next(new([12]byte), new([4]byte)))
}

// TestTaggedToPod: the kernel takes VLAN tags with number 0 off, however many there are: what is in
// them does not reach a pod past its policies, as from a machine on the bridge of the pods.
func TestTaggedToPod(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		plain := f.wireFrame(tcp(f.Server, f.Pod, serverPort, podPort, packettest.SYN)...)
		for _, tag := range []string{"\x81\x00", "\x88\xa8"} {
			tagged := append(append(append([]byte(nil), plain[:12]...), tag+"\x00\x00"...), plain[12:]...)
			f.dropped(f.run(packettest.Input{Program: "to_pod", Device: packettest.PodDevice,
				Ingress: packettest.EgressDevice, Packet: tagged}), bpf.ReasonMalformed)
		}
	})
}
