// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"iter"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

type readinessParams struct {
	cell.In

	Tables
	Output       statedb.RWTable[*tables.PolicyReadiness]
	Entries      statedb.Table[*tables.PolicyEntry]
	ClassEntries statedb.Table[*tables.ClassEntry]
}

// readiness derives policy-readiness. Whether the kernel has all verdicts of a
// class is known by the pairs that are not settled, which are few; how many it has
// is counted as entries come and go.
type readiness struct {
	readinessParams
	pairs    pairs
	computer *Computer

	unsettled *settlement[bpf.ClassKey]
	tallies   map[bpf.ClassKey]tally
	before    map[bpf.PolicyKey]*verdicts // of what changed in the round
}

// tally counts the entries of a class.
type tally struct{ wanted, same, kernel int }

// verdicts are the values of a key, as far as they changed.
type verdicts struct {
	wanted, kernel               *bpf.PolicyValue
	wantedChanged, kernelChanged bool
}

// deriveReadiness keeps which classes addresses may be put into.
func deriveReadiness(p derive.Params, params readinessParams) error {
	r := &readiness{
		readinessParams: params,
		pairs:           pairs{Tables: params.Tables, Entries: params.Entries},
		computer:        NewComputer(params.Tables),
		unsettled:       newSettlement[bpf.ClassKey](),
		tallies:         map[bpf.ClassKey]tally{},
		before:          map[bpf.PolicyKey]*verdicts{},
	}
	_, err := derive.Register(p, derive.Rule[bpf.ClassKey, *tables.PolicyReadiness]{
		Output: r.Output,
		Inputs: []derive.Input[bpf.ClassKey]{
			derive.Initially(r.firstClass, fromClasses(r.Members, r.classChanged)),
			derive.Joined(derive.FromChange(r.Rules, func(txn statedb.ReadTxn, old, new *tables.EnforcedPolicy, affect func(bpf.ClassKey)) {
				r.pairs.byPolicy(txn, old, new, func(pair tables.PolicyPair) { r.look(pair, affect) })
			})),
			derive.FromChange(r.Entries, r.entryChanged),
			derive.FromChange(r.Kernel, r.kernelChanged),
			derive.FromIf(r.ClassEntries,
				func(old, new *tables.ClassEntry) bool { return old.Value != new.Value },
				func(_ statedb.ReadTxn, e *tables.ClassEntry, affect func(bpf.ClassKey)) {
					if ofPolicies(e.Key.Role) {
						affect(e.Key)
					}
				}),
		},
		Existing: func(txn statedb.ReadTxn, key bpf.ClassKey) iter.Seq2[*tables.PolicyReadiness, statedb.Revision] {
			return r.Output.List(txn, tables.PolicyReadinessByKey(key))
		},
		Plan: func(txn statedb.ReadTxn, keys []bpf.ClassKey) ([]bpf.ClassKey, func(bpf.ClassKey) []*tables.PolicyReadiness) {
			r.count(txn)
			r.unsettled.check(func(pair tables.PolicyPair) bool { return r.pairs.settled(txn, r.computer, pair) })
			return keys, func(key bpf.ClassKey) []*tables.PolicyReadiness { return r.rows(txn, key) }
		},
		Equal: func(a, b *tables.PolicyReadiness) bool { return *a == *b },
	})
	return err
}

func ofPolicies(role bpf.Role) bool { return role == bpf.RoleSubject || role == bpf.RolePeer }

// classesOf returns the classes of a pair that there are rows of.
func classesOf(pair tables.PolicyPair) []bpf.ClassKey {
	keys := []bpf.ClassKey{{Role: bpf.RoleSubject, Number: pair.Subject}}
	if pair.Peer != bpf.AnyPeerClass {
		keys = append(keys, bpf.ClassKey{Role: bpf.RolePeer, Number: pair.Peer})
	}
	return keys
}

// look has a pair looked at, which may have changed.
func (r *readiness) look(pair tables.PolicyPair, affect func(bpf.ClassKey)) {
	for _, key := range classesOf(pair) {
		r.unsettled.add(pair, key)
		affect(key)
	}
}

// firstClass is a class that there is in the first round.
func (r *readiness) firstClass(txn statedb.ReadTxn, row *tables.ClassMember, affect func(bpf.ClassKey)) {
	affect(bpf.ClassKey{Role: row.Role, Number: row.Class})
	r.pairs.byFirstClass(txn, row, func(pair tables.PolicyPair) { r.look(pair, affect) })
}

func (r *readiness) classChanged(txn statedb.ReadTxn, old, new *tables.ClassMember, affect func(bpf.ClassKey)) {
	row := new
	if row == nil {
		row = old
	}
	if !row.OfClass || !ofPolicies(row.Role) {
		return
	}
	affect(bpf.ClassKey{Role: row.Role, Number: row.Class})
	r.unsettled.touchClass(old, new, affect)
	r.pairs.byClass(txn, old, new, func(pair tables.PolicyPair) { r.look(pair, affect) })
}

func (r *readiness) entryChanged(_ statedb.ReadTxn, old, new *tables.PolicyEntry, affect func(bpf.ClassKey)) {
	if old != nil && new != nil && old.Equal(new) {
		return
	}
	e := new
	if e == nil {
		e = old
	}
	if v := r.changed(e.Key); !v.wantedChanged {
		v.wantedChanged = true
		if old != nil {
			v.wanted = &old.Value
		}
	}
	r.look(e.Pair(), affect)
}

func (r *readiness) kernelChanged(_ statedb.ReadTxn, old, new *tables.PolicyMapEntry, affect func(bpf.ClassKey)) {
	if old != nil && new != nil && old.Value == new.Value {
		return
	}
	e := new
	if e == nil {
		e = old
	}
	if v := r.changed(e.Key); !v.kernelChanged {
		v.kernelChanged = true
		if old != nil {
			v.kernel = &old.Value
		}
	}
	r.look(tables.PairOf(e.Key), affect)
}

func (r *readiness) changed(key bpf.PolicyKey) *verdicts {
	v := r.before[key]
	if v == nil {
		v = &verdicts{}
		r.before[key] = v
	}
	return v
}

// count takes the changes of the round into the tallies.
func (r *readiness) count(txn statedb.ReadTxn) {
	for key, before := range r.before {
		var now verdicts
		if e, _, found := r.Entries.Get(txn, tables.PolicyEntryByKey(key)); found {
			now.wanted = &e.Value
		}
		if e, _, found := r.Kernel.Get(txn, tables.MapEntryByKey[bpf.PolicyKey, bpf.PolicyValue](key)); found {
			now.kernel = &e.Value
		}
		if !before.wantedChanged {
			before.wanted = now.wanted
		}
		if !before.kernelChanged {
			before.kernel = now.kernel
		}
		for _, class := range classesOf(tables.PairOf(key)) {
			t := r.tallies[class]
			t.add(*before, -1)
			t.add(now, 1)
			if r.tallies[class] = t; t == (tally{}) {
				delete(r.tallies, class)
			}
		}
	}
	clear(r.before)
}

// add counts a key n times.
func (t *tally) add(v verdicts, n int) {
	if v.wanted != nil {
		t.wanted += n
	}
	if v.kernel != nil {
		t.kernel += n
	}
	if v.wanted != nil && v.kernel != nil && *v.wanted == *v.kernel {
		t.same += n
	}
}

func (r *readiness) rows(txn statedb.ReadTxn, key bpf.ClassKey) []*tables.PolicyReadiness {
	class := tables.ClassRow(txn, r.Members, key)
	if class == nil {
		return nil
	}
	t := r.tallies[key]
	row := &tables.PolicyReadiness{
		ClassKey: key, Digest: class.Digest, Registered: r.registered(txn, class),
		RowsWanted: t.wanted, RowsReady: t.same, RowsExtra: t.kernel - t.same,
	}
	former, _, found := r.Output.Get(txn, tables.PolicyReadinessByKey(key))
	row.Ready = !class.Ended() &&
		(found && former.Ready && former.Digest == row.Digest || row.Registered && !r.unsettled.waits(key))
	return []*tables.PolicyReadiness{row}
}

// registered reports whether it is recorded what the number of a class stands for.
// While addresses are leaving, that is what it stood for before, as it is to be:
// the number goes on to mean to the rules in force what it did.
func (r *readiness) registered(txn statedb.ReadTxn, class *tables.ClassMember) bool {
	e, _, found := r.ClassEntries.Get(txn, tables.MapEntryByKey[bpf.ClassKey, bpf.ClassValue](bpf.ClassKey{Role: class.Role, Number: class.Class}))
	return found && (e.Value.Digest == class.Digest || len(class.Leaving) > 0)
}
