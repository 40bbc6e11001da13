// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

// TestRulesOfOneSlot: rules whose cookies lead to the same slot are counted apart, and
// no packet is missed when they decide on several CPUs at once.
func TestRulesOfOneSlot(t *testing.T) {
	const rules, packets, firstPort, loopback = 4, 20_000, 8000, 1
	cookieOf := func(rule int) uint32 { return uint32(5 + rule*bpf.RuleSlots) }
	f := newSubject(t, packettest.World4)
	// Without a context packets come from the loopback device.
	pod := f.LocalPod(judgedPod)
	pod.IfIndex = loopback
	require.NoError(f, f.SetPod(f.Pod, pod))
	var inputs [][]byte
	for rule := range rules {
		f.policy(peerClass, bpf.DirectionEgress, unix.IPPROTO_UDP, uint16(firstPort+rule), 16,
			bpf.VerdictValue{Cookie: cookieOf(rule)})
		inputs = append(inputs, packettest.Build(packettest.Ethernet{Dst: f.MAC(packettest.PodDevice), Src: packettest.PodMAC},
			packettest.IPv4{Src: f.Pod, Dst: f.Server}, packettest.UDP{Src: podPort, Dst: uint16(firstPort + rule)}, packettest.Pattern(100)))
	}
	var all sync.WaitGroup
	errs := make(chan error, 2*rules)
	for _, input := range append(inputs, inputs...) {
		all.Go(func() {
			_, _, err := f.Program("from_pod").Benchmark(input, packets, nil)
			errs <- err
		})
	}
	all.Wait()
	for range 2 * rules {
		require.NoError(t, <-errs)
	}
	for rule := range rules {
		counted, err := f.Decided(cookieOf(rule))
		require.NoError(t, err)
		length := uint64(len(inputs[rule]))
		require.Equal(t, bpf.Metric{Packets: 2 * packets, Bytes: 2 * packets * length}, counted, "rule %d", rule)
	}

	// The slot is the first one's until that is gone; then it is for the next.
	var owner bpf.RuleKey
	require.NoError(t, f.Map(bpf.RuleSlotsMap).Lookup(uint32(5), &owner))
	counts, _ := bpf.RuleCountsOf(f.Map)
	require.NoError(t, counts.Remove(owner.Cookie))
	counted, err := f.Decided(owner.Cookie)
	require.NoError(t, err)
	require.Zero(t, counted)
	next := (int(owner.Cookie)/bpf.RuleSlots + 1) % rules
	_, _, err = f.Program("from_pod").Benchmark(inputs[next], 1, nil)
	require.NoError(t, err)
	require.NoError(t, f.Map(bpf.RuleSlotsMap).Lookup(uint32(5), &owner))
	require.Equal(t, cookieOf(next), owner.Cookie)
	counted, err = f.Decided(owner.Cookie)
	require.NoError(t, err)
	require.EqualValues(t, 2*packets+1, counted.Packets, "what it counted elsewhere before is its own too")
}
