// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// Maps in which the programs count what rules of network policies decide. Rules
// count in a slot of DecidedMap by their cookie, modulo RuleSlots, if RuleSlotsMap
// says that it is theirs. Those whose slot others have taken before count in
// RulesMap, which takes a packet longer.
const (
	RulesMap     = "sluice_rules"
	RuleSlotsMap = "sluice_ruleslot"
	DecidedMap   = "sluice_rulehits"
	RuleSlots    = 4096
)

// RuleKey is the key of sluice_rules, whose value is a [Metric] per CPU: what the rules
// with a cookie have decided. It is also the value of sluice_ruleslot, 0 for a free slot.
type RuleKey struct{ Cookie uint32 }

func (k RuleKey) String() string { return fmt.Sprintf("cookie=%d", k.Cookie) }

// RuleCounts are the counters of rules.
type RuleCounts struct{ rules, slots, decided *ebpf.Map }

// RuleCountsOf returns the counters in the maps of those names, false if there are none.
func RuleCountsOf(maps func(name string) *ebpf.Map) (RuleCounts, bool) {
	c := RuleCounts{maps(RulesMap), maps(RuleSlotsMap), maps(DecidedMap)}
	return c, c.rules != nil && c.slots != nil && c.decided != nil
}

// Read returns what rules have decided since their counters began, by cookie.
func (c RuleCounts) Read() (map[uint32]Metric, error) {
	counts := map[uint32]Metric{}
	slots, err := DumpKernel[uint32, RuleKey](c.slots)
	if err != nil {
		return nil, err
	}
	var perCPU []Metric
	for _, slot := range slots {
		if err := c.decided.Lookup(slot.Key, &perCPU); err != nil {
			return nil, fmt.Errorf("read %s: %w", DecidedMap, err)
		}
		counts[slot.Value.Cookie] = counts[slot.Value.Cookie].sum(perCPU)
	}
	var key RuleKey
	it := c.rules.Iterate()
	for it.Next(&key, &perCPU) {
		counts[key.Cookie] = counts[key.Cookie].sum(perCPU)
	}
	// Programs add counters meanwhile; a removal has the iteration begin anew.
	if err := it.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return nil, fmt.Errorf("read %s: %w", RulesMap, err)
	}
	return counts, nil
}

// Remove removes the counters of a cookie, of which the kernel has no verdicts any more.
func (c RuleCounts) Remove(cookie uint32) error {
	if err := c.rules.Delete(RuleKey{cookie}); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("delete from %s: %w", RulesMap, err)
	}
	var owner RuleKey
	slot := cookie % RuleSlots
	if err := c.slots.Lookup(slot, &owner); err != nil {
		return fmt.Errorf("read %s: %w", RuleSlotsMap, err)
	}
	if owner.Cookie != cookie {
		return nil
	}
	// In this order, as the next owner of the slot begins with what is there.
	if err := c.decided.Put(slot, make([]Metric, ebpf.MustPossibleCPU())); err != nil {
		return fmt.Errorf("write %s: %w", DecidedMap, err)
	}
	if err := c.slots.Put(slot, RuleKey{}); err != nil {
		return fmt.Errorf("write %s: %w", RuleSlotsMap, err)
	}
	return nil
}

// sum adds what each CPU has counted.
func (m Metric) sum(perCPU []Metric) Metric {
	for _, c := range perCPU {
		m.Packets += c.Packets
		m.Bytes += c.Bytes
	}
	return m
}
