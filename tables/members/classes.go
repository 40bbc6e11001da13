// SPDX-License-Identifier: Apache-2.0

package members

import (
	"slices"

	"github.com/sluice-net/sluice/bpf"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/tables"
)

// classify writes a member with its present class. old is its former row, nil if there is none.
func (t *transaction) classify(m, old *tables.Member) {
	best := tables.Exact
	switch {
	case m.Scope == tables.ScopeRefused:
		best = tables.Refused
	case m.Undesired && old != nil: // it keeps its selectors, and does not get others
		if class, _, found := t.Classes.Get(t.out, tables.ClassByNumber(old.Class)); found {
			best = class.Precision
		}
	}
	m.Class = t.enterClass(m, best)
	if old == nil || old.Class != m.Class {
		m.Made, m.Status = t.made, reconciler.StatusPending()
	}
	if old != nil && old.Equal(m) {
		return
	}
	insert(t, t.Members, m)
	if old != nil && old.Class != m.Class {
		t.leftClass(old.Class)
	}
}

// selectorsOf returns the numbers of the selectors in use that select a member, in order.
//
// An undesired member keeps its selectors: its addresses were never in a namespace with the present
// labels. New selectors are evaluated for it all the same, as packets of its addresses may be
// judged by them.
func (t *transaction) selectorsOf(m *tables.Member) []uint32 {
	numbers := t.selecting(m)
	if m.Undesired {
		numbers = slices.DeleteFunc(numbers, func(n uint32) bool {
			return t.match(n).IsComplete()
		})
		if class, _, found := t.Classes.Get(t.out, tables.ClassByNumber(m.Class)); found {
			numbers = append(numbers, class.Selectors...)
		}
	}
	slices.Sort(numbers)
	return slices.Compact(numbers)
}

func (t *transaction) selecting(m *tables.Member) []uint32 {
	numbers := slices.Clone(m.CIDRs)
	namespace := t.namespaceOf(t.in, m)
	add := func(query statedb.Query[*tables.Selector]) {
		for s := range tables.ListIfAny(t.in, t.Selectors, query) {
			t.work++
			if t.selects(t.in, s, m, namespace) {
				numbers = append(numbers, s.Number)
			}
		}
	}
	add(tables.SelectorsByKind(tables.PeerEntity))
	add(tables.SelectorsByKind(tables.PeerCIDR)) // of families
	switch m.Scope {
	case tables.ScopeNode:
		add(tables.SelectorsByKind(tables.PeerNodes))
	case tables.ScopePods:
		add(tables.SelectorsByAnchor(tables.AnyAnchor))
		add(tables.SelectorsByAnchor(tables.NamespaceAnchor(m.Namespace)))
		for _, label := range m.Labels.Labels {
			add(tables.SelectorsByAnchor(tables.LabelAnchor(label.Key, label.Value)))
		}
	}
	return numbers
}

// portsOf returns the ports of a member whose names rulesets use, in order.
func (t *transaction) portsOf(m *tables.Member) (ports []tables.NamedPort) {
	if m.Labels == nil {
		return nil
	}
	for _, p := range m.Labels.NamedPorts {
		if _, _, used := t.Rulesets.Get(t.in, tables.RulesetsByPort(p.NameText())); used {
			ports = append(ports, p)
		}
	}
	slices.SortFunc(ports, tables.NamedPort.Compare)
	return slices.Compact(ports)
}

// enterClass returns the number of the class of a member, which is desired from now on: of the best
// precision in which there is such a class, or room for one.
func (t *transaction) enterClass(m *tables.Member, best tables.Precision) uint32 {
	if best != tables.Refused {
		selectors, ports := t.selectorsOf(m), t.portsOf(m)
		if best == tables.Exact {
			class, found := t.classOf(selectors, ports, tables.Exact)
			if found || t.room(m.Namespace, tables.Exact) > 0 {
				return t.desireClass(class, found, m.Namespace)
			}
		}
		selectors = slices.DeleteFunc(selectors, t.isForeign)
		class, found := t.classOf(selectors, ports, tables.Coarse)
		if found || t.room(m.Namespace, tables.Coarse) > 0 {
			return t.desireClass(class, found, m.Namespace)
		}
	}
	class, found := t.classOf(nil, nil, tables.Refused)
	return t.desireClass(class, found, "")
}

func (t *transaction) isForeign(selector uint32) bool {
	s, _, found := t.Selectors.Get(t.in, tables.SelectorByNumber(selector))
	return found && s.Foreign
}

// desireClass returns the number of a class, which is desired from now on. If it is new it counts
// for a namespace.
func (t *transaction) desireClass(class *tables.Class, found bool, namespace string) uint32 {
	switch {
	case !found:
		t.number++
		class.Number, class.Namespace = t.number, namespace
		t.count(class, 1)
		insert(t, t.Classes, class)
	case class.Undesired:
		now := *class
		now.Undesired = false
		t.count(class, 1)
		insert(t, t.Classes, &now)
	}
	return class.Number
}

// classOf returns the class with a content, or what it would be.
func (t *transaction) classOf(
	selectors []uint32, ports []tables.NamedPort, precision tables.Precision,
) (class *tables.Class, found bool) {
	digest := tables.ClassDigest(selectors, ports, precision)
	if class, _, found := t.Classes.Get(t.out, tables.ClassByDigest(digest)); found {
		return class, true
	}
	return &tables.Class{
		Digest: digest, Selectors: selectors, Ports: ports, Precision: precision,
	}, false
}

// room returns how many more classes of a precision can be made for a namespace, beside those
// desired. The classes of nodes and of addresses outside the cluster are of none.
func (t *transaction) room(namespace string, precision tables.Precision) int {
	if namespace == "" {
		return 1
	}
	return int(t.Share) - t.classesOf(namespace)[precision]
}

// classesOf returns how many classes of each precision are desired for a namespace.
func (t *transaction) classesOf(namespace string) map[tables.Precision]int {
	counts := t.classes[namespace]
	if counts == nil {
		counts = map[tables.Precision]int{}
		for c := range t.Classes.List(t.out, tables.ClassesByNamespace(namespace)) {
			if !c.Undesired {
				counts[c.Precision]++
			}
		}
		t.classes[namespace] = counts
	}
	return counts
}

// count counts a class that becomes desired, or ceases to be. It is called before the class is
// written.
func (t *transaction) count(class *tables.Class, n int) {
	t.classesOf(class.Namespace)[class.Precision] += n
}

// markImprecise marks the members that may have a better class by now: those of namespaces of which
// a class has become free, or all if a selector has ended.
func (t *transaction) markImprecise() {
	if len(t.freed) == 0 && !t.ended {
		return
	}
	for _, precision := range []tables.Precision{tables.Coarse, tables.Refused} {
		for class := range t.Classes.List(t.out, tables.ClassesByPrecision(precision)) {
			for m := range t.Members.List(t.out, tables.MembersByClass(class.Number)) {
				if t.ended || t.freed[m.Namespace] {
					t.mark(memberKey(m.Number))
				}
			}
		}
	}
}

// leftClass notes that a member has left a class.
func (t *transaction) leftClass(number uint32) {
	if _, _, others := t.Members.Get(t.out, tables.MembersByClass(number)); others {
		return
	}
	if class, _, found := t.Classes.Get(
		t.out, tables.ClassByNumber(number),
	); found && !class.Undesired {
		now := *class
		now.Undesired = true
		t.count(class, -1)
		insert(t, t.Classes, &now)
		t.mark(classKey(number))
		t.freed[class.Namespace] = true
	}
}

// class removes a class if nothing refers to it any more.
func (t *transaction) class(number uint32) {
	class, _, found := t.Classes.Get(t.out, tables.ClassByNumber(number))
	if !found || !class.Undesired {
		return
	}
	if was, _, found := t.Classes.Get(t.in, tables.ClassByNumber(number)); !found || !was.Undesired {
		t.mark(classKey(number)) // of this transaction
		return
	}
	if _, _, refers := t.PeerMirror.Get(t.in, mirrorsToClass(number)); !refers {
		remove(t, t.Classes, class)
	}
}

func mirrorsToClass(number uint32) statedb.Query[*tables.PeerMirror] {
	return tables.MirrorsTo[bpf.PeerKey, bpf.PeerValue](number)
}
