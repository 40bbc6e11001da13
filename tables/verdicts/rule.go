// SPDX-License-Identifier: Apache-2.0

package verdicts

import (
	"cmp"
	"iter"
	"slices"

	"github.com/sluice-net/sluice/tables"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables/derive"
)

var directions = [bpf.Directions]bpf.Direction{bpf.DirectionEgress, bpf.DirectionIngress}

// maxWork is how much one transaction does: see [work]. It computes at least one pair, and writes
// the last verdict set as a whole.
const maxWork = 4000

// largeRuleset is how many peers and ports a ruleset has that lets others go first.
const largeRuleset = 500

type params struct {
	cell.In

	Rulesets statedb.Table[*tables.Ruleset]
	Classes  statedb.Table[*tables.Class]

	Entries  statedb.RWTable[*tables.PolicyEntry]
	Compiled statedb.RWTable[*tables.Compiled]
	Sets     statedb.RWTable[*tables.VerdictSet]
	Verdicts statedb.RWTable[*tables.Verdict]
	Usage    statedb.RWTable[*tables.PolicyUsage]
	Refusals statedb.RWTable[*tables.RulesetRefusal]

	Room Room
}

// key is a ruleset with all classes, or a class with all rulesets, in order of number.
//
// A ruleset that was computed up to a class needs none with a smaller number: such a class was in
// the same snapshot, as later ones have greater numbers. So the transaction that computes the last
// piece of a ruleset has all pairs with the classes of its snapshot.
type key struct {
	tables.Compiled
	after uint32
	lacks bool // an entry that there is no room for
	large bool // a ruleset with many peers and ports
}

// isLarge reports whether others go first. So does what is left of a key.
func (k key) isLarge() bool { return k.large || k.after > 0 }

// rule has the only state of the derivation: the last number of a set.
type rule struct {
	params
	lastSet uint32
	maxWork work
}

func deriveVerdicts(p derive.Params, tables params) error {
	return derive.Register(p, (&rule{params: tables, maxWork: maxWork}).declare())
}

func (r *rule) declare() derive.Rule[key] {
	return derive.Rule[key]{
		Name: "verdicts",
		Outputs: []statedb.TableMeta{
			r.Entries, r.Compiled, r.Sets, r.Verdicts, r.Usage, r.Refusals,
		},
		Inputs: []derive.Input[key]{
			derive.FromChange(r.Rulesets, comesAndGoes(tables.CompiledRuleset, isLarge)),
			derive.FromChange(r.Classes,
				comesAndGoes(tables.CompiledClass, func(*tables.Class) bool { return false })),
		},
		Large:   key.isLarge,
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
	role tables.CompiledRole, isLarge func(Row) bool,
) func(now statedb.ReadTxn, old, new Row, mark func(key)) {
	return func(_ statedb.ReadTxn, old, new Row, mark func(key)) {
		var none Row
		row := new
		switch {
		case old == none:
		case new == none:
			row = old
		default:
			return
		}
		mark(key{
			Compiled: tables.Compiled{Role: role, Number: row.GetLife().Number}, large: isLarge(row),
		})
	}
}

func isLarge(r *tables.Ruleset) bool {
	n := 0
	for _, rule := range r.Rules {
		n += len(rule.Peers) + len(rule.Ports)
	}
	return n >= largeRuleset
}

// transaction computes some keys.
type transaction struct {
	*rule
	in    statedb.ReadTxn
	out   statedb.WriteTxn
	mark  func(key)
	views map[uint32]*view // of rulesets
	usage *usage
	work  work
	err   error // the first one
}

func (r *rule) compute(in statedb.ReadTxn, out statedb.WriteTxn, keys []key, mark func(key)) error {
	t := &transaction{
		rule: r, in: in, out: out, mark: mark, views: map[uint32]*view{},
		usage: newUsage(r.Room, r.Usage, out),
	}
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
	t.writeUsage()
	return t.err
}

func (t *transaction) isFull() bool { return t.work >= t.maxWork }

// computeKey computes a key, or a piece of it: then it returns the rest.
func (t *transaction) computeKey(k key) (rest key, more bool) {
	if k.Role == tables.CompiledRuleset {
		ruleset, _, found := t.Rulesets.Get(t.in, tables.RulesetByNumber(k.Number))
		if !found {
			more = t.forget(k, t.Entries.Prefix(t.out, tables.PolicyEntriesOfRuleset(k.Number)))
			if !more {
				t.forgetRefusal(k.Number)
			}
			return k, more
		}
		if k.after == 0 {
			t.computeAny(ruleset)
		}
		if t.isRefused(ruleset) {
			return k, false
		}
		return each(t, k, t.classes(ruleset), func(c *tables.Class) (complete bool) {
			return t.computePair(ruleset, c)
		})
	}
	class, _, found := t.Classes.Get(t.in, tables.ClassByNumber(k.Number))
	if !found {
		return k, t.forget(k, t.Entries.List(t.out, tables.PolicyEntriesByClass(k.Number)))
	}
	return each(t, k, t.rulesets(class), func(r *tables.Ruleset) (complete bool) {
		if !t.isCompiled(tables.Compiled{Role: tables.CompiledRuleset, Number: r.Number}) {
			return true // no subject has it, and what is left of it includes the class
		}
		return t.computePair(r, class)
	})
}

// each computes pairs of an object with others, and then notes that it is compiled, if all are
// complete.
func each[Row object](
	t *transaction, k key, others []Row, compute func(Row) (complete bool),
) (rest key, more bool) {
	slices.SortFunc(others, func(a, b Row) int {
		return cmp.Compare(a.GetLife().Number, b.GetLife().Number)
	})
	progress := false
	for _, other := range slices.Compact(others) {
		number := other.GetLife().Number
		if number <= k.after {
			continue
		}
		if progress && t.isFull() {
			return k, true
		}
		progress = true
		k.lacks = !compute(other) || k.lacks
		t.work++
		k.after = number
	}
	if !k.lacks {
		put(t, t.Compiled, &k.Compiled)
	}
	return k, false
}

// classes returns all classes that a ruleset may have special rules for, and few others.
func (t *transaction) classes(r *tables.Ruleset) []*tables.Class {
	classes := statedb.Collect(t.Classes.List(t.in, tables.ClassesByPrecision(tables.Refused)))
	if r.DeniesCoarse() {
		for c := range t.Classes.List(t.in, tables.ClassesByPrecision(tables.Coarse)) {
			classes = append(classes, c)
		}
	}
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
	var rulesets []*tables.Ruleset
	switch c.Precision {
	case tables.Refused:
		return statedb.Collect(t.Rulesets.All(t.in))
	case tables.Coarse:
		rulesets = statedb.Collect(t.Rulesets.List(t.in, tables.RulesetsDenyingCoarse(true)))
	}
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
		v = newView(r, &t.work)
		t.views[r.Number] = v
	}
	return v
}

// forget deletes what is said of a pair with an object that is gone, and reports whether
// there is more.
func (t *transaction) forget(
	k key, entries iter.Seq2[*tables.PolicyEntry, statedb.Revision],
) (more bool) {
	remove(t, t.Compiled, &k.Compiled)
	room := int(max(1, t.maxWork-t.work))
	var some []*tables.PolicyEntry // a copy, as the loop deletes
	for e := range entries {
		if more = len(some) == room; more {
			break
		}
		some = append(some, e)
	}
	for _, e := range some {
		t.removeEntry(e)
	}
	return more
}

// forgetRefusal deletes the refusal of a ruleset that is gone. Classes may have lacked it.
func (t *transaction) forgetRefusal(number uint32) {
	refusal, _, refused := t.Refusals.Get(t.out, tables.RefusalOfRuleset(number))
	if !refused {
		return
	}
	remove(t, t.Refusals, refusal)
	for c := range t.Classes.All(t.in) {
		k := key{Compiled: tables.Compiled{Role: tables.CompiledClass, Number: c.Number}}
		if !t.isCompiled(k.Compiled) {
			t.mark(k)
		}
	}
}

func put[Row any](t *transaction, table statedb.RWTable[Row], row Row) {
	t.wrote(derive.Insert(t.out, table, row))
}

func remove[Row any](t *transaction, table statedb.RWTable[Row], row Row) {
	t.wrote(derive.Delete(t.out, table, row))
}

func (t *transaction) wrote(err error) {
	t.work++
	t.err = cmp.Or(t.err, err)
}
