// SPDX-License-Identifier: Apache-2.0

package verdicts

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// manyPorts returns rules that allow so many ports each, for one selector each, and classes that
// different rules select.
func manyPorts(rules, ports, classes int) (all []*tables.Rule, selected []any) {
	for s := range rules {
		r := ruleAt("large", bpf.DirectionIngress, s)
		r.Peers = []uint32{uint32(1000 + s)}
		for p := range ports {
			port := uint16(1 + 2*(s*ports+p))
			r.Ports = append(r.Ports, tcp(port, port))
		}
		all = append(all, r)
	}
	for c := range classes {
		var selectors []uint32
		for s := range rules {
			if (c+1)>>s&1 == 1 {
				selectors = append(selectors, uint32(1000+s))
			}
		}
		selected = append(selected, class(uint32(10+c), selectors))
	}
	return all, selected
}

// TestWorkOfContents says that ports count as work, also of contents that need no entry.
func TestWorkOfContents(t *testing.T) {
	for _, denied := range []bool{false, true} {
		w := newWorld(t)
		w.rule.maxWork = 100
		rules, classes := manyPorts(6, 100, 63)
		if denied { // so all contents are equal
			deny := ruleAt("large", bpf.DirectionIngress, len(rules))
			deny.Deny, deny.AnyPeer = true, true
			rules = append(rules, deny)
		}
		w.put(classes...)
		w.work()
		w.put(ruleset(5, rules...))
		steps := 1
		for ; w.stepper.Step(); steps++ {
		}
		require.Greater(t, steps, 60, "a content is 25 to 150, after a view of 150: one a transaction")
		require.Equal(t, w.wanted(), w.entries())
	}
}

// TestWorkOfSmallRules says that rules of few ports count as work, too: there may be very many.
func TestWorkOfSmallRules(t *testing.T) {
	const rulesets, rules = 10, 200
	w := newWorld(t)
	w.rule.maxWork = rules / contributionsPerWork
	for i := range rulesets {
		var all []*tables.Rule
		for item := range rules {
			r := ruleAt("large", bpf.DirectionIngress, item)
			r.AnyPeer, r.Ports = true, []tables.PolicyPort{tcp(80, 80)}
			all = append(all, r)
		}
		r := ruleAt("one", bpf.DirectionIngress, i)
		r.Peers = []uint32{1000}
		w.put(ruleset(uint32(5+i), append(all, r)...))
	}
	steps := func() int {
		n := 1
		for ; w.stepper.Step(); n++ {
		}
		return n
	}
	require.GreaterOrEqual(t, steps(), rulesets/2, "two a transaction: one of each queue")
	w.put(class(1000, []uint32{1000}))
	require.GreaterOrEqual(t, steps(), rulesets/2)
	require.Equal(t, w.wanted(), w.entries())
}

// TestRefusedIsNotComputed says that nothing is computed for a ruleset after it was refused.
func TestRefusedIsNotComputed(t *testing.T) {
	w := newWorld(t)
	w.rule.maxWork, w.rule.Room = 100, Room{Entries: 1000, Verdicts: 1000}
	rules, classes := manyPorts(6, 100, 63)
	w.put(classes...)
	w.work()
	w.put(ruleset(5, rules...))
	steps := 1
	for ; w.stepper.Step(); steps++ {
	}
	require.Less(t, steps, 30)
	require.Equal(t, 1, w.rule.Refusals.NumObjects(w.db.ReadTxn()))
}

// TestLargeRulesetDoesNotHoldUpOthers says that a ruleset that comes while a large one is computed
// is compiled by the next transaction.
func TestLargeRulesetDoesNotHoldUpOthers(t *testing.T) {
	w := newWorld(t)
	rules, classes := manyPorts(6, 100, 63)
	w.put(classes...)
	w.work()
	w.rule.maxWork = 100
	for n := range uint32(20) {
		w.put(ruleset(5+n, rules...))
	}
	require.True(t, w.stepper.Step())
	small := ruleAt("small", bpf.DirectionIngress, 0)
	small.Peers, small.Ports = []uint32{1000}, []tables.PolicyPort{tcp(80, 80)}
	w.put(ruleset(100, small))
	isCompiled := func(number uint32) bool {
		key := tables.Compiled{Role: tables.CompiledRuleset, Number: number}
		_, _, compiled := w.rule.Compiled.Get(w.db.ReadTxn(), tables.CompiledByKey(key))
		return compiled
	}
	for range 2 { // as 32 classes of 63 are more than one piece
		require.True(t, w.stepper.Step())
	}
	require.True(t, isCompiled(100))
	require.False(t, isCompiled(5))
	w.work()
	require.True(t, isCompiled(5))
	require.Equal(t, w.wanted(), w.entries())
}
