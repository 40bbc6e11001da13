// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

// pace gives the policy limits, in bytes a second, and says that devices pace.
func (f *fixture) pace(rate, podRate uint64) {
	f.Helper()
	f.limit(rate, podRate)
	require.NoError(f, f.AddFlags(bpf.ConfigPaced))
}

// slow is a rate, in bytes a second, at which a packet may wait for [bpf.LimitWait].
const slow = 1 << 15

// waitAt is how long a packet may wait that is not longer than [bpf.LimitPacket], at a rate.
func waitAt(rate uint64) uint64 {
	return min(uint64(bpf.LimitWait), bpf.LimitQueue*bpf.LimitPacket*uint64(time.Second)/rate)
}

// TestPacedAsTheOracle: at each place where pods' packets leave, one that finds room in the bucket
// leaves at once, one that does not leaves when there is, and one that would wait for too long is
// dropped and does not count. Packets depart one after the other as the rate says.
func TestPacedAsTheOracle(t *testing.T) {
	const burst = uint64(bpf.LimitBurst)
	atOnce, waited, dropped := 0, 0, 0
	eachTransport(t, func(f *fixture, transport string) {
		for about, way := range f.limitedWays(transport) {
			if way.direction != bpf.DirectionEgress {
				continue
			}
			key := bucketOf(netip.Addr{}, way.direction)
			for range 100 {
				rate := uint64(1) << (8 + rand.IntN(20))
				room := burst + waitAt(rate)
				f.pace(rate, 0)
				f.setBucket(key, time.Duration(rand.Uint64N(3*room)-room))

				was, before := f.bucket(key).Time, monotonic(f)
				res := way.send()
				is, after := f.bucket(key).Time, monotonic(f)
				if res.Verdict == packettest.Drop {
					f.dropped(res, bpf.ReasonBandwidth)
					require.Greater(f, was, before+room, about)
					require.Equal(f, was, is, about)
					dropped++
					continue
				}
				require.Equal(f, packettest.Redirect, res.Verdict, about)
				require.LessOrEqual(f, was, after+room, about)
				if res.Departure == 0 {
					require.LessOrEqual(f, was, after+burst, about)
					atOnce++
					continue
				}
				require.Greater(f, was, before+burst, about)
				require.Equal(f, was-burst, res.Departure, about)
				require.Equal(f, was+f.bytesOf(res)*uint64(time.Second)/rate, is, about)
				waited++
			}
		}
	})
	require.Positive(t, atOnce)
	require.Positive(t, waited)
	require.Positive(t, dropped)
}

// bytesOf is how long a packet is that was counted for its policy.
func (f *fixture) bytesOf(res *packettest.Result) uint64 {
	return uint64(res.Bytes[bpf.ReasonTranslated])
}

// TestPacedByBothLimits: of the policy's bucket and the pod's the later time is the departure.
func TestPacedByBothLimits(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		way := f.limitedWays("UDP")["from a pod here"]
		all, own := bucketOf(netip.Addr{}, way.direction), bucketOf(way.pod, way.direction)
		for _, later := range []bpf.BucketKey{all, own} {
			f.pace(slow, slow)
			f.setBucket(all, bpf.LimitWait/2)
			f.setBucket(own, bpf.LimitWait/2)
			f.setBucket(later, bpf.LimitWait*3/4)
			until := f.bucket(later).Time - uint64(bpf.LimitBurst)
			require.Equal(f, until, way.send().Departure)

			f.setBucket(later, 2*bpf.LimitWait)
			f.dropped(way.send(), bpf.ReasonBandwidth)
		}
	})
}

// TestPacedKeepsLaterDeparture: what its sender has leave later than the limit asks leaves then.
func TestPacedKeepsLaterDeparture(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		f.limitedWays("UDP")
		f.pace(slow, 0)
		key := bucketOf(netip.Addr{}, bpf.DirectionEgress)
		ethernet := packettest.Ethernet{
			Dst: f.MAC(packettest.OverlayDevice), Src: packettest.RouterMAC,
		}
		layers := append([]packettest.Layer{ethernet}, request("UDP", f.RemotePod, f.Server)...)
		send := func(departure uint64) uint64 {
			return f.run(packettest.Input{
				Program: "from_overlay", Device: packettest.OverlayDevice, Overlay: second(),
				Departure: departure, Packet: packettest.Build(layers...),
			}).Departure
		}
		f.setBucket(key, bpf.LimitWait/2)
		until := f.bucket(key).Time - uint64(bpf.LimitBurst)
		require.Equal(f, until, send(until-1))
		until = f.bucket(key).Time - uint64(bpf.LimitBurst)
		require.Equal(f, until+1, send(until+1))
	})
}

// TestNotPaced: without the flag, and for replies with it, what is over the limit is dropped and
// nothing waits.
func TestNotPaced(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		for about, way := range f.limitedWays(transport) {
			f.limit(fast, 0)
			config := f.Config
			if way.direction == bpf.DirectionIngress {
				f.pace(fast, 0)
			}
			key := bucketOf(netip.Addr{}, way.direction)
			f.setBucket(key, bpf.LimitBurst/2)
			res := way.send()
			require.Equal(f, packettest.Redirect, res.Verdict, about)
			require.Zero(f, res.Departure, about)
			f.setBucket(key, bpf.LimitWait)
			f.dropped(way.send(), bpf.ReasonBandwidth)
			require.NoError(f, f.SetConfig(config))
		}
	})
}

// TestPacedWithMovingAddress: a packet with an address that moves waits on its way to the gateway,
// but not where this node itself has the address: it might leave with it when another has it. So it
// passes at once there, in the turn of those that wait.
func TestPacedWithMovingAddress(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		f.moving(second())
		send := func() *packettest.Result {
			return f.fromPod(request(transport, f.Pod, f.Server)...)
		}
		f.byBlock(send(), second(), transport)
		f.pace(slow, 0)
		key := bucketOf(netip.Addr{}, bpf.DirectionEgress)
		f.setBucket(key, bpf.LimitWait/2)
		until := f.bucket(key).Time - uint64(bpf.LimitBurst)
		res := send()
		f.byBlock(res, second(), transport)
		require.Equal(f, until, res.Departure)

		f.movesTo(f.Config.Underlay.Addr())
		f.lease(time.Hour)
		f.setBucket(key, bpf.LimitWait/2)
		res = send()
		f.translated(res, f.Egress)
		require.Zero(f, res.Departure)
		f.setBucket(key, 2*bpf.LimitWait)
		f.dropped(send(), bpf.ReasonBandwidth)
	})
}
