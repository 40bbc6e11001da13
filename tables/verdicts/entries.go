// SPDX-License-Identifier: Apache-2.0

package verdicts

import (
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// computeAny writes what a ruleset says of any class.
func (t *transaction) computeAny(r *tables.Ruleset) {
	for _, d := range directions {
		t.say(r, bpf.AnyClass, d, t.view(r)[d].any, 1)
	}
}

// computePair writes what a ruleset says specially of a class, and reports whether all is there.
func (t *transaction) computePair(r *tables.Ruleset, c *tables.Class) (complete bool) {
	if t.isRefused(r) { // until its pods are isolated
		return false
	}
	complete = true
	for _, d := range directions {
		v := t.view(r)[d]
		says, weight := v.of(c, &t.work), v.weight(c)
		if says.digest != v.any.digest || weight > 1 {
			complete = t.say(r, c.Number, d, says, weight) && complete
		}
	}
	return complete
}

// say writes the entry of a pair, unless it is there: then it says the same. If the maps have no
// room for it, the ruleset is refused. It reports whether the entry is there.
func (t *transaction) say(
	r *tables.Ruleset, class uint32, d bpf.Direction, says *content, weight int,
) (there bool) {
	key := bpf.PolicyKey{Ruleset: r.Number, Class: class, Direction: d}
	if _, _, found := t.Entries.Get(t.out, tables.PolicyEntryByKey(key)); found {
		return true
	}
	if t.isRefused(r) {
		return false
	}
	if !t.hasRoom(r, says, weight) {
		t.refuse(r, says, weight)
		return false
	}
	namespace := r.Namespace()
	put(t, t.Entries, &tables.PolicyEntry{
		Ruleset: r.Number, Class: class, Direction: d, Namespace: namespace,
		Set: t.set(namespace, says), Weight: weight, Reconciled: tables.Pending(),
	})
	t.usage.add(namespace, weight, 0)
	return true
}

// hasRoom reports whether the maps have room for an entry of a ruleset and its set. Those of a
// ruleset that isolates pods are few.
func (t *transaction) hasRoom(r *tables.Ruleset, says *content, weight int) bool {
	verdicts := len(says.verdicts)
	if _, _, found := t.Sets.Get(t.out, tables.VerdictSetByDigest(says.digest)); found {
		verdicts = 0
	}
	return r.TooLarge != "" || t.usage.fits(r.Namespace(), weight, verdicts)
}

// refuse refuses a ruleset, as there is no room for an entry.
func (t *transaction) refuse(r *tables.Ruleset, says *content, weight int) {
	needs := tables.RulesetSize{Entries: weight, Verdicts: len(says.verdicts)}
	counted := map[uint32]bool{}
	for e := range t.Entries.Prefix(t.out, tables.PolicyEntriesOfRuleset(r.Number)) {
		needs.Entries += e.Weight
		if set, _, found := t.Sets.Get(t.out, tables.VerdictSetByNumber(e.Set)); found && !counted[e.Set] {
			counted[e.Set] = true
			needs.Verdicts += set.Entries
		}
	}
	put(t, t.Refusals, &tables.RulesetRefusal{Ruleset: r.Number, Needs: needs})
}

func (t *transaction) isRefused(r *tables.Ruleset) bool {
	_, _, refused := t.Refusals.Get(t.out, tables.RefusalOfRuleset(r.Number))
	return refused
}

func (t *transaction) isCompiled(c tables.Compiled) bool {
	_, _, compiled := t.Compiled.Get(t.out, tables.CompiledByKey(c))
	return compiled
}

// set returns the number of the set with a content, which is made for a namespace if there
// is none.
func (t *transaction) set(namespace string, says *content) uint32 {
	if s, _, found := t.Sets.Get(t.out, tables.VerdictSetByDigest(says.digest)); found {
		return s.Number
	}
	t.lastSet++
	put(t, t.Sets, &tables.VerdictSet{
		Number: t.lastSet, Digest: says.digest, Entries: len(says.verdicts), Namespace: namespace,
	})
	for _, v := range says.verdicts {
		v.Key.Set, v.Status = t.lastSet, reconciler.StatusPending()
		put(t, t.Verdicts, &v)
	}
	t.usage.add(namespace, 0, len(says.verdicts))
	return t.lastSet
}

// removeEntry deletes an entry, and its set if no other entry refers to it.
func (t *transaction) removeEntry(e *tables.PolicyEntry) {
	remove(t, t.Entries, e)
	t.usage.add(e.Namespace, -e.Weight, 0)
	if _, _, found := t.Entries.Get(t.out, tables.PolicyEntriesBySet(e.Set)); found {
		return
	}
	set, _, found := t.Sets.Get(t.out, tables.VerdictSetByNumber(e.Set))
	if !found {
		return
	}
	remove(t, t.Sets, set)
	t.usage.add(set.Namespace, 0, -set.Entries)
	for _, v := range statedb.Collect(t.Verdicts.Prefix(t.out, tables.VerdictsOfSet(e.Set))) {
		remove(t, t.Verdicts, v)
	}
}
