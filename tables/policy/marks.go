// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/tables"
)

func markPolicy(_ statedb.ReadTxn, p *tables.NetworkPolicy, mark func(tables.PolicyID)) {
	mark(p.ID())
}

func markCompiled(_ statedb.ReadTxn, p *tables.CompiledPolicy, mark func(tables.PolicyID)) {
	mark(p.Policy)
}

func markRuleset(_ statedb.ReadTxn, r *tables.Ruleset, mark func(tables.PolicyID)) {
	for _, id := range r.Policies {
		mark(id)
	}
}

func movesSubject(old, new *tables.Subject) bool {
	return old.Ruleset != new.Ruleset || old.Undesired != new.Undesired ||
		isDone(old) != isDone(new) || IsRefused(old.Status) != IsRefused(new.Status)
}

func isDone(s *tables.Subject) bool { return s.Status.Kind == reconciler.StatusKindDone }

func (s *params) markSubject(
	in statedb.ReadTxn, subject *tables.Subject, mark func(tables.PolicyID),
) {
	s.markRulesetNumber(in, subject.Ruleset, mark)
}

func (s *params) markSubjectNumber(in statedb.ReadTxn, number uint32, mark func(tables.PolicyID)) {
	if subject, _, found := s.Subjects.Get(in, tables.SubjectByNumber(number)); found {
		s.markSubject(in, subject, mark)
	}
}

func (s *params) markRulesetNumber(in statedb.ReadTxn, number uint32, mark func(tables.PolicyID)) {
	if r, _, found := s.Rulesets.Get(in, tables.RulesetByNumber(number)); found {
		markRuleset(in, r, mark)
	}
}

func (s *params) markMirror(
	in statedb.ReadTxn, m *tables.SubjectMirror, mark func(tables.PolicyID),
) {
	s.markSubjectNumber(in, m.Key.Subject, mark)
	for _, v := range m.Values() {
		s.markRulesetNumber(in, v.Ruleset, mark)
	}
}

func (s *params) markPod(in statedb.ReadTxn, p *tables.Pod, mark func(tables.PolicyID)) {
	s.markSubjectNumber(in, p.Subject, mark)
}

// markPodMirror marks the policies of the subject that the kernel has a pod in, and of the one
// where it is desired.
func (s *params) markPodMirror(
	in statedb.ReadTxn, m *tables.PodMirror, mark func(tables.PolicyID),
) {
	for _, v := range m.Values() {
		s.markSubjectNumber(in, v.Subject, mark)
	}
	if pod, _, found := s.Pods.Get(in, tables.PodByAddr(m.Key.Addr.Addr())); found {
		s.markSubjectNumber(in, pod.Subject, mark)
	}
}

// markComplete marks the policies of a ruleset when all its entries are computed: these may refer
// to a verdict that the kernel has refused before.
func (s *params) markComplete(
	in statedb.ReadTxn, row *tables.Compiled, mark func(tables.PolicyID),
) {
	if row.Role == tables.CompiledRuleset {
		s.markRulesetNumber(in, row.Number, mark)
	}
}

// markEntry marks the policies of a ruleset of which the kernel refuses an entry, or does not
// any more. That the kernel has an entry does not matter before it has the subjects in the ruleset.
func (s *params) markEntry(
	in statedb.ReadTxn, old, new *tables.PolicyEntry, mark func(tables.PolicyID),
) {
	was := old != nil && IsRefused(old.Status)
	is := new != nil && IsRefused(new.Status)
	if was == is {
		return
	}
	entry := new
	if new == nil {
		entry = old
	}
	s.markRulesetNumber(in, entry.Ruleset, mark)
}

// markVerdict marks the policies of the rulesets with a verdict when the kernel refuses it, or no
// longer does.
func (s *params) markVerdict(
	in statedb.ReadTxn, old, new *tables.Verdict, mark func(tables.PolicyID),
) {
	was := old != nil && IsRefused(old.Status)
	is := new != nil && IsRefused(new.Status)
	if was == is {
		return
	}
	verdict := new
	if new == nil {
		verdict = old
	}
	last := uint32(0)
	for e := range s.Entries.List(in, tables.PolicyEntriesBySet(verdict.Key.Set)) {
		if e.Ruleset != last {
			last = e.Ruleset
			s.markRulesetNumber(in, last, mark)
		}
	}
}
