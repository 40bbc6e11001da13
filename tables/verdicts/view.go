// SPDX-License-Identifier: Apache-2.0

package verdicts

import (
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// view is a ruleset, prepared to compute its content for many classes.
type view [bpf.Directions]*side

// work counts what a transaction has done, in pairs, rows and, as these are computed more
// quickly, [contributionsPerWork] contributions.
type work int

const contributionsPerWork = 4

// contributed counts the computation of a content.
func (w *work) contributed(n int) { *w += work(n / contributionsPerWork) }

// side is one direction of a ruleset.
type side struct {
	base     contributions // of any peer, and the default
	anyNamed []*statement  // of any peer, by names of the peer's ports
	byPeer   map[uint32][]*statement
	coarse   []*statement // of coarse classes
	any      *content     // of classes without special rules

	// contents are those of classes, by the rules that apply to them: a ruleset has the same
	// content for most classes that it selects.
	contents map[string]*content
}

// statement is what a rule says about traffic.
type statement struct {
	contribution
	place uint32              // in the ruleset
	keys  []bpf.VerdictKey    // without set
	named []tables.PolicyPort // by names of the peer's ports
}

// refused is the content of refused classes in every ruleset.
var refused = contributions{anyTraffic: {{deny: true}}}.content()

func newView(r *tables.Ruleset, w *work) *view {
	v := &view{}
	for _, d := range directions {
		v[d] = newSide(r, d, w)
	}
	return v
}

func newSide(r *tables.Ruleset, d bpf.Direction, w *work) *side {
	s := &side{
		base: contributions{}, byPeer: map[uint32][]*statement{}, contents: map[string]*content{},
	}
	hasDefault, read := false, 0
	for place, rule := range r.Rules {
		if rule.Direction != d || rule.NoPorts {
			continue
		}
		st := newStatement(uint32(place), rule)
		read += len(st.keys) + len(rule.Peers)
		switch {
		case rule.DefaultDeny:
			hasDefault = true
			s.base.add(st, nil)
		case rule.AnyPeer:
			s.base.add(st, nil)
			if len(st.named) > 0 {
				s.anyNamed = append(s.anyNamed, st)
			}
		default:
			if rule.DeniesCoarse {
				s.coarse = append(s.coarse, st)
			}
			for _, peer := range rule.Peers {
				s.byPeer[peer] = append(s.byPeer[peer], st)
			}
		}
	}
	w.contributed(read)
	if !hasDefault {
		s.base[anyTraffic] = append(s.base[anyTraffic], contribution{deny: r.AlwaysDeny})
	}
	s.any = s.base.content()
	return s
}

func newStatement(place uint32, r *tables.Rule) *statement {
	st := &statement{place: place, contribution: contribution{rule: r.RuleID, precedence: byAllow}}
	switch {
	case r.DefaultDeny:
		st.precedence, st.deny = byDefault, true
	case r.Deny:
		st.precedence, st.deny = byDeny, true
	}
	if len(r.Ports) == 0 {
		st.keys = []bpf.VerdictKey{anyTraffic}
	}
	for _, p := range r.Ports {
		if p.Name != "" {
			st.named = append(st.named, p)
			continue
		}
		for _, prefix := range PortPrefixes(p.First, p.Last) {
			st.keys = append(st.keys, bpf.VerdictKeyOf(0, p.Protocol, prefix.Port, prefix.Bits))
		}
	}
	return st
}

// names reports whether the rule names the port.
func (s *statement) names(port tables.NamedPort) bool {
	return slices.ContainsFunc(s.named, func(p tables.PolicyPort) bool {
		return p.Name == port.Name && p.Protocol == port.Protocol
	})
}

// anyPeerPorts returns the port names in rules for any peer, in the form http/tcp.
func (s *side) anyPeerPorts() []string {
	var names []string
	for _, st := range s.anyNamed {
		for _, p := range st.named {
			names = append(names, p.String())
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// of returns the content for a class.
func (s *side) of(c *tables.Class, w *work) *content {
	var special []*statement
	switch c.Precision {
	case tables.Refused:
		return refused
	case tables.Coarse:
		special = slices.Clone(s.coarse)
	}
	for _, selector := range c.Selectors {
		special = append(special, s.byPeer[selector]...)
	}
	slices.SortFunc(special, func(a, b *statement) int { return cmp.Compare(a.place, b.place) })
	special = slices.Compact(special)

	var ports []tables.NamedPort
	for _, p := range c.Ports {
		names := func(st *statement) bool { return st.names(p) }
		if slices.ContainsFunc(special, names) || slices.ContainsFunc(s.anyNamed, names) {
			ports = append(ports, p)
		}
	}
	if len(special)+len(ports) == 0 {
		return s.any
	}
	by := whatApplies(special, ports)
	says := s.contents[by]
	if says == nil {
		all := s.base.clone()
		for _, st := range special {
			all.add(st, ports)
		}
		for _, st := range s.anyNamed {
			all.addNamed(st, ports)
		}
		w.contributed(len(all))
		says = all.content()
		s.contents[by] = says
	}
	return says
}

// selectorsOfEntry is how many selectors of a ruleset that select a class one entry stands for. A
// class lists all selectors that select it, in about 200 bytes of memory each, so the size of
// sluice_policy bounds these, too.
const selectorsOfEntry = 16

// weight returns how many entries one about a class counts for.
func (s *side) weight(c *tables.Class) int {
	n := 0
	for _, selector := range c.Selectors {
		if _, names := s.byPeer[selector]; names {
			n++
		}
	}
	return 1 + n/selectorsOfEntry
}

// whatApplies identifies statements of a side, and the numbers of ports that they name.
func whatApplies(statements []*statement, ports []tables.NamedPort) string {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(statements)))
	for _, st := range statements {
		b = binary.BigEndian.AppendUint32(b, st.place)
	}
	for _, p := range ports {
		b = append(append(b, p.String()...), 0)
	}
	return string(b)
}
