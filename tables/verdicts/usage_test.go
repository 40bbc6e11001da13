// SPDX-License-Identifier: Apache-2.0

package verdicts

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// counted returns what namespaces use, by counting rows.
func (w *world) counted(txn statedb.ReadTxn) map[string]tables.PolicyUsage {
	counted := map[string]tables.PolicyUsage{}
	for e := range w.rule.Entries.All(txn) {
		row := counted[e.Namespace]
		row.Entries += e.Weight
		counted[e.Namespace] = row
	}
	for s := range w.rule.Sets.All(txn) {
		row := counted[s.Namespace]
		row.Verdicts += s.Entries
		counted[s.Namespace] = row
	}
	for namespace, row := range counted {
		row.Namespace = namespace
		counted[namespace] = row
	}
	return counted
}

// checkUsage checks that the usage is that of the rows, and that whatever is compiled is as wanted.
// It returns the refused rulesets.
func (w *world) checkUsage() (refused []*tables.Ruleset) {
	txn := w.db.ReadTxn()
	usage := map[string]tables.PolicyUsage{}
	for row := range w.rule.Usage.All(txn) {
		usage[row.Namespace] = *row
	}
	require.Equal(w, w.counted(txn), usage)

	wanted, entries := w.wanted(), w.entries()
	for key, says := range entries {
		require.Equal(w, wanted[key], says, "%s", key)
	}
	compiled := func(role tables.CompiledRole, number uint32) bool {
		key := tables.Compiled{Role: role, Number: number}
		_, _, found := w.rule.Compiled.Get(txn, tables.CompiledByKey(key))
		return found
	}
	for key := range wanted {
		if compiled(tables.CompiledRuleset, key.Ruleset) &&
			(key.Class == bpf.AnyClass || compiled(tables.CompiledClass, key.Class)) {
			require.Contains(w, entries, key)
		}
	}
	for r := range w.rulesets.All(txn) {
		if _, _, is := w.rule.Refusals.Get(txn, tables.RefusalOfRuleset(r.Number)); is {
			refused = append(refused, r)
		} else {
			require.True(w, compiled(tables.CompiledRuleset, r.Number))
		}
	}
	require.Len(w, refused, w.rule.Refusals.NumObjects(txn))
	for c := range w.classes.All(txn) {
		require.True(w, len(refused) > 0 || compiled(tables.CompiledClass, c.Number))
	}
	return refused
}

// isolate replaces refused rulesets, as the rule of subjects does. It returns those made.
func (w *world) isolate(number *uint32) (isolating []*tables.Ruleset) {
	for _, r := range w.checkUsage() {
		*number++
		deny := ruleAt("isolating", bpf.DirectionIngress, -1)
		deny.DefaultDeny = true
		i := inNamespace(r.Namespace(), ruleset(*number, deny))
		i.TooLarge = "it is refused"
		w.remove(r)
		w.put(i)
		isolating = append(isolating, i)
	}
	w.work()
	require.Empty(w, w.checkUsage())
	return isolating
}

// inNamespace returns a ruleset whose policies are in another namespace.
func inNamespace(namespace string, r *tables.Ruleset) *tables.Ruleset {
	for _, rule := range r.Rules {
		rule.Policy.Name.Namespace = namespace
	}
	for i := range r.Policies {
		r.Policies[i].Name.Namespace = namespace
	}
	return r
}

// A tenant has 30 pods on the node and 300 elsewhere, with random labels, and 30 policies of
// ten ports each, which comes to more verdicts than the maps have room for. Its own pods
// are isolated. Others have room.
func TestTenantWithRandomLabels(t *testing.T) {
	w := newWorld(t)
	random := rand.New(rand.NewPCG(1, 1))
	const policies = 30
	var attack []any
	for i := range uint32(300) {
		var selectors []uint32
		for s := range uint32(policies) {
			if random.IntN(2) == 0 {
				selectors = append(selectors, s+1)
			}
		}
		attack = append(attack, class(1000+i, selectors))
	}
	for i := range uint32(policies) {
		var rules []*tables.Rule
		for p := range policies {
			if random.IntN(2) == 0 {
				continue
			}
			rule := ruleAt(fmt.Sprintf("p%02d", p), bpf.DirectionIngress, 0)
			rule.Peers = []uint32{uint32(p) + 1}
			for range 10 {
				port := uint16(random.IntN(65536))
				rule.Ports = append(rule.Ports, tcp(port, port))
			}
			deny := ruleAt(fmt.Sprintf("p%02d", p), bpf.DirectionIngress, -1)
			deny.DefaultDeny = true
			rules = append(rules, deny, rule)
		}
		attack = append(attack, inNamespace("attacker", ruleset(2000+i, rules...)))
	}
	w.put(attack...)
	w.work()
	refused := w.checkUsage()
	require.NotEmpty(t, refused)
	txn := w.db.ReadTxn()
	size := int(bpf.DefaultConfig.MapSizeVerdicts)
	require.LessOrEqual(t, w.rule.Verdicts.NumObjects(txn), size/2+1)

	// Another namespace has a new policy.
	other := inNamespace("other", allowing(3000, []tables.PolicyPort{tcp(80, 80)}, 31))
	peer := class(3001, []uint32{31})
	w.put(other, peer)
	w.work()
	require.Equal(t, refused, w.checkUsage())
	maps := w.desired()
	for class, deny := range map[uint32]uint8{3001: 0, 1000: 1} {
		a, found := maps.Lookup(Question{3000, class, bpf.DirectionIngress, 6, 80})
		require.True(t, found)
		require.Equal(t, deny, a.Verdict.Deny)
	}

	number := uint32(4000)
	w.isolate(&number)
	require.Equal(t, w.wanted(), w.entries())
}

// A tenant's policies have many peers that select all pods, beside one that allows everything, so
// that they need no entries. They count all the same, as each class lists its selectors.
func TestWeightOfSelectors(t *testing.T) {
	w := newWorld(t)
	w.rule.Room.Entries = 4096
	const selectors = 64 * selectorsOfEntry
	var numbers []uint32
	for i := range uint32(selectors) {
		numbers = append(numbers, i+1)
	}
	hog := allowing(10, nil, slices.Clone(numbers)...)
	all := ruleAt("p", bpf.DirectionIngress, 1)
	all.AnyPeer = true
	hog.Rules = append(hog.Rules, all)
	w.put(inNamespace("a", hog), inNamespace("b", allowing(11, nil, 1)))
	for i := range uint32(20) {
		w.put(class(100+i, slices.Concat(numbers, []uint32{selectors + 1 + i})))
	}
	w.work()
	require.Empty(t, w.checkUsage())
	usage, _, _ := w.rule.Usage.Get(w.db.ReadTxn(), tables.PolicyUsageByNamespace("a"))
	require.Equal(t, 2+20*(1+64), usage.Entries)
	for i := range uint32(20) {
		w.put(class(200+i, slices.Concat(numbers, []uint32{selectors + 100 + i})))
	}
	w.work()
	refused := w.checkUsage()
	require.Len(t, refused, 1)
	require.Equal(t, "a", refused[0].Namespace())
	number := uint32(1000)
	w.isolate(&number)
	usage, _, _ = w.rule.Usage.Get(w.db.ReadTxn(), tables.PolicyUsageByNamespace("a"))
	require.Equal(t, 2, usage.Entries)
}

// Rulesets of several namespaces come and go in maps that are too small for them.
func TestRandomUsage(t *testing.T) {
	refusals := 0
	for seed := range uint64(30) {
		random := rand.New(rand.NewPCG(seed, 7))
		w := newWorld(t)
		w.rule.maxWork = []work{1, 7, maxWork}[random.IntN(3)]
		w.rule.Room = Room{Entries: 20 + random.IntN(100), Verdicts: 20 + random.IntN(200)}
		var live []any
		isolating := uint32(1000)
		for number := range uint32(60) {
			switch what := random.IntN(5); {
			case what == 0 && len(live) > 4:
				at := random.IntN(len(live))
				w.remove(live[at])
				live = slices.Delete(live, at, at+1)
			case what < 3:
				namespace := []string{"", "a", "b", "c"}[random.IntN(4)]
				live = append(live, inNamespace(namespace, randomRuleset(random, number+1)))
				w.put(live[len(live)-1])
			default:
				live = append(live, randomClass(random, number+1))
				w.put(live[len(live)-1])
			}
			for random.IntN(3) > 0 && w.stepper.Step() {
			}
			if random.IntN(2) == 0 {
				w.work()
				refusals += len(w.checkUsage())
			}
			if random.IntN(4) == 0 {
				w.work()
				for _, r := range w.isolate(&isolating) {
					live = append(live, r)
				}
			}
		}
		w.work()
		for _, r := range w.isolate(&isolating) {
			live = append(live, r)
		}
		require.Equal(t, w.wanted(), w.entries())
		w.remove(live...)
		w.work()
		require.Zero(t, w.rule.Usage.NumObjects(w.db.ReadTxn()))
		require.Zero(t, w.rule.Sets.NumObjects(w.db.ReadTxn()))
	}
	require.Greater(t, refusals, 50)
}

// A class that there is no room for in a ruleset waits until the ruleset is gone. What is written
// already needs no room.
func TestFullMaps(t *testing.T) {
	w := newWorld(t)
	w.rule.Room = Room{Entries: 6, Verdicts: 400} // 3 for a namespace
	w.put(class(1, []uint32{1}), inNamespace("a", allowing(2, nil, 1)))
	w.work()
	require.Empty(t, w.checkUsage())
	w.put(inNamespace("a", allowing(3, nil, 1)), class(4, []uint32{1}), class(5, []uint32{9}))
	w.work()
	refused := w.checkUsage()
	require.Len(t, refused, 2)
	refusal, _, _ := w.rule.Refusals.Get(w.db.ReadTxn(), tables.RefusalOfRuleset(2))
	require.Equal(t, tables.RulesetSize{Entries: 4, Verdicts: 4}, refusal.Needs)
	compiled := func(role tables.CompiledRole) (numbers []uint32) {
		for c := range w.rule.Compiled.All(w.db.ReadTxn()) {
			if c.Role == role {
				numbers = append(numbers, c.Number)
			}
		}
		return numbers
	}
	require.Equal(t, []uint32{2}, compiled(tables.CompiledRuleset), "what is refused at once is not used")
	require.Equal(t, []uint32{1, 5}, compiled(tables.CompiledClass), "class 4 waits")

	number := uint32(100)
	w.isolate(&number)
	require.Equal(t, []uint32{101, 102}, compiled(tables.CompiledRuleset))
	require.Equal(t, []uint32{1, 4, 5}, compiled(tables.CompiledClass))
}

// There is room for a refused ruleset when the maps are half empty with it, or it is small.
func TestCanRetry(t *testing.T) {
	room := Room{Entries: 5120, Verdicts: 5120} // 10 are guaranteed
	size := func(entries, verdicts int) tables.RulesetSize {
		return tables.RulesetSize{Entries: entries, Verdicts: verdicts}
	}
	for _, test := range []struct {
		needs, total, own tables.RulesetSize
		can               bool
	}{
		{size(2560, 2560), size(0, 0), size(0, 0), true},
		{size(2561, 1), size(0, 0), size(0, 0), false},
		{size(1, 2561), size(0, 0), size(0, 0), false},
		{size(2560, 2560), size(1, 0), size(0, 0), false},
		{size(10, 10), size(3000, 3000), size(0, 0), true},
		{size(10, 10), size(3000, 3000), size(1, 0), false},
	} {
		require.Equal(t, test.can, room.CanRetry(test.needs, test.total, test.own), "%v", test)
	}
}
