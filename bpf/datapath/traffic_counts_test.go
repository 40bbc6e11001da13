// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

// traffic returns what has been counted, by egress address, of the one policy.
func (f *fixture) traffic() map[string]bpf.Traffic {
	f.Helper()
	all, err := f.Traffic()
	require.NoError(f, err)
	byEgress := map[string]bpf.Traffic{}
	for _, t := range all {
		require.Equal(f, bpf.PolicyCookie(packettest.EgressPolicy), t.Policy)
		byEgress[t.Egress.String()] = t
	}
	require.Len(f, byEgress, len(all), "an egress address has one counter")
	return byEgress
}

// counted adds packets to what is expected of a counter.
func counted(m *bpf.Metric, packets ...*packettest.Result) {
	for _, p := range packets {
		m.Packets++
		m.Bytes += uint64(len(p.Out))
	}
}

// TestTrafficOfPolicies: what a gateway translates is counted exactly, both ways, for the
// pods of this node and of others, and nothing else is.
func TestTrafficOfPolicies(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		f.selected(f.Here(f.Egress))
		require.NoError(f, f.SetRemotePod(f.RemotePod))
		var want bpf.Traffic
		for range 3 {
			counted(&want.Sent, f.fromPod(request(transport, f.Pod, f.Server)...))
		}
		out := f.translation(outTuple(transport, f.Pod, f.Server))
		counted(&want.Received, f.fromNetdev(response(transport, f.Server, f.Egress, out.Port)...))
		for range 2 {
			counted(&want.Sent, f.fromOverlay(second(), request(transport, f.RemotePod, f.Server)...))
		}
		remote := f.translation(outTuple(transport, f.RemotePod, f.Server))
		for range 2 {
			counted(&want.Received, f.fromNetdev(response(transport, f.Server, f.Egress, remote.Port)...))
		}
		require.EqualValues(f, 5, want.Sent.Packets)
		require.EqualValues(f, 3, want.Received.Packets)

		// What is dropped, not translated, or of the host itself does not count.
		f.dropped(f.fromOverlay(second(), request(transport, f.UnassignedPod, f.Server)...),
			bpf.ReasonNoRule)
		f.passed(f.fromPod(request(transport, f.Pod, f.Uncovered)...))
		f.passed(f.fromNetdev(response(transport, f.Server2, f.Egress, 7)...))
		res := f.toNetdev(0, request(transport, f.Egress, f.Server2)...)
		require.Equal(f, packettest.Next, res.Verdict)

		got := f.traffic()
		require.Len(f, got, 1)
		require.Equal(f, want.Sent, got[f.Egress.String()].Sent)
		require.Equal(f, want.Received, got[f.Egress.String()].Received)

		// A flow counts for the address and the policy that it began with. Another one that
		// begins now counts for the new address.
		require.NoError(f, f.SetGateway(packettest.Group, f.Here(f.SharedEgress)))
		counted(&want.Sent, f.fromPod(request(transport, f.Pod, f.Server)...))
		var other bpf.Traffic
		counted(&other.Sent, f.fromPod(request(transport, f.Pod, f.Server2)...))
		got = f.traffic()
		require.Equal(f, want.Sent, got[f.Egress.String()].Sent)
		require.Equal(f, other.Sent, got[f.SharedEgress.String()].Sent)
		require.NotEqual(f, got[f.Egress.String()].Counter, got[f.SharedEgress.String()].Counter)
	})
}

// TestTrafficOfRenewedRecord: a record for replies that was lost is made again, with its
// counter.
func TestTrafficOfRenewedRecord(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		f.selected(f.Here(f.Egress))
		f.fromPod(request("UDP", f.Pod, f.Server)...)
		port := f.translation(outTuple("UDP", f.Pod, f.Server)).Port
		in := inTuple("UDP", f.Server, f.Egress, port)
		require.NoError(f, f.DeleteTranslation(in))
		f.fromPod(request("UDP", f.Pod, f.Server)...)
		require.NotNil(f, f.translation(in))
		f.delivered(f.fromNetdev(response("UDP", f.Server, f.Egress, port)...))
		got := f.traffic()[f.Egress.String()]
		require.EqualValues(f, 2, got.Sent.Packets)
		require.EqualValues(f, 1, got.Received.Packets)
	})
}

// TestTrafficCounterReused: the counter of a policy that is gone counts nothing of its flows
// that go on, also when it is another one's.
func TestTrafficCounterReused(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		f.selected(f.Here(f.Egress))
		f.fromPod(request("UDP", f.Pod, f.Server)...)
		was := f.traffic()[f.Egress.String()]
		counts, _ := bpf.TrafficCountsOf(f.Map)
		require.NoError(f, counts.Remove(was))
		f.translated(f.fromPod(request("UDP", f.Pod, f.Server)...), f.Egress)
		require.Empty(f, f.traffic())
		taken, err := counts.Taken()
		require.NoError(f, err)
		require.Equal(f, []uint32{was.Counter}, taken, "it is not free yet")

		// The next translation that begins takes it. The former flow began before.
		require.NoError(f, counts.Free(was.Counter, uptime(f)-30))
		f.age(60)
		f.fromPod(request("UDP", f.Pod, f.Server2)...)
		got := f.traffic()[f.Egress.String()]
		require.Equal(f, was.Counter, got.Counter)
		require.EqualValues(f, 1, got.Sent.Packets)
		f.translated(f.fromPod(request("UDP", f.Pod, f.Server)...), f.Egress)
		require.EqualValues(f, 1, f.traffic()[f.Egress.String()].Sent.Packets)
	})
}

// TestTrafficCountersTaken: pairs whose places are near one another have counters of their
// own; where none is left near a place, flows are served and not counted.
func TestTrafficCountersTaken(t *testing.T) {
	f := newFixture(t, packettest.World4)
	f.selected(f.Here(f.Egress))
	f.fromPod(request("UDP", f.Pod, f.Server)...)
	was := f.traffic()[f.Egress.String()]
	counts, _ := bpf.TrafficCountsOf(f.Map)
	require.NoError(t, counts.Remove(was))
	owners := f.Map(bpf.TrafficOwnersMap)
	const near = 32
	for i := range uint32(near) {
		index := (was.Counter + i) % bpf.TrafficCounters
		require.NoError(t, owners.Put(index, bpf.TrafficOwner{Policy: 77}))
	}
	f.translated(f.fromPod(request("UDP", f.Pod, f.Server2)...), f.Egress)
	require.Empty(t, f.traffic())
	require.Zero(t, f.translation(outTuple("UDP", f.Pod, f.Server2)).Counter)

	free := (was.Counter + near - 1) % bpf.TrafficCounters
	require.NoError(t, counts.Free(free, 0))
	require.NoError(t, f.Clear("sluice_nat4"))
	f.fromPod(request("UDP", f.Pod, f.Server2)...)
	require.Equal(t, free, f.traffic()[f.Egress.String()].Counter)
}

// TestTrafficOnAllCPUs: no packet is missed, and no counter is made twice, when packets of a
// policy come on several CPUs at once.
func TestTrafficOnAllCPUs(t *testing.T) {
	const flows, packets, loopback = 4, 2000, 1
	f := newFixture(t, packettest.World4)
	f.selected(f.Here(f.Egress))
	pod := f.LocalPod(packettest.Routed)
	pod.IfIndex = loopback // without a context packets come from there
	require.NoError(t, f.SetPod(f.Pod, pod))
	var inputs [][]byte
	for flow := range flows {
		inputs = append(inputs, packettest.Build(
			packettest.Ethernet{Dst: f.MAC(packettest.PodDevice), Src: packettest.PodMAC},
			packettest.IPv4{Src: f.Pod, Dst: f.Server},
			packettest.UDP{Src: uint16(5000 + flow), Dst: 53}, packettest.Pattern(100)))
	}
	var all sync.WaitGroup
	errs := make([]error, flows)
	for flow, input := range inputs {
		all.Go(func() {
			for range packets { // each anew, as it is changed when it leaves
				_, _, err := f.Program("from_pod").Benchmark(input, 1, nil)
				errs[flow] = errors.Join(errs[flow], err)
			}
		})
	}
	all.Wait()
	require.NoError(t, errors.Join(errs...))
	got := f.traffic()[f.Egress.String()]
	length := uint64(len(inputs[0]))
	require.Equal(t, bpf.Metric{Packets: flows * packets, Bytes: flows * packets * length}, got.Sent)
	counts, _ := bpf.TrafficCountsOf(f.Map)
	taken, err := counts.Taken()
	require.NoError(t, err)
	require.Equal(t, []uint32{got.Counter}, taken)
}
