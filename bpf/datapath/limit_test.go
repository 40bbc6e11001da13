// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

// fast is a rate, in bytes a second, at which packets hardly fill a bucket.
const fast = 1 << 40

var limitedPolicy = bpf.PolicyCookie(packettest.EgressPolicy)

// limit gives the policy limits, in bytes a second.
func (f *fixture) limit(rate, podRate uint64) {
	f.Helper()
	require.NoError(f, f.AddFlags(bpf.ConfigLimits))
	require.NoError(f, f.Map(bpf.LimitsMap).Put(bpf.LimitKey{Policy: limitedPolicy},
		bpf.LimitValue{Rate: rate, PodRate: podRate}))
}

// bucketOf is the bucket of a pod, or of the policy if there is none.
func bucketOf(pod netip.Addr, d bpf.Direction) bpf.BucketKey {
	key := bpf.BucketKey{Policy: limitedPolicy, Direction: uint32(d)}
	if pod.IsValid() {
		key.Pod = bpf.AddressFrom(pod)
	}
	return key
}

func (f *fixture) bucket(key bpf.BucketKey) (v bpf.BucketValue) {
	f.Helper()
	require.NoError(f, f.Map(bpf.BucketsMap).Lookup(key, &v))
	return v
}

// setBucket fills a bucket up to some time from now.
func (f *fixture) setBucket(key bpf.BucketKey, ahead time.Duration) {
	f.Helper()
	require.NoError(f, f.Map(bpf.BucketsMap).Put(key,
		bpf.BucketValue{Time: monotonic(f) + uint64(ahead)}))
}

// monotonic is the time of the programs.
func monotonic(t require.TestingT) uint64 {
	var now unix.Timespec
	require.NoError(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &now))
	return uint64(now.Nano())
}

// limitedWay is a way of a packet at which limits are checked.
type limitedWay struct {
	pod       netip.Addr
	direction bpf.Direction
	send      func() *packettest.Result
}

// limitedWays are all of them, of flows that have a translation.
func (f *fixture) limitedWays(transport string) map[string]limitedWay {
	f.Helper()
	f.selected(f.Here(f.Egress))
	require.NoError(f, f.SetRemotePod(f.RemotePod))
	fromPod := func() *packettest.Result { return f.fromPod(request(transport, f.Pod, f.Server)...) }
	fromOverlay := func() *packettest.Result {
		return f.fromOverlay(second(), request(transport, f.RemotePod, f.Server)...)
	}
	replies := func(pod netip.Addr) func() *packettest.Result {
		port := f.translation(outTuple(transport, pod, f.Server)).Port
		return func() *packettest.Result {
			return f.fromNetdev(response(transport, f.Server, f.Egress, port)...)
		}
	}
	require.Equal(f, packettest.Redirect, fromPod().Verdict)
	require.Equal(f, packettest.Redirect, fromOverlay().Verdict)
	return map[string]limitedWay{
		"from a pod here":      {f.Pod, bpf.DirectionEgress, fromPod},
		"from another node's":  {f.RemotePod, bpf.DirectionEgress, fromOverlay},
		"back to the pod here": {f.Pod, bpf.DirectionIngress, replies(f.Pod)},
		"back to the other":    {f.RemotePod, bpf.DirectionIngress, replies(f.RemotePod)},
	}
}

// TestLimits: what is over a limit is dropped, at each place where a gateway translates, in the
// direction in which it is over, and does not count as traffic. Limits change and go at once.
func TestLimits(t *testing.T) {
	other := map[bpf.Direction]bpf.Direction{
		bpf.DirectionEgress: bpf.DirectionIngress, bpf.DirectionIngress: bpf.DirectionEgress,
	}
	eachTransport(t, func(f *fixture, transport string) {
		for about, way := range f.limitedWays(transport) {
			passes := func(what string) {
				f.Helper()
				require.Equal(f, packettest.Redirect, way.send().Verdict, "%s: %s", about, what)
			}
			for _, pod := range []netip.Addr{{}, way.pod} {
				full := bucketOf(pod, way.direction)
				f.setBucket(full, time.Hour)
				passes("the policy has no limit")

				f.limit(fast, fast)
				counted := f.traffic()
				f.dropped(way.send(), bpf.ReasonBandwidth)
				require.Equal(f, counted, f.traffic(), about)

				f.setBucket(bucketOf(pod, other[way.direction]), time.Hour)
				f.setBucket(full, 0)
				passes("the other direction is full")
				f.setBucket(full, time.Hour)
				if pod.IsValid() {
					f.limit(fast, 0)
				} else {
					f.limit(0, fast)
				}
				passes("this limit is gone")
				require.NoError(f, f.Map(bpf.LimitsMap).Delete(bpf.LimitKey{Policy: limitedPolicy}))
				passes("both limits are gone")
				require.NoError(f, f.Clear(bpf.BucketsMap))
			}
		}
	})
}

// gcra is the oracle: whether a packet passes at a time, and what the bucket is then.
func gcra(bucket, now, bytes, rate uint64) (after uint64, passes bool) {
	if bucket > now && bucket-now > uint64(bpf.LimitBurst) {
		return bucket, false
	}
	return max(bucket, now) + bytes*uint64(time.Second)/rate, true
}

// TestBucketsAsTheOracle: packets of any size, at any rate and fill, pass and count as the oracle
// says of some time between those before and after.
func TestBucketsAsTheOracle(t *testing.T) {
	f := newFixture(t, packettest.World4)
	f.selected(f.Here(f.Egress))
	passed := 0
	for range 300 {
		rate := uint64(1) << rand.IntN(40)
		f.limit(rate, 0)
		key := bucketOf(netip.Addr{}, bpf.DirectionEgress)
		ahead := time.Duration(rand.Int64N(int64(3*bpf.LimitBurst))) - bpf.LimitBurst
		f.setBucket(key, ahead)
		layers := append(request("UDP", f.Pod, f.Server), packettest.Pattern(rand.IntN(1000)))

		was, before := f.bucket(key).Time, monotonic(t)
		res := f.fromPod(layers...)
		is, after := f.bucket(key).Time, monotonic(t)
		bytes := uint64(len(f.podFrame(layers...)))
		first, early := gcra(was, before, bytes, rate)
		last, late := gcra(was, after, bytes, rate)
		if res.Verdict == packettest.Redirect {
			require.True(t, early || late, "ahead by %s, rate %d", ahead, rate)
			require.LessOrEqual(t, is, last)
			if early {
				require.GreaterOrEqual(t, is, first)
			}
			passed++
			continue
		}
		f.dropped(res, bpf.ReasonBandwidth)
		require.False(t, early && late, "ahead by %s, rate %d", ahead, rate)
		require.Equal(t, was, is)
	}
	require.Greater(t, passed, 0)
	require.Less(t, passed, 300)
}

// TestLimitsOfPods: each pod of a policy has a bucket of its own, and what is over its limit does
// not count for the policy.
func TestLimitsOfPods(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		ways := f.limitedWays("UDP")
		f.limit(1<<20, 1<<20)
		all := bucketOf(netip.Addr{}, bpf.DirectionEgress)
		f.setBucket(bucketOf(f.Pod, bpf.DirectionEgress), time.Hour)
		f.setBucket(all, bpf.LimitBurst/2)
		was := f.bucket(all)
		f.dropped(ways["from a pod here"].send(), bpf.ReasonBandwidth)
		require.Equal(f, was, f.bucket(all))

		require.Equal(f, packettest.Redirect, ways["from another node's"].send().Verdict)
		require.Greater(f, f.bucket(all).Time, was.Time)
		require.NotZero(f, f.bucket(bucketOf(f.RemotePod, bpf.DirectionEgress)).Time)
	})
}

// TestLimitOfReusedCounter: a flow of a policy that is gone, whose counter is another one's now, is
// not limited by that.
func TestLimitOfReusedCounter(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		f.selected(f.Here(f.Egress))
		f.fromPod(request("UDP", f.Pod, f.Server)...)
		f.limit(1, 1)
		f.setBucket(bucketOf(netip.Addr{}, bpf.DirectionEgress), time.Hour)
		f.dropped(f.fromPod(request("UDP", f.Pod, f.Server)...), bpf.ReasonBandwidth)

		counts, _ := bpf.TrafficCountsOf(f.Map)
		was := f.traffic()[f.Egress.String()]
		require.NoError(f, counts.Remove(was))
		require.NoError(f, counts.Free(was.Counter, uptime(f)-30))
		f.age(60)
		f.dropped(f.fromPod(request("UDP", f.Pod, f.Server2)...), bpf.ReasonBandwidth)
		require.Equal(f, was.Counter, f.traffic()[f.Egress.String()].Counter)
		f.translated(f.fromPod(request("UDP", f.Pod, f.Server)...), f.Egress)
	})
}

// TestLimitOnAllCPUs: what packets add on several CPUs at once is not lost, and no more passes than
// the rate and the burst allow, and a packet of each CPU.
func TestLimitOnAllCPUs(t *testing.T) {
	const flows, packets, loopback, rate = 4, 2000, 1, 1 << 20
	f := newFixture(t, packettest.World4)
	f.selected(f.Here(f.Egress))
	pod := f.LocalPod(packettest.Routed)
	pod.IfIndex = loopback // without a context packets come from there
	require.NoError(t, f.SetPod(f.Pod, pod))
	f.limit(rate, 0)
	var inputs [][]byte
	for flow := range flows {
		inputs = append(inputs, packettest.Build(
			packettest.Ethernet{Dst: f.MAC(packettest.PodDevice), Src: packettest.PodMAC},
			packettest.IPv4{Src: f.Pod, Dst: f.Server},
			packettest.UDP{Src: uint16(5000 + flow), Dst: 53}, packettest.Pattern(100)))
	}
	before := monotonic(t)
	var all sync.WaitGroup
	errs := make([]error, flows)
	for flow, input := range inputs {
		all.Go(func() {
			for range packets {
				_, _, err := f.Program("from_pod").Benchmark(input, 1, nil)
				errs[flow] = errors.Join(errs[flow], err)
			}
		})
	}
	all.Wait()
	require.NoError(t, errors.Join(errs...))
	after := monotonic(t)

	sent := f.traffic()[f.Egress.String()].Sent
	cost := uint64(len(inputs[0])) * uint64(time.Second) / rate
	filled := f.bucket(bucketOf(netip.Addr{}, bpf.DirectionEgress)).Time
	require.GreaterOrEqual(t, sent.Packets*cost, min(uint64(bpf.LimitBurst), flows*packets*cost))
	require.GreaterOrEqual(t, filled, before+sent.Packets*cost)
	require.LessOrEqual(t, filled, after+uint64(bpf.LimitBurst)+flows*cost)
}
