// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"net/netip"

	"github.com/cilium/ebpf"
)

// Maps in which the programs of a gateway count what they translate. TrafficMap has the
// number of the counter in TrafficCountsMap of each policy and egress address, and
// TrafficOwnersMap whose a counter is. Records of translations name the counter.
const (
	TrafficMap       = "sluice_traffic"
	TrafficOwnersMap = "sluice_trafown"
	TrafficCountsMap = "sluice_trafhits"

	TrafficCounters = 4096 // of which 0 is none
)

// PolicyCookie returns what an egress policy is called in maps: 32 bits of a hash of its name,
// never 0. It is the same everywhere and after a restart. Two policies that share one are counted
// together.
func PolicyCookie(name string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(name)) // it does not fail
	return max(1, h.Sum32())
}

// TrafficKey is the key of sluice_traffic.
type TrafficKey struct {
	Egress Address // that translated packets leave with
	Policy uint32  // see [PolicyCookie]
	Pad    uint32
}

func (k TrafficKey) String() string {
	return fmt.Sprintf("policy=%d egress=%s", k.Policy, k.Egress)
}

// TrafficValue is the value of sluice_traffic.
type TrafficValue struct{ Counter uint32 }

func (v TrafficValue) String() string { return fmt.Sprintf("counter=%d", v.Counter) }

// TrafficOwner is the value of sluice_trafown, whose index is the counter.
type TrafficOwner struct{ Policy uint32 } // 0: the counter is free

func (o TrafficOwner) String() string { return fmt.Sprintf("policy=%d", o.Policy) }

// TrafficCount is a counter, on one CPU.
type TrafficCount struct {
	// Since is when it became the pair's, seconds of CLOCK_MONOTONIC: translations that began before
	// are of another one.
	Since    uint64
	Sent     Metric // by pods, as it leaves the node
	Received Metric // to pods, of what answers it
}

// TrafficCounts are the counters of translated traffic.
type TrafficCounts struct{ pairs, owners, counts *ebpf.Map }

// TrafficCountsOf returns the counters in the maps of those names, false if there are none.
func TrafficCountsOf(maps func(name string) *ebpf.Map) (TrafficCounts, bool) {
	c := TrafficCounts{maps(TrafficMap), maps(TrafficOwnersMap), maps(TrafficCountsMap)}
	return c, c.pairs != nil && c.owners != nil && c.counts != nil
}

// Traffic is what has been counted of a policy and an egress address.
type Traffic struct {
	Policy         uint32 // its cookie
	Egress         netip.Addr
	Counter        uint32
	Sent, Received Metric
}

// Read returns all counts.
func (c TrafficCounts) Read() ([]Traffic, error) {
	pairs, err := DumpKernel[TrafficKey, TrafficValue](c.pairs)
	if err != nil {
		return nil, err
	}
	all := make([]Traffic, 0, len(pairs))
	var perCPU []TrafficCount
	for _, pair := range pairs {
		if err := c.counts.Lookup(pair.Value.Counter, &perCPU); err != nil {
			return nil, fmt.Errorf("read %s: %w", TrafficCountsMap, err)
		}
		t := Traffic{
			Policy: pair.Key.Policy, Egress: pair.Key.Egress.Addr(), Counter: pair.Value.Counter,
		}
		for _, n := range perCPU {
			t.Sent.add(n.Sent)
			t.Received.add(n.Received)
		}
		all = append(all, t)
	}
	return all, nil
}

// Taken returns the counters that are some pair's, or were until [TrafficCounts.Remove].
func (c TrafficCounts) Taken() ([]uint32, error) {
	owners, err := DumpKernel[uint32, TrafficOwner](c.owners)
	if err != nil {
		return nil, err
	}
	var taken []uint32
	for _, o := range owners {
		if o.Value.Policy != 0 {
			taken = append(taken, o.Key)
		}
	}
	return taken, nil
}

// Remove ends the counts of a policy and an egress address. Their counter is not another one's
// before [TrafficCounts.Free].
func (c TrafficCounts) Remove(t Traffic) error {
	key := TrafficKey{Policy: t.Policy, Egress: AddressFrom(t.Egress)}
	if err := c.pairs.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("delete from %s: %w", TrafficMap, err)
	}
	return c.begin(t.Counter, math.MaxUint64) // nothing counts any more
}

// Free gives a counter that is no pair's to the next one. No translation that names the counter
// must have begun after a time, in seconds of CLOCK_MONOTONIC.
func (c TrafficCounts) Free(counter, since uint32) error {
	if err := c.begin(counter, uint64(since)); err != nil {
		return err
	}
	if err := c.owners.Put(counter, TrafficOwner{}); err != nil {
		return fmt.Errorf("write %s: %w", TrafficOwnersMap, err)
	}
	return nil
}

// begin empties a counter.
func (c TrafficCounts) begin(counter uint32, since uint64) error {
	perCPU := make([]TrafficCount, ebpf.MustPossibleCPU())
	for i := range perCPU {
		perCPU[i].Since = since
	}
	if err := c.counts.Put(counter, perCPU); err != nil {
		return fmt.Errorf("write %s: %w", TrafficCountsMap, err)
	}
	return nil
}

func (m *Metric) add(o Metric) {
	m.Packets += o.Packets
	m.Bytes += o.Bytes
}
