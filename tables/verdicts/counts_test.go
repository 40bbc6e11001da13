// SPDX-License-Identifier: Apache-2.0

package verdicts

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// cost is how often each output is written, by inserts and deletes.
type cost struct{ entries, compiled, sets, verdicts int }

func (w *world) cost(do func()) cost {
	e, c, s, v := w.revisions()
	do()
	w.work()
	e2, c2, s2, v2 := w.revisions()
	return cost{e2 - e, c2 - c, s2 - s, v2 - v}
}

// allowing is a ruleset of ingress from peers that selectors select.
func allowing(number uint32, ports []tables.PolicyPort, selectors ...uint32) *tables.Ruleset {
	deny := ruleAt("p", bpf.DirectionIngress, -1)
	deny.DefaultDeny = true
	allow := ruleAt("p", bpf.DirectionIngress, 0)
	allow.Peers, allow.Ports = selectors, ports
	return ruleset(number, deny, allow)
}

// The writes are those of the pairs of which something special is said.
func TestCosts(t *testing.T) {
	const n = 20
	w := newWorld(t)
	for i := range uint32(100) {
		w.put(class(1+i, []uint32{1 + i%5}))
	}
	w.work()
	require.Equal(t, cost{compiled: 1}, w.cost(func() { w.put(class(101, []uint32{77})) }),
		"a class that no ruleset selects")
	require.Equal(t, cost{2, 1, 2, 2}, w.cost(func() { w.put(allowing(1, nil, 99)) }),
		"a ruleset that selects no class")
	require.Equal(t, cost{n + 2, 1, 1, 1}, w.cost(func() { w.put(allowing(2, nil, 1)) }),
		"a ruleset with a selector: its default sets are there")

	both := allowing(3, nil, 1)
	both.Rules = append(both.Rules, &tables.Rule{
		RuleID: ruleAt("p", bpf.DirectionEgress, 0).RuleID, Peers: []uint32{1, 2}, Deny: true,
	})
	require.Equal(t, cost{3*n + 2, 1, 1, 1}, w.cost(func() { w.put(both) }), "of both directions")
	selected := class(102, []uint32{1, 88})
	require.Equal(t, cost{entries: 3, compiled: 1}, w.cost(func() { w.put(selected) }),
		"a class that rulesets select: one in a direction, one in both")
	require.Equal(t, cost{3*n + 4, 1, 1, 1}, w.cost(func() { w.remove(both) }))
	undesired := allowing(2, nil, 1)
	undesired.Undesired = true
	require.Zero(t, w.cost(func() { w.put(undesired) }), "content is as it was")
}

// scattered are ports that no prefixes join.
func scattered(n int) (ports []tables.PolicyPort) {
	for i := range n {
		ports = append(ports, tcp(uint16(2*i), uint16(2*i)))
	}
	return ports
}

// Many prefixes are one selector, so a rule with many ports comes to one verdict for each.
func TestManyPrefixesAndPorts(t *testing.T) {
	w := newWorld(t)
	r := allowing(1, scattered(800), 1)
	w.put(r)
	for i := range uint32(10) {
		w.put(class(i+1, []uint32{1, 10 + i}))
	}
	w.work()
	txn := w.db.ReadTxn()
	require.Equal(t, 800+3, w.rule.Verdicts.NumObjects(txn))
	require.Equal(t, 12, w.rule.Entries.NumObjects(txn))
	_, verdicts := Size(r.Rules, w.counts())
	require.LessOrEqual(t, verdicts, 800+6)
}

// A ruleset costs what it selects, however many classes there are.
func TestManyClasses(t *testing.T) {
	w := newWorld(t)
	var rows []any
	for i := range uint32(50_000) {
		web := tables.NamedPort{Name: "web", Protocol: 6, Port: 80}
		rows = append(rows, class(i+1, []uint32{1, 1000 + i}, web))
	}
	w.put(rows...)
	w.work()
	few := ruleset(1, ruleAt("p", bpf.DirectionEgress, 0))
	few.Rules[0].Peers = []uint32{1001, 1002, 1003}
	few.Rules[0].Ports = []tables.PolicyPort{namedTCP("web")}
	txn := &transaction{rule: w.rule, in: w.db.ReadTxn(), views: map[uint32]*view{}}
	require.Len(t, txn.classes(few), 3)
	require.Equal(t, 5, w.cost(func() { w.put(few) }).entries)
}

// A ruleset that selects many classes takes many transactions, of which others get turns.
func TestPieces(t *testing.T) {
	w := newWorld(t)
	w.rule.maxWork = 50
	var rows []any
	for i := range uint32(1000) {
		rows = append(rows, class(i+1, []uint32{1}))
	}
	w.put(rows...)
	w.work()
	compiled := func(number uint32) bool {
		c := tables.Compiled{Role: tables.CompiledRuleset, Number: number}
		_, _, found := w.rule.Compiled.Get(w.db.ReadTxn(), tables.CompiledByKey(c))
		return found
	}
	w.put(allowing(1, nil, 1))
	require.True(t, w.stepper.Step())
	w.put(allowing(2, nil, 2))
	steps := 1
	for ; !compiled(1); steps++ {
		before := w.rule.Entries.NumObjects(w.db.ReadTxn())
		w.stepper.Step()
		require.LessOrEqual(t, w.rule.Entries.NumObjects(w.db.ReadTxn())-before, w.rule.maxWork)
		if steps >= 3 {
			require.True(t, compiled(2))
		}
	}
	require.Greater(t, steps, 1000/w.rule.maxWork)
	w.work()
	require.Equal(t, w.wanted(), w.entries())

	w.remove(allowing(1, nil, 1))
	for more := true; more; {
		before := w.rule.Entries.NumObjects(w.db.ReadTxn())
		more = w.stepper.Step()
		require.False(t, compiled(1))
		require.LessOrEqual(t, before-w.rule.Entries.NumObjects(w.db.ReadTxn()), w.rule.maxWork)
	}
	require.Equal(t, w.wanted(), w.entries())
}

// counts has the numbers of the present classes.
func (w *world) counts() Counts {
	txn := w.db.ReadTxn()
	return Counts{
		Selector: func(selector uint32) (n int) {
			for range w.classes.List(txn, tables.ClassesBySelector(selector)) {
				n++
			}
			return n
		},
		Port: func(name string) (n int) {
			for c := range w.classes.List(txn, tables.ClassesByPort(name)) {
				for _, p := range c.Ports {
					if (tables.PolicyPort{Name: p.Name, Protocol: p.Protocol}).String() == name {
						n++
					}
				}
			}
			return n
		},
	}
}

// Size is never less than what a ruleset comes to.
func TestSize(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		w := newWorld(t)
		w.put(refusedClass(1))
		for number := range uint32(random.IntN(12)) {
			c := randomClass(random, number+2)
			c.Precision = tables.Exact // there is one that is refused
			w.put(c)
		}
		r := randomRuleset(random, 1)
		w.put(r)
		w.work()
		txn := w.db.ReadTxn()
		pairs, verdicts := Size(r.Rules, w.counts())
		about := fmt.Sprint("seed ", seed)
		require.GreaterOrEqual(t, pairs, w.rule.Entries.NumObjects(txn), about)
		require.GreaterOrEqual(t, verdicts, w.rule.Verdicts.NumObjects(txn), about)
	}
	w := newWorld(t)
	pairs, verdicts := Size(nil, w.counts())
	require.Equal(t, [2]int{4, 4}, [2]int{pairs, verdicts}, "of any class and of refused ones")
}

// BenchmarkRuleset is about rulesets that select many classes, or have many ports.
func BenchmarkRuleset(b *testing.B) {
	for _, size := range []struct{ classes, ports int }{{50_000, 1}, {10, 800}, {1000, 800}} {
		b.Run(fmt.Sprintf("%d-classes-%d-ports", size.classes, size.ports), func(b *testing.B) {
			w := newWorld(b)
			var rows []any
			for i := range size.classes {
				rows = append(rows, class(uint32(i+1), []uint32{1, uint32(10 + i)}))
			}
			w.put(rows...)
			w.work()
			number := uint32(0)
			for b.Loop() {
				number++
				r := allowing(number, scattered(size.ports), 1)
				w.put(r)
				w.work()
				w.remove(r)
				w.work()
			}
		})
	}
}
