// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

const nonce = 0x0123456789abcdef

// probed has a frame arrive over the overlay.
func (f *fixture) probed(node netip.Addr, frame []byte) *packettest.Result {
	f.Helper()
	return f.run(packettest.Input{
		Program: "from_overlay", Device: packettest.OverlayDevice, Overlay: node, Packet: frame,
	})
}

// path reads when there were packets of a node.
func (f *fixture) path(node netip.Addr) (v bpf.PathValue) {
	f.Helper()
	key := bpf.NodeKey{Addr: bpf.AddressFrom(node)}
	require.NoError(f, f.Map(bpf.PathsMap).Lookup(key, &v))
	return v
}

// probes adds a node to those that the agent probes.
func (f *fixture) probes(node netip.Addr) {
	f.Helper()
	key := bpf.NodeKey{Addr: bpf.AddressFrom(node)}
	require.NoError(f, f.Map(bpf.PathsMap).Put(key, bpf.PathValue{}))
}

// TestProbeIsAnswered: the programs answer a probe by the key that it was asked with, to the node
// that asked, with its nonce.
func TestProbeIsAnswered(t *testing.T) {
	for name, world := range map[string]packettest.Addresses{
		"IPv4": packettest.World4, "IPv6": packettest.World6,
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, world)
			config := f.Config
			config.Underlay = bpf.AddressFrom(world.NodeIP)
			require.NoError(f, f.SetConfig(config))
			require.NoError(f, f.SetOverlayKeys(false, firstKey, secondKey))
			here, node := world.NodeIP, world.SecondNode
			for _, key := range []bpf.OverlayKey{firstKey, secondKey} {
				res := f.probed(node, bpf.ProbeFrame(key, bpf.ProbeRequest, node, here, nonce))
				require.Equal(f, packettest.Redirect, res.Verdict)
				require.Equal(f, node, res.Tunnel.Remote)
				require.Equal(f, here, res.Tunnel.Local)
				require.Equal(f, bpf.ProbeFrame(key, bpf.ProbeAnswer, here, node, nonce), res.Out)
			}
		})
	}
}

// TestProbeForged: nothing is answered, or passed to the agent, that a node of the cluster has not
// sent by a key for just this.
func TestProbeForged(t *testing.T) {
	f := newFixture(t, packettest.World4)
	require.NoError(f, f.SetOverlayKeys(true, firstKey)) // those of flows need no proof
	here, node := f.Config.Underlay.Addr(), second()
	f.probes(node)
	for _, kind := range []bpf.ProbeKind{bpf.ProbeRequest, bpf.ProbeAnswer} {
		right := bpf.ProbeFrame(firstKey, kind, node, here, nonce)
		forged := map[string][]byte{
			"another key":    bpf.ProbeFrame(secondKey, kind, node, here, nonce),
			"from elsewhere": bpf.ProbeFrame(firstKey, kind, third(), here, nonce),
			"to elsewhere":   bpf.ProbeFrame(firstKey, kind, node, third(), nonce),
			"of a flow": bpf.ProbeFrame(firstKey, bpf.ProbeKind(bpf.DirectionEgress), node, here,
				nonce),
		}
		for i := range right {
			if i == 12 || i == 13 {
				continue // the type
			}
			broken := append([]byte{}, right...)
			broken[i] ^= 1
			if i == 7 {
				broken[i] ^= 0x81 // not one of the other kinds, which have other lengths
			}
			forged["byte "+string(rune('A'+i))] = broken
		}
		for name, frame := range forged {
			res := f.probed(node, frame)
			require.Equal(f, packettest.Drop, res.Verdict, name)
			require.Equal(f, 1, res.Reasons[bpf.ReasonOverlayKey], "%s: %v", name, res.Reasons)
		}
		f.dropped(f.probed(node, right[:18]), bpf.ReasonMalformed)
		stranger := netip.MustParseAddr("192.0.2.99")
		f.dropped(f.probed(stranger, bpf.ProbeFrame(firstKey, kind, stranger, here, nonce)),
			bpf.ReasonUnknownNode)
	}
	require.Zero(f, f.path(node))
	require.NoError(f, f.SetOverlayKeys(true))
	f.dropped(f.probed(node, bpf.ProbeFrame(firstKey, bpf.ProbeRequest, node, here, nonce)),
		bpf.ReasonOverlayKey)
}

// TestProbeAnswer: the nonce of a right answer is noted for the agent, if it probes the node.
func TestProbeAnswer(t *testing.T) {
	f := newFixture(t, packettest.World4)
	require.NoError(f, f.SetOverlayKeys(false, firstKey))
	answer := bpf.ProbeFrame(firstKey, bpf.ProbeAnswer, second(), f.Config.Underlay.Addr(), nonce)
	f.dropped(f.probed(second(), answer), bpf.ReasonNoRule)
	f.probes(second())
	res := f.probed(second(), answer)
	require.Equal(f, packettest.Next, res.Verdict)
	require.Equal(f, answer, res.Out)
	path := f.path(second())
	require.NotZero(f, path.Answered)
	require.Zero(f, path.Seen)
	require.EqualValues(f, 1, path.Answers)
	require.EqualValues(f, nonce, path.Nonces[0])
	for i := range uint64(bpf.PathNonces) {
		f.probed(second(), bpf.ProbeFrame(firstKey, bpf.ProbeAnswer, second(),
			f.Config.Underlay.Addr(), nonce+1+i))
	}
	noted := [bpf.PathNonces]uint64{nonce + 4, nonce + 1, nonce + 2, nonce + 3}
	require.Equal(f, noted, f.path(second()).Nonces)
	// One that is sent again does not push others out, and changes nothing.
	path = f.path(second())
	f.dropped(f.probed(second(), answer), bpf.ReasonNoRule)
	last := bpf.ProbeFrame(firstKey, bpf.ProbeAnswer, second(), f.Config.Underlay.Addr(), nonce+4)
	f.dropped(f.probed(second(), last), bpf.ReasonNoRule)
	require.Equal(f, path, f.path(second()))
}

// TestPathsAreNoted: it is noted when packets of flows go to a node that is probed, and when there
// are packets that are proven to come from it.
func TestPathsAreNoted(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		require.NoError(f, f.SetOverlayKeys(true, firstKey))
		f.selected(f.remote(second()))
		f.probes(second())
		f.toGateway(f.fromPod(request(transport, f.Pod, f.Server)...), second())
		path := f.path(second())
		require.NotZero(f, path.Sent)
		require.Zero(f, path.Seen)

		answer := response(transport, f.Server, f.Pod, connectionOf(transport, f.Pod, f.Server).Sport)
		f.delivered(f.arrives(second(), packettest.Ethernet{}, answer...))
		require.Zero(f, f.path(second()).Seen, "without a proof")
		f.delivered(f.proven(firstKey, second(), bpf.DirectionIngress, transport, answer...))
		require.NotZero(f, f.path(second()).Seen)
		require.Zero(f, f.path(second()).Answered)
	})
}
