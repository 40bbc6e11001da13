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
		row.Entries++
		if e.Closed != 0 {
			row.Closed++
		}
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

// checkUsage checks that the usage is that of the rows, and that what closed rulesets say is
// what they would say, or to deny. It returns how many directions are closed.
func (w *world) checkUsage() (closed int) {
	txn := w.db.ReadTxn()
	usage := map[string]tables.PolicyUsage{}
	for row := range w.rule.Usage.All(txn) {
		usage[row.Namespace] = *row
		closed += row.Closed
	}
	require.Equal(w, w.counted(txn), usage)

	wanted, maps, contents := w.wanted(), w.desired(), w.contents()
	for e := range w.rule.Entries.All(txn) {
		require.Contains(w, wanted, e.MapKey())
	}
	for r := range w.rulesets.All(txn) {
		for _, d := range directions {
			anyKey := bpf.PolicyKey{Ruleset: r.Number, Direction: d}
			anyValue, found := maps.Policy(anyKey)
			require.True(w, found)
			for c := range w.classes.All(txn) {
				key := bpf.PolicyKey{Ruleset: r.Number, Class: c.Number, Direction: d}
				want, special := wanted[key]
				if !special {
					want = wanted[anyKey]
				}
				value, found := maps.Policy(key)
				if !found {
					value = anyValue
				}
				says := contents[value.Set].digest
				if says != want {
					require.Equal(w, refused.digest, says, "%s", key)
					require.Equal(w, refused.digest, contents[anyValue.Set].digest, "not closed")
				}
			}
		}
	}
	return closed
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
// ten ports each, which comes to more verdicts than the maps have room for. Its own pods are
// denied some peers. Others have room, and when it is gone nothing is closed.
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
	require.NotZero(t, w.checkUsage())
	txn := w.db.ReadTxn()
	size := int(bpf.DefaultConfig.MapSizeVerdicts)
	require.LessOrEqual(t, w.rule.Verdicts.NumObjects(txn), size-size/4+1)

	// Another namespace has a new policy.
	other := inNamespace("other", allowing(3000, []tables.PolicyPort{tcp(80, 80)}, 31))
	peer := class(3001, []uint32{31})
	w.put(other, peer)
	w.work()
	w.checkUsage()
	usage, _, found := w.rule.Usage.Get(w.db.ReadTxn(), tables.PolicyUsageByNamespace("other"))
	require.True(t, found)
	require.Zero(t, usage.Closed)
	maps := w.desired()
	for class, deny := range map[uint32]uint8{3001: 0, 1000: 1} {
		a, found := maps.Lookup(Question{3000, class, bpf.DirectionIngress, 6, 80})
		require.True(t, found)
		require.Equal(t, deny, a.Verdict.Deny)
	}

	w.remove(attack[:len(attack)-1]...) // one ruleset stays
	w.work()
	require.Zero(t, w.checkUsage())
	require.Equal(t, w.wanted(), w.entries())
}

// Rulesets of several namespaces come and go in maps that are too small for them.
func TestRandomUsage(t *testing.T) {
	closings := 0
	for seed := range uint64(30) {
		random := rand.New(rand.NewPCG(seed, 7))
		w := newWorld(t)
		w.rule.maxWork = []int{1, 7, maxWork}[random.IntN(3)]
		w.rule.Room = Room{Entries: 20 + random.IntN(100), Verdicts: 20 + random.IntN(200)}
		var live []any
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
				closings += w.checkUsage()
			}
		}
		w.work()
		closings += w.checkUsage()

		// With room for all, the next that frees some opens everything.
		w.rule.Room = Room{Entries: 100000, Verdicts: 100000}
		last := inNamespace("d", allowing(1000, nil, 1))
		w.put(last)
		w.work()
		w.remove(last)
		w.work()
		require.Zero(t, w.checkUsage())
		require.Equal(t, w.wanted(), w.entries())
		w.remove(live...)
		w.work()
		require.Zero(t, w.rule.Usage.NumObjects(w.db.ReadTxn()))
		require.Zero(t, w.rule.Sets.NumObjects(w.db.ReadTxn()))
	}
	require.Greater(t, closings, 50)
}

// What is written already needs no room, and a class that comes in the same transaction as a
// ruleset may be computed before it.
func TestFullMaps(t *testing.T) {
	w := newWorld(t)
	peer := class(1, []uint32{1})
	w.rule.Room = Room{Entries: 4, Verdicts: 400} // the common part is 3
	w.put(peer, inNamespace("a", allowing(2, nil, 1)))
	w.work()
	require.Zero(t, w.checkUsage())
	w.put(inNamespace("a", allowing(3, nil, 1)), class(4, []uint32{1}))
	w.work()
	require.Equal(t, 2, w.checkUsage(), "both rulesets")
	for _, ruleset := range []uint32{2, 3} {
		a, found := w.desired().Lookup(Question{ruleset, 4, bpf.DirectionIngress, 6, 80})
		require.True(t, found)
		require.EqualValues(t, 1, a.Verdict.Deny)
	}
	a, _ := w.desired().Lookup(Question{2, 1, bpf.DirectionIngress, 6, 80})
	require.Zero(t, a.Verdict.Deny, "it stays")
}
