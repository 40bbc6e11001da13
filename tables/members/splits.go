// SPDX-License-Identifier: Apache-2.0

package members

import (
	"encoding/binary"
	"maps"
	"slices"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
)

// splits says whose selectors split the pods of a namespace into classes, one of which is to be
// made.
type splits struct {
	namespace string
	classes   [][]uint32          // selectors of each class
	owners    map[uint32][]string // of these selectors: see ownersOf
	culprit   string
}

// splitsOf returns the splits of a namespace with a class of some selectors. One transaction
// evaluates the first of them, for all, and refuses the selectors of the culprit.
func (t *transaction) splitsOf(namespace string, selectors []uint32) *splits {
	if s := t.split[namespace]; s != nil {
		return s
	}
	s := &splits{
		namespace: namespace, classes: [][]uint32{selectors}, owners: map[uint32][]string{},
	}
	t.split[namespace] = s
	for c := range t.Classes.List(t.out, tables.ClassesByNamespace(namespace)) {
		if !c.Undesired {
			s.classes = append(s.classes, c.Selectors)
		}
	}
	for _, class := range s.classes {
		for _, n := range class {
			if _, known := s.owners[n]; !known {
				s.owners[n] = t.ownersOf(n, namespace)
			}
		}
		t.work++
	}
	if s.culprit = s.findCulprit(); s.culprit != namespace {
		for _, n := range s.splitting(s.culprit) {
			t.refuse(namespace, s.culprit, n)
		}
	}
	return s
}

// ownersOf returns the namespaces whose rulesets name a selector. If the namespace of the pods is
// one, or rulesets of cluster-wide policies name it, there is no other.
func (t *transaction) ownersOf(selector uint32, pods string) (owners []string) {
	for r := range t.Rulesets.List(t.in, tables.RulesetsBySelector(selector)) {
		switch namespace := r.Namespace(); {
		case namespace == pods || namespace == "":
			return []string{pods}
		case !slices.Contains(owners, namespace):
			owners = append(owners, namespace)
		}
	}
	return owners
}

// findCulprit returns the owner without whose selectors there would be the fewest classes. It is
// the namespace itself if no other is worse.
func (s *splits) findCulprit() string {
	owners := map[string]bool{}
	for _, of := range s.owners {
		for _, owner := range of {
			owners[owner] = true
		}
	}
	delete(owners, s.namespace)
	worst, fewest := s.namespace, s.without(s.namespace)
	for _, owner := range slices.Sorted(maps.Keys(owners)) {
		if n := s.without(owner); n < fewest {
			worst, fewest = owner, n
		}
	}
	return worst
}

// without returns how many classes there would be without the selectors of an owner.
func (s *splits) without(owner string) int {
	distinct := map[string]bool{}
	var key []byte
	for _, class := range s.classes {
		key = key[:0]
		for _, n := range class {
			if !slices.Contains(s.owners[n], owner) {
				key = binary.BigEndian.AppendUint32(key, n)
			}
		}
		distinct[string(key)] = true
	}
	return len(distinct)
}

// splitting returns the selectors of an owner that select some classes and not all, in order.
func (s *splits) splitting(owner string) (selectors []uint32) {
	in := map[uint32]int{}
	for _, class := range s.classes {
		for _, n := range class {
			in[n]++
		}
	}
	for _, n := range slices.Sorted(maps.Keys(in)) {
		if in[n] < len(s.classes) && slices.Contains(s.owners[n], owner) {
			selectors = append(selectors, n)
		}
	}
	return selectors
}

// makeRoom is called if a namespace has no room for a class with some selectors. If the policies
// of another namespace split its pods most, their rulesets are refused. It returns the selectors
// that the class may have at present: those that have not been evaluated wait, as no ruleset in
// the kernel can name them.
func (t *transaction) makeRoom(namespace string, selectors []uint32) (rest []uint32) {
	s := t.splitsOf(namespace, selectors)
	if s.culprit == namespace {
		return selectors
	}
	for _, n := range selectors {
		if _, _, evaluated := t.Matches.Get(t.out, tables.SelectorMatchByNumber(n)); evaluated {
			rest = append(rest, n)
		} else {
			t.refuse(namespace, s.culprit, n)
			t.wait(namespace, n)
		}
	}
	return rest
}

// refuse refuses the rulesets of a culprit that name a selector, for the pods of a namespace.
func (t *transaction) refuse(namespace, culprit string, selector uint32) {
	row := t.splitNamespace(namespace)
	for r := range t.Rulesets.List(t.in, tables.RulesetsBySelector(selector)) {
		if r.Namespace() == culprit {
			row.Refused = append(row.Refused, r.Number)
		}
	}
	t.writeSplit(row)
}

// wait notes that a selector is not to be evaluated now.
func (t *transaction) wait(namespace string, selector uint32) {
	row := t.splitNamespace(namespace)
	row.Waiting = append(row.Waiting, selector)
	t.writeSplit(row)
}

// splitNamespace returns a copy of the row of a namespace, or a new one.
func (t *transaction) splitNamespace(namespace string) *tables.SplitNamespace {
	row := &tables.SplitNamespace{Namespace: namespace}
	if old, _, found := t.Split.Get(t.out, tables.SplitNamespaceByName(namespace)); found {
		row.Refused, row.Waiting = slices.Clone(old.Refused), slices.Clone(old.Waiting)
	}
	return row
}

func (t *transaction) writeSplit(row *tables.SplitNamespace) {
	for _, list := range []*[]uint32{&row.Refused, &row.Waiting} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	old, _, found := t.Split.Get(t.out, tables.SplitNamespaceByName(row.Namespace))
	if !found || !slices.Equal(old.Refused, row.Refused) || !slices.Equal(old.Waiting, row.Waiting) {
		insert(t, t.Split, row)
	}
}

// isWaiting reports whether a selector waits. What was computed of it before counts no more.
func (t *transaction) isWaiting(selector uint32) bool {
	for row := range t.Split.All(t.out) {
		if _, is := slices.BinarySearch(row.Waiting, selector); is {
			return true
		}
	}
	return false
}

// resume has a selector wait no longer, unless all rulesets that name it are refused.
func (t *transaction) resume(s *tables.Selector) (resumed bool) {
	rows := statedb.Collect(t.Split.All(t.out))
	for r := range t.Rulesets.List(t.in, tables.RulesetsBySelector(s.Number)) {
		resumed = resumed || !slices.ContainsFunc(rows, func(row *tables.SplitNamespace) bool {
			return row.Refuses(r.Number)
		})
	}
	if !resumed {
		return false
	}
	for _, row := range rows {
		now := t.splitNamespace(row.Namespace)
		now.Waiting = slices.DeleteFunc(now.Waiting, func(n uint32) bool { return n == s.Number })
		t.writeSplit(now)
	}
	t.splitsChanged()
	return true
}

// splitsChanged has the namespaces looked at again whose pods are split, as rulesets, members or
// classes have changed.
func (t *transaction) splitsChanged() {
	if t.Split.NumObjects(t.out) > 0 {
		t.mark(key{kind: ofSplits})
	}
}

// updateSplits has selectors evaluated that wait, and refused pods classified again. It removes
// the rows of namespaces that cannot be split into too many classes any more.
func (t *transaction) updateSplits() {
	for _, row := range statedb.Collect(t.Split.All(t.out)) {
		now := &tables.SplitNamespace{Namespace: row.Namespace}
		hasMany := t.hasMoreMembers(row.Namespace, int(t.Share))
		for _, n := range row.Refused {
			if _, _, found := t.Rulesets.Get(t.in, tables.RulesetByNumber(n)); found && hasMany {
				now.Refused = append(now.Refused, n)
			}
		}
		for _, n := range row.Waiting {
			if _, _, inUse := t.Selectors.Get(t.in, tables.SelectorByNumber(n)); inUse {
				now.Waiting = append(now.Waiting, n)
				t.later[n] = true
			}
		}
		if !hasMany && len(now.Waiting) == 0 {
			remove(t, t.Split, row)
		} else {
			t.writeSplit(now)
		}
		t.markRefused(row.Namespace)
	}
}

func (t *transaction) hasMoreMembers(namespace string, than int) bool {
	for range t.Members.Prefix(t.out, tables.MembersOfNamespace(namespace)) {
		if t.work++; than == 0 {
			return true
		}
		than--
	}
	return false
}
