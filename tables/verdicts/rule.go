// SPDX-License-Identifier: Apache-2.0

package verdicts

import (
	"cmp"
	"github.com/sluice-net/sluice/tables"
	"iter"
	"slices"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables/transform"
)

var directions = [bpf.Directions]bpf.Direction{bpf.DirectionEgress, bpf.DirectionIngress}

// maxWork is how many pairs and rows one transaction reads and writes, plus the last verdict set,
// which it writes as a whole.
const maxWork = 4000

type params struct {
	cell.In

	Rulesets statedb.Table[*tables.Ruleset]
	Classes  statedb.Table[*tables.Class]

	Entries  statedb.RWTable[*tables.PolicyEntry]
	Compiled statedb.RWTable[*tables.Compiled]
	Sets     statedb.RWTable[*tables.VerdictSet]
	Verdicts statedb.RWTable[*tables.Verdict]
}

// key is a ruleset with all classes, or a class with all rulesets, in order of number.
//
// A ruleset that was computed up to a class needs none with a smaller number: such a class was in
// the same snapshot, as later ones have greater numbers. So the transaction that computes the last
// piece of a ruleset has all pairs with the classes of its snapshot.
type key struct {
	tables.Compiled
	after uint32
}

// rule has the only state of the derivation: the last number of a set.
type rule struct {
	params
	lastSet uint32
	maxWork int
}

func deriveVerdicts(p transform.Params, tables params) error {
	return transform.Register(p, (&rule{params: tables, maxWork: maxWork}).declare())
}

func (r *rule) declare() transform.Rule[key] {
	return transform.Rule[key]{
		Name:    "verdicts",
		Outputs: []statedb.TableMeta{r.Entries, r.Compiled, r.Sets, r.Verdicts},
		Inputs: []transform.Input[key]{
			transform.From(r.Rulesets, comesAndGoes[*tables.Ruleset](tables.CompiledRuleset)),
			transform.From(r.Classes, comesAndGoes[*tables.Class](tables.CompiledClass)),
		},
		Compute: r.compute,
	}
}

// object is a row of rulesets or of classes.
type object interface {
	comparable
	GetLife() tables.Life
}

// comesAndGoes marks the keys of rows that are inserted or deleted.
func comesAndGoes[Row object](
	role tables.CompiledRole,
) func(now statedb.ReadTxn, old, new Row, mark func(key)) {
	return func(_ statedb.ReadTxn, old, new Row, mark func(key)) {
		var none Row
		switch {
		case old == none:
			mark(key{Compiled: tables.Compiled{Role: role, Number: new.GetLife().Number}})
		case new == none:
			mark(key{Compiled: tables.Compiled{Role: role, Number: old.GetLife().Number}})
		}
	}
}

// transaction computes some keys.
type transaction struct {
	*rule
	in    statedb.ReadTxn
	out   statedb.WriteTxn
	views map[uint32]*view // of rulesets
	work  int              // pairs and rows so far
	err   error            // the first one
}

func (r *rule) compute(in statedb.ReadTxn, out statedb.WriteTxn, keys []key, mark func(key)) error {
	t := &transaction{rule: r, in: in, out: out, views: map[uint32]*view{}}
	var rests []key
	for _, k := range keys {
		if t.isFull() {
			mark(k)
		} else if rest, more := t.computeKey(k); more {
			rests = append(rests, rest)
		}
	}
	for _, rest := range rests { // after keys that have not had a turn
		mark(rest)
	}
	return t.err
}

func (t *transaction) isFull() bool { return t.work >= t.maxWork }

// computeKey computes a key, or a piece of it: then it returns the rest.
func (t *transaction) computeKey(k key) (rest key, more bool) {
	if k.Role == tables.CompiledRuleset {
		ruleset, _, found := t.Rulesets.Get(t.in, tables.RulesetByNumber(k.Number))
		if !found {
			return k, t.forget(k, t.Entries.Prefix(t.out, tables.PolicyEntriesOfRuleset(k.Number)))
		}
		v := t.view(ruleset)
		if k.after == 0 {
			for _, d := range directions {
				t.putEntry(ruleset, bpf.AnyClass, d, v[d].any)
			}
		}
		return each(t, k, t.classes(ruleset), func(c *tables.Class) { t.computePair(ruleset, c) })
	}
	class, _, found := t.Classes.Get(t.in, tables.ClassByNumber(k.Number))
	if !found {
		return k, t.forget(k, t.Entries.List(t.out, tables.PolicyEntriesByClass(k.Number)))
	}
	return each(t, k, t.rulesets(class), func(r *tables.Ruleset) { t.computePair(r, class) })
}

// each computes pairs of an object with others, and then marks it as compiled.
func each[Row object](
	t *transaction, k key, others []Row, compute func(Row),
) (rest key, more bool) {
	slices.SortFunc(others, func(a, b Row) int {
		return cmp.Compare(a.GetLife().Number, b.GetLife().Number)
	})
	for _, other := range slices.Compact(others) {
		number := other.GetLife().Number
		if number <= k.after {
			continue
		}
		if t.isFull() {
			return k, true
		}
		compute(other)
		t.work++
		k.after = number
	}
	put(t, t.Compiled, &k.Compiled)
	return k, false
}

// classes returns all classes that a ruleset may have special rules for, and few others.
func (t *transaction) classes(r *tables.Ruleset) []*tables.Class {
	classes := statedb.Collect(t.Classes.List(t.in, tables.ClassesRefused(true)))
	for _, selector := range r.Selectors() {
		for c := range t.Classes.List(t.in, tables.ClassesBySelector(selector)) {
			classes = append(classes, c)
		}
	}
	for _, port := range t.view(r)[bpf.DirectionEgress].anyPeerPorts() {
		for c := range t.Classes.List(t.in, tables.ClassesByPort(port)) {
			classes = append(classes, c)
		}
	}
	return classes
}

// rulesets returns all rulesets that may have special rules for a class, and few others.
func (t *transaction) rulesets(c *tables.Class) []*tables.Ruleset {
	if c.Refused {
		return statedb.Collect(t.Rulesets.All(t.in))
	}
	var rulesets []*tables.Ruleset
	for _, selector := range c.Selectors {
		for r := range t.Rulesets.List(t.in, tables.RulesetsBySelector(selector)) {
			rulesets = append(rulesets, r)
		}
	}
	for _, name := range c.PortNames() {
		for r := range t.Rulesets.List(t.in, tables.RulesetsByPort(name)) {
			rulesets = append(rulesets, r)
		}
	}
	return rulesets
}

func (t *transaction) view(r *tables.Ruleset) *view {
	v := t.views[r.Number]
	if v == nil {
		v = newView(r)
		t.views[r.Number] = v
	}
	return v
}

// computePair writes the entries for a ruleset's special rules for a class.
func (t *transaction) computePair(r *tables.Ruleset, c *tables.Class) {
	v := t.view(r)
	for _, d := range directions {
		if says := v[d].of(c); says.digest != v[d].any.digest {
			t.putEntry(r, c.Number, d, says)
		}
	}
}

// putEntry writes the entry of a pair with its set, unless the pair has one: its content never
// changes.
func (t *transaction) putEntry(r *tables.Ruleset, class uint32, d bpf.Direction, says *content) {
	e := &tables.PolicyEntry{Ruleset: r.Number, Class: class, Direction: d}
	if _, _, found := t.Entries.Get(t.out, tables.PolicyEntryByKey(e.MapKey())); !found {
		e.Set, e.Status = t.set(says), reconciler.StatusPending()
		put(t, t.Entries, e)
	}
}

// set returns the number of the set with a content, and creates it if there is none.
func (t *transaction) set(says *content) uint32 {
	if s, _, found := t.Sets.Get(t.out, tables.VerdictSetByDigest(says.digest)); found {
		return s.Number
	}
	t.lastSet++
	put(t, t.Sets, &tables.VerdictSet{
		Number: t.lastSet, Digest: says.digest, Entries: len(says.verdicts),
	})
	for _, v := range says.verdicts {
		v.Key.Set, v.Status = t.lastSet, reconciler.StatusPending()
		put(t, t.Verdicts, &v)
	}
	return t.lastSet
}

// forget deletes the entries of an object that is gone, and reports whether there are more.
func (t *transaction) forget(
	k key, entries iter.Seq2[*tables.PolicyEntry, statedb.Revision],
) (more bool) {
	remove(t, t.Compiled, &k.Compiled)
	room := max(1, t.maxWork-t.work)
	var some []*tables.PolicyEntry // a copy, as the loop deletes
	for e := range entries {
		if more = len(some) == room; more {
			break
		}
		some = append(some, e)
	}
	for _, e := range some {
		remove(t, t.Entries, e)
		t.release(e.Set)
	}
	return more
}

// release deletes a set if no entry refers to it.
func (t *transaction) release(set uint32) {
	if _, _, found := t.Entries.Get(t.out, tables.PolicyEntriesBySet(set)); found {
		return
	}
	remove(t, t.Sets, &tables.VerdictSet{Number: set})
	for _, v := range statedb.Collect(t.Verdicts.Prefix(t.out, tables.VerdictsOfSet(set))) {
		remove(t, t.Verdicts, v)
	}
}

func put[Row any](t *transaction, table statedb.RWTable[Row], row Row) {
	t.wrote(transform.Insert(t.out, table, row))
}

func remove[Row any](t *transaction, table statedb.RWTable[Row], row Row) {
	t.wrote(transform.Delete(t.out, table, row))
}

func (t *transaction) wrote(err error) {
	t.work++
	t.err = cmp.Or(t.err, err)
}
