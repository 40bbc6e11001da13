// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// round is the computation of the classes of some members.
type round struct {
	*partition
	txn statedb.ReadTxn

	planned []memberKey
	empty   bool                             // the table has no rows yet
	few     bool                             // members are looked at, as when a pod comes
	order   []evaluation                     // of the keys with members
	at      positions                        // in order
	parts   map[uint32][]*tables.ClassMember // wanted, by the class that they were in
	former  map[uint32]bpf.Digest            // of the classes that they were in
	meaning map[uint32]bpf.Digest            // of the classes that were divided
	joined  map[bpf.Digest]uint32            // class that members with a signature join
	next    uint32                           // lowest number that may be free

	common    []tables.SelectorID            // of the pods with it
	together  bool                           // no prefix tells pods apart; not looked for but in the first round
	here      map[tables.LabelSetID]struct{} // the label sets of this node's pods
	signer    signer
	standings map[netip.Prefix]standing
	looks     []netip.Prefix            // addresses to be looked at
	parted    map[netip.Prefix]bool     // prefixes of nobody that have come, gone, or changed class
	touched   map[uint32][]netip.Prefix // classes, with who may be leaving them
	classRows map[uint32]*tables.ClassMember
	signed    map[uint32]*tables.ClassMember // a wanted member of each class, when all have one
	force     map[tables.SelectorID]bool     // whether rules in force name a selector
}

// evaluation is what came of a key: its members as they were, and as they are wanted.
type evaluation struct {
	key            memberKey
	former, wanted []*tables.ClassMember
}

// evaluated returns what came of a key, nil if it was not evaluated, or has no
// members and had none. It is good until the next one is evaluated.
func (r *round) evaluated(key memberKey) *evaluation {
	if i, found := r.at.of(key); found {
		return &r.order[i]
	}
	return nil
}

// positions are those of keys. Most are of label sets, which are found faster by these
// alone.
type positions struct {
	sets   map[tables.LabelSetID]int
	others map[memberKey]int
}

func (p *positions) of(key memberKey) (at int, found bool) {
	if key.set != (tables.LabelSetID{}) {
		at, found = p.sets[key.set]
	} else {
		at, found = p.others[key]
	}
	return at, found
}

func (p *positions) set(key memberKey, at int) {
	if key.set != (tables.LabelSetID{}) {
		p.sets[key.set] = at
		return
	}
	if p.others == nil {
		p.others = map[memberKey]int{}
	}
	p.others[key] = at
}

// few are so few members that it is not worth to make a map of what they have in
// common.
const few = 4

func (p *partition) newRound(txn statedb.ReadTxn, keys []memberKey) *round {
	count := 0 // all label sets are of peers, few are under other roles
	if p.role == bpf.RolePeer {
		count = len(keys)
	}
	r := &round{
		partition: p, txn: txn, next: 1, empty: p.Output.NumObjects(txn) == 0, few: len(keys) <= few,
		order: make([]evaluation, 0, count), at: positions{sets: make(map[tables.LabelSetID]int, count)},
		parts: map[uint32][]*tables.ClassMember{}, former: map[uint32]bpf.Digest{},
		meaning: map[uint32]bpf.Digest{}, joined: map[bpf.Digest]uint32{},
		touched: map[uint32][]netip.Prefix{}, classRows: map[uint32]*tables.ClassMember{},
		standings: map[netip.Prefix]standing{}, parted: map[netip.Prefix]bool{},
	}
	p.chooser.begin(txn)
	r.together = r.empty && !p.tellsPodsApart(txn)
	r.signer.known = func(d bpf.Digest) *tables.ClassMember { return p.memberWith(txn, d) }
	return r
}

func (p *partition) plan(txn statedb.ReadTxn, keys []memberKey) *round {
	r := p.newRound(txn, keys)
	divided := map[uint32]bool{}
	for _, key := range keys {
		switch {
		case key.role == 0:
			r.evaluate(memberKey{role: p.role, set: key.set}, divided)
		case key.role != p.role:
		case key.of == ofSelector:
			r.planned = append(r.planned, key)
		case key.of == ofClass:
			r.touch(uint32(key.number), key.prefix)
		case key.of == ofAddress:
			r.looks = append(r.looks, key.prefix)
		default:
			r.evaluate(key, divided)
		}
	}
	for _, number := range slices.Sorted(maps.Keys(divided)) {
		r.divide(number)
	}
	r.evaluateDoubles()
	r.merge()
	r.join()
	p.scope.finish(r)
	p.chooser.end()
	if !r.few {
		p.roster.expect(r.order)
	}
	r.planned = slices.Grow(r.planned, len(r.order)+len(r.classRows))
	for i := range r.order {
		p.roster.take(&r.order[i])
		r.planned = append(r.planned, r.order[i].key)
	}
	r.noteDoubles()
	for _, number := range slices.Sorted(maps.Keys(r.classRows)) {
		r.planned = append(r.planned, classKey(p.role, number, netip.Prefix{}))
	}
	return r
}

func (r *round) rows(key memberKey) []*tables.ClassMember {
	switch key.of {
	case ofClass:
		if row := r.classRows[uint32(key.number)]; row != nil {
			return []*tables.ClassMember{row}
		}
		return nil
	case ofMember:
		return r.evaluated(key).wanted
	}
	s, _, found := r.Selectors.Get(r.txn, tables.SelectorByID(tables.SelectorID(key.number)))
	if !found || !r.scope.evaluated(r.txn, s) {
		return nil
	}
	return []*tables.ClassMember{{Role: r.role, Evaluated: s.ID, Version: s.Version}}
}
