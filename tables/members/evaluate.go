// SPDX-License-Identifier: Apache-2.0

package members

import (
	"iter"
	"slices"
	"strings"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
)

// evaluation is of selectors that come into use: all members with numbers up to after that
// they select are in classes with them.
type evaluation struct {
	after     uint32
	selectors []*tables.Selector

	// whole is set of one selector that is evaluated alone, and at once: it selects pods of one
	// namespace, which are few, or prefixes, too, whose addresses are up to date in this
	// transaction.
	whole bool
}

// Members cost different work.
const (
	// skippedPerWork is how many members that no selector of an evaluation can select take as
	// long as one that is matched.
	skippedPerWork = 8

	// workOfMember is what a member takes that changes class.
	workOfMember = 8

	// fewSelectors are so few that each member is asked about their anchors. The anchors of the
	// member are looked up if they are more.
	fewSelectors = 8
)

// expect adds a selector to the evaluation that is as far as its key.
func (t *transaction) expect(s *tables.Selector, after uint32) {
	_, ofNamespace := namespaceOfAll(s)
	whole := ofNamespace || len(s.Prefixes()) > 0
	for _, e := range t.evaluations {
		if !whole && !e.whole && e.after == after {
			e.selectors = append(e.selectors, s)
			return
		}
	}
	t.evaluations = append(t.evaluations, &evaluation{after, []*tables.Selector{s}, whole})
}

// namespaceOfAll returns the namespace of all pods that a selector can select, if it is one.
func namespaceOfAll(s *tables.Selector) (namespace string, is bool) {
	anchors := s.Anchors()
	if len(anchors) != 1 {
		return "", false
	}
	return strings.CutPrefix(anchors[0], tables.NamespaceAnchor(""))
}

// membersFor yields the members that an evaluation has to look at.
func (t *transaction) membersFor(e *evaluation) iter.Seq2[*tables.Member, statedb.Revision] {
	if e.whole {
		s := e.selectors[0]
		if namespace, is := namespaceOfAll(s); is {
			return t.Members.Prefix(t.out, tables.MembersOfNamespace(namespace))
		}
		kind := s.Peers[0].Kind
		if len(s.Pods) == 0 && s.Family == 0 && s.Entity == "" && kind != tables.PeerNodes {
			return func(func(*tables.Member, statedb.Revision) bool) {} // it selects addresses only
		}
	}
	return t.Members.LowerBound(t.out, tables.MemberByNumber(e.after+1))
}

// evaluate has members enter classes with the selectors of an evaluation that select them, some
// at a time: then it marks the selectors again, to go on after all prefixes that are marked
// meanwhile. It notes how far they are evaluated.
func (t *transaction) evaluate(e *evaluation) {
	complete := !t.isFull() && t.enterClasses(e)
	for _, s := range e.selectors {
		match := &tables.SelectorMatch{Selector: s.Number, Made: t.made}
		if !complete {
			match.After = e.after
			t.mark(selectorKey(s.Number))
		}
		if complete || e.after > 0 {
			insert(t, t.Matches, match)
		}
	}
}

// enterClasses goes on with an evaluation until the transaction is full, and reports whether it is
// complete.
func (t *transaction) enterClasses(e *evaluation) (complete bool) {
	candidates := newCandidates(e.selectors)
	var entering []uint32 // classes change after the loop, which reads them
	complete = true
	skipped := 0
	for m := range t.membersFor(e) {
		if t.isFull() && !e.whole {
			complete = false
			break
		}
		e.after = m.Number
		some := candidates.of(m)
		if len(some) == 0 {
			if skipped++; skipped%skippedPerWork == 0 {
				t.work++
			}
			continue
		}
		class, _, _ := t.Classes.Get(t.out, tables.ClassByNumber(m.Class))
		namespace := t.namespaceOf(t.in, m)
		if slices.ContainsFunc(some, func(s *tables.Selector) bool {
			t.work++
			return !class.Omits(s) && !class.Selects(s.Number) && t.selects(t.in, s, m, namespace)
		}) {
			entering = append(entering, m.Number)
			t.work += workOfMember
		}
	}
	for _, number := range entering {
		t.member(number)
	}
	return complete
}

// candidates finds the selectors that may select a member.
type candidates struct {
	all      []*tables.Selector
	byAnchor map[string][]*tables.Selector // nil if they are few
	others   []*tables.Selector            // without anchors
}

func newCandidates(selectors []*tables.Selector) *candidates {
	c := &candidates{all: selectors}
	if len(selectors) <= fewSelectors {
		return c
	}
	c.byAnchor = map[string][]*tables.Selector{}
	for _, s := range selectors {
		anchors := s.Anchors()
		for _, a := range anchors {
			c.byAnchor[a] = append(c.byAnchor[a], s)
		}
		if len(anchors) == 0 {
			c.others = append(c.others, s)
		}
	}
	return c
}

// of returns the selectors that may select a member, some of them perhaps twice.
func (c *candidates) of(m *tables.Member) (some []*tables.Selector) {
	if c.byAnchor == nil {
		for _, s := range c.all {
			anchors := s.Anchors()
			if len(anchors) == 0 ||
				m.Labels != nil && slices.ContainsFunc(anchors, m.Labels.HasAnchor) {
				some = append(some, s)
			}
		}
		return some
	}
	some = slices.Clip(c.others)
	if m.Labels != nil {
		for a := range m.Labels.Anchors {
			some = append(some, c.byAnchor[a]...)
		}
	}
	return some
}
